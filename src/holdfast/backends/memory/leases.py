"""Leases in memory."""

from __future__ import annotations

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables


def expired_process_leases(tables: Tables, now_ms: int) -> list[r.LeaseRow]:
    """Return the leases on processes that have ended, and that their holders have not released."""
    found = tables.leases.scan(lambda row: row.token_hash is not None and row.expires_at_ms <= now_ms)
    return [row for row in found if row.kind == "process"]


class MemoryLeases:
    """Implements `ports.LeaseTables`."""

    tables: Tables

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return self.tables.leases.get((kind, resource))

    async def save_lease(self, row: r.LeaseRow) -> None:
        self.tables.leases.put((row.kind, row.resource), row)

    async def drop_lease(self, kind: str, resource: str) -> None:
        row = self.tables.leases.get((kind, resource))
        if row is not None:
            self.tables.settings.put("fence_floor", max(await self.fence_floor(), row.fence))
            self.tables.leases.drop((kind, resource))

    async def expired_leases(self, now_ms: int, limit: int) -> list[str]:
        rows = sorted(expired_process_leases(self.tables, now_ms), key=lambda row: (row.expires_at_ms, row.resource))
        return [row.resource for row in rows[:limit]]

    async def fence_floor(self) -> int:
        return self.tables.settings.get("fence_floor") or 0
