"""Records when a worker last could not reach its database: work that is lost meanwhile keeps its attempts."""

from __future__ import annotations

import time

import holdfast

LATE_S = 30.0
"""Time after the end of a lost claim in which its work is taken over, at most, also by a busy worker."""


class Outages:
    """The last outage that one worker has met. Any thread may note one."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def note(self, error: BaseException) -> None:
        """Note an error, if it says that the database could not be reached."""
        if isinstance(error, holdfast.Unavailable):
            self._last_s = time.monotonic()

    def explain_loss(self, ttl_ms: int) -> bool:
        """Return whether a claim of this lifetime may have been lost because of an outage, and not of a death."""
        return self._last_s is not None and time.monotonic() - self._last_s < ttl_ms / 1000 + LATE_S
