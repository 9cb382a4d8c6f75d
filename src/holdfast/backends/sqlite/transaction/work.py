"""A batch stands in its queue by sequence, whoever claims it, until it is settled."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list


class Work(Base):
    """The queue, and leases."""

    __slots__ = ()

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        """Batches, settled ones included, with these (session key, source key) pairs."""
        return self._find_sources(pairs)

    def _find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        if not pairs:
            return []
        # A pair that is asked for twice is still one batch.
        return self._all(r.BatchRow, "find_sources", (json_list(list(dict.fromkeys(pairs))),))

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        """Insert in order with new sequence numbers. Returns the stored rows."""
        return self._store_all(r.BatchRow, "insert_batch", batches)

    async def ready_batches(self, session_key: int, now_ms: int, limit: int) -> list[r.BatchRow]:
        """Unsettled, available, under no live claim, by sequence."""
        bindings = {"session_key": session_key, "now_ms": now_ms, "limit": limit}
        return self._all(r.BatchRow, "ready_batches", bindings)

    async def sessions_with_work(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Sessions with a ready batch, by key."""
        bindings = {"now_ms": now_ms, "after": after, "limit": limit}
        return [(key, session_id) for key, session_id in self._values("sessions_with_work", bindings)]

    async def other_claims(self, session_key: int, claim_id: str, now_ms: int) -> tuple[bool, bool]:
        """Return whether a claim other than this one lives in the session, and whether an exclusive one does."""
        [(held, exclusive)] = self._values("other_claims", (session_key, claim_id, now_ms))
        return bool(held), bool(exclusive)

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        """Batches by id, settled ones included, by sequence."""
        return self._all(r.BatchRow, "find_batches", (session_key, json_list(batch_ids)))

    async def claimed_batches(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        """Every unsettled batch that bears this claim id, live or expired, by sequence."""
        return self._all(r.BatchRow, "claimed_batches", (session_key, claim_id))

    async def batches_of_token(self, session_key: int, token_hash: str) -> list[r.BatchRow]:
        """Every unsettled batch whose claim has this token, live or expired, by sequence."""
        return self._all(r.BatchRow, "batches_of_token", (session_key, token_hash))

    async def stamp_claim(self, seqs: Sequence[int], claim: r.ClaimStamp) -> int:
        """Write the claim on unsettled batches."""
        bindings = (
            json_list(seqs),
            claim.claim_id,
            claim.owner_id,
            claim.token_hash,
            claim.fence,
            claim.claimed_at_ms,
            claim.expires_at_ms,
            claim.exclusive,
        )
        return self._run("stamp_claim", bindings)

    async def clear_claim(self, seqs: Sequence[int]) -> int:
        """Remove claim id, owner, token hash, times and exclusivity; keep the fence."""
        return self._run("clear_claim", (json_list(seqs),))

    async def settle_batches(self, seqs: Sequence[int], state: str, now_ms: int) -> int:
        """End unsettled batches: with a source key they are kept, claim cleared; without one they are deleted."""
        return self._settle_batches(seqs, state, now_ms)

    def _settle_batches(self, seqs: Sequence[int], state: str, now_ms: int) -> int:
        if not seqs:
            return 0
        listed = json_list(seqs)
        kept = self._run("settle_keyed_batches", (listed, state, now_ms))
        return kept + self._run("settle_unkeyed_batches", (listed,))

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        """Unsettled batches by sequence, greater than `after`; with `pending_at_ms`, only those under no live claim."""
        bindings = {"session_key": session_key, "pending_at_ms": pending_at_ms, "after": after, "limit": limit}
        return self._page(r.BatchRow, "list_batches", bindings)

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        """The earliest time after now at which an unsettled batch becomes available or its claim expires."""
        [(due_ms,)] = self._values("next_due_ms", (session_key, now_ms))
        return None if due_ms is None else int(due_ms)

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        """Delete (or only count) up to `limit` settled batches with `settled_at_ms <=` the bound."""
        seqs = [seq for (seq,) in self._numbers("settled_batches", (settled_until_ms, limit))]
        if seqs and not dry_run:
            self._run("drop_batches", (json_list(seqs),))
        return len(seqs)

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        """The lease row of a resource, held or not."""
        return self._find_lease(kind, resource)

    def _find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return self._one(r.LeaseRow, "find_lease", (kind, resource))

    async def save_lease(self, row: r.LeaseRow) -> None:
        """Insert or overwrite."""
        self._store("save_lease", row)

    async def drop_lease(self, kind: str, resource: str) -> None:
        """Delete the row and raise the fence floor to its fence, so that no later lease has a lower one."""
        self._drop_leases(kind, [resource])

    def _drop_leases(self, kind: str, resources: Sequence[str]) -> None:
        fences = [fence for (fence,) in self._numbers("drop_leases", (kind, json_list(resources)))]
        if fences:
            self._run("raise_fence_floor", (max(fences),))

    async def fence_floor(self) -> int:
        """The highest fence of any lease row that was dropped; 0 at first."""
        found = self._numbers("fence_floor", ())
        return found[0][0] if found else 0
