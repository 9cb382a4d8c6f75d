"""Every fault of a file or its disk reaches the caller as a Holdfast error, and no acknowledged write is lost."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import SchemaTooNew
from holdfast.processes import External
from holdfast.sessions import FullGraph

WAIT_S = 60
STATE = {"kept": "s" * 4_000}


def fill(path: Path, turns: int = 30) -> None:
    """Create a database with rows of every kind; closed and intact."""
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        for number in range(turns):
            session.commit(
                holdfast.Commit(
                    turn_id=f"turn-{number}",
                    graph=holdfast.Append([holdfast.Node(f"n{number}", payload="p" * 2_000)], leaf=f"n{number}"),
                    checkpoint=holdfast.Checkpoint(turn_state={**STATE, "n": number}),
                    enqueues=[holdfast.WorkDraft(payloads=[number])],
                )
            )
        session.attachments.put(b"a" * 5_000)
        store.processes.register(holdfast.ProcessRegistration("job", External({"x": "y" * 500})))
        store.events.append("job", "process.waiting", 1)
        store.artifacts.put_content("module", b"m" * 5_000)


def use(path: Path) -> list[str]:
    """Open the file and use every part of it; return the names of the errors. Only Holdfast errors may be raised."""
    found: list[str] = []
    try:
        store = holdfast.open_blocking(path)
    except holdfast.HoldfastError as error:
        return [type(error).__name__]
    calls: list[Callable[[], object]] = [
        store.sessions.list,
        lambda: store.sessions.handle("chat").load(FullGraph()),
        lambda: store.sessions.handle("chat").history(limit=1_000),
        lambda: store.queue.claim("chat", owner_id="w"),
        lambda: store.events.after("job"),
        lambda: store.sessions.handle("chat").commit(holdfast.Commit(config=1)),
        store.maintenance.stats,
        store.maintenance.verify,
        store.maintenance.collect_garbage,
        lambda: store.sessions.delete("chat"),
        store.close,
    ]
    for call in calls:
        try:
            call()
        except holdfast.HoldfastError as error:
            found.append(type(error).__name__)
    return found


def run(program: str, *arguments: str) -> None:
    """Run a program in its own process; it must exit cleanly."""
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert result.returncode == 0, result.stdout + result.stderr


# ---------------------------------------------------------------------------- what is opened


@pytest.mark.parametrize(
    "url",
    [
        None, 7, b"state.db", object(), [], "", " ", "sqlite:", "state\0.db", "sqlite:state\0.db", "state\ud800.db",
        "http://example.org/x", Path("state\0.db"), "x" * 10_000,
    ],
    ids=lambda url: f"{type(url).__name__} {ascii(url)[:20]}",
)  # fmt: skip
def test_a_url_that_names_no_database_is_refused_by_name(url: Any) -> None:
    with pytest.raises(holdfast.InvalidRequest) as blocking:
        holdfast.open_blocking(url)
    assert blocking.value.field == "url"

    async def opened() -> None:
        await holdfast.open(url)

    with pytest.raises(holdfast.InvalidRequest) as asynchronous:
        asyncio.run(opened())
    assert asynchronous.value.field == "url"


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"options": 7}, "options"),
    ({"options": {}}, "options"),
    ({"options": holdfast.SqliteOptions(synchronous="never")}, "options.synchronous"),  # pyright: ignore
    ({"options": holdfast.SqliteOptions(busy_timeout_ms=-1)}, "options.busy_timeout_ms"),
    ({"options": holdfast.SqliteOptions(busy_timeout_ms=2**63)}, "options.busy_timeout_ms"),
    ({"options": holdfast.SqliteOptions(cache_kib=-1)}, "options.cache_kib"),
    ({"options": holdfast.SqliteOptions(readers=0)}, "options.readers"),
    ({"options": holdfast.SqliteOptions(group_size=0)}, "options.group_size"),
    ({"options": holdfast.SqliteOptions(migrate=1)}, "options.migrate"),  # pyright: ignore
    ({"limits": 7}, "limits"),
    ({"limits": None}, "limits"),
    ({"limits": holdfast.Limits(id_bytes="512")}, "limits.id_bytes"),  # pyright: ignore
    ({"limits": holdfast.Limits(document_depth=-1)}, "limits.document_depth"),
    ({"limits": holdfast.Limits(page=None)}, "limits.page"),  # pyright: ignore
    ({"limits": holdfast.Limits(ttl_ms=2**63)}, "limits.ttl_ms"),
    ({"clock": 7}, "clock"),
    ({"attachments": 7}, "attachments"),
    ({"attachments": "a\0b"}, "attachments"),
]


@pytest.mark.parametrize(
    ("arguments", "field"),
    WRONG_OPTIONS,
    ids=[f"{field} {number}" for number, (_, field) in enumerate(WRONG_OPTIONS)],
)
def test_a_wrong_option_is_refused_by_name_and_no_file_is_made(
    tmp_path: Path, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(holdfast.InvalidRequest) as refused:
        holdfast.open_blocking(tmp_path / "state.db", **arguments).close()
    assert refused.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_a_folder_and_a_file_in_no_folder_are_refused_as_the_url(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "no" / "state.db", tmp_path / "file" / "state.db"):
        with pytest.raises(holdfast.InvalidRequest) as refused:
            holdfast.open_blocking(path)
        assert refused.value.field == "url"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_of_no_length_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    assert use(path) == ["UnknownProcess"]


@pytest.mark.parametrize(
    "content", [b"hello", b"\0" * 20_000, b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5_000]
)
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """A file that begins like a database is reported as damaged; any other file, as not a database."""
    path = tmp_path / "state.db"
    path.write_bytes(content)
    kind = holdfast.Corrupt if content.startswith(b"SQLite format 3") else holdfast.Incompatible
    with pytest.raises(kind) as refused:
        holdfast.open_blocking(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_incompatible_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE sessions (session_id TEXT)")
    other.execute("INSERT INTO sessions VALUES ('theirs')")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(holdfast.Incompatible):
        holdfast.open_blocking(path)
    assert path.read_bytes() == before


AS_NOBODY = """
import ctypes, os, sys
import holdfast
holdfast.open_blocking("sqlite::memory:").close()  # everything is loaded while the interpreter's files can be read
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    holdfast.open_blocking(sys.argv[1])
except holdfast.Unavailable as error:
    assert type(error) is holdfast.Unavailable
    assert sys.argv[1] in error.message
    assert error.outcome == "not_applied"
else:
    raise SystemExit("it was opened")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o000, 0o777), (0o444, 0o555), (0o666, 0o000)])
def test_a_file_without_permission_is_unavailable_and_whole(file_mode: int, folder_mode: int) -> None:
    # Not in tmp_path, whose parents other users cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        fill(path, 3)
        before = path.read_bytes()
        path.chmod(file_mode)
        Path(folder).chmod(folder_mode)
        run(AS_NOBODY, str(path))
        Path(folder).chmod(0o755)
        path.chmod(0o644)
        assert path.read_bytes() == before
        assert use(path) == []


# ---------------------------------------------------------------------------- what is damaged


@pytest.mark.parametrize("part", [0.001, 0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_truncated_file_is_corrupt_and_never_another_truth(tmp_path: Path, part: float) -> None:
    path = tmp_path / "state.db"
    fill(path)
    os.truncate(path, int(path.stat().st_size * part))
    errors = use(path)
    assert errors
    assert set(errors) <= {"Corrupt", "Unavailable"}
    assert "Corrupt" in errors


def test_any_flipped_byte_is_noticed_or_harmless_to_checkpoints(tmp_path: Path) -> None:
    original = tmp_path / "state.db"
    fill(original, 8)
    whole = original.read_bytes()
    chance = random.Random(20_26)
    kinds: set[type] = set()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        try:
            with holdfast.open_blocking(path) as store:
                view = store.sessions.handle("chat").load()
                assert view is None or view.checkpoint is None or view.checkpoint.turn_state == {**STATE, "n": 7}
        except holdfast.HoldfastError as error:
            kinds.add(type(error))
        assert set(use(path)) <= {
            "Corrupt",
            "Unavailable",
            "Incompatible",
            "SchemaTooNew",
            "SessionDeleted",
            "InvalidRequest",
        }
        for leftover in tmp_path.glob("damaged.db*"):
            leftover.unlink()
    assert holdfast.Corrupt in kinds
    assert kinds <= {holdfast.Corrupt, holdfast.Incompatible, SchemaTooNew, holdfast.Unavailable}


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "removed", "log removed", "log overwritten"])
def test_a_file_that_is_damaged_while_it_is_open_raises_nothing_but_our_errors(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.db"
    fill(path, 5)
    store = holdfast.open_blocking(path)
    session = store.sessions.handle("chat")
    session.commit(holdfast.Commit(config="before"))
    log = Path(f"{path}-wal")
    if damage == "truncated":
        os.truncate(path, 20_000)
    elif damage == "overwritten":
        path.write_bytes(os.urandom(path.stat().st_size))
    elif damage == "removed":
        path.unlink()
    elif damage == "log removed":
        log.unlink()
    else:
        log.write_bytes(os.urandom(log.stat().st_size))
    calls: list[Callable[[], object]] = [
        lambda: session.load(FullGraph()),
        lambda: session.commit(holdfast.Commit(config="x" * 100_000)),
        store.maintenance.verify,
        store.maintenance.stats,
        store.sessions.list,
        store.close,
    ]
    strays: list[BaseException] = []
    for call in calls:
        try:
            call()
        except holdfast.HoldfastError:
            pass
        except BaseException as error:
            strays.append(error)
    assert strays == []


# ---------------------------------------------------------------------------- a full disk


FULL_DISK = """
import os, random, resource, sys, threading
import holdfast

path = sys.argv[1]
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)

def room(bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, most))

def largest():
    return max(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))

store = holdfast.open_blocking(path)
sessions = [store.sessions.create(f"chat-{n}") for n in range(4)]
acknowledged = {n: [] for n in range(4)}
uncertain = {n: False for n in range(4)}
refused = []

def write(n, times):
    for _ in range(times):
        name = f"{n}-{len(acknowledged[n]) + 1}"
        payload = random.Random(name).randbytes(30_000).hex()
        turn = holdfast.Commit(turn_id=name, graph=holdfast.Append([holdfast.Node(name, payload=payload)]))
        try:
            acknowledged[n].append(sessions[n].commit(turn).revision)
        except holdfast.Unavailable as error:
            assert error.outcome in ("not_applied", "unknown"), error.outcome
            refused.append(error)
            uncertain[n] = uncertain[n] or error.outcome == "unknown"
        else:
            uncertain[n] = False

def write_all(times):
    threads = [threading.Thread(target=write, args=(n, times)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

def check(store):
    for n in range(4):
        history = [entry.revision for entry in store.sessions.handle(f"chat-{n}").history(limit=1000)]
        answer = acknowledged[n]
        # An uncertain turn may be stored. Sent again, it is stored once.
        assert history in ([answer, answer + [len(answer) + 1]] if uncertain[n] else [answer]), (history, answer)
    report = store.maintenance.verify()
    assert report.ok, report

write_all(3)
assert not refused
for times in range(3):
    room(largest() + 150_000)
    write_all(6)
    assert refused, "the disk did not fill"
    check(store)
    stuck = len(refused)
    room(most)
    write_all(2)
    assert len(refused) == stuck, refused[-1]
    assert not any(uncertain.values())
    check(store)
room(largest())
write_all(1)
store.close()
room(most)
with holdfast.open_blocking(path) as again:
    check(again)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_full_disk_refuses_what_does_not_fit_and_work_continues_once_there_is_room(tmp_path: Path) -> None:
    run(FULL_DISK, str(tmp_path / "state.db"))


FULL_BEFORE_OPENING = """
import resource, sys
import holdfast

path, folder = sys.argv[1], sys.argv[2]
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for allowed in (0, 100, 4_096, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, most))
    try:
        holdfast.open_blocking(path)
    except holdfast.Unavailable as error:
        assert error.outcome == "not_applied"
    else:
        raise SystemExit(f"opened with {allowed} bytes")
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
with holdfast.open_blocking(path, attachments=folder) as store:
    session = store.sessions.create("chat")
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, most))
    try:
        session.attachments.put(b"a" * 400_000)
    except holdfast.Unavailable:
        pass
    else:
        raise SystemExit("stored more than fits")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    ref = session.attachments.put(b"a" * 400_000)
    session.commit(holdfast.Commit(attachments=[ref.id]))
    assert session.attachments.get(ref.id).data == b"a" * 400_000
    assert store.maintenance.verify().ok
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_disk_that_is_full_from_the_start_can_be_tried_again(tmp_path: Path) -> None:
    run(FULL_BEFORE_OPENING, str(tmp_path / "state.db"), str(tmp_path / "attachments"))
    assert [path.name for path in (tmp_path / "attachments").rglob("*.tmp")] == []
