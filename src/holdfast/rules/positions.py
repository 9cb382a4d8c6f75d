"""A position is opaque text: only the backend that made it reads it."""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidRequest
from holdfast.records.common import Receipt

LONGEST: Final = 128
"""Longest text of a position, in characters."""


def position_of(after: object) -> str | None:
    """Return the position of a receipt, or one that was given as text."""
    if after is None:
        return None
    position: object = after.position if isinstance(after, Receipt) else after
    if not isinstance(position, str):
        raise InvalidRequest("after", f"must be a receipt, its position or None, not {type(position).__name__}")
    if not position:
        raise InvalidRequest("after", "has no position: give a receipt that a store returned")
    if len(position) > LONGEST or not position.isascii() or not position.isprintable():
        raise InvalidRequest("after", "is not a position: give a receipt, or its position as it was", limit=LONGEST)
    return position
