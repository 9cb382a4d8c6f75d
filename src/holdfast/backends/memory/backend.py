"""The memory backend. One lock serializes transactions; one that raises leaves no trace."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.graph import MemoryGraph
from holdfast.backends.memory.processes import MemoryProcesses, MemoryTriggers
from holdfast.backends.memory.sessions import MemorySessions
from holdfast.backends.memory.tables import Table, Tables
from holdfast.backends.memory.verification import MemoryVerification
from holdfast.errors import InvalidRequest, StoreClosed, StoreForked
from holdfast.loop_budget import BudgetExceeded, is_limited
from holdfast.ports import Backend, Clock, Operation
from holdfast.ports.fast_paths import NoShortcuts
from holdfast.ports.freshness import Freshness, foreign
from holdfast.read_only import ReadingBackend
from holdfast.records.diagnosis import StoreFacts
from holdfast.rows import EventFilter, ViewQuery
from holdfast.waiting import Waiting, WaitingBackend, run_made

T = TypeVar("T")

SCHEMA_VERSION = 1

POSITION = "memory"
"""The only position: every read shows all that was written before it."""


class MemoryHousekeeping(MemoryVerification):
    """Implements `ports.HousekeepingTables`."""

    tables: Tables

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        return self.tables.artifacts.get((kind, ref))

    async def list_artifacts(self, *, after: tuple[str, str], limit: int) -> list[r.ArtifactHead]:
        found = self.tables.artifacts.scan(lambda row: (row.kind, row.ref) > after)
        return [r.ArtifactHead(row.kind, row.ref, row.size, row.stored_at_ms) for row in found][:limit]

    async def save_artifact(self, row: r.ArtifactRow) -> None:
        self.tables.artifacts.put((row.kind, row.ref), row)

    async def drop_artifact(self, kind: str, ref: str) -> int:
        return self.tables.artifacts.drop((kind, ref))

    async def census(self, now_ms: int) -> dict[str, int | None]:
        tables = self.tables

        def count(table: Table[Any, Any], matches: Callable[[Any], bool] = lambda _: True) -> int:
            return sum(1 for _ in table.scan(matches))

        waiting = [row for row in tables.work.scan() if row.settled_state is None and not row.is_claimed(now_ms)]
        return {
            "schema_version": SCHEMA_VERSION,
            "sessions": count(tables.sessions, lambda row: row.deleted_at_ms is None),
            "deleted_sessions": count(tables.sessions, lambda row: row.deleted_at_ms is not None),
            "revisions": count(tables.revisions),
            "nodes": count(tables.nodes),
            "blobs": count(tables.blobs),
            "blob_bytes": sum(len(row.body) for row in tables.blobs.scan()),
            "pending_work": len(waiting),
            "claimed_work": count(tables.work, lambda row: row.settled_state is None and row.is_claimed(now_ms)),
            "settled_work": count(tables.work, lambda row: row.settled_state is not None),
            "attachments": count(tables.attachments),
            "attachment_bytes": sum(len(row.body) for row in tables.attachment_objects.scan()),
            "processes": count(tables.processes),
            "running_processes": count(tables.processes, lambda row: row.status == "running"),
            "events": count(tables.events),
            "grants": count(tables.grants),
            "live_leases": count(tables.leases, lambda row: row.is_live(now_ms)),
            "subscriptions": count(tables.subscriptions),
            "occurrences": count(tables.occurrences),
            "undelivered": count(
                tables.deliveries,
                lambda row: row.state == "reserved" and tables.processes.get(row.process_id) is None,
            ),
            "artifacts": count(tables.artifacts),
            "oldest_pending_work_at_ms": min((row.enqueued_at_ms for row in waiting), default=None),
            "bytes_on_disk": None,
        }

    async def facts(self, now_ms: int) -> StoreFacts:
        tables = self.tables
        leases = [
            row.expires_at_ms
            for row in tables.leases.scan(lambda row: row.token_hash is not None and row.expires_at_ms <= now_ms)
        ]
        deliveries = [
            row.reserved_at_ms
            for row in tables.deliveries.scan(lambda row: row.state == "reserved")
            if tables.processes.get(row.process_id) is None
        ]
        work = [
            max(row.available_at_ms, row.enqueued_at_ms, row.retry_at_ms)
            for row in tables.work.scan(lambda row: row.settled_state is None and row.ready_at_ms(now_ms) <= now_ms)
        ]
        return StoreFacts(
            now_ms=now_ms,
            schema_version=SCHEMA_VERSION,
            expired_leases=len(leases),
            oldest_expired_lease_at_ms=min(leases, default=None),
            undelivered=len(deliveries),
            oldest_undelivered_at_ms=min(deliveries, default=None),
            ready_work=len(work),
            oldest_ready_work_at_ms=min(work, default=None),
        )


class MemoryTransaction(NoShortcuts, MemorySessions, MemoryGraph, MemoryProcesses, MemoryTriggers, MemoryHousekeeping):
    """Implements `ports.Transaction` over one set of tables."""

    def __init__(self, tables: Tables, now_ms: int) -> None:
        self.tables = tables
        self._now_ms = now_ms
        self.topics: list[str] = []

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading."""
        return self._now_ms

    def notify(self, topic: str) -> None:
        """Publish a topic after the commit."""
        self.topics.append(topic)

    async def position(self) -> str:
        """Return the only position."""
        return POSITION


class MemoryBackend(WaitingBackend):
    """Implements `ports.Backend`. Several stores may share one backend, as several connections share a database."""

    durability: Literal["ephemeral", "durable"] = "ephemeral"
    schema_version = SCHEMA_VERSION

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        super().__init__(clock, waiting)
        self._tables = Tables()
        self._lock = threading.RLock()
        self._process_id = os.getpid()
        self._closed = False
        self._committing = False
        self._busy = False
        """A thread holds the lock. A hint, so that an event loop does not wait for it."""

    def __repr__(self) -> str:
        return "memory:"

    def ddl(self) -> str:
        """Return no statements: memory has no schema."""
        return ""

    async def write(
        self,
        operation: Operation[T],
        *,
        one_step: bool = False,
        repeatable: bool = False,
        line: str | None = None,
        heavy: bool = False,
    ) -> T:
        """Run an operation alone. Keep its staged writes only if it returns."""
        self._check_usable()
        return await self._locked(partial(self._write, operation), heavy=heavy)

    async def _locked(self, call: Callable[[], T], *, heavy: bool = False) -> T:
        """Run a call that takes the lock: in another thread if it is heavy, or must wait for a heavy one."""
        result, _ = await self._waiting.compute(call, heavy=heavy)
        return result

    def _with_lock(self, call: Callable[[], T]) -> T:
        if is_limited() and self._busy:
            raise BudgetExceeded
        with self._lock:
            self._busy = True
            try:
                return call()
            finally:
                self._busy = False

    def _write(self, operation: Operation[T]) -> T:
        result, topics = self._with_lock(partial(self._commit, operation))
        # In the same thread: cancelling the caller does not undo the write, and waiters must see it.
        self._signals.publish(topics)
        return result

    def _commit(self, operation: Operation[T]) -> tuple[T, list[str]]:
        self._check_usable()
        tables = self._settle()
        tx = MemoryTransaction(self._tables, self._now_ms())
        try:
            result = run_made(operation, tx)
        except BaseException:
            for table in tables:
                table.roll_back()
            raise
        self._committing = True
        for table in tables:
            table.commit()
        self._committing = False
        return result, tx.topics

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

    async def read(self, operation: Operation[T], *, view: ViewQuery | EventFilter | None = None) -> T:
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
        with self._lock:
            self._settle()
            return {
                name: [row if isinstance(row, tuple) else _columns(row) for row in table.scan()]
                for name, table in self._tables.all().items()
            }

    def borrow(self, connection: object) -> Backend:
        """Raises InvalidRequest: there is no connection to memory."""
        raise InvalidRequest(
            "connection", "a store in memory has no transactions of a caller: use SQLite or PostgreSQL"
        )

    def reader(self, freshness: Freshness) -> Backend:
        """Return this store for reads only."""
        if freshness.position not in {None, POSITION}:
            raise foreign(freshness.position or "")
        return ReadingBackend(self, self.read)

    async def close(self) -> None:
        """Refuse later calls, and end all waits with StoreClosed."""
        if os.getpid() != self._process_id:
            return
        await self._locked(partial(self._with_lock, self._shut))
        self._signals.fail_all(StoreClosed)

    def _shut(self) -> None:
        self._closed = True


def _columns(row: object) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row) if isinstance(row, msgspec.Struct) else (row,)
