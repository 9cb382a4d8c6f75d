"""The table of leases. A dropped lease leaves its fence in the fence floor."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list

SESSION_LEASE = "session"
"""The kind of a session's lease; its resource is the session's key."""

PROCESS_LEASE = "process"
"""The kind of a process's lease; its resource is the process's id."""


class Leases(Base):
    """The leases of sessions and processes."""

    __slots__ = ()

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return self._find_lease(kind, resource)

    def _find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return self._one(r.LeaseRow, "find_lease", (kind, resource))

    async def save_lease(self, row: r.LeaseRow) -> None:
        self._store("save_lease", row)

    async def drop_lease(self, kind: str, resource: str) -> None:
        self._drop_leases(kind, [resource])

    def _drop_leases(self, kind: str, resources: Sequence[str]) -> None:
        fences = [fence for (fence,) in self._numbers("drop_leases", (kind, json_list(resources)))]
        if fences:
            self._run("raise_fence_floor", (max(fences),))

    async def expired_leases(self, now_ms: int, limit: int) -> list[str]:
        return [process_id for (process_id,) in self._values("expired_leases", (now_ms, limit))]

    async def fence_floor(self) -> int:
        found = self._numbers("fence_floor", ())
        return found[0][0] if found else 0
