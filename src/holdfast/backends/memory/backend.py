"""The memory backend. One lock serializes transactions; one that raises leaves no trace."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

import msgspec

from holdfast.backends.base import LocalBackend
from holdfast.backends.memory.open_transaction import Held, MemoryOpenTransaction, Parts
from holdfast.backends.memory.tables import Table, Tables
from holdfast.backends.memory.transaction import POSITION, SCHEMA_VERSION, MemoryTransaction
from holdfast.errors import InvalidRequest, NestedCall, StoreClosed, StoreForked
from holdfast.interrupts import OfThisThread
from holdfast.loop_budget import BudgetExceeded, is_limited
from holdfast.open_transaction import refuse_inside
from holdfast.ports import Backend, Begun, Clock, IsLeft, Operation, OperationFlags
from holdfast.ports.queries import Freshness, PrefetchQuery, foreign
from holdfast.read_only import ReadingBackend
from holdfast.wait import Waiting, run_made

T = TypeVar("T")


class MemoryBackend(LocalBackend):
    """Implements `ports.Backend`. Several stores may share one backend, as several connections share a database."""

    durability: Literal["ephemeral", "durable"] = "ephemeral"
    schema_version = SCHEMA_VERSION

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        super().__init__(clock, waiting)
        self._tables = Tables()
        self._lock = threading.Lock()
        self._this_thread = OfThisThread()
        self._process_id = os.getpid()
        self._closed = False
        self._committing = False
        self._held_by: MemoryOpenTransaction | None = None

    def __repr__(self) -> str:
        return "memory:"

    def ddl(self) -> str:
        """Return no statements: memory has no schema."""
        return ""

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation alone. Keep its staged writes only if it returns."""
        self._check_usable()
        refuse_inside(self, "this write")
        while True:
            try:
                return await self._locked(partial(self._write, operation), heavy=flags.get("heavy", False))
            except Held as held:
                await held.transaction.wait_end()

    async def _locked(self, call: Callable[[], T], *, heavy: bool = False) -> T:
        """Run a call that takes the lock: in another thread if it is heavy, or must wait for a heavy one."""
        result, _ = await self._waiting.compute(call, heavy=heavy)
        return result

    def _with_lock(self, call: Callable[[], T]) -> T:
        if self._this_thread.is_inside:
            raise NestedCall
        if is_limited() and self._lock.locked():
            # An event loop does not wait for the thread that holds it.
            raise BudgetExceeded
        try:
            self._this_thread.is_inside = True
            with self._lock:
                return call()
        finally:
            self._this_thread.is_inside = False

    def _write(self, operation: Operation[T]) -> T:
        result, topics = self._with_lock(partial(self._commit, operation))
        # In the same thread: cancelling the caller does not undo the write, and waiters must see it.
        self._signals.publish(topics)
        return result

    def _commit(self, operation: Operation[T]) -> tuple[T, list[str]]:
        self._check_usable()
        self._check_free()
        tables = self._settle()
        tx = MemoryTransaction(self._tables, self._now_ms())
        try:
            result = run_made(operation, tx)
        except BaseException:
            for table in tables:
                table.roll_back()
            raise
        self._store(tables)
        return result, tx.topics

    def _store(self, tables: Iterable[Table[Any, Any]]) -> None:
        """Commit the staged writes. An interrupted call is finished by the next one."""
        self._committing = True
        for table in tables:
            table.commit()
        self._committing = False

    def _check_usable(self) -> None:
        self._check_forked()
        if self._closed:
            raise StoreClosed

    def _check_forked(self) -> None:
        """Refuse use after a fork: the child has a copy of the store, whose changes its parent never sees."""
        if os.getpid() != self._process_id:
            raise StoreForked(
                "this store was opened before the process forked, and its contents are the parent's: open a store in "
                "the child, or keep it in a file or in PostgreSQL"
            )

    def _settle(self) -> Sequence[Table[Any, Any]]:
        """Clean up after an interrupted call: finish a commit that began, roll back anything else."""
        tables = [*self._tables.all().values()]
        for table in tables:
            if self._committing:
                table.commit()
            else:
                table.roll_back()
        if self._committing:
            self._committing = False
            self._signals.publish_all()
        return tables

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation alone, and roll back its staged writes."""
        self._check_usable()
        return await self._locked(partial(self._with_lock, partial(self._read, operation)))

    def _read(self, operation: Operation[T]) -> T:
        self._check_usable()
        tables = self._settle()
        try:
            return run_made(operation, MemoryTransaction(self._tables, self._now_ms()))
        finally:
            for table in tables:
                table.roll_back()

    def watch(self, topic: str) -> Future[None]:
        """Return a future of the topic's next change."""
        self._check_usable()
        return self._signals.watch(topic)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        self._check_forked()
        return self._with_lock(self._dump)

    def _dump(self) -> dict[str, list[tuple[Any, ...]]]:
        self._settle()
        return {
            name: [row if isinstance(row, tuple) else _columns(row) for row in table.scan()]
            for name, table in self._tables.all().items()
        }

    def within(self, connection: object) -> Backend:
        """Raises InvalidRequest: there is no connection to memory."""
        raise InvalidRequest(
            "connection", "a store in memory has no transactions of a caller: use SQLite or PostgreSQL"
        )

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> Begun:
        """Begin a transaction for several operations, once no other is open."""
        self._check_usable()
        refuse_inside(self, "another transaction")
        while True:
            try:
                begun = await self._locked(partial(self._with_lock, partial(self._begin, timeout_ms, is_left)))
            except Held as held:
                await held.transaction.wait_end()
            else:
                return Begun(begun, begun)

    def _begin(self, timeout_ms: int, is_left: IsLeft | None) -> MemoryOpenTransaction:
        self._check_usable()
        self._check_free()
        parts = Parts(self._with_lock, self._settle, self._store, self._now_ms, self._signals)
        self._held_by = MemoryOpenTransaction(self, self._tables, parts, self._waiting, timeout_ms, is_left)
        return self._held_by

    def _check_free(self) -> None:
        """Raises Held while a transaction of several operations is open."""
        if self._held_by is not None:
            self._held_by.expire_if_due()
            if self._held_by.is_open:
                raise Held(self._held_by)
            self._held_by = None

    def reader(self, freshness: Freshness) -> Backend:
        """Return this store for reads only."""
        if freshness.position not in {None, POSITION}:
            raise foreign(freshness.position or "")
        return ReadingBackend(self, self.read)

    async def close(self) -> None:
        """Refuse later calls, and end all waits with StoreClosed."""
        if os.getpid() != self._process_id:
            return
        refuse_inside(self, "the close")
        await self._locked(partial(self._with_lock, self._shut))
        while self._held_by is not None and self._held_by.is_open:
            await self._held_by.wait_end()
        self._signals.fail_all(StoreClosed)

    def _shut(self) -> None:
        self._closed = True


def _columns(row: object) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row) if isinstance(row, msgspec.Struct) else (row,)
