"""Attachments are named by their content. The manifest row is written before the bytes; a commit makes it permanent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, TypeGuard

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, UnknownRef
from holdfast.next_step import NextStep
from holdfast.records.attachments import Attachment, AttachmentEntry, AttachmentRef
from holdfast.records.limits import Limits
from holdfast.rows import AttachmentRow, ObjectRow, SessionRow
from holdfast.rules import checks

DELETION_MS = 3_600_000
"""Time limit of a deletion outside the database. After that, the process that reserved it is presumed dead."""

NOT_YET = 0
"""The `deleting_until_ms` of a note that no process is working on."""

DATABASE: Final = "database"
OUTSIDE: Final = "outside"
CALLER: Final = "caller"
"""The values of `stored_in`: in a table, behind `attachments=`, or at a URI that the caller is responsible for."""

CONTENT_ID = re.compile(r"[0-9a-f]{64}")


class AttachmentIntent(msgspec.Struct, frozen=True):
    """A checked attachment: its id, and the type and size of its bytes."""

    attachment_id: str
    uri: str
    media_type: str
    byte_count: int
    width: int | None
    height: int | None
    label: str | None


def own_uri(attachment_id: str) -> str:
    """Return the URI of bytes that this store keeps."""
    return f"sha256:{attachment_id}"


def is_content_id(attachment_id: str) -> bool:
    """Return True if an id is a SHA-256, as are all ids of bytes kept by this store. Only such ids become names."""
    return CONTENT_ID.fullmatch(attachment_id) is not None


def is_kept_here(row: AttachmentRow | AttachmentIntent) -> bool:
    """Return True if this store keeps the bytes of a reference."""
    return row.uri == own_uri(row.attachment_id) and is_content_id(row.attachment_id)


def is_being_deleted(notes: Sequence[int], *, now_ms: int) -> bool:
    """Return True if bytes outside may vanish at any moment, so that no reference may rely on them."""
    return any(until_ms > now_ms for until_ms in notes)


def judge_deletion(notes: Sequence[int], *, needed: bool, now_ms: int) -> Literal["leave", "forget", "delete"]:
    """Decide what to do about the notes of some bytes outside. A deletion that is under way is left alone."""
    if not notes or is_being_deleted(notes, now_ms=now_ms):
        return "leave"
    return "forget" if needed else "delete"


def check_put(
    data: object, media_type: object, *, width: object, height: object, label: object, limits: Limits
) -> tuple[AttachmentIntent, bytes]:
    """Return the intent and the bytes of an attachment to be stored."""
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
    """Return the intent to store an attachment whose bytes may be kept anywhere."""
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
    """Return an intent that comes without bytes, as it may be written over the existing row.

    It cannot change the number of bytes stored here. An intent that moves a reference between bytes kept here and bytes
    kept elsewhere is refused: moved here, a committed reference would have no bytes; moved away, the bytes kept here
    would never be deleted.
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
    """Return the manifest row after an intent. A repeated intent refreshes time and metadata, and stays committed.

    Bytes kept here count as stored only if the row said so before: nothing deletes them while the row exists. For the
    same reason, the row keeps the `intent_id` with which it was inserted. The given `intent_id` is for a new row, so
    that a row that is forgotten and written again differs from the old one, even within a millisecond.
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
    """Return the manifest row after the bytes of an intent were written outside, None if the intent is no longer valid.

    An intent that was forgotten and recorded again is not valid: its bytes may have been deleted in between. A repeated
    intent is: its row has existed since before the bytes were written.
    """
    if found is None or found.uri != row.uri:
        return None
    if found.stored_in is not None:
        return found
    if found.intent_id != row.intent_id:
        return None
    return msgspec.structs.replace(found, stored_in=OUTSIDE, byte_count=row.byte_count)


def must_stay_readable(existing: AttachmentRow | None, intent: AttachmentIntent) -> bool:
    """Return True if a put takes over a committed reference to bytes elsewhere: row and bytes must change together."""
    return existing is not None and existing.committed_at_ms is not None and existing.uri != intent.uri


def inherited(source: AttachmentRow, session: SessionRow, *, now_ms: int) -> AttachmentRow:
    """Return the committed row of a session that takes over an attachment of its parent.

    In another family, the bytes go into the database, because copying them is part of the commit. Bytes that the caller
    keeps stay at their URI, and a family shares its bytes.
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


def is_inheritable(row: AttachmentRow | None) -> TypeGuard[AttachmentRow]:
    """Return True if a session may take over this attachment of its parent: its bytes are stored."""
    return row is not None and row.stored_in is not None


def needs_bytes(source: AttachmentRow, row: AttachmentRow) -> bool:
    """Return True if the bytes have to be copied to another family with the row."""
    return source.family != row.family and row.stored_in == DATABASE


def require_room(sources: Sequence[AttachmentRow], most_bytes: int) -> None:
    """Refuse to copy more bytes of a parent's attachments than one commit may bring."""
    size = sum(source.byte_count for source in sources)
    if size > most_bytes:
        raise InvalidRequest(
            "attachments",
            f"{size} bytes of the parent's would be copied, the limit is {most_bytes}: take them over in several "
            "commits, or raise Limits.commit_bytes",
            limit=most_bytes,
        )


def ref_of(row: AttachmentRow) -> AttachmentRef:
    """Return the reference that a node keeps."""
    return AttachmentRef(row.attachment_id, row.media_type, row.byte_count, row.width, row.height, row.label)


def entry_of(session_id: str, row: AttachmentRow) -> AttachmentEntry:
    """Return the manifest row as callers see it."""
    return AttachmentEntry(session_id, row.attachment_id, row.uri, row.intent_at_ms, row.committed_at_ms)


def packed(attachment_id: str, data: bytes) -> ObjectRow:
    """Return the bytes as the database stores them."""
    encoding, body = codec.pack(data)
    return ObjectRow(attachment_id, encoding, len(data), body)


def opened(row: ObjectRow) -> bytes:
    """Return the bytes of a row, proven by their hash."""
    return codec.unpack(row.encoding, row.body, size=row.size, hash=row.hash, table="attachment_objects", key=row.hash)


def prove(row: ObjectRow) -> None:
    """Raise `Corrupt` unless the stored bytes can be read."""
    codec.prove(row.encoding, row.body, size=row.size, hash=row.hash, table="attachment_objects", key=row.hash)


MISSING: Final[dict[str | None, tuple[str, *tuple[NextStep, ...]]]] = {
    None: ("the bytes were never stored",),
    CALLER: ("the bytes were never stored here",),
    DATABASE: ("the bytes are missing",),
    OUTSIDE: ("the bytes are missing", NextStep("open the store with the", "attachments", "that it was written with")),
}
"""The reason why a committed reference has no bytes, and the next step, by `stored_in`."""


def attachment_of(row: AttachmentRow, data: bytes | None) -> Attachment:
    """Return the attachment with its bytes, which must match its hash.

    They may be missing until a commit made the reference permanent, or if the caller keeps them elsewhere. Otherwise
    that is damage.
    """
    if data is None and (row.committed_at_ms is None or not is_kept_here(row)):
        raise UnknownRef("attachment_id", row.attachment_id, "its bytes are not kept here, or were never put")
    if data is None:
        raise Corrupt("attachment_objects", row.attachment_id, *MISSING[row.stored_in])
    if codec.digest(data) != row.attachment_id:
        raise Corrupt("attachment_objects", row.attachment_id, "the bytes do not match their hash")
    return Attachment(ref_of(row), data)
