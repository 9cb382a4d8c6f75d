"""A transaction of several operations on a SQLite file.

The writer thread holds the connection and runs the calls of one transaction until it ends, or until its time is up:
other writers wait, readers do not.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from holdfast.backends.sqlite.writer import Writer
from holdfast.backends.sqlite.writer_jobs import Call, Job, Request
from holdfast.errors import HoldfastError
from holdfast.open_transaction import End, OpenTransaction
from holdfast.ports import Backend, IsLeft, Operation, Transaction
from holdfast.wait import Ticket, Waiting

T = TypeVar("T")


async def _nothing(_: Transaction) -> None:
    """Do nothing: the operation of a call that only begins or ends."""


class SqliteOpenTransaction(OpenTransaction):
    """Implements `ports.Backend` inside one transaction, and `writer_jobs.Held` for the writer thread."""

    def __init__(
        self, outer: Backend, writer: Writer, waiting: Waiting, timeout_ms: int, is_left: IsLeft | None
    ) -> None:
        super().__init__(outer, waiting, timeout_ms, is_left)
        self._writer = writer
        self._calls: SimpleQueue[Call] = SimpleQueue()
        # Taken while the writer thread has seen every call. Up to Python 3.12, `SimpleQueue.get` forgets its time limit
        # if a signal reaches the thread that waits.
        self._none_new = threading.Lock()
        self._none_new.acquire()
        self._lock = threading.Lock()
        self._is_served = True
        self.opening = Job(_nothing, 0.0)

    # The caller's side.

    async def open(self) -> None:
        """Begin, once the writer is free. Cancelled or interrupted, it ends as soon as it has begun."""
        self.opening.ticket = ticket = self._waiting.ticket()
        self._writer.hold(self)
        try:
            await self._answered(self.opening, ticket)
        except HoldfastError:
            raise
        except BaseException:
            self._give_up()
            raise

    async def _apply(self, operation: Operation[T], *, heavy: bool) -> T:
        ticket = self._waiting.ticket()
        call = Call(Request.RUN, operation, ticket)
        self._put(call)
        result: T = await self._answered(call, ticket)
        return result

    async def _commit(self) -> None:
        ticket = self._waiting.ticket()
        call = Call(Request.COMMIT, _nothing, ticket)
        self._put(call)
        await self._answered(call, ticket)

    async def _undo(self) -> None:
        ticket = self._waiting.ticket()
        call = Call(Request.ROLL_BACK, _nothing, ticket)
        try:
            self._put(call)
        except HoldfastError:
            return  # the writer thread has rolled it back
        await self._answered(call, ticket)

    def _put(self, call: Call) -> None:
        with self._lock:
            if self._is_served:
                self._send(call)
                return
        raise self.error_of_end()

    async def _answered(self, call: Job, ticket: Ticket | None) -> Any:
        """Wait for the writer thread. A caller that gives up does not know what became of its call: roll back."""
        if ticket is not None:
            try:
                return await ticket.answer()
            except Exception:
                raise
            except BaseException:
                self._give_up()
                raise
        try:
            call.done.acquire()
        except BaseException:
            self._give_up()
            raise
        return call.answer()

    def _give_up(self) -> None:
        self.decide(End.INTERRUPTED)
        with self._lock:
            if self._is_served:
                self._send(Call(Request.ROLL_BACK, _nothing, None))

    def _send(self, call: Call) -> None:
        self._calls.put(call)
        if self._none_new.locked():
            self._none_new.release()

    # The writer thread's side.

    def start_time(self) -> None:
        """Start the time limit: the wait for other writers does not count."""
        self.deadline_s = time.monotonic() + self.timeout_ms / 1000

    def next_call(self) -> Call | None:
        """Wait for the next call. Return None once the transaction is over: its end is decided, or its time is up."""
        while (wait_s := self.look_in_s()) > 0 and not self.is_left():
            with suppress(Empty):
                return self._calls.get_nowait()
            self._none_new.acquire(timeout=wait_s)
        self.decide(End.INTERRUPTED if self.is_left() else End.EXPIRED)
        return None

    def lose(self) -> None:
        """Note that SQLite gave the transaction up."""
        self.decide(End.LOST)

    def may_commit(self) -> bool:
        """Decide to commit. Return False if the end was decided otherwise meanwhile."""
        return self.decide(End.COMMITTED)

    def release(self) -> None:
        """Refuse later calls, and those that came too late."""
        self.decide(End.LOST)
        with self._lock:
            self._is_served = False
        while True:
            try:
                late = self._calls.get_nowait()
            except Empty:
                return
            if late.request is not Request.ROLL_BACK:
                late.error = self.error_of_end()
            late.reply()
