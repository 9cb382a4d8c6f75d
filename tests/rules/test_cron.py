"""Ticks of cron expressions, compared with a minute-by-minute model of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.rules import cron as rules

MINUTE_MS = 60_000
MODEL_MINUTES = 14 * 60
CHANGES = [
    ("Europe/Vienna", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Vienna", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 4, 3, 15, tzinfo=UTC)),
    ("Africa/Cairo", datetime(2026, 4, 23, 22, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
]


def ms(time: datetime) -> int:
    return int(time.timestamp()) * 1000


def model(minutes: set[int], hours: set[int], zone: str, first: datetime, count: int) -> list[int]:
    """Return the ticks among `count` minutes, found by looking at each of them."""
    tz = ZoneInfo(zone)
    times = [first + timedelta(minutes=number) for number in range(count)]
    walls = [time.astimezone(tz).replace(tzinfo=None, fold=0) for time in times]
    if len(hours) == 24:
        return [ms(time) for time, wall in zip(times, walls, strict=True) if wall.minute in minutes]
    # Each time on the wall happens at the first moment at which the wall shows it, or has passed it.
    found: set[int] = set()
    latest = walls[0]
    for time, wall in zip(times, walls, strict=True):
        passed = [latest + timedelta(minutes=step + 1) for step in range(int((wall - latest) / timedelta(minutes=1)))]
        if any(shown.hour in hours and shown.minute in minutes for shown in passed):
            found.add(ms(time))
        latest = max(latest, wall)
    return sorted(found)


def listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    change=st.sampled_from(CHANGES),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=4),
    hours=st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 23), min_size=1, max_size=6)),
    start=st.integers(-300, 300),
    second=st.integers(0, 59_999),
)
def test_ticks_around_a_change_are_those_of_the_model(
    change: tuple[str, datetime], minutes: set[int], hours: set[int], start: int, second: int
) -> None:
    zone, moment = change
    first = moment - timedelta(hours=7)
    expected = model(minutes, hours, zone, first, MODEL_MINUTES)
    cron = f"{listed(minutes)} {listed(hours)} * * *"
    after_ms = ms(moment + timedelta(minutes=start)) + second
    end_ms = ms(first) + MODEL_MINUTES * MINUTE_MS
    found: list[int] = []
    place = rules.next_tick(cron, zone, after_ms)
    while place is not None and place < end_ms:
        found.append(place)
        place = rules.next_tick(cron, zone, place)
    assert found == [tick for tick in expected if tick > after_ms]
    before = [tick for tick in expected if tick <= after_ms]
    latest = rules.latest_tick(cron, zone, ms(first), after_ms)
    assert latest == (before[-1] if before else None)


@pytest.mark.parametrize(
    ("cron", "until", "expected"),
    [
        ("* * * * *", "2026-11-17T12:00:30", "2026-11-17T12:00:00Z"),
        ("30 3 * * *", "2026-11-17T03:29:00", "2026-11-16T03:30:00Z"),
        ("0 0 1 * *", "2026-11-17T12:00:00", "2026-11-01T00:00:00Z"),
        ("0 0 25 12 *", "2026-11-17T12:00:00", "2025-12-25T00:00:00Z"),
        ("0 0 29 2 *", "2026-11-17T12:00:00", "2024-02-29T00:00:00Z"),
        ("0 0 * * MON", "2026-11-17T12:00:00", "2026-11-16T00:00:00Z"),
        ("*/20 */6 * * *", "2026-11-17T05:00:00", "2026-11-17T00:40:00Z"),
    ],
)
def test_the_latest_tick_is_found_however_long_ago_it_was(cron: str, until: str, expected: str) -> None:
    until_ms = ms(datetime.fromisoformat(until).replace(tzinfo=UTC))
    latest = rules.latest_tick(cron, "UTC", 0, until_ms)
    assert latest is not None
    assert rules.written(latest) == expected
    assert rules.latest_tick(cron, "UTC", latest, until_ms) is None


@pytest.mark.parametrize("cron", ["*/15 2 * * *", "0-59/15 2 * * *", "0,15,30,45 2 * * *"])
def test_every_spelling_of_the_same_times_has_the_same_ticks(cron: str) -> None:
    """All of a skipped hour is one tick, and a repeated hour is not repeated."""
    spring = rules.next_tick(cron, "Europe/Vienna", ms(datetime(2026, 3, 28, 12, tzinfo=UTC)))
    assert spring is not None
    assert rules.written(spring) == "2026-03-29T01:00:00Z"
    following = rules.next_tick(cron, "Europe/Vienna", spring)
    assert following is not None
    assert rules.written(following) == "2026-03-30T00:00:00Z"
    autumn = rules.next_tick(cron, "Europe/Vienna", ms(datetime(2026, 10, 25, 0, 50, tzinfo=UTC)))
    assert autumn is not None
    assert rules.written(autumn) == "2026-10-26T01:00:00Z"


@pytest.mark.parametrize(
    ("cron", "problem"),
    [
        ("0 0 31 2 *", "never fires: no month that it names has that day"),
        ("0 0 31 4,6 *", "never fires: no month that it names has that day"),
        ("* * */20 * 1L", "never fires: no day is both of these"),
        ("0 0 32 2 *", "cannot be read: bad day-of-month"),
        ("0 24 * * *", "cannot be read: bad hour"),
        ("0 0 * FOO *", "cannot be read: bad month"),
        ("0 0 * * 8", "cannot be read: bad day-of-week"),
        ("*/0 * * * *", "cannot be read: bad minute"),
        ("", "has 0 fields instead of 5"),
        ("0 0 3 * * *", "has 6 fields instead of 5"),
    ],
)
def test_an_expression_that_cannot_fire_is_refused_with_the_reason(cron: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        rules.check_cron("cron", cron)
    assert info.value.field == "cron"
    assert problem in info.value.problem
    assert "'0 3 * * *' is every night at 3" in info.value.problem


@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "..", "/etc/passwd", "../../etc/passwd", "Europe", "Europe/Vienna "]
)
def test_an_unknown_zone_is_refused(tz: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        rules.check_zone("tz", tz)
    assert info.value.field == "tz"
    assert "use a name such as 'Europe/Vienna'" in info.value.problem


def test_right_expressions_and_zones_are_returned() -> None:
    assert rules.check_cron("cron", "0 3 * * *") == "0 3 * * *"
    assert [rules.check_zone("tz", tz) for tz in ("UTC", "Asia/Kathmandu")] == ["UTC", "Asia/Kathmandu"]


@pytest.mark.parametrize("tz", ["UTC", "Europe/Vienna"])
def test_the_calendar_ends(tz: str) -> None:
    end_ms = 253_402_300_799_000  # the last second of the year 9999
    assert rules.next_tick("0 3 * * *", tz, end_ms) is None
    assert rules.next_tick("0 3 * * *", tz, 2**62) is None
    assert rules.latest_tick("0 3 * * *", tz, 2**62, 2**62 + 1) is None
