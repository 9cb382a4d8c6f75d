"""Tables of limits, slots and waiting keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base
from holdfast.limit_rows import LimitRow, LimitState, SlotRow, WaitingKeyRow


class Limits(Base):
    """Implements `ports.LimitTables` and `ports.SlotTables`."""

    __slots__ = ()

    async def exclude_claims(self) -> None:
        """Do nothing: writing transactions follow each other."""

    async def find_limit(self, kind: str) -> LimitRow | None:
        return self._one(LimitRow, "find_limit", (kind,))

    async def list_limits(self, *, after: str, limit: int) -> list[LimitRow]:
        return self._page(LimitRow, "list_limits", (after, limit))

    async def save_limit(self, row: LimitRow) -> None:
        self._store("save_limit", row)

    async def drop_limit(self, kind: str) -> None:
        self._run("drop_limit", (kind,))

    async def mark_slots(self, kind: str, now_ms: int) -> list[r.BatchRow]:
        return self._all(r.BatchRow, "mark_slots", (kind, now_ms))

    async def insert_slots(self, rows: Sequence[SlotRow]) -> None:
        for row in rows:
            self._store("insert_slot", row)

    async def clear_slots(self, kind: str) -> None:
        self._run("clear_slots", (kind,))

    async def open_keys(self, kind: str) -> None:
        self._run("open_keys", (kind,))

    async def clear_keys(self, kind: str) -> None:
        self._run("clear_keys", (kind,))
        self._run("wake_waiting", (kind,))

    async def limit_state(self, kind: str, limit_key: str, now_ms: int) -> LimitState | None:
        limit = await self.find_limit(kind)
        if limit is None:
            return None
        used, first_end_ms = 0, None
        if limit.at_once is not None:
            [(used, first_end_ms)] = self._values("count_slots", (kind, now_ms))
        [(used_by_key, first_end_of_key_ms)] = self._values("count_slots_of_key", (kind, limit_key, now_ms))
        return LimitState(limit, used, first_end_ms, used_by_key, first_end_of_key_ms)

    async def slots_of(self, session_key: int) -> list[SlotRow]:
        return self._all(SlotRow, "slots_of", (session_key,))

    async def first_slot(self, kind: str, limit_key: str | None, now_ms: int) -> SlotRow | None:
        return self._one(SlotRow, "first_slot", (kind, limit_key, now_ms))

    async def list_paused(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        return [(key, session_id) for key, session_id in self._values("list_paused", (after, limit))]

    async def queue_depths(
        self, now_ms: int, *, after: str, limit: int
    ) -> list[tuple[str, int, int, int, int, int | None]]:
        bindings = {"now_ms": now_ms, "after": after, "limit": limit}
        return [
            (kind, ready, delayed, claimed, dead, oldest_ms)
            for kind, ready, delayed, claimed, dead, oldest_ms in self._values("queue_depths", bindings)
        ]

    async def drop_slot(self, row: SlotRow) -> int:
        return self._run("drop_slot", msgspec.structs.astuple(row)[:4])

    async def extend_slot(self, row: SlotRow) -> int:
        return self._store("extend_slot", row)

    async def drop_expired_slots(self, kind: str, limit_key: str | None, now_ms: int) -> int:
        return self._run("drop_expired_slots", (kind, limit_key, now_ms))

    async def move_kind(self, kind: str, opens_at_ms: int) -> None:
        self._run("move_kind", (kind, opens_at_ms))

    async def save_waiting_key(self, row: WaitingKeyRow) -> None:
        self._store("save_waiting_key", row)

    async def move_key(self, row: WaitingKeyRow) -> None:
        self._run("drop_idle_key", (row.kind, row.limit_key))
        self._store("move_key", row)
