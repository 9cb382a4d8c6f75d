"""A read has a connection and a snapshot to itself, and is never held up by a writer.

Signal handlers run in the main thread, between any two steps of its code, and may raise. So the main thread takes no
part in lending and handing over: it has connections of its own, one for each read that a handler begins within
another, and whether one is in use is a plain attribute. Setting it is one step, which no interrupt divides.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

import apsw

from holdfast.backends.sqlite.link import Link
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.translation import translated
from holdfast.clock import read_clock
from holdfast.errors import PoolTimeout, StoreClosed
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.waiting import in_main_thread, run_to_end

T = TypeVar("T")


CLOSING_LOOK_S: Final = 0.001
"""How often to look whether the main thread has ended its read, while the store is being closed."""


class MainReader:
    """A connection of the main thread."""

    __slots__ = ("busy", "link")

    def __init__(self) -> None:
        self.busy = False
        self.link: Link | None = None


class Readers:
    """A bounded number of connections for all threads but the main one, made when they are first needed."""

    def __init__(self, path: str, options: SqliteOptions, clock: Clock) -> None:
        self._path = path
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Link] = []
        self._waiting: deque[Future[Link | None]] = deque()
        self._lent = 0
        self._main: list[MainReader] = []
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, in one snapshot."""
        if in_main_thread():
            return self._run_in_main(operation)
        with self._borrowed() as link:
            return self._run_on(link, operation)

    def _run_in_main(self, operation: Operation[T]) -> T:
        for reader in self._main:
            if not reader.busy:
                break
        else:
            reader = MainReader()
            self._main.append(reader)
        try:
            reader.busy = True
            if self._closed:
                raise StoreClosed
            if reader.link is None:
                reader.link = self._connect()
            return self._run_on(reader.link, operation)
        finally:
            reader.busy = False

    def _run_on(self, link: Link, operation: Operation[T]) -> T:
        try:
            if link.connection.in_transaction:
                # An earlier read was interrupted in the moment in which it ended its transaction.
                link.control("rollback")
            link.control("begin_read")
            try:
                return run_to_end(operation(SqliteTransaction(link, read_clock(self._clock))))
            finally:
                if link.connection.in_transaction:
                    link.control("rollback")
        except apsw.Error as error:
            raise translated(error, self._path) from error

    @property
    def is_used_here(self) -> bool:
        """Tell whether this is the main thread in the middle of a read: it would wait for itself."""
        return in_main_thread() and any(reader.busy for reader in self._main)

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
        """An idle connection, or leave to make one; who comes first is served first."""
        with self._changed:
            if self._closed:
                raise StoreClosed
            if not self._waiting and (self._idle or self._lent < self._options.readers):
                self._lent += 1
                # The one that was used last has the warmest cache.
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
            return turn.result()  # handed over in the very moment in which we gave up

    def _connect(self) -> Link:
        link = Link(self._path, create=False)
        link.connection.set_busy_timeout(self._options.busy_timeout_ms)
        link.configure(self._options)
        link.pragma("query_only", 1)
        return link

    def _give_back(self, link: Link | None) -> None:
        with self._changed:
            if self._waiting:
                # Handed over, and not put back: otherwise whoever gives back could take again before all who wait.
                self._waiting.popleft().set_result(link)
                return
            self._lent -= 1
            if link is not None:
                self._idle.append(link)
            self._changed.notify_all()

    @property
    def statements_run(self) -> int:
        """How many statements the idle connections have run."""
        with self._changed:
            links = [*self._idle, *(reader.link for reader in self._main if reader.link is not None)]
            return sum(link.statements_run for link in links)

    def close(self) -> None:
        """Wait for the reads that began, and let the connections go."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().set_exception(StoreClosed())
            self._changed.wait_for(lambda: self._lent == 0)
            idle, self._idle = self._idle, []
        for reader in self._main:
            # Not told by the main thread, which may be interrupted before it could tell.
            while reader.busy:
                time.sleep(CLOSING_LOOK_S)
            if reader.link is not None:
                idle.append(reader.link)
        for link in idle:
            link.close()
