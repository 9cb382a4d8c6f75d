"""A clock that advances only on request, and notifies its listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ManualClock:
    """Implements `ports.Clock` for tests.

    >>> from holdfast.testing.clock import ManualClock
    >>> clock = ManualClock(1_000)
    >>> clock.advance(500)
    >>> clock.now_ms()
    1500
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time that was set."""
        with self._lock:
            return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move forward, or back by a negative number, and notify the listeners."""
        with self._lock:
            self._now_ms += by_ms
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call the listener after each change of the time."""
        with self._lock:
            self._listeners.append(listener)
