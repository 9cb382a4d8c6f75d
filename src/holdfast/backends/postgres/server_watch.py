"""Detect when another server, timeline or database answers than before.

No read depends on it. On a change, hints from the earlier server are dropped, waiters look again, and a log record
says that acknowledged commits may be missing. An older copy of the data whose log has grown past the old position
looks like a restarted server. To tell them apart, the server is asked for the newest turn that this store has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.backends.postgres.connection import Values
from holdfast.log import DEBUG, INFO, WARNING, log_event
from holdfast.rows import RevisionRow, SessionRow


class Origin(NamedTuple):
    """Identifies what answered. The last columns of the statement that reads the server's clock."""

    started_us: int
    """Start time of the server, unique to one start of one server."""
    database: int
    table: int | None
    """Object id of the table of sessions: restoring a dump makes a new one."""
    timeline: str | None = None
    """Timeline of the write-ahead log: promoting a standby or replaying a backup's log begins a new one."""
    flushed: int | None = None
    """Position up to which the log is on disk. None on a standby, and if the server does not report it."""


class KnownHead(NamedTuple):
    """A committed head of a session. Sessions stay as tombstones and revisions only rise, so that it never vanishes."""

    session_id: str
    session_key: int
    revision: int
    family: int
    committed_at_ms: int | None
    fingerprint: str | None


class ServerWatch:
    """Compares each origin with the one before. Belongs to one event loop."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._last: Origin | None = None
        self._logged: set[Values] = set()
        self._newest: tuple[int, KnownHead] | None = None
        self._held: tuple[int, KnownHead] | None = None
        self.question: KnownHead | None = None
        """A head that a server must know if it was merely restarted. The caller looks it up and calls `answer`."""

    def remember(self, session: SessionRow, revision: RevisionRow | None) -> None:
        """Keep the newest head of all that were seen. Heavy operations call it from a thread."""
        newest = self._newest
        if newest is None or session.changed_at_ms >= newest[0]:
            committed = (None, None) if revision is None else (revision.committed_at_ms, revision.fingerprint)
            head = (session.session_id, session.session_key, session.revision, session.family)
            self._newest = (session.changed_at_ms, KnownHead(*head, *committed))

    def keep_known_head(self) -> None:
        """Keep the current head after a lost connection, whatever heads the next server shows."""
        self._held = self._held or self._newest

    def answer(self, *, known: bool) -> None:
        """Note if the server knows the head in question, and log the result."""
        if self.question is None:
            return
        self._held = None
        if known:
            log_event("server", INFO, "the server was restarted")
        else:
            self._newest = None
            log_event(
                "server", WARNING, "an older database answers: a turn is missing that this store has seen committed"
            )
        self.question = None

    def compare(self, found: Values) -> bool:
        """Note the origin of an answer. Return whether it is another server or database than before."""
        origin, last = Origin(*found), self._last
        if origin.table is None:
            # The schema is about to be made, or was dropped: statements will report that.
            return False
        if last is not None and origin[:3] == last[:3]:
            # Two answers may arrive in another order than the server sent them.
            self._last = origin._replace(flushed=max(origin.flushed or 0, last.flushed or 0) or None)
            self._held = None
            return False
        self._last = origin
        if last is None:
            return False
        self._log_change(origin, last)
        self._changed()
        return True

    def _log_change(self, origin: Origin, last: Origin) -> None:
        # A pooler may spread calls over several servers: one warning for each.
        level = DEBUG if origin[:3] in self._logged else WARNING
        self._logged |= {origin[:3], last[:3]}
        if origin[1:3] != last[1:3]:
            log_event("server", level, "another database answers: it was restored, or the address leads elsewhere")
        elif origin.flushed is not None and last.flushed is not None and origin.flushed < last.flushed:
            message = "an older database answers: %(missing_bytes)s bytes of the log are missing that were on disk"
            log_event("server", level, message, missing_bytes=last.flushed - origin.flushed)
        elif origin.timeline != last.timeline:
            message = "a server with timeline %(timeline)s answers: acknowledged commits may be missing"
            log_event("server", level, message, timeline=origin.timeline)
        elif (head := self._held or self._newest) is None or level == DEBUG:
            log_event("server", min(level, INFO), "the server was restarted")
        else:
            self.question = head[1]
            return
        self._newest = self._held = None
