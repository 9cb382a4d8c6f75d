"""The queue and leases in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables


class MemoryWork:
    """Implements `ports.WorkTables`."""

    tables: Tables

    def _unsettled(self, session_key: int) -> list[r.BatchRow]:
        return list(self.tables.work.scan(lambda row: row.session_key == session_key and row.settled_state is None))

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        wanted = set(pairs)
        return list(self.tables.work.scan(lambda row: (row.session_key, row.source_key) in wanted))

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        stored: list[r.BatchRow] = []
        for batch in batches:
            row = msgspec.structs.replace(batch, enqueue_seq=self.tables.next_number("enqueue_seq"))
            self.tables.work.put(row.enqueue_seq, row)
            stored.append(row)
        return stored

    async def ready_batches(self, session_key: int, now_ms: int, limit: int) -> list[r.BatchRow]:
        ready = [
            row for row in self._unsettled(session_key) if row.available_at_ms <= now_ms and not row.is_claimed(now_ms)
        ]
        return ready[:limit]

    async def sessions_with_work(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        found = [
            (session.session_key, session.session_id)
            for session in self.tables.sessions.scan(lambda row: row.session_key > after)
            if await self.ready_batches(session.session_key, now_ms, 1)
        ]
        return found[:limit]

    async def other_claims(self, session_key: int, claim_id: str, now_ms: int) -> tuple[bool, bool]:
        others = [row for row in self._unsettled(session_key) if row.is_claimed(now_ms) and row.claim_id != claim_id]
        return bool(others), any(row.claim_exclusive for row in others)

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        wanted = set(batch_ids)
        return list(self.tables.work.scan(lambda row: row.session_key == session_key and row.batch_id in wanted))

    async def claimed_batches(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        return [row for row in self._unsettled(session_key) if row.claim_id == claim_id]

    async def batches_of_token(self, session_key: int, token_hash: str) -> list[r.BatchRow]:
        return [row for row in self._unsettled(session_key) if row.claim_token_hash == token_hash]

    async def stamp_claim(self, seqs: Sequence[int], claim: r.ClaimStamp) -> int:
        changes: dict[str, object] = {
            "claim_id": claim.claim_id,
            "claim_owner": claim.owner_id,
            "claim_token_hash": claim.token_hash,
            "claim_fence": claim.fence,
            "claimed_at_ms": claim.claimed_at_ms,
            "claim_expires_at_ms": claim.expires_at_ms,
            "claim_exclusive": claim.exclusive,
        }
        return self._change(seqs, changes)

    async def clear_claim(self, seqs: Sequence[int]) -> int:
        return self._change(seqs, UNCLAIMED)

    def _change(self, seqs: Sequence[int], changes: dict[str, object]) -> int:
        changed = 0
        for seq in seqs:
            row = self.tables.work.get(seq)
            if row is not None and row.settled_state is None:
                self.tables.work.put(seq, msgspec.structs.replace(row, **changes))
                changed += 1
        return changed

    async def settle_batches(self, seqs: Sequence[int], state: str, now_ms: int) -> int:
        settled = 0
        for seq in seqs:
            row = self.tables.work.get(seq)
            if row is None or row.settled_state is not None:
                continue
            settled += 1
            if row.source_key is None:
                self.tables.work.drop(seq)
            else:
                changes = {**UNCLAIMED, "settled_state": state, "settled_at_ms": now_ms}
                self.tables.work.put(seq, msgspec.structs.replace(row, **changes))
        return settled

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
            if row.available_at_ms > now_ms:
                times.append(row.available_at_ms)
            if row.is_claimed(now_ms) and row.claim_expires_at_ms is not None:
                times.append(row.claim_expires_at_ms)
        return min(times, default=None)

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        found = self.tables.work.scan(
            lambda row: row.settled_at_ms is not None and row.settled_at_ms <= settled_until_ms
        )
        old = sorted(found, key=lambda row: (row.settled_at_ms, row.enqueue_seq))[:limit]
        if not dry_run:
            for row in old:
                self.tables.work.drop(row.enqueue_seq)
        return len(old)

    async def find_lease(self, kind: str, resource: str) -> r.LeaseRow | None:
        return self.tables.leases.get((kind, resource))

    async def save_lease(self, row: r.LeaseRow) -> None:
        self.tables.leases.put((row.kind, row.resource), row)

    async def drop_lease(self, kind: str, resource: str) -> None:
        row = self.tables.leases.get((kind, resource))
        if row is not None:
            self.tables.settings.put("fence_floor", max(await self.fence_floor(), row.fence))
            self.tables.leases.drop((kind, resource))

    async def fence_floor(self) -> int:
        return self.tables.settings.get("fence_floor") or 0


UNCLAIMED: dict[str, object] = {
    "claim_id": None,
    "claim_owner": None,
    "claim_token_hash": None,
    "claimed_at_ms": None,
    "claim_expires_at_ms": None,
    "claim_exclusive": 0,
}
