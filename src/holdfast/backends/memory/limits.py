"""Limits in memory: declarations, slots and waiting keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.backends.memory.tables import Tables, starting_with
from holdfast.limit_rows import LimitRow, LimitState, SlotRow, WaitingKeyRow
from holdfast.rows import BatchRow

KEYS_AT_ONCE = 16
"""Open keys whose waiting sessions are considered for one claim."""


class MemoryLimits:
    """Implements `ports.LimitTables` and `ports.SlotTables`."""

    tables: Tables

    async def exclude_claims(self) -> None:
        """Do nothing: transactions follow each other."""

    async def find_limit(self, kind: str) -> LimitRow | None:
        return self.tables.limits.get(kind)

    async def list_limits(self, *, after: str, limit: int) -> list[LimitRow]:
        return list(self.tables.limits.scan(lambda row: row.kind > after))[:limit]

    async def save_limit(self, row: LimitRow) -> None:
        self.tables.limits.put(row.kind, row)

    async def drop_limit(self, kind: str) -> None:
        self.tables.limits.drop(kind)

    async def mark_slots(self, kind: str, now_ms: int) -> list[BatchRow]:
        found = self.tables.batches.scan(lambda row: row.kind == kind and row.is_claimed(now_ms))
        marked = [msgspec.structs.replace(row, claim_slot=1) for row in found]
        for row in marked:
            self.tables.batches.put(row.enqueue_seq, row)
        return marked

    async def insert_slots(self, rows: Sequence[SlotRow]) -> None:
        for row in rows:
            self.tables.slots.put(_place(row), row)

    async def clear_slots(self, kind: str) -> None:
        for row in list(self.tables.slots.between(*starting_with(kind))):
            self.tables.slots.drop(_place(row))

    async def open_keys(self, kind: str) -> None:
        for row in list(self.tables.waiting_keys.between(*starting_with(kind))):
            await self.save_waiting_key(msgspec.structs.replace(row, opens_at_ms=0))

    async def clear_keys(self, kind: str) -> None:
        for row in list(self.tables.waiting_keys.between(*starting_with(kind))):
            self.tables.waiting_keys.drop((kind, row.limit_key))
        for queue in list(self.tables.ready.scan(lambda row: row.kind == kind and row.waits_for is not None)):
            self.tables.ready.put(queue.session_key, msgspec.structs.replace(queue, due_at_ms=0))

    async def limit_state(self, kind: str, limit_key: str, now_ms: int) -> LimitState | None:
        limit = self.tables.limits.get(kind)
        if limit is None:
            return None
        live = [row for row in self.tables.slots.between(*starting_with(kind)) if row.expires_at_ms > now_ms]
        of_key = [row.expires_at_ms for row in live if row.limit_key == limit_key]
        first_end_ms = min((row.expires_at_ms for row in live), default=None)
        return LimitState(limit, len(live), first_end_ms, len(of_key), min(of_key, default=None))

    async def slots_of(self, session_key: int) -> list[SlotRow]:
        return list(self.tables.slots.scan(lambda row: row.session_key == session_key))

    async def first_slot(self, kind: str, limit_key: str | None, now_ms: int) -> SlotRow | None:
        found = self.tables.slots.scan(
            lambda row: row.kind == kind and limit_key in {None, row.limit_key} and row.expires_at_ms > now_ms
        )
        return min(found, key=lambda row: (row.expires_at_ms, row.session_key, row.claim_id), default=None)

    async def list_paused(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        found = self.tables.ready.scan(lambda row: row.paused > 0 and row.session_key > after)
        named = ((row.session_key, self.tables.sessions.get(row.session_key)) for row in found)
        return [(key, session.session_id) for key, session in named if session is not None][:limit]

    async def queue_depths(
        self, now_ms: int, *, after: str, limit: int
    ) -> list[tuple[str, int, int, int, int, int | None]]:
        counts: dict[str, tuple[list[int], list[int]]] = {}
        for row in self.tables.batches.scan(lambda row: row.kind > after and row.settled_state in (None, "dead")):
            number, ready_at_ms = counts.setdefault(row.kind, ([0, 0, 0, 0], []))
            due_at_ms = max(row.available_at_ms, row.retry_at_ms)
            is_dead, is_claimed = row.settled_state is not None, row.is_claimed(now_ms)
            number[3 if is_dead else 2 if is_claimed else 1 if due_at_ms > now_ms else 0] += 1
            if not is_dead and not is_claimed and due_at_ms <= now_ms:
                ready_at_ms.append(max(due_at_ms, row.enqueued_at_ms))
        found = sorted(counts.items())[:limit]
        return [
            (kind, number[0], number[1], number[2], number[3], min(times, default=None))
            for kind, (number, times) in found
        ]

    async def drop_slot(self, row: SlotRow) -> int:
        return self.tables.slots.drop(_place(row))

    async def extend_slot(self, row: SlotRow) -> int:
        if self.tables.slots.get(_place(row)) is None:
            return 0
        self.tables.slots.put(_place(row), row)
        return 1

    async def drop_expired_slots(self, kind: str, limit_key: str | None, now_ms: int) -> int:
        found = self.tables.slots.between(*starting_with(kind))
        expired = [row for row in found if row.expires_at_ms <= now_ms and limit_key in (None, row.limit_key)]
        return sum(self.tables.slots.drop(_place(row)) for row in expired)

    async def move_kind(self, kind: str, opens_at_ms: int) -> None:
        limit = self.tables.limits.get(kind)
        if limit is not None:
            self.tables.limits.put(kind, msgspec.structs.replace(limit, opens_at_ms=opens_at_ms))

    async def save_waiting_key(self, row: WaitingKeyRow) -> None:
        self.tables.waiting_keys.put((row.kind, row.limit_key), row)

    async def move_key(self, row: WaitingKeyRow) -> None:
        place = (row.kind, row.limit_key)
        if not any(self.tables.ready.scan(lambda queue: (queue.kind, queue.waits_for) == place)):
            self.tables.waiting_keys.drop(place)
        elif self.tables.waiting_keys.get(place) is not None:
            self.tables.waiting_keys.put(place, row)

    def _is_closed(self, kind: str, now_ms: int) -> bool:
        limit = self.tables.limits.get(kind)
        return limit is not None and (limit.paused > 0 or limit.opens_at_ms > now_ms)

    def _open_keys(self, kinds: Sequence[str] | None, passed: Sequence[int], now_ms: int) -> set[tuple[str, str]]:
        """Return the keys that have been open longest and that other sessions than these wait for."""
        waited_for = {
            (row.kind, row.waits_for or "")
            for row in self.tables.ready.scan(lambda row: row.waits_for is not None and row.session_key not in passed)
        }
        found = self.tables.waiting_keys.scan(
            lambda row: (
                row.opens_at_ms <= now_ms
                and (kinds is None or row.kind in kinds)
                and (row.kind, row.limit_key) in waited_for
                and not self._is_closed(row.kind, now_ms)
            )
        )
        oldest = sorted(found, key=lambda row: row.opens_at_ms)[:KEYS_AT_ONCE]
        return {(row.kind, row.limit_key) for row in oldest}


def _place(row: SlotRow) -> tuple[str, str, int, str]:
    return row.kind, row.limit_key, row.session_key, row.claim_id
