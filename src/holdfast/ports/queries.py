"""The rows that a read will ask for, which one statement may fetch, and how old its answer may be.

Each backend judges the age by positions that it made itself.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.rows import EventFilter


class ViewQuery(msgspec.Struct, frozen=True):
    """The newest view of a session with the last nodes of its path (None: all), and the revision of this turn.

    `with_claims` adds whether a claim may hold work of the session.
    """

    session_id: str
    last: int | None
    turn_id: str | None = None
    with_claims: bool = False


class GroupQuery(msgspec.Struct, frozen=True):
    """The first page of a session's nodes with ids in a range, in their order."""

    session_id: str
    first: str
    before: str | None
    kind: str | None
    limit: int


class WorkersQuery(msgspec.Struct, frozen=True):
    """The first live workers by id, after this one."""

    after: str
    limit: int


PrefetchQuery: TypeAlias = ViewQuery | GroupQuery | WorkersQuery | EventFilter


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
