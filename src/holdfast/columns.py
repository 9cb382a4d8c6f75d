"""Bounds of the numbers in columns, so that values computed from them fit 64 bits. Only ranks may be negative.

A session key is shifted to make the keys of nodes; a counter is incremented. A number out of bounds is damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from holdfast.records.limits import MIB

PAGE_BYTES = 16 * MIB
"""A page of a listing ends after the row with which its documents reach this many bytes, whatever its limit of rows."""

ROWS_AT_ONCE = 1_000
"""Rows that are converted in one go. Other threads wait meanwhile, and with them an event loop."""

POSITION_BITS = 32
"""A node's key is its session's key and its place in that session: `session_key << 32 | position`."""

Whole = Annotated[int, msgspec.Meta(ge=0)]
"""Any number in a column: never negative."""

SESSION_KEYS = 1 << (63 - POSITION_BITS)
"""The most sessions that a store can ever have: above that, the keys of their nodes do not fit."""

SessionKey = Annotated[int, msgspec.Meta(ge=0, lt=SESSION_KEYS)]
"""The key of a session, or of the session that founded a family."""

Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << POSITION_BITS)]
"""The place of a node in the session that wrote it, or the place where an epoch begins."""

RevisionNumber = Annotated[int, msgspec.Meta(ge=0, lt=(1 << POSITION_BITS) - 1)]
"""The number of a revision in its session, so that a key of session and revision fits for the next one, too."""

COUNTERS = 1 << 62
Counter = Annotated[int, msgspec.Meta(ge=0, lt=COUNTERS)]
"""A number that is only ever counted up."""

SMALL = 1 << 15
Small = Annotated[int, msgspec.Meta(ge=-SMALL, lt=SMALL)]
"""A rank that may be below zero: a priority."""


def weight(values: Iterable[object]) -> int:
    """Return the bytes in the columns of a row that hold documents and contents."""
    return sum(len(value) for value in values if isinstance(value, bytes))


def fitting(weights: Iterable[int]) -> int:
    """Return the number of rows on a page: all up to the one with which it reaches its bytes, and at least one."""
    count = total = 0
    for one in weights:
        if total >= PAGE_BYTES:
            break
        count, total = count + 1, total + one
    return count
