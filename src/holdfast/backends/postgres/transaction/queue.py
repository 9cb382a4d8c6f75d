"""The table of batches. A batch keeps its place in its queue, by sequence, until it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.connection import Distribution
from holdfast.backends.postgres.transaction.base import columns_of
from holdfast.backends.postgres.transaction.leases import SESSION_LEASE, Leases
from holdfast.backends.postgres.transaction.limits import Limits
from holdfast.ports.limit_tables import Obstacles, ReadySession
from holdfast.table_catalog import all_fetched

DRAFT_COLUMNS = 13
"""Columns of a new batch, from its id to its payloads. The database gives the sequence, and the key comes last."""

SAVED_COLUMNS = 16
"""Columns of a batch that change: all after its payloads."""


class Queue(Leases, Limits):
    """The queue."""

    __slots__ = ()

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        if not pairs:
            return []
        return await self._batches("find_sources", *await self._source_places(pairs), True)

    async def _source_places(self, pairs: Sequence[tuple[int, str]]) -> tuple[list[int], list[int], list[str]]:
        """Return the pairs as three arrays with their families, each pair once."""
        unique = list(dict.fromkeys(pairs))
        families = await self._families_of(key for key, _ in unique)
        return [families[key] for key, _ in unique], [key for key, _ in unique], [source for _, source in unique]

    async def _batches(self, name: str, *bindings: Any) -> list[r.BatchRow]:
        return all_fetched(r.BatchRow, await self._runner.all(name, *bindings))

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        if not batches:
            return []
        drafts = columns_of(batches, DRAFT_COLUMNS, first=1)
        stored = await self._batches("insert_batches", *drafts, [row.limit_key for row in batches])
        return sorted(stored, key=_seq_of)

    async def ready_batches(
        self, session_key: int, now_ms: int, limit: int, *, with_back_off: bool
    ) -> list[r.BatchRow]:
        family = await self._family(session_key)
        return await self._batches("ready_batches", family, session_key, now_ms, limit, with_back_off)

    async def sessions_with_ready(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        return [
            (key, session_id) for key, session_id in await self._values("sessions_with_ready", now_ms, after, limit)
        ]

    async def oldest_ready(self, now_ms: int, limit: int) -> list[ReadySession]:
        found = await self._values("oldest_ready", now_ms, limit)
        return [ReadySession(id, since_ms, kind, bool(paused)) for id, since_ms, kind, paused in found]

    async def obstacles(self, session_key: int, claim_id: str, now_ms: int) -> Obstacles:
        family = await self._family(session_key)
        [found] = await self._values("obstacles", family, session_key, claim_id, now_ms)
        return Obstacles(*map(bool, found))

    async def may_be_claimed(self, session_key: int) -> bool:
        return bool(await self._values("may_be_claimed", await self._family(session_key), session_key))

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        place = (await self._family(session_key), session_key)
        if self._writes:
            await self.hold_queue(*place)
        return await self._held_or_found(*place, batch_ids, with_payloads=True)

    async def _held_or_found(
        self, family: int, session_key: int, batch_ids: Sequence[str], *, with_payloads: bool
    ) -> list[r.BatchRow]:
        asked = family, session_key, list(batch_ids), with_payloads
        return await self._all_locked(r.BatchRow, "lock_batches", *asked, find="find_batches")

    async def find_claimed(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        place = (await self._family(session_key), session_key)
        if self._writes:
            await self.hold_queue(*place)
        return await self._all_locked(r.BatchRow, "find_claimed", *place, claim_id)

    async def hold_queue(self, family: int, session_key: int) -> None:
        """Lock a session's queue, as claims do before its lease and its batches."""
        await self._values("lock_ready", [family], [session_key])

    async def save_batches(self, rows: Sequence[r.BatchRow]) -> int:
        families = [row.family for row in rows]
        keys = [row.session_key for row in rows]
        seqs = [row.enqueue_seq for row in rows]
        return await self._run("save_batches", families, keys, seqs, *columns_of(rows, SAVED_COLUMNS, first=14))

    async def list_dead(self, session_key: int | None, kind: str | None, *, after: int, limit: int) -> list[r.BatchRow]:
        return await self._batches("list_dead", session_key, kind, after, limit, columns.PAGE_BYTES)

    async def offers_ready(self, levels: Sequence[int], kinds: Sequence[str] | None, now_ms: int) -> bool:
        wanted = None if kinds is None else list(kinds)
        if wanted is None and self._runner.distribution is Distribution.BY_SCHEMA:
            [(offered,)] = await self._values("ready_kinds", list(levels))
            wanted = [*offered, *(kind for (kind,) in await self._values("limited_kinds"))]
        [(offers,)] = await self._values("offers_ready", list(levels), wanted, now_ms)
        return bool(offers)

    async def next_ready_due_ms(self, now_ms: int) -> int | None:
        [(due_at_ms,)] = await self._values("next_ready_due_ms", now_ms)
        return None if due_at_ms is None else int(due_at_ms)

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        family = await self._family(session_key)
        return await self._batches("list_batches", family, session_key, pending_at_ms, after, limit, columns.PAGE_BYTES)

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        [(due_ms,)] = await self._values("next_due_ms", await self._family(session_key), session_key, now_ms)
        return None if due_ms is None else int(due_ms)

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        if dry_run:
            return await self._number("count_settled_batches", settled_until_ms, limit)
        if not self._by_family:
            return await self._run("drop_settled_batches", settled_until_ms, limit)
        # Settled work stays settled, and needs no lock.
        by_family: dict[int, list[tuple[int, int]]] = {}
        for family, *place in await self._values("find_settled_batches", settled_until_ms, limit):
            by_family.setdefault(family, []).append((place[0], place[1]))
        dropped = 0
        for family, places in by_family.items():
            keys, seqs = [key for key, _ in places], [seq for _, seq in places]
            dropped += await self._run("drop_batches_of_family", family, keys, seqs)
        return dropped

    async def hold_expiring(self, session: r.SessionRow, batch_ids: Sequence[str], *, with_lease: bool) -> None:
        """Lock the claims and the lease that a turn is judged by, and read the clock after the locks."""
        place = (session.family, session.session_key)
        if self._writes and (with_lease or batch_ids):
            await self.hold_queue(*place)
        if self._writes and with_lease:
            _, *lease = await self._lease_place(SESSION_LEASE, str(session.session_key))
            self._read_behind_lock(await self._number("share_lease", *lease))
        if self._writes and batch_ids:
            await self._held_or_found(*place, batch_ids, with_payloads=False)


def _seq_of(row: r.BatchRow) -> int:
    return row.enqueue_seq
