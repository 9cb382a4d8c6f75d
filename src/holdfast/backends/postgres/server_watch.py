"""Notices when another server, timeline or database answers than before.

No reading depends on it. What the earlier server had told is dropped, waiters look again, and a log record says that
acknowledged commits may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.backends.postgres.link import Values
from holdfast.noting import DEBUG, INFO, WARNING, note


class Origin(NamedTuple):
    """Identifies what answered. The last columns of the statement that reads the server's clock."""

    started_us: int
    """Start time of the server, which no other server and no later start of it shares."""
    database: int
    table: int | None
    """Object id of the table of sessions: restoring a dump makes a new one."""
    timeline: str | None = None
    """Timeline of the write-ahead log: promoting a standby or replaying a backup's log begins a new one."""
    flushed: int | None = None
    """Position up to which the log is on disk. None on a standby, and where the server does not tell."""


class ServerWatch:
    """Compares each origin with the one before. Belongs to one event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._last: Origin | None = None
        self._told: set[Values] = set()

    def see(self, found: Values) -> bool:
        """Note what answered. Returns whether it is another server or database than the one before."""
        origin, last = Origin(*found), self._last
        if origin.table is None:
            # The schema is about to be made, or was dropped: statements say so.
            return False
        if last is not None and origin[:3] == last[:3]:
            # Two answers may come in another order than the server gave them.
            self._last = origin._replace(flushed=max(origin.flushed or 0, last.flushed or 0) or None)
            return False
        self._last = origin
        if last is None:
            return False
        self._tell(origin, last)
        self._changed()
        return True

    def _tell(self, origin: Origin, last: Origin) -> None:
        # A pooler may spread calls over several servers: each of them is worth one warning.
        level = DEBUG if origin[:3] in self._told else WARNING
        self._told |= {origin[:3], last[:3]}
        if origin[1:3] != last[1:3]:
            note("server", level, "another database answers: it was restored, or the address leads elsewhere")
        elif origin.flushed is not None and last.flushed is not None and origin.flushed < last.flushed:
            message = "an older database answers: %(missing_bytes)s bytes of the log are missing that were on disk"
            note("server", level, message, missing_bytes=last.flushed - origin.flushed)
        elif origin.timeline != last.timeline:
            message = "a server with timeline %(timeline)s answers: acknowledged commits may be missing"
            note("server", level, message, timeline=origin.timeline)
        else:
            note("server", min(level, INFO), "the server was started again")
