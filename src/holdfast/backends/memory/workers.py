"""Live workers in memory, and the search for what one holds."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.memory.tables import Tables
from holdfast.worker_rows import WorkerRow


class MemoryWorkers:
    """Implements `ports.WorkerTables`."""

    tables: Tables

    async def find_worker(self, worker_id: str) -> WorkerRow | None:
        return self.tables.workers.get(worker_id)

    async def save_worker(self, row: WorkerRow) -> None:
        self.tables.workers.put(row.worker_id, row)

    async def drop_worker(self, worker_id: str) -> int:
        return self.tables.workers.drop(worker_id)

    async def drop_expired_workers(self, until_ms: int) -> int:
        expired = [row.worker_id for row in self.tables.workers.scan(lambda row: row.expires_at_ms <= until_ms)]
        return sum(self.tables.workers.drop(worker_id) for worker_id in expired)

    async def list_workers(self, alive_at_ms: int, *, after: str, limit: int) -> list[WorkerRow]:
        found = self.tables.workers.scan(lambda row: row.worker_id > after and row.expires_at_ms > alive_at_ms)
        return list(found)[:limit]

    async def expired_workers(self, worker_ids: Sequence[str], now_ms: int) -> list[str]:
        asked = set(worker_ids)
        found = self.tables.workers.scan(lambda row: row.worker_id in asked and row.expires_at_ms <= now_ms)
        return [row.worker_id for row in found]

    async def holders(self, now_ms: int, *, after: str, limit: int) -> list[str]:
        owners = {row.claim_owner for row in self.tables.batches.scan(lambda row: row.is_claimed(now_ms))}
        owners |= {row.owner_id for row in self.tables.leases.scan(lambda row: row.is_live(now_ms))}
        return sorted(owner for owner in owners if owner is not None and owner > after)[:limit]

    async def claims_of_owner(self, owner_id: str, now_ms: int, limit: int) -> list[tuple[int, str]]:
        held = self.tables.batches.scan(lambda row: row.claim_owner == owner_id and row.is_claimed(now_ms))
        rows = sorted(held, key=lambda row: (row.session_key, row.enqueue_seq))
        return [(row.session_key, row.batch_id) for row in rows][:limit]

    async def leases_of_owner(self, kind: str, owner_id: str, now_ms: int, limit: int) -> list[str]:
        held = self.tables.leases.scan(
            lambda row: row.kind == kind and row.owner_id == owner_id and row.is_live(now_ms)
        )
        return [row.resource for row in held][:limit]
