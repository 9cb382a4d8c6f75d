"""Compute the ticks of a cron expression in a time zone. A tick is an instant, so every tick happens once.

An expression that names hours means times on the wall clock, each once a day: a time that a change of the clock skips
ticks at the next valid time, and a time that the change repeats ticks at the first. An expression with every hour (`*`)
means elapsed time: it ticks in every hour that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidRequest

FIELDS = 5
EVERY_HOUR = 24
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - cronsim compares with this very object
EXAMPLE = "'0 3 * * *' is every night at 3"

OF_THE_HOST = frozenset({"localtime", "posixrules"})
"""Files beside the zones that hold a setting of the host."""

WINDOWS = tuple(timedelta(hours=hours) for hours in (1, 24, 31 * 24, 366 * 24))
"""Spans before a time in which its latest tick is looked for. So the cost does not grow with the ticks missed."""


def check_cron(field: str, cron: str) -> str:
    """Return an expression that can be read and fires at some time. Raises InvalidRequest for any other."""
    _plain(field, cron)
    if next_tick(cron, "UTC", 0) is None:
        raise InvalidRequest(field, f"{cron!r} never fires: no day is both of these; {EXAMPLE}")
    return cron


def check_zone(field: str, tz: str) -> str:
    """Return the name of a time zone that this system knows. Raises InvalidRequest for any other."""
    if tz in OF_THE_HOST:
        problem = f"{tz!r} is another zone on each host, and any worker may fire a tick: use a name such as 'UTC'"
        raise InvalidRequest(field, problem)
    try:
        _zone(tz)
    except (OSError, ValueError, LookupError):
        problem = f"{tz!r} is not a time zone of this system: use a name such as 'Europe/Vienna' or 'UTC'"
        raise InvalidRequest(field, problem) from None
    return tz


def next_tick(cron: str, tz: str, after_ms: int) -> int | None:
    """Return the first tick after a time, None without one within 50 years."""
    return next(_ticks(cron, tz, after_ms), None)


def latest_tick(cron: str, tz: str, after_ms: int, until_ms: int) -> int | None:
    """Return the last tick after one time and not after another, or None."""
    starts = [until_ms - int(window.total_seconds()) * 1000 for window in WINDOWS]
    for start_ms in [*(start for start in starts if start > after_ms), after_ms]:
        latest = None
        for tick_ms in _ticks(cron, tz, start_ms):
            if tick_ms > until_ms:
                break
            latest = tick_ms
        if latest is not None:
            return latest
    return None


def written(tick_ms: int) -> str:
    """Return a tick as text, such as `2026-11-17T02:00:00Z`."""
    return (EPOCH + timedelta(milliseconds=tick_ms)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ticks(cron: str, tz: str, after_ms: int) -> Iterator[int]:
    """Yield the ticks after a time. A time on the wall clock that is skipped or repeated ticks once."""
    expression, minutes = _plain("cron", cron)
    last_ms = after_ms
    try:
        start = (EPOCH + timedelta(seconds=after_ms // 1000)).astimezone(_zone(tz))
        for tick in CronSim(expression, start):
            # In the second pass of a repeated hour, the library begins with the first.
            tick_ms = (tick - EPOCH) // timedelta(milliseconds=1)
            if tick_ms > last_ms and tick.minute in minutes:
                yield tick_ms
                last_ms = tick_ms
    except OverflowError:
        return  # the calendar ends with the year 9999


ANY_MINUTE = frozenset(range(60))


@lru_cache(maxsize=256)
def _plain(field: str, cron: str) -> tuple[str, frozenset[int]]:
    """Return an expression that the library reads as elapsed time or as times on the wall, and the minutes to keep.

    The library takes `*` for elapsed time. It then jumps to a single minute, and past a change by half an hour: it
    is given every minute instead.
    """
    parts = cron.split()
    if len(parts) != FIELDS:
        problem = f"{cron!r} has {len(parts)} fields instead of 5 (minute, hour, day, month, weekday): {EXAMPLE}"
        raise InvalidRequest(field, problem)
    try:
        read = CronSim(cron, EPOCH)
    except (CronSimError, ValueError, AssertionError) as error:
        raise InvalidRequest(field, f"{cron!r} {_problem(parts, error)}; {EXAMPLE}") from None
    if len(read.hours) == EVERY_HOUR:
        return " ".join(["*", "*", *parts[2:]]), frozenset(read.minutes)
    # A skipped time is moved to a minute that it does not name.
    return " ".join([_listed(read.minutes), _listed(read.hours), *parts[2:]]), ANY_MINUTE


def _listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _problem(parts: list[str], error: Exception) -> str:
    if "day-of-month" in str(error):
        with suppress(CronSimError):
            CronSim(" ".join([*parts[:3], "*", parts[4]]), EPOCH)
            return "never fires: no month that it names has that day"
    return f"cannot be read: {str(error).lower()}"


@lru_cache(maxsize=64)
def _zone(tz: str) -> tzinfo:
    return timezone.utc if tz == "UTC" else ZoneInfo(tz)  # noqa: UP017 - as above
