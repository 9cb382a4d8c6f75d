"""Clocks. A reading is a whole number of milliseconds since the epoch, or it is refused."""

from __future__ import annotations

import time
from typing import cast

from holdfast.errors import InvalidRequest
from holdfast.ports import Clock
from holdfast.records.limits import LARGEST_INTEGER


class SystemClock:
    """Implements `ports.Clock` with the machine's time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


def read_clock(clock: Clock) -> int:
    """Return one reading, checked: an injected clock may return anything."""
    now_ms = cast("object", clock.now_ms())
    if isinstance(now_ms, bool) or not isinstance(now_ms, int) or not 0 <= now_ms <= LARGEST_INTEGER:
        raise InvalidRequest("clock", f"now_ms() must answer milliseconds since the epoch, not {now_ms!r}")
    return now_ms
