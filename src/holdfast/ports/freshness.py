"""The freshness of a read: how old its answer may be. Each backend judges it by positions that it made itself."""

from __future__ import annotations

import msgspec

from holdfast.errors import InvalidRequest


class Freshness(msgspec.Struct, frozen=True):
    """Lets a replica answer a read, unless it has not reached the position.

    A replica gets `wait_ms` to reach it. Then the primary answers if `fall_back`, or the read is refused.
    """

    position: str | None
    wait_ms: int
    fall_back: bool


def foreign(position: str) -> InvalidRequest:
    """Return the error for a position that this store cannot have made."""
    return InvalidRequest(
        "after", f"{position!r} is not a position of this store: give a receipt of this store, or leave it out"
    )
