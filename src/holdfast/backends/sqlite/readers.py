"""A read has a connection and a snapshot to itself, and is never held up by a writer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import apsw

from holdfast.backends.sqlite.link import Link
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.backends.sqlite.translation import translated
from holdfast.clock import read_clock
from holdfast.errors import PoolTimeout, StoreClosed
from holdfast.ports import Clock, Operation
from holdfast.records.options import SqliteOptions
from holdfast.waiting import run_to_end

T = TypeVar("T")


class Readers:
    """A bounded number of connections, made when they are first needed."""

    def __init__(self, path: str, options: SqliteOptions, clock: Clock) -> None:
        self._path = path
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Link] = []
        self._waiting: deque[Future[Link | None]] = deque()
        self._lent = 0
        self._closed = False

    def run(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, in one snapshot."""
        with self._borrowed() as link:
            try:
                link.control("begin_read")
                try:
                    return run_to_end(operation(SqliteTransaction(link, read_clock(self._clock))))
                finally:
                    if link.connection.in_transaction:
                        link.control("rollback")
            except apsw.Error as error:
                raise translated(error, self._path) from error

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
            return sum(link.statements_run for link in self._idle)

    def close(self) -> None:
        """Wait for the reads that began, and let the connections go."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().set_exception(StoreClosed())
            self._changed.wait_for(lambda: self._lent == 0)
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
