"""The numbers in our columns are never negative, and bounded so that what is computed from them fits a 64-bit column.

A key is shifted to make the keys of nodes, a counter goes on by one. Whatever is out of bounds is damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from holdfast.records.limits import MIB

PAGE_BYTES = 16 * MIB
"""A page of a listing ends after the row with which it has so many bytes of documents, whatever its limit of rows."""

POSITION_BITS = 32
"""A node's key is its session's key and its place in that session: `session_key << 32 | position`."""

Whole = Annotated[int, msgspec.Meta(ge=0)]
"""What every number of ours is: never negative, in any column."""

SESSION_KEYS = 1 << (63 - POSITION_BITS)
"""How many sessions a store can ever have: above that, the keys of their nodes do not fit."""

SessionKey = Annotated[int, msgspec.Meta(ge=0, lt=SESSION_KEYS)]
"""The key of a session, or of the session that founded a family."""

Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << POSITION_BITS)]
"""The place of a node in the session that wrote it, and where an epoch begins."""

COUNTERS = 1 << 62
Counter = Annotated[int, msgspec.Meta(ge=0, lt=COUNTERS)]
"""A number that is only ever counted up."""


def weight(values: Iterable[object]) -> int:
    """How many bytes the columns of a row have that hold documents and contents."""
    return sum(len(value) for value in values if isinstance(value, bytes))


def fitting(weights: Iterable[int]) -> int:
    """How many rows a page takes: all up to the one with which it reaches its bytes, and one in any case."""
    count = total = 0
    for one in weights:
        if total >= PAGE_BYTES:
            break
        count, total = count + 1, total + one
    return count
