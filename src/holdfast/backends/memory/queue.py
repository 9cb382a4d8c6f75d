"""The queue in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.leases import MemoryLeases
from holdfast.backends.memory.limits import MemoryLimits
from holdfast.ports.limit_tables import Obstacles, ReadySession


class MemoryQueue(MemoryLeases, MemoryLimits):
    """Implements `ports.QueueTables`."""

    def _unsettled(self, session_key: int) -> list[r.BatchRow]:
        return [row for row in self.tables.batches.of(session_key) if row.settled_state is None]

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        wanted = set(pairs)
        return list(self.tables.batches.scan(lambda row: (row.session_key, row.source_key) in wanted))

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        stored: list[r.BatchRow] = []
        for batch in batches:
            row = msgspec.structs.replace(batch, enqueue_seq=self.tables.next_number("enqueue_seq"))
            self.tables.batches.put(row.enqueue_seq, row)
            stored.append(row)
        return stored

    async def ready_batches(
        self, session_key: int, now_ms: int, limit: int, *, with_back_off: bool
    ) -> list[r.BatchRow]:
        ready = [
            row
            for row in self._unsettled(session_key)
            if row.available_at_ms <= now_ms
            and not row.is_claimed(now_ms)
            and (with_back_off or row.retry_at_ms <= now_ms)
        ]
        return ready[:limit]

    async def sessions_with_ready(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        found = [
            (session.session_key, session.session_id)
            for session in self.tables.sessions.scan(lambda row: row.session_key > after)
            if await self.ready_batches(session.session_key, now_ms, 1, with_back_off=False)
        ]
        return found[:limit]

    async def oldest_ready(self, now_ms: int, limit: int) -> list[ReadySession]:
        since: dict[int, tuple[int, int, str]] = {}
        for row in self.tables.batches.scan(
            lambda row: row.settled_state is None and row.ready_at_ms(now_ms) <= now_ms
        ):
            since_ms = max(row.available_at_ms, row.enqueued_at_ms, row.retry_at_ms)
            first = (since_ms, row.enqueue_seq, row.kind)
            since[row.session_key] = min(first, since.get(row.session_key, first))
        found: list[ReadySession] = []
        for key in sorted(since, key=lambda key: (since[key][0], key))[:limit]:
            session, queue = self.tables.sessions.get(key), self.tables.ready.get(key)
            if session is not None:
                is_paused = queue is not None and queue.paused > 0
                found.append(ReadySession(session.session_id, since[key][0], since[key][2], is_paused))
        return found

    async def obstacles(self, session_key: int, claim_id: str, now_ms: int) -> Obstacles:
        others = [row for row in self._unsettled(session_key) if row.is_claimed(now_ms) and row.claim_id != claim_id]
        queue = self.tables.ready.get(session_key)
        return Obstacles(
            claimed=bool(others),
            exclusively=any(row.claim_exclusive for row in others),
            paused=queue is not None and queue.paused > 0,
            any_limits=any(self.tables.limits.keys_between()),
        )

    async def may_be_claimed(self, session_key: int) -> bool:
        return any(row.claim_id is not None for row in self._unsettled(session_key))

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        wanted = set(batch_ids)
        return [row for row in self.tables.batches.of(session_key) if row.batch_id in wanted]

    async def find_claimed(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        return [row for row in self._unsettled(session_key) if row.claim_id == claim_id]

    async def save_batches(self, rows: Sequence[r.BatchRow]) -> int:
        for row in rows:
            self.tables.batches.put(row.enqueue_seq, row)
        return len(rows)

    async def list_dead(self, session_key: int | None, kind: str | None, *, after: int, limit: int) -> list[r.BatchRow]:
        found = self.tables.batches.scan(
            lambda row: (
                row.settled_state == "dead"
                and row.enqueue_seq > after
                and session_key in (None, row.session_key)
                and kind in (None, row.kind)
            )
        )
        return list(found)[:limit]

    @property
    def ready_tables(self) -> MemoryQueue:
        return self

    async def find_ready(self, session_key: int) -> r.ReadyRow | None:
        return self.tables.ready.get(session_key)

    async def save_ready(self, row: r.ReadyRow) -> None:
        self.tables.ready.put(row.session_key, row)

    async def move_ready(self, session_key: int, level: int, due_at_ms: int | None) -> None:
        row = self.tables.ready.get(session_key)
        assert row is not None
        await self.save_ready(msgspec.structs.replace(row, level=level, due_at_ms=due_at_ms, waits_for=None))

    async def drop_ready(self, session_key: int) -> None:
        self.tables.ready.drop(session_key)

    async def next_served(self) -> int:
        return self.tables.next_number("served")

    async def queue_front(self, session_key: int, claimed_upto: int, now_ms: int) -> list[r.BatchRow]:
        front: list[r.BatchRow] = []
        for row in self._unsettled(session_key):
            if row.enqueue_seq > claimed_upto and any(one.ready_at_ms(now_ms) <= now_ms for one in front):
                break
            front.append(row)
        return front

    async def next_ready(
        self, levels: Sequence[int], kinds: Sequence[str] | None, passed: Sequence[int], now_ms: int
    ) -> int | None:
        open_keys = self._open_keys(kinds, passed, now_ms)

        def is_offered(row: r.ReadyRow) -> bool:
            if row.session_key in passed or (kinds is not None and row.kind not in kinds):
                return False
            if row.waits_for is not None:
                return (row.kind, row.waits_for) in open_keys
            return row.level in levels and not self._is_closed(row.kind, now_ms)

        offers = sorted(self.tables.ready.scan(is_offered), key=lambda row: (-row.priority, row.served))
        return offers[0].session_key if offers else None

    async def due_ready(self, now_ms: int, limit: int) -> list[int]:
        due = self.tables.ready.scan(lambda row: row.due_at_ms is not None and row.due_at_ms <= now_ms)
        return [row.session_key for row in sorted(due, key=lambda row: (row.due_at_ms or 0, row.session_key))[:limit]]

    async def offers_ready(self, levels: Sequence[int], kinds: Sequence[str] | None, now_ms: int) -> bool:
        return await self.next_ready(levels, kinds, (), now_ms) is not None

    async def next_ready_due_ms(self, now_ms: int) -> int | None:
        times = [row.due_at_ms for row in self.tables.ready.scan() if row.due_at_ms is not None]
        kinds = [row.opens_at_ms for row in self.tables.limits.scan()]
        keys = [row.opens_at_ms for row in self.tables.waiting_keys.scan()]
        return min([*times, *(time for time in (*kinds, *keys) if time > now_ms)], default=None)

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        found = [
            row
            for row in self._unsettled(session_key)
            if row.enqueue_seq > after and (pending_at_ms is None or not row.is_claimed(pending_at_ms))
        ]
        return found[:limit]

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        times: list[int] = []
        for row in self._unsettled(session_key):
            times += [time for time in (row.available_at_ms, row.retry_at_ms) if time > now_ms]
            if row.is_claimed(now_ms) and row.claim_expires_at_ms is not None:
                times.append(row.claim_expires_at_ms)
        return min(times, default=None)

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        found = self.tables.batches.scan(
            lambda row: row.settled_state not in (None, "dead") and (row.settled_at_ms or 0) <= settled_until_ms
        )
        old = sorted(found, key=lambda row: (row.settled_at_ms, row.enqueue_seq))[:limit]
        if not dry_run:
            for row in old:
                self.tables.batches.drop(row.enqueue_seq)
        return len(old)
