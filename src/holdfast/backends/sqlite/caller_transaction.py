"""Run operations in savepoints of a caller's transaction, in the caller's thread.

The caller's connection must keep the store's guarantees, and belong to the SQLite library that this backend uses. Two
copies of SQLite in one process, such as apsw's and the standard library's, do not know of each other's locks: when one
closes the file, the operating system drops the locks of the other, and two writers may write at once.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, cast

import apsw

from holdfast.backends.sqlite.budget import Bindings, Budget
from holdfast.backends.sqlite.connection import LEVELS, StatementRunner, statements
from holdfast.backends.sqlite.driver_errors import translated
from holdfast.backends.sqlite.schema_setup import SCHEMA_VERSION, schema_text, table_names
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.clock import read_clock
from holdfast.errors import InvalidRequest, Unavailable
from holdfast.interrupts import raised_by_handler
from holdfast.open_transaction import CallerTransaction
from holdfast.ports import Clock, Operation, OperationFlags
from holdfast.ports.queries import PrefetchQuery
from holdfast.records.options import SqliteOptions
from holdfast.wait import Waiting, run_made, run_to_end

T = TypeVar("T")


class CallerConnection:
    """A caller's connection with cursors of its own, so that the caller's settings do not change the rows read here."""

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def _cursor(self) -> apsw.Cursor:
        # Not the connection's own `cursor()`, for which the caller may have set a factory.
        cursor = apsw.Cursor(self._connection)
        if self._connection.row_trace is not None:
            cursor.row_trace = _as_it_is
        if self._connection.exec_trace is not None:
            cursor.exec_trace = _allow
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
        """Return the number of rows that the last statement changed."""
        return self._connection.changes()

    @property
    def in_transaction(self) -> bool:
        """True while the caller's transaction is open."""
        return self._connection.in_transaction


def _as_it_is(_: object, row: Any) -> Any:
    return row


def _allow(*_: object) -> bool:
    return True


def _as_bytes(_: object, __: object, value: bytes) -> bytes:
    return value


class CallerRunner(StatementRunner):
    """A statement runner over a caller's connection, which it does not open, configure or close."""

    __slots__ = ()

    def __init__(self, connection: apsw.Connection, path: str, place: str) -> None:
        """Use a connection to the file at `place`. Errors use `path`, as the caller wrote it."""
        self.path = path
        self.statements_run = 0
        # A statement outside of the caller's transaction would be committed on its own.
        self.in_group = True
        self._texts = statements()
        self._budget = Budget(place)
        self.connection = cast("apsw.Connection", CallerConnection(connection))

    def one(self, name: str, bindings: Bindings = ()) -> Any:
        """Return the first column of the first row, or None."""
        found = self.all(name, bindings)
        return found[0][0] if found else None


class SqliteCallerTransaction(CallerTransaction):
    """Implements `ports.Backend` inside transactions of one caller's connection."""

    durability: Literal["ephemeral", "durable"] = "durable"
    schema_version = SCHEMA_VERSION

    def __init__(
        self,
        connection: object,
        own: StatementRunner,
        options: SqliteOptions,
        clock: Clock,
        waiting: Waiting,
        check_usable: Callable[[], None],
    ) -> None:
        self._connection = checked(connection)
        self._path = own.path
        self._place = own.place
        self._own_vfs = own.connection.open_vfs
        self._options = options
        self._clock = clock
        self._waiting = waiting
        self._check_usable = check_usable
        self._runner = CallerRunner(self._connection, own.path, self._place)
        self._lock = threading.Lock()
        self._closed = False
        self._admit()

    def __repr__(self) -> str:
        return f"sqlite:{self._path} within a transaction"

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return schema_text()

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in the caller's transaction. If it raises, the transaction is as it was before."""
        self._check_usable()
        with self._lock:
            self._admit()
            try:
                return self._run(operation)
            except apsw.Error as error:
                raise translated(error, self._path) from error

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Like `write`: a write transaction is a snapshot that includes the caller's own changes."""
        return await self.write(operation)

    def _run(self, operation: Operation[T]) -> T:
        runner = self._runner
        rowid = self._connection.last_insert_rowid()
        runner.control("save_operation")
        try:
            result = run_made(operation, SqliteTransaction(runner, read_clock(self._clock)))
            if not runner.connection.in_transaction:
                raise self._given_up()
            runner.control("release_operation")
        except BaseException:
            self._undo()
            raise
        finally:
            # The caller may still need the key of a row inserted before.
            self._connection.set_last_insert_rowid(rowid)
        return result

    def _undo(self) -> None:
        runner = self._runner
        if not runner.connection.in_transaction:
            return  # SQLite has rolled everything back, including the caller's changes
        try:
            runner.control("undo_operation")
            runner.control("release_operation")
        except apsw.Error as error:
            # Half an operation must not be committed, not even by a caller that ignores errors.
            if runner.connection.in_transaction:
                runner.control("rollback")
            raise self._given_up() from error

    def _given_up(self) -> Unavailable:
        return Unavailable(f"{self._path}: SQLite rolled your transaction back: begin it again")

    def _admit(self) -> None:
        """Refuse a connection that is not in a write transaction, or does not keep the store's guarantees."""
        connection, runner = self._connection, self._runner
        if self._closed:
            raise InvalidRequest("store", "was closed: call within() again")
        try:
            state = connection.txn_state("main")
        except apsw.ConnectionClosedError:
            raise InvalidRequest("connection", "is closed") from None
        if not _same_file(connection.db_filename("main"), self._place):
            raise InvalidRequest("connection", f"its main database is not the file of this store, {self._path}")
        if connection.open_vfs != self._own_vfs:
            raise InvalidRequest(
                "connection", f"was opened with the VFS {connection.open_vfs!r}, not {self._own_vfs!r}"
            )
        if connection.readonly("main"):
            raise InvalidRequest("connection", "was opened for reading only")
        if not connection.in_transaction or state != apsw.SQLITE_TXN_WRITE:
            raise InvalidRequest("connection", "is in no write transaction: BEGIN IMMEDIATE first")
        if runner.one("query_only"):
            raise InvalidRequest("connection", "may only read: PRAGMA query_only is set")
        level = int(runner.one("synchronous"))
        wanted = LEVELS.index(self._options.synchronous)
        if level < wanted:
            raise InvalidRequest(
                "connection",
                f"PRAGMA synchronous is {LEVELS[level]}, and the store's commits are {LEVELS[wanted]}: "
                "set it before BEGIN",
            )
        shadow = runner.one("find_shadows", (json_list(table_names()),))
        if shadow is not None:
            raise InvalidRequest("connection", f"its temporary {shadow!r} hides or touches a table of the store's")

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a pure call. Return its result, and whether it was heavy."""
        return await self._waiting.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without blocking other operations."""
        return await self._waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return run_to_end(work)

    async def close(self) -> None:
        """Refuse later calls. The transaction and the connection stay the caller's."""
        self._closed = True


def checked(connection: object) -> apsw.Connection:
    """Return the connection if it belongs to the SQLite library that this backend uses. Refuse any other."""
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
            "is of the standard library's sqlite3, another copy of SQLite, and two copies may damage the file: "
            "use apsw.Connection",
        )
    raise InvalidRequest("connection", f"must be an apsw.Connection, not {kind.__name__}")


def _same_file(theirs: str, ours: str) -> bool:
    try:
        return bool(theirs) and Path(theirs).samefile(ours)
    except OSError as error:
        if raised_by_handler(error):
            raise
        return False
