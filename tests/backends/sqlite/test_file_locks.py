"""Locks on a SQLite file hold, or the file is refused: forks, hard links, mount points, other copies of SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.sqlite.file_locks import FileLocks
from holdfast.backends.sqlite.filesystem import mounts_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX locks")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open file descriptions")

WAIT_S = 60


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


def turns(path: Path) -> int:
    with holdfast.open_blocking(path) as store:
        assert store.maintenance.verify().findings == ()
        view = store.sessions.handle("chat").load()
        return 0 if view is None else view.revision


# ---------------------------------------------------------------------------- fork

IN_A_CHILD = """
import os, sys
import apsw, holdfast

def in_a_child(work):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except holdfast.errors.StoreForked as error:
            answer = f"StoreForked {error.retryable} {error}"
        except BaseException as error:
            answer = repr(error)
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answers:
        reported = answers.read()
    os.waitpid(pid, 0)
    return reported

def write(path):
    with holdfast.open_blocking(path) as store:
        return f"wrote {store.sessions.handle('chat').commit(holdfast.Commit()).revision}"

path, another = sys.argv[1:]
"""

REFUSED = """
store = holdfast.open_blocking(path)
reported = in_a_child(lambda: write(path))
assert reported.startswith("StoreForked False") and "before you fork" in reported and "spawn" in reported, reported
reported = in_a_child(lambda: in_a_child(lambda: write(path)))
assert reported.startswith("StoreForked"), reported
reported = in_a_child(lambda: store.sessions.handle("chat").commit(holdfast.Commit()))
assert reported.startswith("StoreForked False") and "spawn" in reported, reported
# The child may open a file that the parent does not have open.
holdfast.open_blocking(another).close()
assert in_a_child(lambda: write(another)) == "wrote 1"
assert store.sessions.handle("chat").commit(holdfast.Commit()).revision == 1
store.close()
assert in_a_child(lambda: write(path)) == "wrote 2"
connection = apsw.Connection(path)
connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
assert in_a_child(lambda: write(path)).startswith("StoreForked")
"""


def test_a_child_is_refused_every_file_that_was_open_at_the_fork(tmp_path: Path) -> None:
    result = run(IN_A_CHILD + REFUSED, tmp_path / "a.db", tmp_path / "b.db")
    assert result.returncode == 0, result.stdout + result.stderr
    assert turns(tmp_path / "a.db") == 2


DROPPED = """
import gc
store = holdfast.open_blocking(path)
store.sessions.handle("chat").commit(holdfast.Commit())

def drop():
    global store
    del store
    gc.collect()
    return "dropped"

assert in_a_child(drop) == "dropped"
assert os.path.exists(path + "-wal")
for number in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{number}") == path:
            print(open(f"/proc/self/fdinfo/{number}").read())
    except FileNotFoundError:
        pass  # the descriptor of the listing itself
store.close()
assert not os.path.exists(path + "-wal")
"""


@on_linux
def test_a_child_that_drops_an_inherited_store_leaves_the_parents_locks(tmp_path: Path) -> None:
    result = run("import warnings; warnings.simplefilter('ignore')" + IN_A_CHILD + DROPPED, tmp_path / "a.db", "-")
    assert result.returncode == 0, result.stdout + result.stderr
    locks = {line for line in result.stdout.splitlines() if line.startswith("lock:") and "1073741826" in line}
    assert sorted(line.split()[2] for line in locks) == ["OFDLCK", "POSIX"]


# ---------------------------------------------------------------------------- names and places


def test_a_file_with_two_names_is_refused_until_one_is_removed(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    holdfast.open_blocking(path).close()
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(holdfast.InvalidRequest, match="2 names"):
            holdfast.open_blocking(name)
    other.unlink()
    holdfast.open_blocking(path).close()


MOUNTED = """
mount --bind "$1" "$2" && exec "$3" -c '
import sys, holdfast
holdfast.open_blocking(sys.argv[1]).close()
try:
    holdfast.open_blocking(sys.argv[2])
except holdfast.InvalidRequest as error:
    assert "mount the folder" in str(error), error
else:
    raise SystemExit(1)
' "$1" "$2"
"""


def test_a_file_that_is_a_mount_point_is_refused(tmp_path: Path) -> None:
    path, mounted = tmp_path / "a.db", tmp_path / "with blank.db"
    holdfast.open_blocking(path).close()
    mounted.touch()
    command = ["unshare", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*command, "mount --bind /tmp /tmp"], check=False).returncode:
        pytest.skip("only root mounts")
    arguments = [MOUNTED, "sh", str(path), str(mounted), sys.executable]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_table_of_mounts_is_read_by_place_and_kind() -> None:
    table = "1 2 0:1 / / rw - ext4 /dev/a rw\n3 1 0:1 /a.db /x/with\\040blank.db rw shared:1 - ext4 /dev/a rw\nnonsense"
    assert list(mounts_in(table)) == [("/", "ext4"), ("/x/with blank.db", "ext4")]


# ---------------------------------------------------------------------------- permissions


def modes(folder: Path) -> dict[str, str]:
    return {entry.name: f"{entry.stat().st_mode & 0o777:o}" for entry in folder.rglob("*")}


@pytest.mark.parametrize(
    ("umask", "given", "file", "folder"),
    [
        (0, {}, "600", "700"),
        (0o77, {"file_mode": 0o640}, "640", "750"),
        (0o277, {}, "600", "700"),
        (0o777, {}, "600", "700"),
    ],
)
def test_only_file_mode_widens_the_permissions_of_new_files(
    tmp_path: Path, umask: int, given: dict[str, int], file: str, folder: str
) -> None:
    before = os.umask(umask)
    try:
        with holdfast.open_blocking(tmp_path / "a.db", attachments=tmp_path / "bytes", **given) as store:
            session = store.sessions.create("chat")
            session.attachments.put(b"picture")
            found = modes(tmp_path)
    finally:
        os.umask(before)
    folders = {name: mode for name, mode in found.items() if mode in {"700", "750"}}
    assert set(folders.values()) == {folder}
    assert len(folders) == 3
    assert {"a.db", "a.db-wal", "a.db-shm"} < found.keys()
    assert {mode for name, mode in found.items() if name not in folders} == {file}


def test_files_and_folders_that_exist_keep_their_permissions(tmp_path: Path) -> None:
    path, folder = tmp_path / "a.db", tmp_path / "bytes"
    holdfast.open_blocking(path).close()
    path.chmod(0o664)
    folder.mkdir()
    folder.chmod(0o755)
    with holdfast.open_blocking(path, attachments=folder) as store:
        store.sessions.create("chat").attachments.put(b"picture")
        found = modes(tmp_path)
    assert (found["a.db"], found["a.db-wal"], found["bytes"]) == ("664", "664", "755")


@pytest.mark.parametrize("mode", [0, 0o400, 0o066, 0o700, 0o1600, -1, True, "600"])
def test_a_file_mode_that_shuts_the_owner_out_or_lets_files_run_is_refused(mode: object) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="file_mode"):
        holdfast.open_blocking("memory:", file_mode=mode)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- another copy of SQLite in this process

KILLED_AFTER = """
import os, signal, sqlite3, sys
import holdfast

store = holdfast.open_blocking(sys.argv[1])
session = store.sessions.handle("chat")
session.commit(holdfast.Commit())
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT count(*) FROM sqlite_schema").fetchall()
other.close()
for _ in range(5):
    revision = session.commit(holdfast.Commit()).revision
print(revision, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_turns_survive_a_kill_after_the_standard_librarys_sqlite_closed_the_file(tmp_path: Path) -> None:
    result = run(KILLED_AFTER, tmp_path / "a.db")
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, "6\n"), result.stderr
    assert turns(tmp_path / "a.db") == 6


WRITES_ONCE = """
import sys, holdfast
with holdfast.open_blocking(sys.argv[1]) as store:
    store.sessions.handle("other").commit(holdfast.Commit())
"""


@on_linux
def test_a_commit_whose_lock_was_dropped_is_refused_once_another_process_has_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def dropped(transaction: Any) -> None:
        await transaction.save_artifact(r.ArtifactRow("k", "never", "h", "raw", 1, transaction.now_ms, b"x"))
        with closing(sqlite3.connect(path)) as other:
            other.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        result = run(WRITES_ONCE, path)
        assert result.returncode == 0, result.stderr

    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        backend: Any = store._backend
        with pytest.raises(holdfast.Unavailable, match="another writer committed") as caught:
            backend.drive(backend.write(dropped))
        assert caught.value.outcome == "not_applied"
        assert session.commit(holdfast.Commit()).revision == 1
        assert store.sessions.handle("other").load() is not None
        assert store.maintenance.verify().findings == ()
    assert not path.with_name("a.db-wal").exists()


@on_linux
def test_a_file_that_another_copy_of_sqlite_has_open_here_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holdfast.open_blocking(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with pytest.raises(holdfast.InvalidRequest, match="another copy of SQLite"):
            holdfast.open_blocking(path)
    holdfast.open_blocking(path).close()


@on_linux
def test_two_stores_of_one_process_share_the_locks_and_the_last_one_removes_the_log(tmp_path: Path) -> None:
    path, log = tmp_path / "a.db", tmp_path / "a.db-wal"
    first, second = holdfast.open_blocking(path), holdfast.open_blocking(path)
    first.sessions.create("chat")
    first.close()
    # The other store's locks still keep another copy of SQLite from removing the log.
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    assert log.exists()
    second.sessions.handle("chat").commit(holdfast.Commit())
    second.close()
    assert not log.exists()
    assert turns(path) == 1


@on_linux
def test_where_there_are_no_such_locks_a_store_works_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("holdfast.backends.sqlite.file_locks._lock", refuse)
    with closing(apsw.Connection(str(tmp_path / "other.db"))) as connection:
        assert FileLocks.hold(str(tmp_path / "other.db")) is None
        connection.pragma("journal_mode", "wal")
        connection.execute("CREATE TABLE t (x)")
        assert FileLocks.hold(str(tmp_path / "other.db")) is None
    with holdfast.open_blocking(tmp_path / "a.db") as store:
        store.sessions.handle("chat").commit(holdfast.Commit())
    assert turns(tmp_path / "a.db") == 1
