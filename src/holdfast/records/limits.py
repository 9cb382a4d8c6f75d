"""The limits of every call. They are visible and settable."""

from __future__ import annotations

from holdfast.records.common import KeywordRecord

MIB = 1024 * 1024
LARGEST_CONTENT = 1024 * MIB
"""The most bytes of one content, attachment or artifact, whatever the limits. A reader refuses to unpack more."""
CHANGE_BUCKET_MS = 60_000
"""Listings by last change are exact to one minute: the order is kept in buckets of this length."""

LARGEST_INTEGER = 2**63 - 1
"""The largest value of any integer field: a signed 64-bit column."""
SMALLEST_INTEGER = -(2**63)
"""The smallest value of the same column. Every key comes after it."""


class Limits(KeywordRecord, frozen=True, kw_only=True):
    """The bounds of one call. Exceeding one is `InvalidRequest`, raised before anything is written."""

    id_bytes: int = 512
    text_bytes: int = 64 * 1024
    document_bytes: int = 16 * MIB
    document_depth: int = 64
    component_bytes: int = 64 * MIB
    commit_bytes: int = 128 * MIB
    load_bytes: int = 1024 * MIB
    commit_nodes: int = 10_000
    commit_items: int = 1_000
    batch_items: int = 1_000
    attachment_bytes: int = 64 * MIB
    artifact_bytes: int = 64 * MIB
    page: int = 1_000
    fork_depth: int = 128
    labels: int = 16
    label_key_bytes: int = 64
    label_value_bytes: int = 256
    tree_sessions: int = 1_000
    ttl_ms: int = 7 * 24 * 3600 * 1000


WIDE = Limits(
    document_bytes=1024 * MIB,
    document_depth=256,
    component_bytes=1024 * MIB,
    commit_bytes=2048 * MIB,
    attachment_bytes=1024 * MIB,
    text_bytes=1024 * MIB,
    id_bytes=2_048,
    batch_items=100_000,
    commit_items=100_000,
    labels=100_000,
    label_key_bytes=512,
    label_value_bytes=2_048,
    tree_sessions=100_000,
)
"""Wider than any limits in practice, so that the command line reads and moves whatever a store accepted."""
