"""Decide when failed work is tried again. Pure: computed from the attempt and one random number."""

from __future__ import annotations

from typing import Any, cast

import msgspec

import holdfast

MOST_ATTEMPTS = 2**31 - 1
LONGEST_S = 7 * 24 * 3600.0
FIRST_HOLD_MS = 10_000
"""Delay before a run whose code has changed is tried again for the first time."""
LONGEST_HOLD_MS = 300_000
"""Longest delay between two tries of such a run: the right code may be deployed at any time."""


SPARE_CALLS = 1
"""Calls of a run after its last attempt, if its worker was lost in that: a run survives its worker."""
NOT_SURVIVED = "no worker survived"
"""Beginning of the error of work that lost its workers at every attempt."""


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
        if not _is_whole(self.attempts) or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise holdfast.InvalidRequest("retry.attempts", f"must be a whole number from 1 to {MOST_ATTEMPTS}")
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
        is_last = gives_up(error) or attempt >= self.attempts
        return None if is_last else self.delay_ms(attempt, chance=chance)


def gives_up(error: BaseException) -> bool:
    """Return whether an error is `GiveUp`, or a group with one, as a `TaskGroup` raises it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(GiveUp) is not None
    return isinstance(error, GiveUp)


def require_attempt(retry: Retry, attempt: int, *, after_outage: bool, spare: int = 0) -> None:
    """Raise `GiveUp` for claimed work that lost its workers at every attempt, and in the `spare` calls after them.

    Not after an outage: a claim that ended in it was not lost by the death of a worker. The work gets one call more.
    Workers that start later have met no outage, so that work which kills every worker still comes to its end. An outage
    that only the holder met is not known here: the holder takes the work off the dead letters when it is back.
    """
    most = retry.attempts + spare
    if attempt > most and not after_outage:
        raise GiveUp(f"{NOT_SURVIVED} its {most} attempts")


def hold_delay_ms(held_for_ms: int, *, chance: float) -> int:
    """Return the delay before a run is tried again that was first held so long ago: as long again, within bounds."""
    delay_ms = min(max(held_for_ms, FIRST_HOLD_MS), LONGEST_HOLD_MS)
    return int(delay_ms * (0.9 + 0.2 * chance))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
