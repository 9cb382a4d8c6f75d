"""An operation runs in a savepoint of a caller's transaction, in his thread, if his connection keeps our promises.

The connection must be of the SQLite library that this backend uses. Two copies of SQLite in one process, such as apsw's
and the standard library's, do not know of each other's locks: when one closes the file, the operating system drops the
locks of the other, and two writers may write at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import apsw

from holdfast.backends.sqlite.link import LEVELS, Bindings, Link, statements
from holdfast.backends.sqlite.opening import SCHEMA_VERSION, schema_text
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.backends.sqlite.translation import translated
from holdfast.clock import read_clock
from holdfast.errors import InvalidRequest, Unavailable
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.rows import EventFilter, ViewQuery
from holdfast.waiting import BorrowedBackend, Waiting, run_to_end

T = TypeVar("T")


@lru_cache(maxsize=1)
def table_names() -> str:
    """Our tables, as one parameter."""
    return json_list(re.findall(r"^CREATE TABLE (\w+)", schema_text(), re.MULTILINE))


class Lent:
    """A caller's connection through cursors of our own, so that what he set on it changes nothing of what we read."""

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def _cursor(self) -> apsw.Cursor:
        # Not the connection's own `cursor()`, which may be made by a factory of the caller's.
        cursor = apsw.Cursor(self._connection)
        if self._connection.row_trace is not None:
            cursor.row_trace = _as_it_is
        if self._connection.exec_trace is not None:
            cursor.exec_trace = _go_on
        if self._connection.convert_jsonb is not None:
            cursor.convert_jsonb = _as_bytes
        return cursor

    def execute(self, text: str, bindings: Any = ()) -> apsw.Cursor:
        """Run one statement."""
        return self._cursor().execute(text, bindings)

    def executemany(self, text: str, rows: Any) -> apsw.Cursor:
        """Run one statement for each row."""
        return self._cursor().executemany(text, rows)

    def changes(self) -> int:
        """How many rows the last statement changed."""
        return self._connection.changes()

    @property
    def in_transaction(self) -> bool:
        """Whether the caller's transaction is still there."""
        return self._connection.in_transaction


def _as_it_is(_: object, row: Any) -> Any:
    return row


def _go_on(*_: object) -> bool:
    return True


def _as_bytes(_: object, __: object, value: bytes) -> bytes:
    return value


class LentLink(Link):
    """A link over a connection that is not ours to open, configure or close."""

    __slots__ = ()

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self.path = path
        self.statements_run = 0
        # A statement outside of the caller's transaction would be committed by itself.
        self.in_group = True
        self._texts = statements()
        self.connection = cast("apsw.Connection", Lent(connection))

    def one(self, name: str, bindings: Bindings = ()) -> Any:
        """The first column of the first row, None if there is none."""
        found = self.all(name, bindings)
        return found[0][0] if found else None


class BorrowedSqlite(BorrowedBackend):
    """Implements `ports.Backend` inside transactions of one connection of a caller's."""

    durability: Literal["ephemeral", "durable"] = "durable"
    schema_version = SCHEMA_VERSION

    def __init__(
        self,
        connection: object,
        own: Link,
        options: SqliteOptions,
        clock: Clock,
        waiting: Waiting,
        check_usable: Callable[[], None],
    ) -> None:
        self._connection = checked(connection)
        self._path = own.path
        self._own_vfs = own.connection.open_vfs
        self._options = options
        self._clock = clock
        self._waiting = waiting
        self._check_usable = check_usable
        self._link = LentLink(self._connection, own.path)
        self._lock = threading.Lock()
        self._closed = False
        self._admit()

    def __repr__(self) -> str:
        return f"sqlite:{self._path} within a transaction"

    def ddl(self) -> str:
        """The statements that make the schema."""
        return schema_text()

    async def write(
        self, operation: Operation[T], *, one_step: bool = False, repeatable: bool = False, line: str | None = None
    ) -> T:
        """Run an operation in the caller's transaction; a raise leaves no trace, and the transaction as it was."""
        self._check_usable()
        with self._lock:
            self._admit()
            try:
                return self._run(operation)
            except apsw.Error as error:
                raise translated(error, self._path) from error

    async def read(self, operation: Operation[T], *, view: ViewQuery | EventFilter | None = None) -> T:
        """The same: a write transaction is a snapshot in which the caller's own changes show."""
        return await self.write(operation)

    def _run(self, operation: Operation[T]) -> T:
        link = self._link
        rowid = self._connection.last_insert_rowid()
        link.control("save_operation")
        try:
            result = run_to_end(operation(SqliteTransaction(link, read_clock(self._clock))))
            if not link.connection.in_transaction:
                raise self._given_up()
            link.control("release_operation")
        except BaseException:
            self._undo()
            raise
        finally:
            # The caller may ask for the key of a row inserted before.
            self._connection.set_last_insert_rowid(rowid)
        return result

    def _undo(self) -> None:
        link = self._link
        if not link.connection.in_transaction:
            return  # SQLite gave everything up by itself, the caller's changes included
        try:
            link.control("undo_operation")
            link.control("release_operation")
        except apsw.Error as error:
            # Half an operation must not be committed, not even by somebody who does not look at errors.
            if link.connection.in_transaction:
                link.control("rollback")
            raise self._given_up() from error

    def _given_up(self) -> Unavailable:
        return Unavailable(f"{self._path}: SQLite gave your transaction up: begin it again")

    def _admit(self) -> None:
        """Refuse a connection that is not in a write transaction, or would not keep what the store promises."""
        connection, link = self._connection, self._link
        if self._closed:
            raise InvalidRequest("store", "was closed: call within() again")
        try:
            state = connection.txn_state("main")
        except apsw.ConnectionClosedError:
            raise InvalidRequest("connection", "is closed") from None
        if not _same_file(connection.db_filename("main"), self._path):
            raise InvalidRequest("connection", f"its main database is not the file of this store, {self._path}")
        if connection.open_vfs != self._own_vfs:
            raise InvalidRequest(
                "connection", f"was opened with the VFS {connection.open_vfs!r}, not {self._own_vfs!r}"
            )
        if connection.readonly("main"):
            raise InvalidRequest("connection", "was opened for reading only")
        if not connection.in_transaction or state != apsw.SQLITE_TXN_WRITE:
            raise InvalidRequest("connection", "is in no write transaction: BEGIN IMMEDIATE first")
        if link.one("query_only"):
            raise InvalidRequest("connection", "may only read: PRAGMA query_only is set")
        level = int(link.one("synchronous"))
        wanted = LEVELS.index(self._options.synchronous)
        if level < wanted:
            raise InvalidRequest(
                "connection",
                f"PRAGMA synchronous is {LEVELS[level]}, and the store's commits are {LEVELS[wanted]}: "
                "set it before BEGIN",
            )
        shadow = link.one("find_shadows", (table_names(),))
        if shadow is not None:
            raise InvalidRequest("connection", f"its temporary {shadow!r} hides or touches a table of the store's")

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up anybody else."""
        return await self._waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return run_to_end(work)

    async def close(self) -> None:
        """Refuse what comes later. The transaction and the connection are the caller's."""
        self._closed = True


def checked(connection: object) -> apsw.Connection:
    """A connection of the SQLite library that this backend uses."""
    if isinstance(connection, apsw.Connection):
        try:
            is_async = connection.is_async
        except apsw.ConnectionClosedError:
            raise InvalidRequest("connection", "is closed") from None
        if is_async:
            raise InvalidRequest("connection", "is async: an operation runs in your thread, and needs a plain one")
        return connection
    kind = type(connection)
    if kind.__module__ == "sqlite3" or any(parent.__module__ == "sqlite3" for parent in kind.__mro__):
        raise InvalidRequest(
            "connection",
            "is of the standard library's sqlite3, another copy of SQLite, which beside this one may damage the file: "
            "use apsw.Connection",
        )
    raise InvalidRequest("connection", f"must be an apsw.Connection, not {kind.__name__}")


def _same_file(theirs: str, ours: str) -> bool:
    try:
        return bool(theirs) and Path(theirs).samefile(ours)
    except OSError:
        return False
