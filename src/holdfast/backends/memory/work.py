"""The queue, leases and attachments in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables


def _live(row: r.BatchRow, now_ms: int) -> bool:
    return row.claim_token_hash is not None and (row.claim_expires_at_ms or 0) > now_ms


class MemoryWork:
    """Implements `ports.WorkTables` and `ports.AttachmentTables`."""

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
            row for row in self._unsettled(session_key) if row.available_at_ms <= now_ms and not _live(row, now_ms)
        ]
        return ready[:limit]

    async def sessions_with_work(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        found = [
            (session.session_key, session.session_id)
            for session in self.tables.sessions.scan(lambda row: row.session_key > after)
            if await self.ready_batches(session.session_key, now_ms, 1)
        ]
        return found[:limit]

    async def other_claims(self, session_key: int, owner_id: str, now_ms: int) -> tuple[bool, bool]:
        others = [row for row in self._unsettled(session_key) if _live(row, now_ms) and row.claim_owner != owner_id]
        return bool(others), any(row.claim_exclusive for row in others)

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        wanted = set(batch_ids)
        return list(self.tables.work.scan(lambda row: row.session_key == session_key and row.batch_id in wanted))

    async def claimed_batches(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        return [row for row in self._unsettled(session_key) if row.claim_id == claim_id]

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
            if row.enqueue_seq > after and (pending_at_ms is None or not _live(row, pending_at_ms))
        ]
        return found[:limit]

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        times: list[int] = []
        for row in self._unsettled(session_key):
            if row.available_at_ms > now_ms:
                times.append(row.available_at_ms)
            if _live(row, now_ms) and row.claim_expires_at_ms is not None:
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

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        return self.tables.attachments.get((session_key, attachment_id))

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        self.tables.attachments.put((row.session_key, row.attachment_id), row)

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        stamped = 0
        for attachment_id in attachment_ids:
            row = self.tables.attachments.get((session_key, attachment_id))
            if row is not None and row.committed_at_ms is None:
                await self.save_attachment(msgspec.structs.replace(row, committed_at_ms=now_ms))
                stamped += 1
        return stamped

    async def forget_attachment(self, session_key: int, attachment_id: str) -> int:
        return self.tables.attachments.drop((session_key, attachment_id))

    async def list_attachments(self, session_key: int, *, after: str, limit: int) -> list[r.AttachmentRow]:
        found = self.tables.attachments.scan(lambda row: row.session_key == session_key and row.attachment_id > after)
        return list(found)[:limit]

    async def list_uncommitted(
        self, session_key: int | None, *, older_than_ms: int, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.AttachmentRow]:
        def place(row: r.AttachmentRow) -> tuple[int, str, int]:
            return row.intent_at_ms, row.attachment_id, row.session_key

        found = self.tables.attachments.scan(
            lambda row: (
                row.committed_at_ms is None
                and row.intent_at_ms <= older_than_ms
                and session_key in (None, row.session_key)
                and (after is None or place(row) > after)
            )
        )
        return sorted(found, key=place)[:limit]

    async def copy_committed_attachments(self, from_key: int, to_key: int) -> int:
        found = self.tables.attachments.scan(
            lambda row: row.session_key == from_key and row.committed_at_ms is not None
        )
        copies = [msgspec.structs.replace(row, session_key=to_key) for row in list(found)]
        for row in copies:
            await self.save_attachment(row)
        return len(copies)

    async def attachment_is_referenced(self, family: int, attachment_id: str) -> bool:
        found = self.tables.attachments.scan(lambda row: row.family == family and row.attachment_id == attachment_id)
        return any(True for _ in found)

    async def put_object(self, family: int, attachment_id: str, row: r.BlobRow) -> None:
        if self.tables.attachment_objects.get((family, attachment_id)) is None:
            self.tables.attachment_objects.put((family, attachment_id), row)

    async def get_object(self, family: int, attachment_id: str) -> r.BlobRow | None:
        return self.tables.attachment_objects.get((family, attachment_id))

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        row = self.tables.attachment_objects.get((family, attachment_id))
        self.tables.attachment_objects.drop((family, attachment_id))
        return None if row is None else len(row.body)

    async def doom_object(self, family: int, attachment_id: str) -> None:
        self.tables.doomed_objects.put((family, attachment_id), (family, attachment_id))

    async def list_doomed(self, limit: int) -> list[tuple[int, str]]:
        return list(self.tables.doomed_objects.scan())[:limit]

    async def forget_doomed(self, family: int, attachment_id: str) -> int:
        return self.tables.doomed_objects.drop((family, attachment_id))


UNCLAIMED: dict[str, object] = {
    "claim_id": None,
    "claim_owner": None,
    "claim_token_hash": None,
    "claimed_at_ms": None,
    "claim_expires_at_ms": None,
    "claim_exclusive": 0,
}
