"""Connections for reads. Each read has its own connection and snapshot, and is never blocked by a writer.

Signal handlers run in the main thread, between any two steps of its code, and may raise. So the main thread does not
take part in the pool: it has a connection of its own. A plain
attribute marks it as in use: setting it is one step, which no interrupt divides.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import apsw

from holdfast.backends.sqlite.connection import StatementRunner
from holdfast.backends.sqlite.driver_errors import translated
from holdfast.backends.sqlite.file_locks import leads_to
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.clock import read_clock
from holdfast.errors import NestedCall, PoolTimeout, StoreClosed, Unavailable
from holdfast.inherited_files import file_id
from holdfast.interrupts import in_main_thread, undisturbed
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.wait import run_made

T = TypeVar("T")


CLOSING_LOOK_S: Final = 0.001
"""Poll interval for the end of the main thread's read, while the store is being closed."""


class MainReader:
    """A connection of the main thread."""

    __slots__ = ("busy", "runner")

    def __init__(self) -> None:
        self.busy = False
        self.runner: StatementRunner | None = None


class Readers:
    """Bounded pool of connections for all threads but the main one, opened on demand."""

    def __init__(self, path: str, place: str, options: SqliteOptions, clock: Clock) -> None:
        self._path = path
        self._place = place
        self._file = file_id(Path(place).stat())
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[StatementRunner] = []
        self._waiting: deque[Future[StatementRunner | None]] = deque()
        self._in_use = 0
        self._main = MainReader()
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, in one snapshot."""
        if in_main_thread():
            return self._run_in_main(operation)
        with self._acquired() as runner:
            return self._run_on(runner, operation)

    def _run_in_main(self, operation: Operation[T]) -> T:
        reader = self._main
        if reader.busy:
            raise NestedCall
        try:
            reader.busy = True
            if self._closed:
                raise StoreClosed
            if reader.runner is None:
                reader.runner = undisturbed(self._connect, discard=StatementRunner.close)
            return self._run_on(reader.runner, operation)
        finally:
            reader.busy = False

    def _run_on(self, runner: StatementRunner, operation: Operation[T]) -> T:
        connection = runner.connection
        execute, rollback = connection.execute, runner.names["rollback"]
        try:
            if connection.in_transaction:
                runner.control("rollback")
            try:
                runner.control("begin_read")
                return run_made(operation, SqliteTransaction(runner, read_clock(self._clock)))
            finally:
                # Nothing else is called before this, so that no second interrupt can prevent the end of the snapshot.
                if connection.in_transaction:
                    execute(rollback)
        except apsw.Error as error:
            raise translated(error, self._path) from error

    @property
    def is_used_here(self) -> bool:
        """True if this is the main thread in the middle of a read: it would wait for itself."""
        return in_main_thread() and self._main.busy

    @contextmanager
    def _acquired(self) -> Generator[StatementRunner, None, None]:
        runner = self._take()
        try:
            if runner is None:
                runner = self._connect()
            yield runner
        finally:
            self._give_back(runner)

    def _take(self) -> StatementRunner | None:
        """Return an idle connection, or None: the caller may open one. FIFO among waiters."""
        with self._changed:
            if self._closed:
                raise StoreClosed
            if not self._waiting and (self._idle or self._in_use < self._options.readers):
                self._in_use += 1
                # The most recently used one has the warmest cache.
                return self._idle.pop() if self._idle else None
            turn: Future[StatementRunner | None] = Future()
            self._waiting.append(turn)
        try:
            return turn.result(self._options.busy_timeout_ms / 1000)
        except TimeoutError:
            with self._changed:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    raise PoolTimeout(
                        f"{self._path}: all {self._options.readers} readers are in use: retry, or allow more"
                    ) from None
            return turn.result()  # handed over at the moment of the timeout

    def _connect(self) -> StatementRunner:
        self._check_place()
        runner = StatementRunner(self._path, create=False, place=self._place)
        try:
            self._check_place()
            runner.connection.set_busy_timeout(self._options.busy_timeout_ms)
            runner.configure(self._options)
            runner.pragma("query_only", 1)
        except BaseException:
            runner.close_or_keep()
            raise
        return runner

    def _check_place(self) -> None:
        if not leads_to(self._place, self._file):
            raise Unavailable(
                f"{self._path}: the file was moved, deleted or replaced while the store was open: close the store and "
                "open it again"
            )

    def _give_back(self, runner: StatementRunner | None) -> None:
        with self._changed:
            if self._waiting:
                # Handed over, and not put back: otherwise the releasing thread could take it again before all waiters.
                self._waiting.popleft().set_result(runner)
                return
            self._in_use -= 1
            if runner is not None:
                self._idle.append(runner)
            self._changed.notify_all()

    @property
    def statements_run(self) -> int:
        """Number of statements that the idle connections have run."""
        with self._changed:
            runners = self._idle if self._main.runner is None else [*self._idle, self._main.runner]
            return sum(runner.statements_run for runner in runners)

    def close(self) -> None:
        """Wait for the reads that began, and close the connections."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().set_exception(StoreClosed())
            self._changed.wait_for(lambda: self._in_use == 0)
            idle, self._idle = self._idle, []
        # Polled, because the main thread may be interrupted before it could notify.
        while self._main.busy:
            time.sleep(CLOSING_LOOK_S)
        if self._main.runner is not None:
            idle.append(self._main.runner)
        for runner in idle:
            runner.close()
