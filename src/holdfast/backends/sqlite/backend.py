"""The SQLite backend: one writer commits in groups, many readers have snapshots, and waiters see every change."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal, TypeVar, Unpack

import apsw

from holdfast.backends.base import LocalBackend
from holdfast.backends.sqlite.caller_transaction import SqliteCallerTransaction
from holdfast.backends.sqlite.connection import StatementRunner
from holdfast.backends.sqlite.file_locks import FileLocks
from holdfast.backends.sqlite.open_transaction import SqliteOpenTransaction
from holdfast.backends.sqlite.readers import Readers
from holdfast.backends.sqlite.schema_setup import MEMORY, SCHEMA_VERSION, open_link, schema_text
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.transaction.base import POSITION
from holdfast.backends.sqlite.writer import Writer
from holdfast.errors import InvalidRequest, StoreClosed, StoreForked
from holdfast.interrupts import start_thread, undisturbed
from holdfast.open_transaction import refuse_inside
from holdfast.ports import Backend, Begun, Clock, IsLeft, Operation, OperationFlags, Transaction
from holdfast.ports.queries import Freshness, PrefetchQuery, foreign
from holdfast.read_only import ReadingBackend
from holdfast.records.options import PRIVATE, SqliteOptions
from holdfast.signals import Change
from holdfast.wait import Waiting

T = TypeVar("T")


class SqliteBackend(LocalBackend):
    """A store in a SQLite file, or in memory with the path `:memory:`."""

    def __init__(self, runner: StatementRunner, options: SqliteOptions, clock: Clock, waiting: Waiting) -> None:
        super().__init__(clock, waiting)
        self._runner = runner
        self._options = options
        self._process_id = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._is_released = False
        in_memory = runner.path == MEMORY
        file = runner.connection.filename
        self._locks = None if in_memory else FileLocks.hold(file)
        self._writer = Writer(runner, options, clock, self._signals, shared=not in_memory, locks=self._locks)
        # A database in memory has only one connection, so its reads take turns with the writes.
        self._readers = None if in_memory else Readers(runner.path, file, options, clock)
        self._unclosed = weakref.finalize(self, _dropped, runner.path, self._writer, self._locks)
        self._unclosed.atexit = False

    def __repr__(self) -> str:
        return f"sqlite:{self._runner.path}"

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        options: SqliteOptions,
        clock: Clock,
        waiting: Waiting,
        *,
        file_mode: int = PRIVATE,
    ) -> SqliteBackend:
        """Open or create a file. Blocks while another process creates or migrates it."""

        def opened() -> SqliteBackend:
            runner = open_link(os.fspath(path), options, file_mode)
            try:
                return cls(runner, options, clock, waiting)
            except BaseException:
                runner.close_or_keep()
                raise

        return undisturbed(opened, discard=SqliteBackend._discard)

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        return "ephemeral" if self._readers is None else "durable"

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return SCHEMA_VERSION

    @property
    def statements_run(self) -> int:
        """Number of statements that operations have run. Exact while none is running."""
        return self._runner.statements_run + (0 if self._readers is None else self._readers.statements_run)

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return schema_text()

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in a transaction and return once it is durable. An operation that raises leaves no trace."""
        self._check_usable()
        refuse_inside(self, "this write")
        return await self._in_turn(operation)

    async def _in_turn(self, operation: Operation[T]) -> T:
        ticket = self._waiting.ticket()
        if ticket is None:
            return self._writer.run(operation)
        self._writer.accept(operation, ticket)
        result: T = await ticket.answer()
        return result

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in one snapshot."""
        self._check_usable()
        readers = self._readers
        if readers is None:
            refuse_inside(self, "this read of a database in memory")
            return await self._in_turn(operation)
        return await self._waiting.offload(lambda: readers.run(operation))

    def watch(self, topic: str) -> Future[None]:
        """Return a future that is done at the next change of the topic, in any process."""
        self._check_usable()
        change = self._signals.watch(topic)
        try:
            self._writer.watch_other_processes()
            # Checked again, because `close` ends only the watches that exist then.
            self._check_usable()
        except StoreClosed:
            change.cancel()
            raise
        return change

    def within(self, connection: object) -> SqliteCallerTransaction:
        """Return this store inside a write transaction of a caller's apsw connection to the same file."""
        self._check_usable()
        if self._readers is None:
            raise InvalidRequest("connection", "a database in memory has no connection but the store's: use a file")
        return SqliteCallerTransaction(
            connection, self._runner, self._options, self._clock, self._waiting, check_usable=self._check_usable
        )

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> Begun:
        """Begin a transaction for several operations. Until its end, other writers wait."""
        self._check_usable()
        refuse_inside(self, "another transaction")
        begun = SqliteOpenTransaction(self, self._writer, self._waiting, timeout_ms, is_left)
        await begun.open()
        return Begun(begun, begun)

    def reader(self, freshness: Freshness) -> Backend:
        """Return this store for reads only."""
        if freshness.position not in {None, POSITION}:
            raise foreign(freshness.position or "")
        return ReadingBackend(self, self.read)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table, for tests that compare before with after."""
        self._check_usable()
        if self._readers is None:
            return self._writer.run(_dump)
        return self._readers.run(_dump)

    async def close(self) -> None:
        """Finish accepted calls, refuse later ones, and close the file. A repeated call waits for the first."""
        if os.getpid() != self._process_id:
            return
        refuse_inside(self, "the close")
        self._closed = True
        # In a thread of its own, which cannot be cancelled before it has begun. Each call starts one and the first does
        # the work, so that an interrupted call can be repeated.
        closed: Change[None] = Change()
        closed.set_running_or_notify_cancel()
        start_thread(threading.Thread(target=self._release_once, args=(closed,), name="holdfast-sqlite-closer"))
        self._unclosed.detach()
        if self._writer.is_used_here or (self._readers is not None and self._readers.is_used_here):
            # A signal handler calls `close` in the middle of a call of its own thread. That call must end first, so do
            # not wait.
            return
        await self._waiting.settle(closed)

    def _release_once(self, closed: Change[None]) -> None:
        try:
            with self._closing:
                if not self._is_released:
                    self._is_released = True
                    self._release()
        except BaseException as error:  # raised by the call of `close`
            closed.set_exception(error)
        else:
            closed.set_result(None)

    def _discard(self) -> None:
        """Close a store whose opening was interrupted: no caller has it to close it."""
        self._closed = True
        self._unclosed.detach()
        self._release()

    def _release(self) -> None:
        self._writer.close()
        if self._readers is not None:
            self._readers.close()
        self._signals.fail_all(StoreClosed)
        # Best effort: another process may be reading pages that the checkpoint would move.
        with suppress(apsw.Error):
            self._runner.connection.wal_checkpoint()
        if self._locks is not None:
            self._locks.release()
        self._runner.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._process_id:
            raise StoreForked(
                "this store was opened before the process forked: close it before you fork, or start the child with "
                "spawn or forkserver"
            )
        if self._closed:
            raise StoreClosed


async def _dump(transaction: Transaction) -> dict[str, list[tuple[Any, ...]]]:
    assert isinstance(transaction, SqliteTransaction)
    return transaction.dump()


def _dropped(path: str, writer: Writer, locks: FileLocks | None) -> None:
    """Warn that a store was garbage-collected without `close`, and end its thread, which closes the file."""
    writer.stop()
    if locks is not None:
        locks.release()
    warnings.warn(f"the store on {path} was never closed", ResourceWarning, stacklevel=2)
