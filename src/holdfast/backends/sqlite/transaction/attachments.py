"""Tables of attachments: a manifest row in each session that has one, and bytes that its family shares."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import Base, json_list
from holdfast.records.limits import SMALLEST_INTEGER


class Attachments(Base):
    """The attachment manifest, and attachment bytes kept in the database."""

    __slots__ = ()

    async def find_attachment(self, session_key: int, attachment_id: str) -> r.AttachmentRow | None:
        return self._one(r.AttachmentRow, "find_attachment", (session_key, attachment_id))

    async def save_attachment(self, row: r.AttachmentRow) -> None:
        self._store("save_attachment", row)

    async def stamp_attachments(self, session_key: int, attachment_ids: Sequence[str], now_ms: int) -> int:
        return self._run("stamp_attachments", (session_key, json_list(attachment_ids), now_ms))

    async def forget_attachment(self, session_key: int, attachment_id: str) -> int:
        return self._run("forget_attachment", (session_key, attachment_id))

    async def list_attachments(self, session_key: int, *, after: str, limit: int) -> list[r.AttachmentRow]:
        return self._all(r.AttachmentRow, "list_attachments", (session_key, after, limit))

    async def list_uncommitted(
        self, session_key: int | None, *, older_than_ms: int, after: tuple[int, str, int] | None, limit: int
    ) -> list[r.AttachmentRow]:
        after_ms, after_id, after_key = after or (SMALLEST_INTEGER, "", 0)
        bindings = {
            "older_than_ms": older_than_ms,
            "after_ms": after_ms,
            "after_id": after_id,
            "after_key": after_key,
            "limit": limit,
        }
        if session_key is None:
            return self._all(r.AttachmentRow, "list_uncommitted", bindings)
        return self._all(r.AttachmentRow, "list_session_uncommitted", bindings | {"session_key": session_key})

    async def copy_committed_attachments(self, from_key: int, to_key: int) -> int:
        return self._run("copy_committed_attachments", (from_key, to_key))

    async def attachment_is_referenced(self, family: int, attachment_id: str) -> bool:
        return bool(self._number("attachment_is_referenced", (family, attachment_id)))

    async def put_object(self, family: int, attachment_id: str, row: r.ObjectRow) -> None:
        self._run("put_object", (family, attachment_id, *msgspec.structs.astuple(row)))

    async def get_object(self, family: int, attachment_id: str) -> r.ObjectRow | None:
        return self._one(r.ObjectRow, "get_object", (family, attachment_id))

    async def drop_object(self, family: int, attachment_id: str) -> int | None:
        sizes = [size for (size,) in self._numbers("drop_object", (family, attachment_id))]
        return sizes[0] if sizes else None

    async def note_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> None:
        self._run("note_deletion", (family, attachment_id, deleting_until_ms))

    async def next_deletion(self, after: tuple[int, str]) -> tuple[int, str] | None:
        found = [(family, attachment_id) for family, attachment_id in self._values("next_deletion", after)]
        return found[0] if found else None

    async def find_deletions(self, family: int, attachment_id: str) -> list[int]:
        return [until_ms for (until_ms,) in self._numbers("find_deletions", (family, attachment_id))]

    async def forget_deletion(self, family: int, attachment_id: str, deleting_until_ms: int) -> int:
        return self._run("forget_deletion", (family, attachment_id, deleting_until_ms))
