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

from holdfast.backends.sqlite.connection import Link
from holdfast.backends.sqlite.driver_errors import translated
from holdfast.backends.sqlite.file_locks import leads_to
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.clock import read_clock
from holdfast.errors import NestedCall, PoolTimeout, StoreClosed, Unavailable
from holdfast.inherited_files import file_id
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.waiting import in_main_thread, run_made, undisturbed

T = TypeVar("T")


CLOSING_LOOK_S: Final = 0.001
"""Poll interval for the end of the main thread's read, while the store is being closed."""


class MainReader:
    """A connection of the main thread."""

    __slots__ = ("busy", "link")

    def __init__(self) -> None:
        self.busy = False
        self.link: Link | None = None


class Readers:
    """Bounded pool of connections for all threads but the main one, opened on demand."""

    def __init__(self, path: str, place: str, options: SqliteOptions, clock: Clock) -> None:
        self._path = path
        self._place = place
        self._file = file_id(Path(place).stat())
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Link] = []
        self._waiting: deque[Future[Link | None]] = deque()
        self._lent = 0
        self._main = MainReader()
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, in one snapshot."""
        if in_main_thread():
            return self._run_in_main(operation)
        with self._borrowed() as link:
            return self._run_on(link, operation)

    def _run_in_main(self, operation: Operation[T]) -> T:
        reader = self._main
        if reader.busy:
            raise NestedCall
        try:
            reader.busy = True
            if self._closed:
                raise StoreClosed
            if reader.link is None:
                reader.link = undisturbed(self._connect, discard=Link.close)
            return self._run_on(reader.link, operation)
        finally:
            reader.busy = False

    def _run_on(self, link: Link, operation: Operation[T]) -> T:
        connection = link.connection
        execute, rollback = connection.execute, link.names["rollback"]
        try:
            if connection.in_transaction:
                link.control("rollback")
            try:
                link.control("begin_read")
                return run_made(operation, SqliteTransaction(link, read_clock(self._clock)))
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
    def _borrowed(self) -> Generator[Link, None, None]:
        link = self._take()
        try:
            if link is None:
                link = self._connect()
            yield link
        finally:
            self._give_back(link)

    def _take(self) -> Link | None:
        """Return an idle connection, or None: the caller may open one. FIFO among waiters."""
        with self._changed:
            if self._closed:
                raise StoreClosed
            if not self._waiting and (self._idle or self._lent < self._options.readers):
                self._lent += 1
                # The most recently used one has the warmest cache.
                return self._idle.pop() if self._idle else None
            turn: Future[Link | None] = Future()
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

    def _connect(self) -> Link:
        self._check_place()
        link = Link(self._path, create=False, place=self._place)
        try:
            self._check_place()
            link.connection.set_busy_timeout(self._options.busy_timeout_ms)
            link.configure(self._options)
            link.pragma("query_only", 1)
        except BaseException:
            link.let_go()
            raise
        return link

    def _check_place(self) -> None:
        if not leads_to(self._place, self._file):
            raise Unavailable(
                f"{self._path}: the file was moved, deleted or replaced while the store was open: close the store and "
                "open it again"
            )

    def _give_back(self, link: Link | None) -> None:
        with self._changed:
            if self._waiting:
                # Handed over, and not put back: otherwise the releasing thread could take it again before all waiters.
                self._waiting.popleft().set_result(link)
                return
            self._lent -= 1
            if link is not None:
                self._idle.append(link)
            self._changed.notify_all()

    @property
    def statements_run(self) -> int:
        """Number of statements that the idle connections have run."""
        with self._changed:
            links = self._idle if self._main.link is None else [*self._idle, self._main.link]
            return sum(link.statements_run for link in links)

    def close(self) -> None:
        """Wait for the reads that began, and close the connections."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().set_exception(StoreClosed())
            self._changed.wait_for(lambda: self._lent == 0)
            idle, self._idle = self._idle, []
        # Polled, because the main thread may be interrupted before it could notify.
        while self._main.busy:
            time.sleep(CLOSING_LOOK_S)
        if self._main.link is not None:
            idle.append(self._main.link)
        for link in idle:
            link.close()
