"""What time it is, as the machine says."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `ports.Clock`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
