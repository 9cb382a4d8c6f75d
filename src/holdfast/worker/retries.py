"""Decide when failed work is tried again. Pure: computed from the attempt and one random number."""

from __future__ import annotations

from typing import Any

import msgspec

import holdfast

LONGEST_S = 7 * 24 * 3600.0


class GiveUp(Exception):
    """Raise it in a handler for work that no retry can help: it becomes a dead letter at once."""


class Retry(msgspec.Struct, frozen=True):
    """Retry failed work up to `attempts` times in all, after `backoff_s` seconds and then `factor` times as long.

    `jitter` spreads each delay by up to that part of it, so that work that failed together does not return together.
    Work that fails at its last attempt is a dead letter: see `queue.dead_letters`.

    >>> from holdfast.worker import Retry
    >>> [Retry(5, backoff_s=2).delay_ms(attempt, chance=0.5) for attempt in (1, 2, 3)]
    [2000, 4000, 8000]
    """

    attempts: int = 3
    backoff_s: float = 2.0
    factor: float = 2.0
    max_backoff_s: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not _is_whole(self.attempts) or self.attempts < 1:
            raise holdfast.InvalidRequest("retry.attempts", "must be a whole number from 1 on")
        for name, least, most in (
            ("backoff_s", 0.0, LONGEST_S),
            ("factor", 1.0, 1000.0),
            ("max_backoff_s", 0.0, LONGEST_S),
            ("jitter", 0.0, 1.0),
        ):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise holdfast.InvalidRequest(f"retry.{name}", f"must be a number from {least:g} to {most:g}")

    def delay_ms(self, attempt: int, *, chance: float) -> int:
        """Return the delay after a failed attempt, counted from 1. `chance` is random, from 0 to 1."""
        # The exponent is bounded, so that a large number of attempts cannot overflow.
        grown = self.backoff_s * self.factor ** min(attempt - 1, 100)
        delay_s = min(grown, self.max_backoff_s) * (1 + self.jitter * (2 * chance - 1))
        return int(1000 * min(delay_s, LONGEST_S))

    def delay_after(self, attempt: int, error: BaseException, *, chance: float) -> int | None:
        """Return the delay after an attempt that failed so, None if it was the last one."""
        is_last = isinstance(error, GiveUp) or attempt >= self.attempts
        return None if is_last else self.delay_ms(attempt, chance=chance)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
