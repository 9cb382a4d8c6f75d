"""A batch stands in its queue by sequence, whoever claims it, until it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base, all_fetched, columns_of

DRAFT_COLUMNS = 11
"""What a batch is born with, from its id to its payloads; the sequence number before is given, the rest is empty."""


class Work(Base):
    """The queue, and leases."""

    __slots__ = ()

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        if not pairs:
            return []
        return await self._batches("find_sources", *await self._source_places(pairs))

    async def _source_places(self, pairs: Sequence[tuple[int, str]]) -> tuple[list[int], list[int], list[str]]:
        """The pairs as three arrays with their families; a pair that is asked for twice is still one batch."""
        unique = list(dict.fromkeys(pairs))
        families = await self._families_of(key for key, _ in unique)
        return [families[key] for key, _ in unique], [key for key, _ in unique], [source for _, source in unique]

    async def _batches(self, name: str, *bindings: Any) -> list[r.BatchRow]:
        return self._noted(all_fetched(r.BatchRow, await self._link.all(name, *bindings)))

    def _noted(self, rows: list[r.BatchRow]) -> list[r.BatchRow]:
        """Remember where the batches are, for whoever names them by their sequence numbers alone."""
        self._places.update((row.enqueue_seq, (row.family, row.session_key)) for row in rows)
        return rows

    async def _places_of(self, seqs: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """The batches' whole keys as three arrays."""
        unknown = [seq for seq in seqs if seq not in self._places]
        if unknown:
            found = await self._values("find_places", unknown)
            self._places.update((seq, (family, session_key)) for seq, family, session_key in found)
        known = [(*self._places[seq], seq) for seq in seqs if seq in self._places]
        return [family for family, _, _ in known], [key for _, key, _ in known], [seq for _, _, seq in known]

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        if not batches:
            return []
        stored = await self._batches("insert_batches", *columns_of(batches, DRAFT_COLUMNS, first=1))
        return sorted(stored, key=_seq_of)

    async def ready_batches(self, session_key: int, now_ms: int, limit: int) -> list[r.BatchRow]:
        name = self._locking("ready_batches", "lock_ready_batches")
        return await self._batches(name, await self._family(session_key), session_key, now_ms, limit)

    async def sessions_with_work(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        return [(key, session_id) for key, session_id in await self._values("sessions_with_work", now_ms, after, limit)]

    async def other_claims(self, session_key: int, claim_id: str, now_ms: int) -> tuple[bool, bool]:
        family = await self._family(session_key)
        [(held, exclusive)] = await self._values("other_claims", family, session_key, claim_id, now_ms)
        return bool(held), bool(exclusive)

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        place = (await self._family(session_key), session_key)
        return self._noted(await self._all_locked(r.BatchRow, "find_batches", "lock_batches", *place, list(batch_ids)))

    async def claimed_batches(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        place = (await self._family(session_key), session_key)
        return self._noted(
            await self._all_locked(r.BatchRow, "claimed_batches", "lock_claimed_batches", *place, claim_id)
        )

    async def batches_of_token(self, session_key: int, token_hash: str) -> list[r.BatchRow]:
        return await self._batches("batches_of_token", await self._family(session_key), session_key, token_hash)

    async def stamp_claim(self, seqs: Sequence[int], claim: r.ClaimStamp) -> int:
        return await self._run(
            "stamp_claim",
            *await self._places_of(seqs),
            claim.claim_id,
            claim.owner_id,
            claim.token_hash,
            claim.fence,
            claim.claimed_at_ms,
            claim.expires_at_ms,
            claim.exclusive,
        )

    async def clear_claim(self, seqs: Sequence[int]) -> int:
        return await self._run("clear_claim", *await self._places_of(seqs)) if seqs else 0

    async def settle_batches(self, seqs: Sequence[int], state: str, now_ms: int) -> int:
        if not seqs:
            return 0
        return await self._number("settle_batches", *await self._places_of(seqs), state, now_ms)

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
        return await self._run("drop_settled_batches", settled_until_ms, limit)

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return await self._locked(r.LeaseRow, "find_lease", "lock_lease", kind, resource)

    async def hold_expiring(self, session: r.SessionRow, claim_ids: Sequence[str], *, with_lease: bool) -> None:
        """Lock the claims and the lease that a turn is judged by, and read the clock behind the locks."""
        resource = str(session.session_key) if with_lease else None
        if self._writes and (with_lease or claim_ids):
            place = (session.family, session.session_key)
            self._read_behind_lock(await self._number("hold_expiring", *place, list(claim_ids), resource))

    async def save_lease(self, row: r.LeaseRow) -> None:
        await self._store("save_lease", row)

    async def drop_lease(self, kind: str, resource: str) -> None:
        await self._run("drop_leases", kind, [resource])

    async def fence_floor(self) -> int:
        found = await self._values("fence_floor")
        return found[0][0] if found else 0


def _seq_of(row: r.BatchRow) -> int:
    return row.enqueue_seq
