"""Tables of attachments: a manifest row in each session that has one, and bytes that its family shares."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base
from holdfast.records.limits import SMALLEST_INTEGER


class Attachments(Base):
    """The attachment manifest, and attachment bytes kept in the database."""

    __slots__ = ()

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        family = await self._family(session_key)
        return await self._one(r.AttachmentRow, "find_attachment", family, session_key, attachment_id)

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        await self._store("save_attachment", row)

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        family = await self._family(session_key)
        return await self._run("stamp_attachments", family, session_key, list(attachment_ids), now_ms)

    async def forget_attachment(self, session_key: int, attachment_id: str) -> int:
        return await self._run("forget_attachment", await self._family(session_key), session_key, attachment_id)

    async def list_attachments(self, session_key: int, *, after: str, limit: int) -> list[r.AttachmentRow]:
        family = await self._family(session_key)
        return await self._all(r.AttachmentRow, "list_attachments", family, session_key, after, limit)

    async def list_uncommitted(
        self, session_key: int | None, *, older_than_ms: int, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.AttachmentRow]:
        bindings = (older_than_ms, *(after or (SMALLEST_INTEGER, "", 0)), limit)
        if session_key is None:
            return await self._list_held_uncommitted(*bindings)
        family = await self._family(session_key)
        return await self._all(r.AttachmentRow, "list_session_uncommitted", *bindings, family, session_key)

    async def _list_held_uncommitted(self, *bindings: int | str) -> list[r.AttachmentRow]:
        """Return uncommitted rows of any session. For a writer, lock their families, so that they stay uncommitted.

        Locks sessions before it reads rows to judge, as every commit and every recorded intent does.
        """
        while True:
            rows = await self._all(r.AttachmentRow, "list_uncommitted", *bindings)
            free = sorted({row.family for row in rows} - self._locked_families)
            if not self._writes or not free:
                return rows
            for family in free:
                await self._lock_family(family)

    async def copy_committed_attachments(self, from_key: int, to_key: int) -> int:
        return await self._run("copy_committed_attachments", await self._family(from_key), from_key, to_key)

    async def attachment_is_referenced(self, family: int, attachment_id: str) -> bool:
        # Recording an intent locks its session, so no intent can be added while the answer counts.
        await self._lock_family(family)
        return bool(await self._number("attachment_is_referenced", family, attachment_id))

    async def put_object(self, family: int, attachment_id: str, row: r.ObjectRow) -> None:
        await self._run("put_object", family, attachment_id, *msgspec.structs.astuple(row))

    async def get_object(self, family: int, attachment_id: str) -> r.ObjectRow | None:
        return await self._one(r.ObjectRow, "get_object", family, attachment_id)

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        sizes = [size for (size,) in await self._values("drop_object", family, attachment_id)]
        return sizes[0] if sizes else None

    async def note_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> None:
        await self._run("note_deletion", family, attachment_id, deleting_until_ms)

    async def next_deletion(self, after: tuple[int, str]) -> tuple[int, str] | None:
        found = [(family, attachment_id) for family, attachment_id in await self._values("next_deletion", *after)]
        return found[0] if found else None

    async def find_deletions(self, family: int, attachment_id: str) -> list[int]:
        return [until_ms for (until_ms,) in await self._values("find_deletions", family, attachment_id)]

    async def forget_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> int:
        return await self._run("forget_deletion", family, attachment_id, deleting_until_ms)
