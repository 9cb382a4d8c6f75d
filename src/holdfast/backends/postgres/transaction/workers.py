"""Table of live workers, and the search for what one holds."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.postgres.transaction.base import Base
from holdfast.worker_rows import WorkerRow


class Workers(Base):
    """Workers."""

    __slots__ = ()

    async def find_worker(self, worker_id: str) -> WorkerRow | None:
        return await self._one(WorkerRow, "find_worker", worker_id)

    async def save_worker(self, row: WorkerRow) -> None:
        await self._store("save_worker", row)

    async def drop_worker(self, worker_id: str) -> int:
        return await self._run("drop_worker", worker_id)

    async def drop_expired_workers(self, until_ms: int) -> int:
        return await self._run("drop_expired_workers", until_ms)

    async def list_workers(self, alive_at_ms: int, *, after: str, limit: int) -> list[WorkerRow]:
        return await self._all(WorkerRow, "list_workers", alive_at_ms, after, limit)

    async def expired_workers(self, worker_ids: Sequence[str], now_ms: int) -> list[str]:
        return [id for (id,) in await self._values("expired_workers", list(worker_ids), now_ms)]

    async def holders(self, now_ms: int, *, after: str, limit: int) -> list[str]:
        names = "claim_holders", "lease_holders"
        found = {owner for name in names for (owner,) in await self._values(name, now_ms, after, limit)}
        return sorted(found)[:limit]

    async def claims_of_owner(self, owner_id: str, now_ms: int, limit: int) -> list[tuple[int, str]]:
        return [(key, batch_id) for key, batch_id in await self._values("claims_of_owner", owner_id, now_ms, limit)]

    async def leases_of_owner(self, kind: str, owner_id: str, now_ms: int, limit: int) -> list[str]:
        return [resource for (resource,) in await self._values("leases_of_owner", kind, owner_id, now_ms, limit)]
