"""Table of grants: one scope's handle on one process."""

from __future__ import annotations

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base
from holdfast.table_catalog import fetched

GRANT_COLUMNS = len(r.GrantRow.__struct_fields__)


class Grants(Base):
    """Handles on processes."""

    __slots__ = ()

    async def find_grant(self, session_id: str, frame_id: str, process_id: str) -> r.GrantRow | None:
        return self._one(r.GrantRow, "find_grant", (session_id, frame_id, process_id))

    async def save_grant(self, row: r.GrantRow) -> None:
        self._store("save_grant", row)

    async def drop_grant(self, session_id: str, frame_id: str, process_id: str) -> int:
        return self._run("drop_grant", (session_id, frame_id, process_id))

    async def list_grants(
        self, session_id: str, frame_id: str, *, running_only: bool, after: str, limit: int
    ) -> list[tuple[r.GrantRow, r.ProcessRow]]:
        bindings = {
            "session_id": session_id,
            "frame_id": frame_id,
            "running_only": int(running_only),
            "after": after,
            "limit": limit,
        }
        return [
            (fetched(r.GrantRow, values[:GRANT_COLUMNS]), fetched(r.ProcessRow, values[GRANT_COLUMNS:]))
            for values in self._runner.page("list_grants", bindings, columns.PAGE_BYTES)
        ]

    async def grants_of_process(
        self, process_id: str, *, after: tuple[str, str] | None, limit: int
    ) -> list[r.GrantRow]:
        # No session has the empty id, so this is before every grant.
        return self._page(r.GrantRow, "grants_of_process", (process_id, *(after or ("", "")), limit))

    async def count_grants(self, session_id: str) -> list[tuple[str, str, int]]:
        return [
            (process_id, status, others) for process_id, status, others in self._values("count_grants", (session_id,))
        ]

    async def drop_session_grants(self, session_id: str) -> int:
        return self._run("drop_session_grants", (session_id,))
