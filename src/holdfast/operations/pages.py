"""A page shows at most its limit, and has a cursor exactly if there is more: one row too many tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast import codec
from holdfast.records.common import Page

R = TypeVar("R")
T = TypeVar("T")


def page_of(
    rows: Sequence[R], limit: int, make: Callable[[R], T], *, listing: str, place: Callable[[R], Sequence[int | str]]
) -> Page[T]:
    """The page that was read with a limit of one more. `place` says where the next one begins."""
    shown = rows[:limit]
    cursor = codec.encode_cursor(listing, place(shown[-1])) if len(rows) > limit else None
    return Page(tuple(make(row) for row in shown), cursor)
