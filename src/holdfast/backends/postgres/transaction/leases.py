"""The table of leases. A dropped lease leaves its fence in the fence floor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base
from holdfast.backends.postgres.transaction.function_calls import process_family

SESSION_LEASE = "session"
"""The kind of a session's lease; its resource is the session's key."""

PROCESS_LEASE = "process"
"""The kind of a process's lease; its resource is the process's id."""


class Leases(Base):
    """The leases of sessions and processes."""

    __slots__ = ()

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return await self._locked(r.LeaseRow, "find_lease", *await self._lease_place(kind, resource))

    async def _lease_place(self, kind: str, resource: str) -> tuple[str | int, ...]:
        """Return the key of a lease, with its family on a cluster that is distributed by family."""
        if not self._by_family:
            return kind, resource
        family = await self._family(int(resource)) if kind == SESSION_LEASE else process_family(resource)
        return kind, resource, family

    async def save_lease(self, row: r.LeaseRow) -> None:
        _, _, *family = await self._lease_place(row.kind, row.resource)
        await self._run("save_lease", *msgspec.structs.astuple(row), *family)

    async def drop_lease(self, kind: str, resource: str) -> None:
        await self._drop_leases(kind, [resource])

    async def _drop_leases(self, kind: str, resources: Sequence[str]) -> None:
        if not self._by_family:
            await self._run("drop_leases", kind, list(resources))
            return
        fences: list[int] = []
        for resource in resources:
            fences += [fence for (fence,) in await self._values("drop_lease", *await self._lease_place(kind, resource))]
        if fences:
            await self._run("raise_fence_floor", max(fences))

    async def expired_leases(self, now_ms: int, limit: int) -> list[str]:
        return [process_id for (process_id,) in await self._values("expired_leases", now_ms, limit)]

    async def fence_floor(self) -> int:
        found = await self._values("fence_floor")
        return found[0][0] if found else 0
