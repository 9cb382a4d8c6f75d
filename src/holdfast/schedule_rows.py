"""The stored form of schedules, one row each, and of the subscriptions that their ticks reach."""

from __future__ import annotations

from holdfast.columns import Counter, Whole
from holdfast.rows import Row


class ScheduleRow(Row, frozen=True):
    """One schedule. `due_at_ms` is its next tick, None while it is paused. Ticks up to `seen_ms` are done with."""

    name: str
    cron: str
    tz: str
    paused: Whole
    seen_ms: Whole
    due_at_ms: Whole | None
    last_tick_ms: Whole | None
    failure: str | None
    created_at_ms: Whole
    updated_at_ms: Whole
    body: bytes


class MatchRow(Row, frozen=True):
    """One subscription of a source, without its body. `run_kind` is the kind of the run that it starts, if any."""

    sequence: Counter
    run_kind: str | None
