"""Schedules: a cron expression in a time zone, and the work or the run that each tick starts."""

from __future__ import annotations

from holdfast.records.common import Record
from holdfast.records.processes import Run
from holdfast.records.queue import WorkDraft
from holdfast.records.triggers import Occurrence


class Schedule(Record, frozen=True):
    """A declared schedule. Each tick emits an occurrence and starts `work` or `run`, if there is one.

    `next_tick_ms` is None while it is paused. `last_tick_ms` is the last tick that fired. Ticks up to `seen_ms` never
    fire again. `failure` says why the last tick started nothing.
    """

    name: str
    cron: str
    tz: str
    work: WorkDraft | None
    run: Run | None
    paused: bool
    next_tick_ms: int | None
    last_tick_ms: int | None
    seen_ms: int
    failure: str | None
    created_at_ms: int
    updated_at_ms: int


class Firing(Record, frozen=True):
    """One tick of a schedule: its occurrence, and the batch or the run that it started.

    `tick_ms` is the time that the schedule names, not the time at which it was noticed.
    """

    name: str
    tick_ms: int
    occurrence: Occurrence
    batch_id: str | None = None
    process_id: str | None = None
