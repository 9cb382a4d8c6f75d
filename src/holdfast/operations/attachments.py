"""Attachments: the manifest row first, then the bytes; bytes go only when nobody refers to them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import codec
from holdfast.errors import UnknownRef
from holdfast.operations import sessions
from holdfast.ports import AttachmentBytes, Transaction
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef, SweepReport
from holdfast.records.common import Page
from holdfast.rows import AttachmentRow, SessionRow
from holdfast.rules import attachments as rules


async def record_intent(
    tx: Transaction, address: sessions.Address, intent: rules.AttachmentIntent, data: bytes | None
) -> tuple[SessionRow, AttachmentRow]:
    """Write the manifest row, and the bytes with it if the database keeps them."""
    session = await sessions.ensure(tx, address)
    existing = await tx.find_attachment(session.session_key, intent.attachment_id)
    row = rules.intended(
        intent, existing, session_key=session.session_key, family=session.family, now_ms=tx.now_ms
    )
    await tx.save_attachment(row)
    if data is not None:
        await tx.put_object(session.family, intent.attachment_id, rules.packed(intent.attachment_id, data))
    return session, row


async def commit_refs(
    tx: Transaction, address: sessions.Address, attachment_ids: Sequence[str]
) -> tuple[SessionRow | None, int]:
    """Make references permanent outside of a turn; unknown ones are passed over."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, 0
    return session, await tx.stamp_attachments(session.session_key, attachment_ids, tx.now_ms)


async def find(
    tx: Transaction, address: sessions.Address, attachment_id: str, *, with_bytes: bool
) -> tuple[SessionRow, AttachmentRow, bytes | None]:
    """One of the session's own attachments; another session's is as unknown as none."""
    session = await sessions.find(tx, address)
    row = None if session is None else await tx.find_attachment(session.session_key, attachment_id)
    if session is None or row is None:
        raise UnknownRef("attachment_id", attachment_id)
    if not with_bytes:
        return session, row, None
    stored = await tx.get_object(session.family, attachment_id)
    return session, row, None if stored is None else rules.opened(stored)


async def get(tx: Transaction, address: sessions.Address, attachment_id: str) -> tuple[SessionRow, Attachment]:
    """An attachment with the bytes that the database keeps."""
    session, row, data = await find(tx, address, attachment_id, with_bytes=True)
    return session, rules.attachment_of(row, data)


async def forget(
    tx: Transaction, address: sessions.Address, objects: AttachmentBytes | None, attachment_id: str
) -> tuple[SessionRow | None, bool]:
    """Drop the session's reference, and the bytes with it if it was the last one."""
    session = await sessions.find(tx, address)
    if session is None or not await tx.forget_attachment(session.session_key, attachment_id):
        return session, False
    await drop_if_unreferenced(tx, objects, session.family, attachment_id)
    return session, True


async def list_page(
    tx: Transaction, address: sessions.Address, *, after: str, limit: int
) -> tuple[SessionRow | None, Page[AttachmentRef]]:
    """One page of a session's attachments."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, Page(())
    rows = await tx.list_attachments(session.session_key, after=after, limit=limit + 1)
    shown = rows[:limit]
    cursor = codec.encode_cursor("attachments", (shown[-1].attachment_id,)) if len(rows) > limit else None
    return session, Page(tuple(rules.ref_of(row) for row in shown), cursor)


async def uncommitted_page(
    tx: Transaction,
    address: sessions.Address | None,
    *,
    older_than_ms: int,
    after: tuple[int, str, int] | None,
    limit: int,
) -> tuple[SessionRow | None, Page[AttachmentEntry]]:
    """One page of references that no commit made permanent, oldest intent first."""
    session = None if address is None else await sessions.find(tx, address)
    if address is not None and session is None:
        return None, Page(())
    rows = await tx.list_uncommitted(
        None if session is None else session.session_key, older_than_ms=older_than_ms, after=after, limit=limit + 1
    )
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        last = shown[-1]
        cursor = codec.encode_cursor("uncommitted", (last.intent_at_ms, last.attachment_id, last.session_key))
    ids = await tx.session_ids(sorted({row.session_key for row in shown}))
    return session, Page(tuple(rules.entry_of(ids[row.session_key], row) for row in shown), cursor)


async def sweep(tx: Transaction, objects: AttachmentBytes | None, *, older_than_ms: int, limit: int) -> SweepReport:
    """Forget abandoned intents and delete the bytes that nobody refers to any more.

    Bytes are deleted inside the transaction, while no new intent can be recorded: whoever stores the same content later
    writes it again, because bytes are written after their intent.
    """
    rows = await tx.list_uncommitted(None, older_than_ms=older_than_ms, after=None, limit=limit)
    deleted = freed = 0
    for row in rows:
        await tx.forget_attachment(row.session_key, row.attachment_id)
        size = await drop_if_unreferenced(tx, objects, row.family, row.attachment_id)
        deleted += size > 0
        freed += size
    return SweepReport(len(rows), deleted, freed)


async def drop_if_unreferenced(
    tx: Transaction, objects: AttachmentBytes | None, family: int, attachment_id: str
) -> int:
    """Delete bytes that no session of the family refers to. Returns how many that freed."""
    if await tx.attachment_is_referenced(family, attachment_id):
        return 0
    size = await tx.drop_object(family, attachment_id)
    if objects is not None:
        size += objects.delete(space_of(family), attachment_id)
    return size


def space_of(family: int) -> str:
    """Where a family's bytes live outside the database: content is never shared across families."""
    return f"family-{family}"
