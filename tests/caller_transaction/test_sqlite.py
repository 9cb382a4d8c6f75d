"""A connection to SQLite is accepted only if it cannot break the store's guarantees."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite import budget

WORK = holdfast.WorkDraft(session_id="chat", payloads=["ship it"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


@pytest.fixture
def store(path: Path) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(path) as opened:
        yield opened


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., apsw.Connection]]:
    made: list[apsw.Connection] = []

    def one(*arguments: Any, **keywords: Any) -> apsw.Connection:
        made.append(apsw.Connection(*(arguments or (str(path),)), **keywords))
        return made[-1]

    yield one
    for connection in made:
        connection.close()


def test_the_standard_librarys_sqlite_is_refused_with_the_reason(store: Any, path: Path) -> None:
    class Mine(sqlite3.Connection):
        pass

    # Of separate files: opening the store's file would be the very mistake.
    for connection in (sqlite3.connect(":memory:"), sqlite3.connect(":memory:", factory=Mine)):
        with pytest.raises(holdfast.InvalidRequest, match="another copy of SQLite"):
            store.within(connection)
        connection.close()


def test_a_closed_connection_is_refused(store: Any, connect: Any) -> None:
    connection = connect()
    connection.close()
    with pytest.raises(holdfast.InvalidRequest, match="connection: is closed"):
        store.within(connection)


def test_a_connection_to_another_file_is_refused(store: Any, connect: Any, tmp_path: Path, path: Path) -> None:
    for connection in (connect(":memory:"), connect(str(tmp_path / "other.db"))):
        connection.execute("BEGIN IMMEDIATE; CREATE TABLE t (x)")
        with pytest.raises(holdfast.InvalidRequest, match="not the file of this store"):
            store.within(connection)
    attached = connect(":memory:")
    attached.execute("ATTACH ? AS agents", (str(path),))
    attached.execute("BEGIN IMMEDIATE")
    with pytest.raises(holdfast.InvalidRequest, match="not the file of this store"):
        store.within(attached)
    attached.execute("ROLLBACK")


def test_the_same_file_by_another_name_is_accepted(store: Any, connect: Any, tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    connection = connect(str(link))
    connection.execute("BEGIN IMMEDIATE")
    store.within(connection).queue.enqueue(WORK)
    connection.execute("COMMIT")
    assert len(store.queue.list("chat")) == 1


def test_only_a_write_transaction_is_accepted(store: Any, connect: Any) -> None:
    connection = connect()
    for begin in ("BEGIN", "BEGIN; SELECT count(*) FROM sqlite_schema"):
        connection.execute(begin).fetchall()
        with pytest.raises(holdfast.InvalidRequest, match="BEGIN IMMEDIATE first"):
            store.within(connection)
        connection.execute("ROLLBACK")
    connection.execute("CREATE TABLE orders (id)")
    # The transaction of apsw's own context manager becomes a write transaction at its first write.
    with connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        store.within(connection).queue.enqueue(WORK)
    assert len(store.queue.list("chat")) == 1
    with pytest.raises(ZeroDivisionError):
        write_and_fail(store, connection)
    assert len(store.queue.list("chat")) == 1


def write_and_fail(store: Any, connection: apsw.Connection) -> None:
    with connection:
        connection.execute("INSERT INTO orders VALUES (2)")
        store.within(connection).queue.enqueue(WORK)
        raise ZeroDivisionError


def test_a_connection_that_is_less_durable_than_the_store_is_refused(store: Any, connect: Any) -> None:
    connection = connect()
    connection.pragma("synchronous", "normal")
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(holdfast.InvalidRequest, match="PRAGMA synchronous is normal, and the store's commits are full"):
        store.within(connection)
    connection.execute("ROLLBACK")
    connection.pragma("synchronous", "extra")
    connection.execute("BEGIN IMMEDIATE")
    store.within(connection).queue.enqueue(WORK)
    connection.execute("COMMIT")


def test_a_connection_that_may_not_write_is_refused(store: Any, connect: Any) -> None:
    connection = connect()
    connection.execute("BEGIN IMMEDIATE")
    connection.pragma("query_only", 1)
    with pytest.raises(holdfast.InvalidRequest, match="query_only"):
        store.within(connection)
    connection.execute("ROLLBACK")


@pytest.mark.parametrize(
    "shadow",
    [
        "CREATE TEMP TABLE sessions (x)",
        "CREATE TEMP VIEW Batches AS SELECT 1",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON main.batches BEGIN SELECT 1; END",
    ],
)
def test_a_temporary_object_that_hides_a_table_is_refused(store: Any, connect: Any, shadow: str) -> None:
    connection = connect()
    connection.execute("BEGIN IMMEDIATE")
    within = store.within(connection)
    connection.execute(shadow)
    with pytest.raises(holdfast.InvalidRequest, match="hides or touches a table"):
        within.queue.enqueue(WORK)
    connection.execute("ROLLBACK")


def test_settings_of_the_caller_s_connection_change_nothing(store: Any, connect: Any) -> None:
    connection = connect()
    connection.row_trace = lambda _, row: {"row": row}
    connection.exec_trace = lambda *_: True
    connection.convert_jsonb = lambda *_: "converted"
    connection.cursor_factory = lambda _: None
    apsw.Cursor(connection).execute("BEGIN IMMEDIATE")
    within = store.within(connection)
    session = within.sessions.create("chat", name="first")
    turn = holdfast.Commit(turn_id="t", checkpoint=holdfast.Checkpoint(execution_state=b"\x0b\x00\x1b"))
    session.commit(turn)
    assert session.load().checkpoint.execution_state == b"\x0b\x00\x1b"
    apsw.Cursor(connection).execute("COMMIT")
    assert store.sessions.open("chat").meta().name == "first"
    assert store.maintenance.verify().ok


def test_hooks_of_the_caller_stay_and_its_last_key_is_its_own(store: Any, connect: Any) -> None:
    connection = connect()
    received: list[str] = []
    connection.set_update_hook(lambda _kind, _database, table, _rowid: received.append(f"update {table}"))
    connection.set_commit_hook(lambda: bool(received.append("commit")))
    connection.set_authorizer(lambda *_: apsw.SQLITE_OK)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO orders VALUES (77)")
    within = store.within(connection)
    within.queue.enqueue(WORK)
    with pytest.raises(holdfast.UnknownProcess):
        within.events.append("nobody", "progress")
    assert connection.last_insert_rowid() == 77
    assert connection.authorizer is not None
    received.clear()
    connection.execute("INSERT INTO orders VALUES (78); COMMIT")
    assert received == ["update orders", "commit"]


def test_a_waiter_of_the_store_itself_wakes_after_the_commit(store: Any, connect: Any) -> None:
    connection = connect()
    found: list[int] = []

    def wait() -> None:
        store.queue.wait("chat", timeout_ms=30_000)
        found.append(len(store.queue.list("chat")))

    waiter = threading.Thread(target=wait)
    waiter.start()
    connection.execute("BEGIN IMMEDIATE")
    within = store.within(connection)
    within.queue.enqueue(WORK)
    within.queue.enqueue(WORK)
    connection.execute("COMMIT")
    waiter.join(30)
    assert found == [2]


def test_a_write_of_the_store_itself_waits_for_the_callers_transaction(path: Path, connect: Any) -> None:
    with holdfast.open_blocking(path, options=holdfast.SqliteOptions(busy_timeout_ms=50)) as store:
        connection = connect()
        connection.execute("BEGIN IMMEDIATE")
        store.within(connection).queue.enqueue(WORK)
        with pytest.raises(holdfast.Unavailable, match="another connection holds the database"):
            store.queue.enqueue(WORK)
        connection.execute("COMMIT")
        assert len(store.queue.list("chat")) == 1


def test_a_store_in_memory_has_no_connection_to_lend_to(connect: Any) -> None:
    with holdfast.open_blocking("sqlite::memory:") as store, pytest.raises(holdfast.InvalidRequest, match="use a file"):
        store.within(connect(":memory:"))


def test_a_transaction_that_sqlite_gave_up_stays_given_up(store: Any, connect: Any, path: Path) -> None:
    connection = connect()
    connection.execute("BEGIN IMMEDIATE")
    within = store.within(connection)
    within.queue.enqueue(WORK)
    connection.pragma("max_page_count", connection.pragma("page_count") + 1)
    big = holdfast.WorkDraft(session_id="chat", payloads=["x" * 500_000])
    with pytest.raises(holdfast.Unavailable):
        within.queue.enqueue(big)
    if connection.in_transaction:
        connection.execute("COMMIT")
        assert len(store.queue.list("chat")) == 1
    else:
        with pytest.raises(holdfast.InvalidRequest, match="BEGIN IMMEDIATE first"):
            within.queue.enqueue(WORK)
        assert len(store.queue.list("chat")) == 0


def test_a_closed_store_is_closed_inside_a_transaction_too(path: Path, connect: Any) -> None:
    store = holdfast.open_blocking(path)
    connection = connect()
    connection.execute("BEGIN IMMEDIATE")
    within = store.within(connection)
    store.close()
    with pytest.raises(holdfast.errors.StoreClosed):
        within.queue.enqueue(WORK)
    connection.execute("ROLLBACK")


def test_bytes_outside_of_the_database_take_no_part(path: Path, connect: Any, tmp_path: Path) -> None:
    with holdfast.open_blocking(path, attachments=tmp_path / "bytes") as store:
        ref = store.sessions.create("chat").attachments.put(b"put before")
        connection = connect()
        connection.execute("BEGIN IMMEDIATE")
        session = store.within(connection).sessions.handle("chat")
        with pytest.raises(holdfast.InvalidRequest, match="putting bytes outside of the database cannot be a part"):
            session.attachments.put(b"put inside")
        assert session.attachments.get(ref.id).data == b"put before"
        assert session.attachments.forget(ref.id)
        connection.execute("ROLLBACK")
        # The row came back, so the bytes must still exist.
        assert store.sessions.handle("chat").attachments.get(ref.id).data == b"put before"
        connection.execute("BEGIN IMMEDIATE")
        assert store.within(connection).sessions.delete("chat").deleted
        connection.execute("COMMIT")
        assert store.attachments.sweep(older_than_ms=0).deleted_objects == 1


def test_a_large_read_after_a_change_of_the_working_directory_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the rows were more than what any file may hold, whatever its size.
    monkeypatch.setattr(budget, "BASE_BYTES", 0)
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with holdfast.open_blocking("agents.db") as store:
        for number in range(40):
            store.artifacts.put("kind", f"ref-{number}", b"x")
        connection = apsw.Connection("agents.db")
        connection.execute("PRAGMA synchronous = FULL; BEGIN IMMEDIATE")
        within = store.within(connection)
        monkeypatch.chdir(elsewhere)
        assert len(within.artifacts.list(limit=40)) == 40
        connection.execute("ROLLBACK")
        connection.close()
