"""A transaction of several operations on one connection of the pool.

It is at READ COMMITTED, as each operation by itself is: an operation locks first, and then reads what was committed
meanwhile. Each operation has a savepoint. It is rerun in its savepoint if another transaction inserted the same row
first; the caller's block is never rerun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.driver_errors import (
    DriverFailure,
    FailureKind,
    failure_kind,
    is_in_doubt,
    translated,
)
from holdfast.backends.postgres.executor import Executor
from holdfast.backends.postgres.other_loops import on_loop
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.errors import DurabilityUncertain, HoldfastError, Unavailable
from holdfast.open_transaction import LOOK_S, End, OpenTransaction
from holdfast.ports import Backend, IsLeft, Operation
from holdfast.wait import Waiting

T = TypeVar("T")

RACES: Final = 4
"""Most runs of an operation that loses races for the insertion of a row."""


class PostgresOpenTransaction(OpenTransaction):
    """Implements `ports.Backend` inside one transaction, for callers on any event loop."""

    def __init__(
        self,
        outer: Backend,
        executor: Executor,
        waiting: Waiting,
        timeout_ms: int,
        is_left: IsLeft | None,
        *,
        label: str,
        notify: Callable[[list[str]], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(outer, waiting, timeout_ms, is_left)
        self._executor = executor
        self._label = label
        self._notify_committed = notify
        self._ended = ended
        self._runner: StatementRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._ending: asyncio.Task[None] | None = None
        self._applied: list[PostgresTransaction] = []

    async def open(self) -> None:
        """Take a connection and begin on it."""
        connection = await self._executor.connections.acquire()
        runner = self._executor.runner(connection)
        try:
            # The server's own limit holds also if this process stops.
            await self._executor.begin_held(runner, idle_ms=self.timeout_ms)
        except BaseException:
            await self._executor.connections.discard(connection)
            raise
        self._runner, self._loop = runner, asyncio.get_running_loop()
        self.deadline_s = time.monotonic() + self.timeout_ms / 1000
        self._timer = self._loop.call_later(self.look_in_s(), self._look)

    async def _apply(self, operation: Operation[T], *, heavy: bool) -> T:
        return await self._here(partial(self._apply_here, operation, heavy=heavy))

    async def _commit(self) -> None:
        await self._here(self._commit_here)

    async def _undo(self) -> None:
        await self._here(self._undo_here)

    async def _here(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run on the loop that the connection belongs to."""
        if self._loop is None or asyncio.get_running_loop() is self._loop:
            return await make()
        return await on_loop(self._loop, make)

    async def _apply_here(self, operation: Operation[T], *, heavy: bool) -> T:
        self._busy = True
        try:
            for last in (*[False] * (RACES - 1), True):
                try:
                    return await self._attempt(operation, heavy=heavy)
                except DriverFailure as failure:
                    if last or failure_kind(failure.cause) is not FailureKind.RACE:
                        raise self._translated(failure.cause) from failure.cause
            raise AssertionError("unreachable")  # pragma: no cover
        except Exception:
            raise
        except BaseException:
            self._give_up(End.INTERRUPTED)
            raise
        finally:
            self._busy = False
            if self.is_open and self.left_s() <= 0:
                self._look()

    async def _attempt(self, operation: Operation[T], *, heavy: bool) -> T:
        # A fresh one, which has the position of this operation only.
        runner = self._executor.runner(self._held().connection)
        try:
            transaction = await self._executor.joined(runner)
            result = await self._executor.steps(runner, heavy=heavy).run(operation(transaction))
            await runner.control("next_operation")
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                self._give_up(End.LOST)
            else:
                await self._undo_operation(runner)
            raise
        except Exception:
            await self._undo_operation(runner)
            raise
        self.topics += transaction.topics
        self._applied.append(transaction)
        return result

    async def _undo_operation(self, runner: StatementRunner) -> None:
        try:
            await runner.control("undo_held_operation")
        except DriverFailure:
            self._give_up(End.LOST)

    def _held(self) -> StatementRunner:
        self.check_open()
        assert self._runner is not None, "a transaction is open before it is used"
        return self._runner

    def _translated(self, cause: BaseException) -> HoldfastError:
        match failure_kind(cause):
            case FailureKind.CONTENTION | FailureKind.RACE | FailureKind.LOCKED:
                return Unavailable(f"{self._label}: another transaction interfered: raise, and run the block again")
            case FailureKind.LOST | FailureKind.SILENT:
                if self.left_s() <= 0:
                    # The server's limit ended it before the timer.
                    self._end = End.EXPIRED
                    return self.error_of_end()
                return Unavailable(f"{self._label}: the connection was lost, and all was rolled back: run it again")
            case FailureKind.OTHER:
                return translated(cause, self._label)

    # The end.

    async def _commit_here(self) -> None:
        runner = self._held()
        if self.left_s() <= 0:
            self._look()
        self.check_open()
        self.decide(End.COMMITTED)
        try:
            await runner.commit()
        except DurabilityUncertain:
            await self._release(runner)
            self._notify_committed(self.topics)
            raise
        except DriverFailure as failure:
            unknown = is_in_doubt(failure.cause)
            await (self._drop(runner) if unknown else self._roll_back_and_release(runner))
            raise translated(failure.cause, self._label, "unknown" if unknown else "not_applied") from failure.cause
        except BaseException:
            await self._drop(runner)
            raise
        for transaction in self._applied:
            self._executor.remember(transaction)
        await self._release(runner)
        self._notify_committed(self.topics)

    async def _undo_here(self) -> None:
        runner = self._runner
        if runner is None:
            return
        if self._busy:
            # Another task is in the middle of a call: cut it off.
            await self._drop(runner)
            return
        # In a task of its own: a cancelled caller does not leave the rollback half done.
        self._ending = asyncio.ensure_future(self._roll_back_and_release(runner))
        await asyncio.shield(self._ending)

    def _look(self) -> None:
        """End the transaction if its time is up, or if its block was left."""
        # During a call, the end of that call looks at the time.
        if not self._busy and self.left_s() <= 0:
            self._give_up(End.EXPIRED)
        elif not self._busy and self.is_left():
            self._give_up(End.INTERRUPTED)
        elif self._end is None and self._loop is not None:
            self._timer = self._loop.call_later(max(self.look_in_s(), LOOK_S), self._look)

    def _give_up(self, end: End) -> None:
        if self.decide(end) and self._runner is not None:
            self._ending = asyncio.ensure_future(self._drop(self._runner))

    async def _roll_back_and_release(self, runner: StatementRunner) -> None:
        try:
            await runner.control("rollback")
        except DriverFailure:
            await self._drop(runner)
        except BaseException:
            await self._drop(runner)
            raise
        else:
            await self._release(runner)

    async def _drop(self, runner: StatementRunner) -> None:
        """Drop the connection: the server rolls back."""
        self._finish()
        await self._executor.connections.discard(runner.connection)

    async def _release(self, runner: StatementRunner) -> None:
        self._finish()
        await self._executor.connections.release(runner.connection)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._ended()
