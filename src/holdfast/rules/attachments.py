"""Attachments are named by their content; a manifest row is written before the bytes and made permanent by a commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeGuard

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, UnknownRef
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef
from holdfast.records.limits import Limits
from holdfast.rows import AttachmentRow, ObjectRow, SessionRow
from holdfast.rules import checks

DELETION_MS = 3_600_000
"""How long a deletion outside the database may take. After that, whoever reserved it is taken for dead."""

NOT_YET = 0
"""The `deleting_until_ms` of a note that nobody works off."""

DATABASE: Final = "database"
OUTSIDE: Final = "outside"
CALLER: Final = "caller"
"""The values of `stored_in`: in a table, behind `attachments=`, or at a URI that the caller answers for."""

CONTENT_ID = re.compile(r"[0-9a-f]{64}")


class AttachmentIntent(msgspec.Struct, frozen=True):
    """A checked attachment: its id, and what its bytes are."""

    attachment_id: str
    uri: str
    media_type: str
    byte_count: int
    width: int | None
    height: int | None
    label: str | None


def own_uri(attachment_id: str) -> str:
    """The address of bytes that this store keeps."""
    return f"sha256:{attachment_id}"


def is_content_id(attachment_id: str) -> bool:
    """Whether an id is the hash of its bytes, as every id of bytes that this store keeps: only those become names."""
    return CONTENT_ID.fullmatch(attachment_id) is not None


def is_kept_here(row: AttachmentRow | AttachmentIntent) -> bool:
    """Whether the bytes of a reference are ours to keep."""
    return row.uri == own_uri(row.attachment_id) and is_content_id(row.attachment_id)


def is_being_deleted(notes: Sequence[int], *, now_ms: int) -> bool:
    """Whether bytes outside may vanish at any moment, so that nobody may count on them."""
    return any(until_ms > now_ms for until_ms in notes)


def judge_deletion(notes: Sequence[int], *, needed: bool, now_ms: int) -> Literal["leave", "forget", "delete"]:
    """What to do about the notes of some bytes outside: nobody interferes with a deletion that is under way."""
    if not notes or is_being_deleted(notes, now_ms=now_ms):
        return "leave"
    return "forget" if needed else "delete"


def check_put(
    data: object, media_type: object, *, width: object, height: object, label: object, limits: Limits
) -> tuple[AttachmentIntent, bytes]:
    """The intent and the bytes of an attachment that is stored."""
    body = checks.content("data", data, most=limits.attachment_bytes)
    attachment_id = codec.digest(body)
    intent = check_intent(
        attachment_id,
        uri=own_uri(attachment_id),
        media_type=media_type,
        byte_count=len(body),
        width=width,
        height=height,
        label=label,
        limits=limits,
    )
    return intent, body


def check_intent(
    attachment_id: object, *, uri: object, media_type: object, byte_count: object, width: object, height: object,
    label: object, limits: Limits,
) -> AttachmentIntent:  # fmt: skip
    """The intent to store an attachment whose bytes may live anywhere."""
    return AttachmentIntent(
        attachment_id=checks.identifier("attachment_id", attachment_id, limits),
        uri=checks.identifier("uri", uri, limits),
        media_type=checks.identifier("media_type", media_type, limits).strip().lower(),
        byte_count=checks.whole("byte_count", byte_count),
        width=checks.optional_whole("width", width),
        height=checks.optional_whole("height", height),
        label=checks.optional_text("label", label, limits),
    )


def bare_intent(intent: AttachmentIntent, existing: AttachmentRow | None) -> AttachmentIntent:
    """Return an intent that comes without bytes, as it may be written over what is there.

    It cannot change how many bytes are stored here. One that moves a reference between bytes kept here and bytes kept
    elsewhere is refused: moved here, a committed reference would have none; moved away, ours would stay for ever.
    """
    if existing is None:
        return intent
    if is_kept_here(existing) == is_kept_here(intent):
        stored_here = existing.stored_in in (DATABASE, OUTSIDE)
        return msgspec.structs.replace(intent, byte_count=existing.byte_count) if stored_here else intent
    if is_kept_here(intent):
        raise InvalidRequest("uri", "the bytes of this attachment are kept elsewhere: put them to keep them here")
    raise InvalidRequest("uri", "this store keeps the bytes of this attachment: forget it to record another place")


def intended(
    intent: AttachmentIntent,
    existing: AttachmentRow | None,
    *,
    session_key: int,
    family: int,
    now_ms: int,
    intent_id: str,
) -> AttachmentRow:
    """Return the manifest row after an intent: repeated, it refreshes time and metadata; a commit is kept.

    Bytes of ours count as stored only if the row said so before: while it exists, nothing deletes them. For the same
    reason it keeps the `intent_id` with which it was inserted. The one that is given is for a new row, so that one that
    is forgotten and written anew is told from it, even within a millisecond.
    """
    before = None if existing is None or existing.uri != intent.uri else existing.stored_in
    return AttachmentRow(
        session_key=session_key,
        attachment_id=intent.attachment_id,
        family=family,
        uri=intent.uri,
        media_type=intent.media_type,
        byte_count=intent.byte_count,
        width=intent.width,
        height=intent.height,
        label=intent.label,
        intent_at_ms=now_ms,
        committed_at_ms=None if existing is None else existing.committed_at_ms,
        stored_in=before if is_kept_here(intent) else CALLER,
        intent_id=intent_id if existing is None else existing.intent_id,
    )


def confirmed(row: AttachmentRow, found: AttachmentRow | None) -> AttachmentRow | None:
    """Return the manifest row after the bytes of an intent were written outside, None if the intent does not stand.

    An intent that was forgotten and recorded anew does not count: its bytes may have been deleted in between. One that
    was repeated does: the row has been there since before the bytes were written.
    """
    if found is None or found.uri != row.uri:
        return None
    if found.stored_in is not None:
        return found
    if found.intent_id != row.intent_id:
        return None
    return msgspec.structs.replace(found, stored_in=OUTSIDE, byte_count=row.byte_count)


def must_stay_readable(existing: AttachmentRow | None, intent: AttachmentIntent) -> bool:
    """Whether a put takes over a committed reference to bytes elsewhere: it must not end between row and bytes."""
    return existing is not None and existing.committed_at_ms is not None and existing.uri != intent.uri


def inherited(source: AttachmentRow, session: SessionRow, *, now_ms: int) -> AttachmentRow:
    """Return the committed row of a session that takes over an attachment of its parent.

    In another family the database gets the bytes, because that is part of the commit; a caller's bytes stay at their
    URI, and a family shares what it has.
    """
    moves = source.family != session.family and source.stored_in != CALLER
    return msgspec.structs.replace(
        source,
        session_key=session.session_key,
        family=session.family,
        intent_at_ms=now_ms,
        committed_at_ms=now_ms,
        stored_in=DATABASE if moves else source.stored_in,
    )


def is_lendable(row: AttachmentRow | None) -> TypeGuard[AttachmentRow]:
    """Whether a session may take over this attachment of its parent: its bytes are stored."""
    return row is not None and row.stored_in is not None


def needs_bytes(source: AttachmentRow, row: AttachmentRow) -> bool:
    """Whether the bytes go to another family with the row."""
    return source.family != row.family and row.stored_in == DATABASE


def require_room(sources: Sequence[AttachmentRow], most_bytes: int) -> None:
    """Refuse to copy more bytes of a parent's attachments than a commit may bring."""
    size = sum(source.byte_count for source in sources)
    if size > most_bytes:
        raise InvalidRequest(
            "attachments", f"{size} bytes of the parent's would be copied, the limit is {most_bytes}", limit=most_bytes
        )


def ref_of(row: AttachmentRow) -> AttachmentRef:
    """What a node keeps of it."""
    return AttachmentRef(row.attachment_id, row.media_type, row.byte_count, row.width, row.height, row.label)


def entry_of(session_id: str, row: AttachmentRow) -> AttachmentEntry:
    """The manifest row as a caller sees it."""
    return AttachmentEntry(session_id, row.attachment_id, row.uri, row.intent_at_ms, row.committed_at_ms)


def packed(attachment_id: str, data: bytes) -> ObjectRow:
    """The bytes as the database keeps them."""
    encoding, body = codec.pack(data)
    return ObjectRow(attachment_id, encoding, len(data), body)


def opened(row: ObjectRow) -> bytes:
    """The bytes that the database kept, proven."""
    return codec.unpack(row.encoding, row.body, size=row.size, hash=row.hash, table="attachment_objects", key=row.hash)


def prove(row: ObjectRow) -> None:
    """Raise `Corrupt` unless the bytes that the database kept can be read."""
    codec.prove(row.encoding, row.body, size=row.size, hash=row.hash, table="attachment_objects", key=row.hash)


MISSING = {
    None: "the bytes were never stored",
    CALLER: "the bytes were never stored here",
    DATABASE: "the bytes are missing",
    OUTSIDE: "the bytes are missing: was the store opened with the attachments= that it was written with?",
}
"""Why there are no bytes for a committed reference, by `stored_in`."""


def attachment_of(row: AttachmentRow, data: bytes | None) -> Attachment:
    """The attachment with its bytes, which must match.

    They may be missing while nobody committed them, or if the caller keeps them elsewhere; otherwise that is damage.
    """
    if data is None and (row.committed_at_ms is None or not is_kept_here(row)):
        raise UnknownRef("attachment_id", row.attachment_id, "its bytes are not kept here, or were never put")
    if data is None:
        raise Corrupt("attachment_objects", row.attachment_id, MISSING[row.stored_in])
    if codec.digest(data) != row.attachment_id:
        raise Corrupt("attachment_objects", row.attachment_id, "the bytes do not match their hash")
    return Attachment(ref_of(row), data)
