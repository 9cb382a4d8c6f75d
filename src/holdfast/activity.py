"""Counts turns and events a second from successive reads, and paces repeated reads.

Reads nothing itself, and knows no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.records.processes import Process
from holdfast.records.sessions import SessionSummary

MOST: Final = 1_000
"""Sessions and processes that one look takes."""
REACH_MS: Final = 600_000
"""The first look goes back this far, so that most sessions that work are known before they are counted."""
OVERLAP_MS: Final = 30_000
"""Later looks go back this far before the last one: a change may become visible after a later one."""


PAUSE_FACTOR: Final = 9
"""A reading that took a second is not repeated for so many seconds: it takes at most a tenth of the time."""


class Pace:
    """Says when to read again: after an interval, and later if the last reading took long.

    >>> from holdfast.activity import Pace
    >>> pace = Pace(1.5)
    >>> pace.done(begun_s=10.0, now_s=12.0)
    >>> pace.is_due(29.9), pace.is_due(30.0)
    (False, True)
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Return True if it is time to read, as it is before the first time."""
        return self._next_s is None or now_s >= self._next_s

    def done(self, *, begun_s: float, now_s: float) -> None:
        """Take note of a reading that has ended."""
        self._next_s = now_s + max(self._every_s, PAUSE_FACTOR * (now_s - begun_s))


class Rates(msgspec.Struct, frozen=True):
    """Turns and events of processes a second since the last look. At least as many, unless it is complete."""

    turns: float
    events: float
    is_complete: bool


class Activity:
    """Remembers the revision of each session and the log of each process that changed lately."""

    def __init__(self) -> None:
        self._revisions: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._looked_at_ms: int | None = None

    def since_ms(self, now_ms: int) -> int:
        """Return the time from which on the next look needs changes."""
        return max(0, now_ms - REACH_MS if self._looked_at_ms is None else self._looked_at_ms - OVERLAP_MS)

    def look(
        self, now_ms: int, sessions: Iterable[SessionSummary], processes: Iterable[Process], *, is_complete: bool
    ) -> Rates | None:
        """Return the rates since the last look, None at the first one.

        A session that was quiet for long and changes now counts as one turn.
        """
        before_ms, self._looked_at_ms = self._looked_at_ms, now_ms
        turns = events = 0
        for session in sessions:
            known = self._revisions.get(session.session_id)
            is_new = (session.created_at_ms or 0) >= (before_ms or 0)
            if known is None and session.changed_at_ms >= (before_ms or 0):
                known = 0 if is_new else max(0, session.revision - 1)
            turns += 0 if known is None else max(0, session.revision - known)
            _put(self._revisions, session.session_id, session.revision)
        for process in processes:
            seen = self._events.get(process.id)
            if seen is None and process.created_at_ms >= (before_ms or 0):
                seen = 0
            events += 0 if seen is None else max(0, process.event_count - seen)
            _put(self._events, process.id, process.event_count)
        if before_ms is None:
            return None
        passed_s = max(1, now_ms - before_ms) / 1000
        return Rates(turns / passed_s, events / passed_s, is_complete)


def _put(known: dict[str, int], id: str, number: int) -> None:
    """Remember a number, and forget the one that was not seen for longest if there are too many."""
    known.pop(id, None)
    known[id] = number
    if len(known) > 10 * MOST:
        del known[next(iter(known))]
