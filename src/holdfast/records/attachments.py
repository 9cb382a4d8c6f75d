"""Attachments: bytes named by their SHA-256, and a manifest row for each session that refers to them."""

from __future__ import annotations

from holdfast.records.common import Record


class AttachmentRef(Record, frozen=True):
    """The reference to an attachment that a node keeps: its id, and the type and size of its bytes."""

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
    """A manifest row. It is written before the bytes are; a commit makes it permanent."""

    session_id: str
    attachment_id: str
    uri: str
    intent_at_ms: int
    committed_at_ms: int | None = None


class SweepReport(Record, frozen=True):
    """The counts of a sweep of uncommitted attachments."""

    forgotten_intents: int
    deleted_objects: int
    deleted_bytes: int
    deleted_unfinished: int = 0
    """Half-written files that killed writers left in a folder. `deleted_bytes` includes them."""
