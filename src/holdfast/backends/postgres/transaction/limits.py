"""Tables of limits. Server functions count and free the slots of claims."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base, columns_of
from holdfast.errors import InvalidRequest
from holdfast.limit_rows import LimitRow, LimitState, SlotRow
from holdfast.table_catalog import all_fetched, fetched

LIMIT_COLUMNS = len(LimitRow.__struct_fields__)
SLOT_COLUMNS = len(SlotRow.__struct_fields__)


class Limits(Base):
    """Implements `ports.LimitTables`."""

    __slots__ = ()

    async def exclude_claims(self) -> None:
        if self._by_family:
            raise InvalidRequest(
                "kind", "has no limits or pauses on a cluster distributed by family: distribute by schema"
            )
        await self._values("exclude_claims")

    async def find_limit(self, kind: str) -> LimitRow | None:
        return await self._one(LimitRow, "find_limit", kind)

    async def list_limits(self, *, after: str, limit: int) -> list[LimitRow]:
        return await self._all(LimitRow, "list_limits", after, limit)

    async def save_limit(self, row: LimitRow) -> None:
        await self._store("save_limit", row)

    async def drop_limit(self, kind: str) -> None:
        await self._run("drop_limit", kind)

    async def mark_slots(self, kind: str, now_ms: int) -> list[r.BatchRow]:
        return all_fetched(r.BatchRow, await self._values("mark_slots", kind, now_ms))

    async def insert_slots(self, rows: Sequence[SlotRow]) -> None:
        if rows:
            await self._run("insert_slots", *columns_of(rows, SLOT_COLUMNS))

    async def clear_slots(self, kind: str) -> None:
        await self._run("clear_slots", kind)

    async def open_keys(self, kind: str) -> None:
        await self._run("open_keys", kind)

    async def clear_keys(self, kind: str) -> None:
        await self._run("clear_keys", kind)
        await self._run("wake_waiting", kind)

    async def limit_state(self, kind: str, limit_key: str, now_ms: int) -> LimitState | None:
        found = await self._values("limit_state", kind, limit_key, now_ms)
        if not found:
            return None
        values = tuple(found[0])
        return LimitState(fetched(LimitRow, values[:LIMIT_COLUMNS]), *values[LIMIT_COLUMNS:])

    async def slots_of(self, session_key: int) -> list[SlotRow]:
        return await self._all(SlotRow, "slots_of", session_key)

    async def first_slot(self, kind: str, limit_key: str | None, now_ms: int) -> SlotRow | None:
        return await self._one(SlotRow, "first_slot", kind, limit_key, now_ms)

    async def list_paused(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        return [(key, session_id) for key, session_id in await self._values("list_paused", after, limit)]

    async def queue_depths(
        self, now_ms: int, *, after: str, limit: int
    ) -> list[tuple[str, int, int, int, int, int | None]]:
        return [
            (kind, ready, delayed, claimed, dead, oldest_ms)
            for kind, ready, delayed, claimed, dead, oldest_ms in await self._values(
                "queue_depths", now_ms, after, limit
            )
        ]

    async def free_slot(self, slot: SlotRow) -> None:
        await self._values("free_slot", *msgspec.structs.astuple(slot)[:4], self.given_ms)

    async def pause_ready(self, family: int, session_key: int, *, paused: bool) -> bool:
        [(changed,)] = await self._values("pause_ready", family, session_key, self.given_ms, int(paused))
        return bool(changed)
