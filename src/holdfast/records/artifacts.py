"""An artifact is an opaque document of the runtime's, found by kind and ref."""

from __future__ import annotations

from holdfast.records.common import Record


class Artifact(Record, frozen=True):
    """A stored artifact."""

    kind: str
    ref: str
    data: bytes
    stored_at_ms: int
