"""LRU cache of rows. Each row is a hint: the server function that writes checks the one that was used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from holdfast import rows as r
from holdfast.ports import Clock
from holdfast.ports.fast_path_params import Head

K = TypeVar("K")
V = TypeVar("V")

SESSIONS_KEPT = 4096
PROCESSES_KEPT = 1024
FAMILIES_KEPT = 65_536

LARGEST_HINT = 1 << 16
"""Most bytes of a cached row. Larger rows are read again instead."""


class LRU(Generic[K, V]):
    """LRU cache. Threads may share it: another thread may drop an entry between two lines."""

    __slots__ = ("_entries", "_most")

    def __init__(self, most: int) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._most = most

    def get(self, key: K) -> V | None:
        """Return the entry and mark it as used."""
        found = self._entries.get(key)
        if found is not None:
            with suppress(KeyError):
                self._entries.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep an entry, and evict the least recently used."""
        self._entries[key] = value
        with suppress(KeyError):
            self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget every entry."""
        self._entries.clear()

    def drop(self, key: K) -> None:
        """Forget an entry."""
        self._entries.pop(key, None)


class RowCache:
    """Heads of sessions and processes as operations last saw or wrote them."""

    __slots__ = ("_clock", "_read_at_s", "_saw_head", "_server_ms", "families", "processes", "sessions")

    def __init__(
        self, clock: Clock | None, saw_head: Callable[[r.SessionRow, r.RevisionRow | None], None] | None = None
    ) -> None:
        self._clock = clock
        self._saw_head = saw_head
        self._server_ms = int(time.time() * 1000)
        self._read_at_s = time.monotonic()
        self.sessions: LRU[str, Head] = LRU(SESSIONS_KEPT)
        self.processes: LRU[str, r.ProcessRow] = LRU(PROCESSES_KEPT)
        self.families: LRU[str, int] = LRU(FAMILIES_KEPT)
        """By session id, on a cluster."""

    def forget(self) -> None:
        """Forget every row: after a failover, the new primary may lack recent commits."""
        self.sessions.clear()
        self.processes.clear()
        self.families.clear()

    def estimate_ms(self) -> int:
        """Return an estimate of the server's clock, from which this process's clock may be far."""
        if self._clock is not None:
            return self._clock.now_ms()
        return self._server_ms + int((time.monotonic() - self._read_at_s) * 1000)

    def learn_clock(self, server_ms: int) -> None:
        """Note a reading of the server's clock, taken just now."""
        self._server_ms, self._read_at_s = server_ms, time.monotonic()

    def learn(self, row: Head | r.ProcessRow) -> None:
        """Keep a head or a process."""
        if isinstance(row, Head):
            self.learn_head(row.session, row.revision)
        else:
            self.learn_process(row)

    def learn_head(self, session: r.SessionRow, revision: r.RevisionRow | None) -> None:
        """Keep the head of a session that was read or written."""
        if self._saw_head is not None:
            self._saw_head(session, revision)
        size = len(session.lineage) + (0 if revision is None else len(revision.body) + len(revision.refs))
        if size <= LARGEST_HINT and session.deleted_at_ms is None:
            self.sessions.put(session.session_id, Head(session, revision))
        else:
            self.sessions.drop(session.session_id)

    def learn_process(self, row: r.ProcessRow) -> None:
        """Keep a process that was read or written."""
        size = len(row.body) + len(row.external_ref or b"") + len(row.wait or b"") + len(row.outcome or b"")
        if size <= LARGEST_HINT:
            self.processes.put(row.process_id, row)
        else:
            self.processes.drop(row.process_id)
