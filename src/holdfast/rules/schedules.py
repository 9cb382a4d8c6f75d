"""Schedules: check declarations, and decide which tick fires and what it starts.

A tick fires at most once, because its row moves past it first; of missed ticks only the latest fires.
"""

from __future__ import annotations

from types import ModuleType
from typing import cast

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.extras import needing
from holdfast.records.common import Document
from holdfast.records.limits import LARGEST_CONTENT, MIB, Limits
from holdfast.records.processes import Provenance, Run
from holdfast.records.queue import WorkDraft
from holdfast.records.schedules import Firing, Schedule
from holdfast.records.triggers import Occurrence
from holdfast.rules import checks, processes, queue, triggers
from holdfast.schedule_rows import ScheduleRow

SOURCE_TYPE = "schedule"
"""The source type of the occurrences of all schedules. Their source key is the schedule's name."""

ID_ROOM = 64
"""Bytes of an id that the store adds to a schedule's name."""

TARGET_BYTES = MIB
"""The most bytes of what a tick starts. Every tick rewrites them."""

REQUESTED = "now:"
"""Begins the idempotency key of a firing that a caller asked for."""

CHECKED = Limits(id_bytes=MIB, document_bytes=LARGEST_CONTENT, document_depth=512)
"""Limits of a tick. Its parts were checked when they were declared, so that another store's limits refuse none."""

MINUTE_MS = 60_000
"""Ticks are at whole minutes."""


class Target(msgspec.Struct, frozen=True):
    """The stored form of what a tick starts."""

    work: WorkDraft | None = None
    run: Run | None = None


class ScheduleIntent(msgspec.Struct, frozen=True):
    """A checked declaration."""

    name: str
    cron: str
    tz: str
    target: Target


class Tick(msgspec.Struct, frozen=True):
    """One tick: its occurrence, and the work or the run that it starts."""

    name: str
    tick_ms: int
    occurrence: triggers.OccurrenceIntent
    work: queue.BatchIntent | None
    run: processes.Registered | None


class Due(msgspec.Struct, frozen=True):
    """The row of a schedule moved past its due ticks, and the tick to fire, if any."""

    row: ScheduleRow
    tick_ms: int | None


# Declaring.


def check_schedule(
    name: object, cron: object, tz: object, work: WorkDraft | None, run: Run | None, limits: Limits
) -> ScheduleIntent:
    """Check a declaration. Its expression must fire at some time."""
    checked = checks.identifier("name", name, limits)
    most = limits.id_bytes - ID_ROOM
    if len(checked.encode()) > most:
        raise InvalidRequest("name", f"is longer than {most} bytes: choose a shorter one", limit=most)
    if work is not None and run is not None:
        raise InvalidRequest("run", "cannot be given together with work: a tick starts one of them")
    rule = ticking("cron")
    return ScheduleIntent(
        name=checked,
        cron=rule.check_cron("cron", checks.identifier("cron", cron, limits)),
        tz=rule.check_zone("tz", checks.identifier("tz", tz, limits)),
        target=_check_target(work, run, limits),
    )


def ticking(field: str) -> ModuleType:
    """Return the rules of ticks. Raises InvalidRequest if the library that they need is not installed."""
    with needing("schedules", field=field, purpose="a cron expression"):
        from holdfast.rules import cron
    return cron


def _check_target(work: WorkDraft | None, run: Run | None, limits: Limits) -> Target:
    if work is not None:
        queue.check_draft("work", work, limits)
        for field, given, default in (
            ("source_key", work.source_key, None),
            ("available_at_ms", work.available_at_ms, 0),
        ):
            if given != default:
                raise InvalidRequest(f"work.{field}", "must be left out: each tick has its own")
    if run is not None:
        checks.instance("run", run, Run)
        processes.check_input("run", run, limits)
    target = codec.own_copy(Target, Target(work, run))
    size = len(codec.encode_record(target))
    if size > TARGET_BYTES:
        field = "run.args" if work is None else "work.payloads"
        raise InvalidRequest(field, f"is {size} bytes long, the limit of a tick is {TARGET_BYTES}", limit=TARGET_BYTES)
    return target


def declared(intent: ScheduleIntent, existing: ScheduleRow | None, *, now_ms: int) -> ScheduleRow:
    """Return the row of a declaration. A new expression or zone counts from now on: it fires no tick of before."""
    body = codec.encode_record(intent.target)
    if existing is None:
        return _from_now(
            ScheduleRow(
                name=intent.name,
                cron=intent.cron,
                tz=intent.tz,
                paused=0,
                seen_ms=0,
                due_at_ms=None,
                last_tick_ms=None,
                failure=None,
                created_at_ms=now_ms,
                updated_at_ms=now_ms,
                body=body,
            ),
            now_ms=now_ms,
        )
    if (existing.cron, existing.tz, existing.body) == (intent.cron, intent.tz, body):
        return existing
    changed = msgspec.structs.replace(existing, cron=intent.cron, tz=intent.tz, body=body, updated_at_ms=now_ms)
    if (existing.cron, existing.tz) == (intent.cron, intent.tz):
        return changed
    return _from_now(changed, now_ms=now_ms)


def _from_now(row: ScheduleRow, *, now_ms: int) -> ScheduleRow:
    """Return the row moved past all ticks up to now. A clock that is set back repeats none of them."""
    seen_ms = max(row.seen_ms, now_ms)
    due_at_ms = None if row.paused else ticking("cron").next_tick(row.cron, row.tz, seen_ms)
    return msgspec.structs.replace(row, seen_ms=seen_ms, due_at_ms=due_at_ms)


def paused(row: ScheduleRow, *, now_ms: int) -> ScheduleRow:
    """Return the schedule paused."""
    return row if row.paused else msgspec.structs.replace(row, paused=1, due_at_ms=None, updated_at_ms=now_ms)


def resumed(row: ScheduleRow, *, now_ms: int) -> ScheduleRow:
    """Return the schedule as it continues from now: ticks of the pause do not fire."""
    if not row.paused:
        return row
    return _from_now(msgspec.structs.replace(row, paused=0, updated_at_ms=now_ms), now_ms=now_ms)


# Firing.


def due(row: ScheduleRow, *, now_ms: int) -> Due:
    """Return the row moved past its due ticks, and the latest of them, which fires."""
    try:
        rule = ticking("cron")
        rule.check_zone("tz", row.tz)
        tick_ms = rule.latest_tick(row.cron, row.tz, row.seen_ms, now_ms)
        next_ms = rule.next_tick(row.cron, row.tz, max(row.seen_ms, now_ms))
    except InvalidRequest as refusal:
        # Another worker may know the zone. The tick is not lost: it is looked for again.
        again_ms = (now_ms // MINUTE_MS + 1) * MINUTE_MS
        return Due(msgspec.structs.replace(row, failure=refusal.message, due_at_ms=again_ms), None)
    moved = msgspec.structs.replace(
        row,
        seen_ms=max(row.seen_ms, now_ms),
        due_at_ms=next_ms,
        last_tick_ms=row.last_tick_ms if tick_ms is None else tick_ms,
        failure=None,
    )
    return Due(moved, tick_ms)


def failed(row: ScheduleRow, reason: str) -> ScheduleRow:
    """Return the row of a schedule whose tick started nothing."""
    return msgspec.structs.replace(row, failure=reason)


def without_failure(row: ScheduleRow) -> ScheduleRow:
    """Return the row of a schedule that was fired on request after a tick started nothing."""
    return msgspec.structs.replace(row, failure=None)


def tick_of(row: ScheduleRow, tick_ms: int) -> Tick:
    """Return a tick with everything that it starts. Its time is its idempotency key."""
    return _tick(row, str(ticking("cron").written(tick_ms)), tick_ms)


def check_request_key(name: str, key: object, limits: Limits) -> str:
    """Return the idempotency key of a firing that a caller asked for. No tick has such a key."""
    given = checks.identifier("idempotency_key", key, limits)
    most = limits.id_bytes - len(_id(name, REQUESTED).encode())
    if len(given.encode()) > most:
        raise InvalidRequest("idempotency_key", f"is longer than {most} bytes: choose a shorter one", limit=most)
    return REQUESTED + given


def requested_tick(row: ScheduleRow, key: str, now_ms: int) -> Tick:
    """Return the tick of a firing that a caller asked for."""
    return _tick(row, key, now_ms)


def _tick(row: ScheduleRow, key: str, tick_ms: int) -> Tick:
    target = target_of(row)
    payload: Document = {"schedule": row.name, "tick_ms": tick_ms}
    occurrence = triggers.check_occurrence(SOURCE_TYPE, row.name, key, payload, None, CHECKED)
    name = _id(row.name, key)
    caused_by: Document = {"type": "trigger_occurrence", "occurrence_id": occurrence.occurrence_id}
    return Tick(
        name=row.name,
        tick_ms=tick_ms,
        occurrence=occurrence,
        work=None if target.work is None else queue.own_draft(msgspec.structs.replace(target.work, source_key=name)),
        run=None
        if target.run is None
        else processes.check_start(
            target.run,
            name,
            wake_target=None,
            provenance=Provenance(caused_by=caused_by),
            recovery=None,
            limits=CHECKED,
        ),
    )


def _id(name: str, key: str) -> str:
    """Return the source key of a tick's work, or the id of its run."""
    return f"{SOURCE_TYPE}:{name}:{key}"


def firing_of(tick: Tick, occurrence: Occurrence, batch_id: str | None) -> Firing:
    """Return the firing of a tick. A repeated one has the time of the first."""
    payload = cast("dict[str, int]", occurrence.payload)
    return Firing(tick.name, payload["tick_ms"], occurrence, batch_id, None if tick.run is None else tick.run.id)


# Rows.


def target_of(row: ScheduleRow) -> Target:
    """Return what a tick starts."""
    return codec.decode_record(Target, row.body, table="schedules", key=row.name)


def schedule_of(row: ScheduleRow) -> Schedule:
    """Return the schedule of a row."""
    target = target_of(row)
    return Schedule(
        name=row.name,
        cron=row.cron,
        tz=row.tz,
        work=target.work,
        run=target.run,
        paused=bool(row.paused),
        next_tick_ms=row.due_at_ms,
        last_tick_ms=row.last_tick_ms,
        seen_ms=row.seen_ms,
        failure=row.failure,
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
    )


def check_restored(value: object, limits: Limits) -> ScheduleRow:
    """Return a schedule of another store as it stands there, with the ticks that it has seen."""
    given = checks.instance("schedule", value, Schedule)
    intent = check_schedule(given.name, given.cron, given.tz, given.work, given.run, limits)
    row = ScheduleRow(
        name=intent.name,
        cron=intent.cron,
        tz=intent.tz,
        paused=int(checks.flag("schedule.paused", given.paused)),
        seen_ms=checks.whole("schedule.seen_ms", given.seen_ms),
        due_at_ms=checks.optional_whole("schedule.next_tick_ms", given.next_tick_ms),
        last_tick_ms=checks.optional_whole("schedule.last_tick_ms", given.last_tick_ms),
        failure=checks.optional_text("schedule.failure", given.failure, limits),
        created_at_ms=checks.whole("schedule.created_at_ms", given.created_at_ms),
        updated_at_ms=checks.whole("schedule.updated_at_ms", given.updated_at_ms),
        body=codec.encode_record(intent.target),
    )
    if not is_sound(row):
        raise InvalidRequest(
            "schedule.next_tick_ms", "must be a whole minute after seen_ms, or None if the schedule is paused"
        )
    return row


def is_sound(row: ScheduleRow) -> bool:
    """Return whether the next tick is a whole minute that was not seen, and a paused schedule has none."""
    due_ms = row.due_at_ms
    may_be_due = due_ms is None or (not row.paused and due_ms > row.seen_ms and due_ms % MINUTE_MS == 0)
    return row.paused in (0, 1) and may_be_due


def same_schedule(existing: ScheduleRow, row: ScheduleRow) -> bool:
    """Return whether a schedule is declared alike and has seen as much."""
    return (existing.cron, existing.tz, existing.body) == (row.cron, row.tz, row.body) and (
        existing.seen_ms >= row.seen_ms
    )
