"""Table of ready rows, found through an index by level, kind, priority and last service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast import rows as r
from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.backends.sqlite.transaction.limits import Limits
from holdfast.backends.sqlite.transaction.queue import Queue


class Ready(Queue, Limits):
    """Implements `ports.ReadyTables`."""

    __slots__ = ()

    @property
    def ready_tables(self) -> Ready:
        return self

    async def find_ready(self, session_key: int) -> r.ReadyRow | None:
        return self._one(r.ReadyRow, "find_ready", (session_key,))

    async def save_ready(self, row: r.ReadyRow) -> None:
        self._store("save_ready", row)

    async def move_ready(self, session_key: int, level: int, due_at_ms: int | None) -> None:
        self._run("move_ready", (session_key, level, due_at_ms))

    async def drop_ready(self, session_key: int) -> None:
        self._run("drop_ready", (session_key,))

    async def next_served(self) -> int:
        return self._number("next_served", ())

    async def queue_front(self, session_key: int, claimed_upto: int, now_ms: int) -> list[r.BatchRow]:
        return self._all(r.BatchRow, "queue_front", (session_key, claimed_upto, now_ms))

    async def next_ready(
        self, levels: Sequence[int], kinds: Sequence[str] | None, passed: Sequence[int], now_ms: int
    ) -> int | None:
        left_out = json_list(passed)
        offers: list[Values] = []
        for level in levels:
            for kind in self._kinds(level) if kinds is None else kinds:
                offers += self._numbers("next_ready", (level, kind, left_out, now_ms))
        if not offers or any(is_waited_for for *_, is_waited_for in offers):
            wanted = None if kinds is None else json_list(kinds)
            offers += self._numbers("next_waiting", (wanted, left_out, now_ms))
        return min(offers, key=lambda offer: (-offer[1], offer[2]))[0] if offers else None

    async def offers_ready(self, levels: Sequence[int], kinds: Sequence[str] | None, now_ms: int) -> bool:
        return await self.next_ready(levels, kinds, (), now_ms) is not None

    def _kinds(self, level: int) -> Iterator[str]:
        """Yield the kinds on offer, each found by one lookup in the index."""
        kind = ""
        while found := self._values("next_ready_kind", (level, kind)):
            [(kind,)] = found
            yield kind

    async def due_ready(self, now_ms: int, limit: int) -> list[int]:
        return [key for (key,) in self._numbers("due_ready", (now_ms, limit))]

    async def next_ready_due_ms(self, now_ms: int) -> int | None:
        [(due_at_ms,)] = self._values("next_ready_due_ms", (now_ms,))
        return None if due_at_ms is None else int(due_at_ms)
