"""A clock that moves only when it is told to, and tells those who wait."""

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
        """What it was set to."""
        with self._lock:
            return self._now_ms

    def advance(self, by_ms: int) -> None:
        """Move on, or with a negative number back, and wake those who wait for a time."""
        with self._lock:
            self._now_ms += by_ms
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call back whenever the time was changed."""
        with self._lock:
            self._listeners.append(listener)
