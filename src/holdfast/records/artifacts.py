"""An artifact is an opaque document of the runtime's, found by kind and ref."""

from __future__ import annotations

from holdfast.records.common import Record


class ArtifactSummary(Record, frozen=True):
    """A stored artifact without its bytes."""

    kind: str
    ref: str
    size_bytes: int
    stored_at_ms: int


class Artifact(Record, frozen=True):
    """A stored artifact."""

    kind: str
    ref: str
    data: bytes
    stored_at_ms: int
