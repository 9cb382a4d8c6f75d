"""The row of a block of emitted values. See `rows`."""

from __future__ import annotations

from holdfast.columns import SessionKey, Whole
from holdfast.rows import Row


class StreamRow(Row, frozen=True):
    """Values that a turn emitted, in order: one of the blocks of one claim. `body` is a JSON list of `items` values.

    The last block of a claim grows in place until it is full.
    """

    family: SessionKey
    session_key: SessionKey
    claim_id: str
    block: Whole
    turn_id: str
    begun_at_ms: Whole
    items: Whole
    body: bytes
