"""Limits wider than any in practice, so that whatever a store accepted can be read and moved."""

from __future__ import annotations

import holdfast

GIB = 1024**3
WIDE = holdfast.Limits(
    document_bytes=GIB,
    document_depth=256,
    component_bytes=GIB,
    commit_bytes=2 * GIB,
    attachment_bytes=GIB,
    text_bytes=GIB,
    id_bytes=2_048,
    batch_items=100_000,
    commit_items=100_000,
)
