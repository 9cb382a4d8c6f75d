"""A file is opened only if it is a store of a supported version."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import schema_setup
from holdfast.errors import (
    Corrupt,
    HoldfastError,
    Incompatible,
    InvalidRequest,
    SchemaMissing,
    SchemaTooNew,
    Unavailable,
)

WAIT_S = 100


def content_of(path: Path) -> list[Any]:
    with_schema = apsw.Connection(str(path))
    found = with_schema.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()
    with_schema.close()
    return found


def foreign(path: Path, *statements: str) -> bytes:
    other = apsw.Connection(str(path))
    for statement in statements:
        other.execute(statement)
    other.close()
    return path.read_bytes()


def test_a_new_file_gets_our_mark_our_version_our_pages_and_a_write_ahead_log(store: Any) -> None:
    found = {
        name: store.connection.pragma(name) for name in ("application_id", "user_version", "page_size", "journal_mode")
    }
    assert found == {"application_id": 0x484F4C44, "user_version": 1, "page_size": 4_096, "journal_mode": "wal"}
    assert store.backend.durability == "durable"
    assert store.backend.schema_version == 1


@pytest.mark.parametrize(("word", "number"), [("off", 0), ("normal", 1), ("full", 2), ("extra", 3)])
def test_the_durability_that_was_asked_for_holds_on_every_connection(open_store: Any, word: str, number: int) -> None:
    store = open_store(synchronous=word)

    async def ask(transaction: Any) -> int:
        return int(transaction._runner.pragma("synchronous"))

    assert (store.write(ask), store.read(ask)) == (number, number)


def test_a_file_is_opened_again_with_what_it_holds(open_store: Any) -> None:
    first = open_store()
    first.call("insert_batches", [])
    first.call("save_lease", opening_lease())
    first.close()
    assert open_store().ask("find_lease", "process", "p") == opening_lease()
    assert open_store(migrate=False).ask("find_lease", "process", "p") == opening_lease()


def opening_lease() -> Any:
    from holdfast import rows as r

    return r.LeaseRow("process", "p", "me", "th", 1, 2, 3)


def test_replaying_every_migration_gives_the_schema_of_a_new_file(store: Any, path: Path, tmp_path: Path) -> None:
    steps = schema_setup.migrations()
    assert list(steps) == list(range(1, schema_setup.SCHEMA_VERSION + 1))
    replayed = tmp_path / "replayed.db"
    foreign(replayed, *steps.values())
    assert content_of(replayed) == content_of(path)


def test_the_schema_can_be_printed_and_replayed(store: Any, path: Path, tmp_path: Path) -> None:
    foreign(tmp_path / "copy.db", store.backend.ddl())
    assert content_of(tmp_path / "copy.db") == content_of(path)


def test_every_table_is_strict_and_every_table_is_dumped(store: Any) -> None:
    tables = store.connection.execute(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%'"
    ).fetchall()
    assert {strict for _, strict in tables} == {1}
    assert {name for name, _ in tables} == set(store.backend.dump())


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["CREATE TABLE notes (x)"], Incompatible),
        (["CREATE VIEW notes AS SELECT 1"], Incompatible),
        (["PRAGMA application_id = 7"], Incompatible),
        (["PRAGMA user_version = 1"], Incompatible),
        (["PRAGMA application_id = 0x484F4C44"], Incompatible),
        (["PRAGMA application_id = 0x484F4C44", "PRAGMA user_version = 2"], SchemaTooNew),
    ],
    ids=repr,
)
def test_a_foreign_file_is_refused_and_left_as_it_was(
    open_store: Any, path: Path, statements: list[str], expected: type[HoldfastError]
) -> None:
    before = foreign(path, *statements)
    with pytest.raises(expected) as refused:
        open_store()
    assert type(refused.value) is expected
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_newer_schema_says_which_versions_are_meant(open_store: Any, path: Path) -> None:
    foreign(path, "PRAGMA application_id = 0x484F4C44", "PRAGMA user_version = 9")
    with pytest.raises(SchemaTooNew) as refused:
        open_store()
    assert (refused.value.found, refused.value.known) == (9, 1)


@pytest.mark.parametrize("exists", [False, True])
def test_without_leave_to_migrate_nothing_is_created(open_store: Any, path: Path, exists: bool) -> None:
    if exists:
        path.touch()
    with pytest.raises(SchemaMissing) as refused:
        open_store(migrate=False)
    assert (refused.value.found, refused.value.known) == (0, 1)
    assert path.exists() is exists
    assert not exists or path.stat().st_size == 0


def test_an_empty_file_is_a_new_file(open_store: Any, path: Path) -> None:
    path.touch()
    assert open_store().ask("fence_floor") == 0


@pytest.mark.parametrize("size", [50, 99, 100, 512, 16_384, 40_000])
def test_a_truncated_file_is_corrupt(open_store: Any, path: Path, size: int) -> None:
    open_store().close()
    os.truncate(path, size)
    with pytest.raises(Corrupt):
        open_store().ask("stats", 0)


@pytest.mark.parametrize("content", [b"hello", b"x" * 5_000, b"\0" * 20_000], ids=["short", "long", "zeros"])
def test_a_file_that_is_not_a_database_is_incompatible(open_store: Any, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Incompatible, match="is not a Holdfast store"):
        open_store()
    assert path.read_bytes() == content


def test_a_folder_a_missing_folder_and_no_name_are_wrong_calls(open_store: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is a folder"):
        open_store(tmp_path)
    with pytest.raises(InvalidRequest, match="does not exist"):
        open_store(tmp_path / "no" / "state.db")
    with pytest.raises(InvalidRequest, match="must name a file"):
        open_store("")


AS_SOMEBODY_ELSE = """
import ctypes, os, sys
from holdfast.backends.sqlite import SqliteBackend, SqliteOptions, schema_setup
from holdfast.backends.sqlite.connection import statements
from holdfast.errors import Unavailable
from holdfast.wait import BlockingWaiting
schema_setup.schema_text(), schema_setup.migrations(), statements()  # what is read later must be read before
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    SqliteBackend.open(sys.argv[1], SqliteOptions(busy_timeout_ms=100), None, BlockingWaiting())
except Unavailable as error:
    assert "permissions" in error.message, error.message
else:
    raise SystemExit("it was opened")
"""


@pytest.mark.parametrize("file_mode", [0o444, 0o000], ids=["read-only", "unreadable"])
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_a_file_without_permission_is_unavailable(open_store: Any, file_mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        open_store(path).close()
        path.chmod(file_mode)
        Path(folder).chmod(0o777)
        result = run(AS_SOMEBODY_ELSE, str(path))
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_a_folder_without_permission_is_unavailable() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        result = run(AS_SOMEBODY_ELSE, str(Path(folder) / "state.db"))
        assert result.returncode == 0, result.stdout + result.stderr
        Path(folder).chmod(0o755)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=WAIT_S
    )


def test_a_file_that_stays_locked_is_unavailable(open_store: Any, path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable) as refused:
        open_store(busy_timeout_ms=30)
    assert isinstance(refused.value.__cause__, apsw.BusyError)
    other.execute("ROLLBACK")
    other.close()
    open_store()


def test_an_open_store_does_not_keep_others_from_opening_while_it_writes(open_store: Any) -> None:
    first = open_store()
    first.connection.execute("BEGIN IMMEDIATE")
    assert open_store(busy_timeout_ms=30).ask("fence_floor") == 0
    first.connection.execute("ROLLBACK")


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Patch the schema version to that of the next release, whose migration the test writes."""
    steps: dict[int, str] = {}
    monkeypatch.setattr(schema_setup, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(schema_setup, "migrations", lambda: steps)
    return steps


def test_an_older_file_is_migrated_and_keeps_what_it_holds(open_store: Any, request: pytest.FixtureRequest) -> None:
    first = open_store()
    first.call("save_lease", opening_lease())
    first.close()
    steps = request.getfixturevalue("next_version")
    steps[2] = "ALTER TABLE settings ADD COLUMN note TEXT; CREATE INDEX leases_owner ON leases (owner_id)"
    with pytest.raises(SchemaMissing) as refused:
        open_store(migrate=False)
    assert (refused.value.found, refused.value.known) == (1, 2)
    store = open_store()
    assert store.connection.pragma("user_version") == 2
    assert store.ask("find_lease", "process", "p") == opening_lease()
    assert len(store.connection.execute("SELECT note FROM settings").fetchall()) == 0


def test_a_migration_that_fails_leaves_the_file_in_its_old_version(
    open_store: Any, path: Path, request: pytest.FixtureRequest
) -> None:
    open_store().close()
    before = content_of(path)
    request.getfixturevalue("next_version")[2] = "CREATE TABLE half (x); CREATE TABLE half (x)"
    with pytest.raises(Corrupt):
        open_store()
    other = apsw.Connection(str(path))
    assert other.pragma("user_version") == 1
    other.close()
    assert content_of(path) == before


@pytest.mark.parametrize(
    ("url", "relative", "absolute"),
    [
        ("sqlite:///x.db", "sqlite:x.db", "sqlite:/x.db"),
        ("sqlite://x.db", "sqlite:x.db", "sqlite:/x.db"),
        ("sqlite:///data/x.db", "sqlite:data/x.db", "sqlite:/data/x.db"),
        ("sqlite://", "sqlite:agent.db", "sqlite:/agent.db"),
    ],
)
def test_a_url_that_others_read_differently_is_refused_with_both_spellings(
    url: str, relative: str, absolute: str
) -> None:
    for call in (holdfast.open_blocking, holdfast.ddl):
        with pytest.raises(holdfast.InvalidRequest) as caught:
            call(url)
        assert caught.value.field == "url"
        assert f"write {relative} for the first, {absolute} for the second" in caught.value.message


def test_possible_passwords_are_not_repeated() -> None:
    with pytest.raises(holdfast.InvalidRequest) as caught:
        holdfast.open_blocking("sqlite://ada:secret@host/x.db")
    assert "secret" not in caught.value.message
    assert "write sqlite:<path>" in caught.value.message


def test_parameters_of_a_url_are_not_taken_for_a_part_of_the_name(tmp_path: Path) -> None:
    with pytest.raises(holdfast.InvalidRequest, match="without parameters"):
        holdfast.open_blocking(f"sqlite:{tmp_path}/x.db?mode=ro")
    holdfast.open_blocking(f"{tmp_path}/x.db?").close()
    # Four slashes are an absolute path in every convention.
    holdfast.open_blocking(f"sqlite:///{tmp_path}/y.db").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db?", "y.db"]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("memory", "a store in memory is memory: and nothing more; a file of this name is ./memory"),
        ("MEMORY:", "a store in memory is memory:"),
        ("memory:x", "a store in memory is memory:"),
        ("memory://", "a store in memory is memory:"),
        ("sqlite:memory:", "a SQLite database in memory is sqlite::memory:"),
        ("sqlite:memory", "a SQLite database in memory is sqlite::memory:"),
        ("sqlite:::memory:", "a SQLite database in memory is sqlite::memory:"),
        ("sqlite::memory:x", "a SQLite database in memory is sqlite::memory:"),
        ("sqlite:///:memory:", "a SQLite database in memory is sqlite::memory:"),
        (":MEMORY:", "a SQLite database in memory is sqlite::memory:"),
        ("sqlite3:foo.db", "write sqlite:foo.db"),
        ("SQLITE:foo.db", "write sqlite:foo.db"),
        ("sqlite+aiosqlite:foo.db", "write sqlite:foo.db"),
        ("sqlite+aiosqlite:///foo.db", "write sqlite:foo.db for the first, sqlite:/foo.db for the second"),
        ("file:foo.db?mode=ro", "write sqlite:foo.db"),
        ("file:///data/foo.db", "write sqlite:/data/foo.db"),
        ("file:", "write sqlite:agent.db"),
        ("x:y.db", "'x' is not a database that this version knows"),
        ("C:\\x.db", "a path whose first name has a colon begins with ./ or /"),
        ("a b://x", "this is not a database that this version knows"),
        ("sqlite:\\x.db", "write / between folders"),
        ("sqlite:a%20b.db", "write the characters themselves"),
        ("sqlite:x.db#y", "without parameters"),
        (" x.db", "white space around it"),
        ("x.db\n", "white space around it"),
        ("x\ty.db", "cannot be printed"),
        ("new/", "new/ is a folder: name a file in it, such as new/agent.db"),
        ("~/x.db", "write the path in full, /home/ada/x.db"),
        ("sqlite:~/x.db", "write the path in full, /home/ada/x.db"),
        (Path("~/x.db"), "write the path in full, /home/ada/x.db"),
    ],
    ids=repr,
)
def test_a_spelling_that_would_name_an_odd_file_is_refused_with_the_right_one(
    url: Any, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    for call in (holdfast.open_blocking, holdfast.ddl):
        with pytest.raises(holdfast.InvalidRequest) as caught:
            call(url)
        assert caught.value.field == "url"
        assert advice in caught.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("./memory", "memory"),
        ("sqlite:./memory:", "memory:"),
        ("./x:y.db", "x:y.db"),
        ("12:30.db", "12:30.db"),
        ("memory.db", "memory.db"),
        ("a%20b.db", "a%20b.db"),
        ("a b.db", "a b.db"),
        ("~nobody-of-this-name.db", "~nobody-of-this-name.db"),
        (Path("memory"), "memory"),
        (Path(" x\\y.db "), " x\\y.db "),
    ],
    ids=repr,
)
def test_a_file_of_an_odd_name_can_be_named(
    url: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    holdfast.open_blocking(url).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_for_attachments_is_not_called_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    with pytest.raises(holdfast.InvalidRequest, match="attachments: ~ is only expanded by a shell"):
        holdfast.open_blocking("memory:", attachments="~/files")
    assert list(tmp_path.iterdir()) == []
