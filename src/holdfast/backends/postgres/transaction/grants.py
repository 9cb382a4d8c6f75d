"""Table of grants: one scope's handle on one process."""

from __future__ import annotations

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base
from holdfast.table_catalog import fetched

GRANT_COLUMNS = len(r.GrantRow.__struct_fields__)


class Grants(Base):
    """Handles on processes."""

    __slots__ = ()

    async def find_grant(self, session_id: str, frame_id: str, process_id: str) -> r.GrantRow | None:
        name = self._locking("find_grant")
        return await self._one(r.GrantRow, name, session_id, frame_id, process_id)

    async def save_grant(self, row: r.GrantRow) -> None:
        await self._store("save_grant", row)

    async def drop_grant(self, session_id: str, frame_id: str, process_id: str) -> int:
        return await self._run("drop_grant", session_id, frame_id, process_id)

    async def list_grants(
        self, session_id: str, frame_id: str, *, running_only: bool, after: str, limit: int
    ) -> list[tuple[r.GrantRow, r.ProcessRow]]:
        bindings = (session_id, frame_id, after, running_only, limit, columns.PAGE_BYTES)
        return [
            (fetched(r.GrantRow, values[:GRANT_COLUMNS]), fetched(r.ProcessRow, values[GRANT_COLUMNS:]))
            for values in await self._values("list_grants", *bindings)
        ]

    async def grants_of_process(
        self, process_id: str, *, after: tuple[str, str] | None, limit: int
    ) -> list[r.GrantRow]:
        # No session has the empty id, so this is before every grant.
        place = after or ("", "")
        return await self._all(r.GrantRow, "grants_of_process", process_id, *place, limit, columns.PAGE_BYTES)

    async def count_grants(self, session_id: str) -> list[tuple[str, str, int]]:
        found = await self._values("count_grants", session_id)
        return [(process_id, status, others) for process_id, status, others in found]

    async def drop_session_grants(self, session_id: str) -> int:
        return await self._run("drop_session_grants", session_id)
