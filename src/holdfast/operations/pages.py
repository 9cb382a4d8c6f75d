"""Make pages from rows.

A page has at most its limit of rows, and ends early at its limit of bytes. It has a cursor exactly if more follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar, cast

import msgspec

from holdfast import codec, columns
from holdfast.columns import fitting, weight
from holdfast.records.common import Page

R = TypeVar("R")
T = TypeVar("T")


def _values(row: object) -> Iterable[object]:
    """Return the columns of a row, or of several rows that are listed as one."""
    if isinstance(row, msgspec.Struct):
        return msgspec.structs.astuple(row)
    return chain.from_iterable(map(_values, cast("tuple[object, ...]", row))) if isinstance(row, tuple) else (row,)


def may_follow(rows: Sequence[object], limit: int) -> bool:
    """Return True if further rows may follow those that were read with this limit of rows, or a page's of bytes."""
    return len(rows) >= limit or sum(weight(_values(row)) for row in rows) >= columns.PAGE_BYTES


def page_of(
    rows: Sequence[R],
    limit: int,
    make: Callable[[R], T],
    *,
    listing: str,
    place: Callable[[R], Sequence[int | str]],
    more: bool = False,
) -> Page[T]:
    """Return the page of rows that were read with a limit of one more.

    `place` gives the position in the listing after which the next page begins. `more`: further rows follow those read.
    """
    shown = rows[: fitting(weight(_values(row)) for row in rows[:limit])]
    cursor = codec.encode_cursor(listing, place(shown[-1])) if more or len(rows) > len(shown) else None
    return Page(tuple(make(row) for row in shown), cursor)
