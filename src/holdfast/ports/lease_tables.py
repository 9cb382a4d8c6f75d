"""The table of leases, and the fence floor: the fences of a resource only rise, also after its row was dropped."""

from __future__ import annotations

from typing import Protocol

from holdfast import rows as r


class LeaseTables(Protocol):
    """The leases of sessions and processes."""

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        """Return the lease row of a resource, held or not."""
        ...

    async def save_lease(self, row: r.LeaseRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_lease(self, kind: str, resource: str) -> None:
        """Delete the row and raise the fence floor to its fence, so that no later lease has a lower one."""
        ...

    async def expired_leases(self, now_ms: int, limit: int) -> list[str]:
        """Return the processes whose lease expired until then and was not released, the oldest first."""
        ...

    async def fence_floor(self) -> int:
        """Return the highest fence of any lease row that was dropped; 0 at first."""
        ...
