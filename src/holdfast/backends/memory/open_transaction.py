"""A transaction of several operations in memory.

Between two operations its writes are kept here and not in the tables, so that others read what is committed. Writers
wait for its end. No thread watches its time limit: the writer that waits for it, or its own next call, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.backends.memory.tables import WRITE_WEIGHT, Table, Tables
from holdfast.backends.memory.transaction import MemoryTransaction
from holdfast.loop_budget import charge_rows
from holdfast.open_transaction import End, OpenTransaction
from holdfast.ports import Backend, IsLeft, Operation
from holdfast.signals import Signals
from holdfast.wait import Waiting, run_made

T = TypeVar("T")

ENDED = "\0transaction"
"""The topic of the writers that wait for the end. No topic of an operation begins like this."""


class Held(Exception):
    """A transaction of several operations is open, and no other may write. Never reaches a caller of the store."""

    def __init__(self, transaction: MemoryOpenTransaction) -> None:
        super().__init__()
        self.transaction = transaction


class Parts(NamedTuple):
    """Parts of the backend that a transaction uses."""

    with_lock: Callable[[Callable[[], Any]], Any]
    settle: Callable[[], Sequence[Table[Any, Any]]]
    store: Callable[[Iterable[Table[Any, Any]]], None]
    now_ms: Callable[[], int]
    signals: Signals


class MemoryOpenTransaction(OpenTransaction):
    """Implements `ports.Backend` inside one transaction in memory."""

    def __init__(
        self, outer: Backend, tables: Tables, parts: Parts, waiting: Waiting, timeout_ms: int, is_left: IsLeft | None
    ) -> None:
        super().__init__(outer, waiting, timeout_ms, is_left)
        self._tables = tables
        self._parts = parts
        self._kept: list[dict[Any, Any]] = [{} for _ in tables.all()]
        self._is_whole = True
        """False if an interrupt has left an operation half done."""

    async def _apply(self, operation: Operation[T], *, heavy: bool) -> T:
        call: Callable[[], T] = partial(self._parts.with_lock, partial(self._run, operation))
        try:
            result, _ = await self._waiting.compute(call, heavy=heavy)
        except Exception:
            raise
        except BaseException:
            # A thread may still run it.
            self._give_up(End.INTERRUPTED)
            raise
        return result

    def _run(self, operation: Operation[T]) -> T:
        """Run an operation with the lock taken. If it raises, undo it."""
        self._check_sound()
        tables = self._parts.settle()
        transaction = MemoryTransaction(self._tables, self._parts.now_ms())
        self._is_whole = False
        try:
            for table, kept in zip(tables, self._kept, strict=True):
                table.resume(kept)
            result = run_made(operation, transaction)
        except BaseException:
            for table in tables:
                table.undo()
            self._is_whole = True
            raise
        finally:
            for table in tables:
                table.roll_back()
        self.topics += transaction.topics
        self._is_whole = True
        return result

    def _check_sound(self) -> None:
        self.expire_if_due()
        if not self._is_whole:
            self._give_up(End.INTERRUPTED)
        self.check_open()

    async def _commit(self) -> None:
        await self._waiting.compute(self._store_and_notify)

    def _store_and_notify(self) -> None:
        self._parts.with_lock(self._store)
        # In the same thread: cancelling the caller does not undo the commit, and waiters must see it.
        self._parts.signals.publish([*self.topics, ENDED])

    def _store(self) -> None:
        self._check_sound()
        charge_rows(WRITE_WEIGHT * sum(map(len, self._kept)))
        tables = self._parts.settle()
        for table, kept in zip(tables, self._kept, strict=True):
            table.resume(kept)
        self.decide(End.COMMITTED)
        self._parts.store(tables)

    async def _undo(self) -> None:
        self._parts.signals.publish([ENDED])

    def _give_up(self, end: End) -> None:
        if self.decide(end):
            self._parts.signals.publish([ENDED])

    def expire_if_due(self) -> None:
        """End the transaction if it was open for too long, or if its block was left."""
        if self.left_s() <= 0:
            self._give_up(End.EXPIRED)
        elif self.is_left():
            self._give_up(End.INTERRUPTED)

    async def wait_end(self) -> None:
        """Wait until the transaction has ended, at most until its time limit. May return earlier."""
        change = self._parts.signals.watch(ENDED)
        try:
            if self.is_open:
                await self._waiting.pause(change, max(1, int(self.look_in_s() * 1000) + 1))
            self.expire_if_due()
        finally:
            change.cancel()
