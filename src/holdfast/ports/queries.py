"""The rows that a read will ask for: a database may fetch them by one statement."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.rows import EventFilter


class ViewQuery(msgspec.Struct, frozen=True):
    """The newest view of a session with the last nodes of its path (None: all), and the revision of this turn."""

    session_id: str
    last: int | None
    turn_id: str | None = None


class GroupQuery(msgspec.Struct, frozen=True):
    """The first page of a session's nodes with ids in a range, in their order."""

    session_id: str
    first: str
    before: str | None
    kind: str | None
    limit: int


PrefetchQuery: TypeAlias = ViewQuery | GroupQuery | EventFilter
