"""Everything has a visible limit, and the limits are settable."""

from __future__ import annotations

from holdfast.records.common import Record

MIB = 1024 * 1024
LARGEST_CONTENT = 1024 * MIB
"""The most bytes that one content, attachment or artifact has, whatever the limits: a reader refuses to unpack more."""
CHANGE_BUCKET_MS = 60_000
"""Sessions are listed by their last change in steps of a minute: the order is exact to the minute."""

LARGEST_INTEGER = 2**63 - 1
"""The largest number that any of our integer fields holds (A signed 64-bit column)."""
SMALLEST_INTEGER = -(2**63)
"""The smallest number that the same column could hold: every key comes after it."""


class Limits(Record, frozen=True, kw_only=True):
    """The bounds of one call. A breach is `InvalidRequest`, before anything is written."""

    id_bytes: int = 512
    text_bytes: int = 64 * 1024
    document_bytes: int = 16 * MIB
    document_depth: int = 64
    component_bytes: int = 64 * MIB
    commit_bytes: int = 128 * MIB
    commit_nodes: int = 10_000
    commit_items: int = 1_000
    batch_items: int = 1_000
    attachment_bytes: int = 64 * MIB
    artifact_bytes: int = 64 * MIB
    page: int = 1_000
    fork_depth: int = 128
    ttl_ms: int = 7 * 24 * 3600 * 1000
