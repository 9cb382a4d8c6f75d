"""Store, inherit, list and sweep attachments.

The manifest row is written before the bytes. Bytes are deleted only when no row refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.errors import HoldfastError, Unavailable, UnknownRef
from holdfast.interrupts import raised_by_handler
from holdfast.next_step import NextStep
from holdfast.operations import sessions
from holdfast.operations.pages import page_of
from holdfast.ports import AttachmentBytes, BoundedBytes, Transaction
from holdfast.records.attachments import AttachmentEntry, AttachmentRef
from holdfast.records.common import Page
from holdfast.rows import AttachmentRow, ObjectRow, SessionRow
from holdfast.rules import attachments as rules
from holdfast.table_catalog import StoredObject

T = TypeVar("T")


async def _find(
    tx: Transaction, address: sessions.Address, intent: rules.AttachmentIntent
) -> tuple[SessionRow, AttachmentRow | None]:
    session = await sessions.ensure(tx, address)
    return session, await tx.find_attachment(session.session_key, intent.attachment_id)


def _intended(
    intent: rules.AttachmentIntent, existing: AttachmentRow | None, session: SessionRow, intent_id: str, now_ms: int
) -> AttachmentRow:
    key, family = session.session_key, session.family
    return rules.intended(intent, existing, session_key=key, family=family, now_ms=now_ms, intent_id=intent_id)


async def record_intent(
    tx: Transaction, address: sessions.Address, intent: rules.AttachmentIntent, intent_id: str
) -> tuple[SessionRow, AttachmentRow]:
    """Write the manifest row alone."""
    session, existing = await _find(tx, address, intent)
    row = _intended(rules.bare_intent(intent, existing), existing, session, intent_id, tx.now_ms)
    await tx.save_attachment(row)
    return session, row


async def put(
    tx: Transaction, address: sessions.Address, intent: rules.AttachmentIntent, intent_id: str, data: bytes
) -> tuple[SessionRow, AttachmentRow]:
    """Write the manifest row and, into the database, the bytes."""
    session, existing = await _find(tx, address, intent)
    row = _intended(intent, existing, session, intent_id, tx.now_ms)
    return session, await _save_with_bytes(tx, row, data)


async def _save_with_bytes(tx: Transaction, row: AttachmentRow, data: bytes) -> AttachmentRow:
    stored = msgspec.structs.replace(row, stored_in=rules.DATABASE)
    await tx.save_attachment(stored)
    await tx.put_object(row.family, row.attachment_id, rules.packed(row.attachment_id, data))
    return stored


async def record_intent_outside(
    tx: Transaction, address: sessions.Address, intent: rules.AttachmentIntent, intent_id: str, data: bytes
) -> tuple[SessionRow, AttachmentRow, bool]:
    """Write the manifest row. The last value returned is True if the caller must write the bytes outside the database.

    The bytes go into the database instead in three cases: it has them already; a deletion of the same bytes outside is
    under way, which could remove new ones, too; or the row is committed with bytes elsewhere. In the last case, a put
    that ended before its bytes were outside would leave a committed reference without bytes.
    """
    session, existing = await _find(tx, address, intent)
    row = _intended(intent, existing, session, intent_id, tx.now_ms)
    present = await _is_in_database(tx, row.family, row.attachment_id)
    deleting = rules.is_being_deleted(await tx.find_deletions(row.family, row.attachment_id), now_ms=tx.now_ms)
    if not (present or deleting or rules.must_stay_readable(existing, intent)):
        await tx.save_attachment(row)
        return session, row, True
    stored = await _save_with_bytes(tx, row, data)
    if deleting and not present:
        await note_deletion(tx, row)
    return session, stored, False


async def _is_in_database(tx: Transaction, family: int, attachment_id: str) -> bool:
    return bool(await tx.present_keys(StoredObject, [(family, attachment_id)]))


async def confirm_stored(tx: Transaction, address: sessions.Address, row: AttachmentRow) -> AttachmentRow | None:
    """Mark bytes that were written outside as stored. Return None if their intent is gone or was replaced.

    Holds the session, as every operation does that records or forgets an intent, so the row stays until it is saved.
    """
    await sessions.require(tx, address)
    found = await tx.find_attachment(row.session_key, row.attachment_id)
    stored = rules.confirmed(row, found)
    if stored is not None and stored != found:
        await tx.save_attachment(stored)
    return stored


async def note_deletion(tx: Transaction, row: AttachmentRow) -> None:
    """Note for deletion bytes whose intent is gone. No other row leads to them."""
    await tx.note_deletion(row.family, row.attachment_id, rules.NOT_YET)


async def commit_refs(
    tx: Transaction, address: sessions.Address, attachment_ids: Sequence[str]
) -> tuple[SessionRow | None, int]:
    """Make references permanent outside of a turn. Skip those that are unknown or have no bytes."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, 0
    return session, await tx.stamp_attachments(session.session_key, attachment_ids, tx.now_ms)


class Inheritance(msgspec.Struct, frozen=True):
    """Limits and input for taking over the parent's attachments: most bytes, and bytes already read from outside."""

    most_bytes: int
    brought: dict[str, ObjectRow] = msgspec.field(default_factory=dict)


class Wanted(msgspec.Struct, frozen=True):
    """Attachments of the parent whose bytes must be read from outside before the commit can copy them."""

    rows: tuple[AttachmentRow, ...]


class Copy(NamedTuple):
    """An attachment of the parent, and the row by which the session takes it over."""

    source: AttachmentRow
    row: AttachmentRow


async def find_inherited(tx: Transaction, session: SessionRow, attachment_ids: Sequence[str]) -> tuple[Copy, ...]:
    """Return copies of the attachments that the session's parent holds and the session may inherit."""
    if not attachment_ids or session.parent_session_id is None:
        return ()
    parent = await tx.find_session(session.parent_session_id, key_only=True)
    if parent is None or parent.deleted_at_ms is not None:
        return ()
    found = [await tx.find_attachment(parent.session_key, attachment_id) for attachment_id in attachment_ids]
    return tuple(
        Copy(row, rules.inherited(row, session, now_ms=tx.now_ms)) for row in found if rules.is_inheritable(row)
    )


def wanted(copies: Sequence[Copy], inheritance: Inheritance) -> Wanted | None:
    """Return the attachments to read from outside first, or None. Refuse more bytes than allowed."""
    moving = [copy.source for copy in copies if rules.needs_bytes(*copy)]
    rules.require_room(moving, inheritance.most_bytes)
    rows = tuple(
        row for row in moving if row.stored_in == rules.OUTSIDE and row.attachment_id not in inheritance.brought
    )
    return Wanted(rows) if rows else None


async def take_over(tx: Transaction, copies: Sequence[Copy], inheritance: Inheritance) -> None:
    """Copy the rows, and the bytes of those that go to another family."""
    for copy in copies:
        row = copy.row
        if rules.needs_bytes(*copy):
            stored = inheritance.brought.get(row.attachment_id) or await tx.get_object(
                copy.source.family, row.attachment_id
            )
            if stored is None:
                # Lost, or forgotten by the parent since its row was read. The child need not tell these apart.
                raise UnknownRef("attachments", row.attachment_id, "the parent no longer has its bytes: put it")
            await tx.put_object(row.family, row.attachment_id, stored)
        await tx.save_attachment(row)


async def find_row(tx: Transaction, address: sessions.Address, attachment_id: str) -> tuple[SessionRow, AttachmentRow]:
    """Return one of the session's own manifest rows. Raises UnknownRef also if only another session has it."""
    session = await sessions.find(tx, address)
    row = None if session is None else await tx.find_attachment(session.session_key, attachment_id)
    if session is None or row is None:
        put = NextStep("put it first with", "session.attachments.put()")
        see = NextStep("see", "session.attachments.list()")
        raise UnknownRef("attachment_id", attachment_id, "this session has no such attachment", put, see)
    return session, row


async def find(
    tx: Transaction, address: sessions.Address, attachment_id: str
) -> tuple[SessionRow, AttachmentRow, bytes | None]:
    """Return one of the session's own attachments, with its bytes if the database has them."""
    session, row = await find_row(tx, address, attachment_id)
    stored = await tx.get_object(session.family, attachment_id)
    return session, row, None if stored is None else rules.opened(stored)


async def forget(tx: Transaction, address: sessions.Address, attachment_id: str) -> tuple[SessionRow | None, bool]:
    """Drop the session's reference, and the bytes if it was the last reference to them."""
    session = await sessions.find(tx, address)
    row = None if session is None else await tx.find_attachment(session.session_key, attachment_id)
    if row is None:
        return session, False
    await tx.forget_attachment(row.session_key, attachment_id)
    await drop_if_unreferenced(tx, row)
    return session, True


async def list_page(
    tx: Transaction, address: sessions.Address, *, after: str, limit: int
) -> tuple[SessionRow | None, Page[AttachmentRef]]:
    """Return one page of a session's attachments."""
    session = await sessions.find(tx, address)
    if session is None:
        return None, Page(())
    rows = await tx.list_attachments(session.session_key, after=after, limit=limit + 1)
    page = page_of(rows, limit, rules.ref_of, listing="attachments", place=lambda row: (row.attachment_id,))
    return session, page


async def uncommitted_page(
    tx: Transaction,
    address: sessions.Address | None,
    *,
    older_than_ms: int,
    after: tuple[int, str, int] | None,
    limit: int,
) -> tuple[SessionRow | None, Page[AttachmentEntry]]:
    """Return one page of references that no commit made permanent, oldest intent first."""
    session = None if address is None else await sessions.find(tx, address)
    if address is not None and session is None:
        return None, Page(())
    rows = await tx.list_uncommitted(
        None if session is None else session.session_key, older_than_ms=older_than_ms, after=after, limit=limit + 1
    )
    ids = await tx.session_ids(sorted({row.session_key for row in rows}))
    return session, page_of(
        rows,
        limit,
        lambda row: rules.entry_of(ids[row.session_key], row),
        listing="uncommitted",
        place=lambda row: (row.intent_at_ms, row.attachment_id, row.session_key),
    )


async def sweep(tx: Transaction, *, older_than_ms: int, limit: int) -> tuple[int, int, int]:
    """Forget uncommitted intents and drop bytes left without a reference. Return (intents, objects, bytes)."""
    rows = await tx.list_uncommitted(None, older_than_ms=older_than_ms, after=None, limit=limit)
    objects = freed = 0
    for row in rows:
        await tx.forget_attachment(row.session_key, row.attachment_id)
        size = await drop_if_unreferenced(tx, row)
        objects += size is not None
        freed += size or 0
    return len(rows), objects, freed


async def drop_if_unreferenced(tx: Transaction, row: AttachmentRow) -> int | None:
    """Drop the bytes of a forgotten reference from the database if it was the last one. Return their size.

    Bytes that the store keeps outside the database are only noted: if they were deleted now and this transaction then
    failed, they would be lost. A store that has the place outside deletes noted bytes later.
    """
    if await tx.attachment_is_referenced(row.family, row.attachment_id):
        return None
    size = await tx.drop_object(row.family, row.attachment_id)
    if size is None and rules.is_kept_here(row):
        await note_deletion(tx, row)
    return size


class Deletion(msgspec.Struct, frozen=True):
    """Noted bytes, and the end of this caller's reservation to delete them (None: do not delete)."""

    family: int
    attachment_id: str
    until_ms: int | None = None


async def reserve_deletion(tx: Transaction, after: tuple[int, str]) -> Deletion | None:
    """Reserve the deletion of the next noted bytes outside the database. Return None if there are no more.

    Checks again for references to them. From here to the confirmation, no put relies on these bytes.
    """
    found = await tx.next_deletion(after)
    if found is None:
        return None
    family, attachment_id = found
    referenced = await tx.attachment_is_referenced(family, attachment_id)
    needed = referenced and not await _is_in_database(tx, family, attachment_id)
    notes = await tx.find_deletions(family, attachment_id)
    verdict = rules.judge_deletion(notes, needed=needed, now_ms=tx.now_ms)
    if verdict == "leave":
        return Deletion(family, attachment_id)
    for until_ms in notes:
        await tx.forget_deletion(family, attachment_id, until_ms)
    if verdict == "forget":
        return Deletion(family, attachment_id)
    deletion = Deletion(family, attachment_id, tx.now_ms + rules.DELETION_MS)
    await tx.note_deletion(family, attachment_id, tx.now_ms + rules.DELETION_MS)
    return deletion


async def end_deletion(tx: Transaction, deletion: Deletion, *, failed: bool) -> None:
    """End a reservation. If the deletion failed, the bytes stay noted."""
    assert deletion.until_ms is not None
    ours = await tx.forget_deletion(deletion.family, deletion.attachment_id, deletion.until_ms)
    if ours and failed:
        await tx.note_deletion(deletion.family, deletion.attachment_id, rules.NOT_YET)


def outside(call: Callable[[], T]) -> T:
    """Call the place outside the database. Map its exceptions to Unavailable, but let interrupts through."""
    try:
        return call()
    except HoldfastError:
        raise
    except Exception as error:
        if raised_by_handler(error):
            raise
        raise Unavailable(f"the attachment store failed with {type(error).__name__}: retry once it is back") from error


def read_outside(objects: AttachmentBytes, row: AttachmentRow) -> bytes | None:
    """Return the bytes of a reference from outside the database, reading no more than its row says there are."""
    place: object = objects
    if isinstance(place, BoundedBytes):
        return place.get_at_most(space_of(row.family), row.attachment_id, row.byte_count)
    return objects.get(space_of(row.family), row.attachment_id)


def space_of(family: int) -> str:
    """Return the name of a family's space outside the database. Families never share content."""
    return f"family-{family}"
