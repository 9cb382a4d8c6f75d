"""The attachment manifest and attachment bytes in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables


class MemoryAttachments:
    """Implements `ports.AttachmentTables`."""

    tables: Tables

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        return self.tables.attachments.get((session_key, attachment_id))

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        self.tables.attachments.put((row.session_key, row.attachment_id), row)

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        stamped = 0
        for attachment_id in attachment_ids:
            row = self.tables.attachments.get((session_key, attachment_id))
            if row is not None and row.committed_at_ms is None and row.stored_in is not None:
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

    async def put_object(self, family: int, attachment_id: str, row: r.ObjectRow) -> None:
        self.tables.attachment_objects.put((family, attachment_id), row)

    async def get_object(self, family: int, attachment_id: str) -> r.ObjectRow | None:
        return self.tables.attachment_objects.get((family, attachment_id))

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        row = self.tables.attachment_objects.get((family, attachment_id))
        self.tables.attachment_objects.drop((family, attachment_id))
        return None if row is None else len(row.body)

    async def note_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> None:
        note = (family, attachment_id, deleting_until_ms)
        self.tables.object_deletions.put(note, note)

    async def next_deletion(self, after: tuple[int, str]) -> tuple[int, str] | None:
        return next((note[:2] for note in self.tables.object_deletions.scan() if note[:2] > after), None)

    async def find_deletions(self, family: int, attachment_id: str) -> list[int]:
        return [note[2] for note in self.tables.object_deletions.scan() if note[:2] == (family, attachment_id)]

    async def forget_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> int:
        return self.tables.object_deletions.drop((family, attachment_id, deleting_until_ms))
