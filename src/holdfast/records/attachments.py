"""An attachment is bytes named by their SHA-256, and a manifest row that says which session refers to them."""

from __future__ import annotations

from holdfast.records.common import Record


class AttachmentRef(Record, frozen=True):
    """What a node keeps of an attachment: its id and what the bytes are."""

    id: str
    media_type: str
    byte_count: int
    width: int | None = None
    height: int | None = None
    label: str | None = None


class Attachment(Record, frozen=True):
    """An attachment with its bytes."""

    ref: AttachmentRef
    data: bytes


class AttachmentEntry(Record, frozen=True):
    """A manifest row: written before the bytes are, made permanent by a commit."""

    session_id: str
    attachment_id: str
    uri: str
    intent_at_ms: int
    committed_at_ms: int | None = None


class SweepReport(Record, frozen=True):
    """What a sweep of abandoned attachments removed."""

    forgotten_intents: int
    deleted_objects: int
    deleted_bytes: int
    deleted_unfinished: int = 0
    """Files in a folder that killed writers left half written; their bytes are counted, too."""
