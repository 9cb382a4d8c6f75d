"""Artifacts: opaque documents of the runtime's, found by kind and ref."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.records.common import Record

ArtifactCheck: TypeAlias = Callable[[str, bytes], str | None]
"""Check an artifact before it is stored, by its ref and its bytes: return None or the problem as text, or raise."""


class ArtifactSummary(Record, frozen=True):
    """A stored artifact without its bytes. `hash` is their SHA-256, and `put` takes it as `expected_hash`."""

    kind: str
    ref: str
    size_bytes: int
    stored_at_ms: int
    hash: str


class Artifact(Record, frozen=True):
    """A stored artifact. `hash` is the SHA-256 of its bytes, and `put` takes it as `expected_hash`."""

    kind: str
    ref: str
    data: bytes
    stored_at_ms: int
    hash: str
