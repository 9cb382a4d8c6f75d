"""The memory transaction: implements `ports.Transaction` over one set of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import rows as r
from holdfast.backends.memory.graph import MemoryGraph
from holdfast.backends.memory.leases import expired_process_leases
from holdfast.backends.memory.processes import MemoryProcesses, MemoryTriggers
from holdfast.backends.memory.schedules import MemorySchedules
from holdfast.backends.memory.sessions import MemorySessions
from holdfast.backends.memory.streams import MemoryStreams
from holdfast.backends.memory.tables import Table, Tables
from holdfast.backends.memory.verification import MemoryVerification
from holdfast.backends.memory.workers import MemoryWorkers
from holdfast.ports.fast_paths import NoFastPaths
from holdfast.records.diagnosis import StoreFacts

SCHEMA_VERSION = 1

POSITION = "memory"
"""The only position: every read shows all that was written before it."""


class MemoryHousekeeping(MemoryVerification):
    """Implements `ports.HousekeepingTables`."""

    tables: Tables

    async def find_artifact(self, kind: str, ref: str) -> r.ArtifactRow | None:
        return self.tables.artifacts.get((kind, ref))

    async def list_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactHead]:
        found = await self.read_artifacts(range, limit)
        return [r.ArtifactHead(row.kind, row.ref, row.size, row.stored_at_ms, row.hash) for row in found]

    async def read_artifacts(self, range: r.ArtifactRange, limit: int) -> list[r.ArtifactRow]:
        return [row for row in self.tables.artifacts.between(*range) if (row.kind, row.ref) != range.before][:limit]

    async def add_artifact(self, row: r.ArtifactRow) -> int:
        if self.tables.artifacts.get((row.kind, row.ref)) is not None:
            return 0
        self.tables.artifacts.put((row.kind, row.ref), row)
        return 1

    async def replace_artifact(self, row: r.ArtifactRow, expected_hash: str) -> int:
        found = self.tables.artifacts.get((row.kind, row.ref))
        if found is None or found.hash != expected_hash:
            return 0
        self.tables.artifacts.put((row.kind, row.ref), row)
        return 1

    async def drop_artifacts(self, range: r.ArtifactRange) -> int:
        keys = [key for key in self.tables.artifacts.keys_between(*range) if key != range.before]
        return sum(self.tables.artifacts.drop(key) for key in keys)

    async def save_artifact(self, row: r.ArtifactRow) -> int:
        self.tables.artifacts.put((row.kind, row.ref), row)
        return 1

    async def drop_artifact(self, kind: str, ref: str) -> int:
        return self.tables.artifacts.drop((kind, ref))

    async def stats(self, now_ms: int) -> dict[str, int | None]:
        tables = self.tables

        def count(table: Table[Any, Any], matches: Callable[[Any], bool] = lambda _: True) -> int:
            return sum(1 for _ in table.scan(matches))

        waiting = [row for row in tables.batches.scan() if row.settled_state is None and not row.is_claimed(now_ms)]
        return {
            "schema_version": SCHEMA_VERSION,
            "sessions": count(tables.sessions, lambda row: row.deleted_at_ms is None),
            "deleted_sessions": count(tables.sessions, lambda row: row.deleted_at_ms is not None),
            "revisions": count(tables.revisions),
            "nodes": count(tables.nodes),
            "blobs": count(tables.blobs),
            "blob_bytes": sum(len(row.body) for row in tables.blobs.scan()),
            "pending_batches": len(waiting),
            "claimed_batches": count(tables.batches, lambda row: row.settled_state is None and row.is_claimed(now_ms)),
            "settled_batches": count(tables.batches, lambda row: row.settled_state is not None),
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
            "schedules": count(tables.schedules),
            "artifacts": count(tables.artifacts),
            "oldest_pending_batch_at_ms": min((row.enqueued_at_ms for row in waiting), default=None),
            "bytes_on_disk": None,
        }

    async def facts(self, now_ms: int) -> StoreFacts:
        tables = self.tables
        leases = [row.expires_at_ms for row in expired_process_leases(tables, now_ms)]
        deliveries = [
            row.reserved_at_ms
            for row in tables.deliveries.scan(lambda row: row.state == "reserved")
            if tables.processes.get(row.process_id) is None
        ]
        work = [
            max(row.available_at_ms, row.enqueued_at_ms, row.retry_at_ms)
            for row in tables.batches.scan(lambda row: row.settled_state is None and row.ready_at_ms(now_ms) <= now_ms)
        ]
        return StoreFacts(
            now_ms=now_ms,
            schema_version=SCHEMA_VERSION,
            expired_leases=len(leases),
            oldest_expired_lease_at_ms=min(leases, default=None),
            undelivered=len(deliveries),
            oldest_undelivered_at_ms=min(deliveries, default=None),
            ready_batches=len(work),
            oldest_ready_batch_at_ms=min(work, default=None),
        )


class MemoryTransaction(
    NoFastPaths,
    MemorySessions,
    MemoryGraph,
    MemoryProcesses,
    MemoryTriggers,
    MemorySchedules,
    MemoryWorkers,
    MemoryStreams,
    MemoryHousekeeping,
):
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
