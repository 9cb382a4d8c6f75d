"""Declare, pause, list and fire schedules. The transaction that moves a schedule past a tick fires that tick."""

from __future__ import annotations

from holdfast.errors import Conflict, Corrupt, UnknownSchedule
from holdfast.operations import processes, queue, sessions, triggers
from holdfast.operations.pages import page_of
from holdfast.operations.positions import stamped
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.restoring import RestoreReceipt
from holdfast.records.schedules import Firing, Schedule
from holdfast.rows import BatchRow, SessionRow
from holdfast.rules import schedules as rules
from holdfast.rules import triggers as trigger_rules
from holdfast.schedule_rows import ScheduleRow

TOPIC = "schedules"
"""The topic of waiters for the next tick of any schedule."""


async def put(tx: Transaction, intent: rules.ScheduleIntent) -> Schedule:
    """Declare a schedule, or change the one of this name."""
    existing = await tx.find_schedule(intent.name)
    row = rules.declared(intent, existing, now_ms=tx.now_ms)
    if existing is None:
        await tx.insert_schedule(row)
        tx.notify(TOPIC)
        return rules.schedule_of(row)
    return await _save(tx, existing, row)


async def _save(tx: Transaction, before: ScheduleRow, after: ScheduleRow) -> Schedule:
    if after != before:
        expect_rows(await tx.save_schedule(after, seen_ms=before.seen_ms), "schedules", before.name)
        tx.notify(TOPIC)
    return rules.schedule_of(after)


async def require(tx: Transaction, name: str) -> ScheduleRow:
    """Return the schedule. Raises UnknownSchedule if it does not exist."""
    row = await tx.find_schedule(name)
    if row is None:
        raise UnknownSchedule(name)
    return row


async def get(tx: Transaction, name: str) -> Schedule | None:
    """Return the schedule, or None."""
    row = await tx.find_schedule(name)
    return None if row is None else rules.schedule_of(row)


async def list_page(tx: Transaction, *, after: str, limit: int) -> Page[Schedule]:
    """Return one page of schedules."""
    rows = await tx.list_schedules(after=after, limit=limit + 1)
    return page_of(rows, limit, rules.schedule_of, listing="schedules", place=lambda row: (row.name,))


async def pause(tx: Transaction, name: str) -> Schedule:
    """Pause a schedule."""
    row = await require(tx, name)
    return await _save(tx, row, rules.paused(row, now_ms=tx.now_ms))


async def resume(tx: Transaction, name: str) -> Schedule:
    """Resume a schedule."""
    row = await require(tx, name)
    return await _save(tx, row, rules.resumed(row, now_ms=tx.now_ms))


async def remove(tx: Transaction, name: str) -> bool:
    """Delete a schedule. Return False if it does not exist."""
    return await tx.drop_schedule(name) > 0


async def restore(tx: Transaction, row: ScheduleRow) -> RestoreReceipt:
    """Insert a schedule of another store, with the ticks that it has seen."""
    existing = await tx.find_schedule(row.name)
    if existing is None:
        await tx.insert_schedule(row)
        tx.notify(TOPIC)
    elif not rules.same_schedule(existing, row):
        raise Conflict(f"schedule {row.name!r} is here already and is another one: remove it, or keep it")
    return await stamped(tx, RestoreReceipt(replayed=existing is not None))


# Firing.


async def next_due_in(tx: Transaction) -> int | None:
    """Return in how many milliseconds a schedule is due, None if none ever is. Not positive: one is due now."""
    found = await tx.first_due_schedule()
    return None if found is None else found[1] - tx.now_ms


async def fire_next(tx: Transaction, batch_id: str) -> Firing | None:
    """Fire the schedule that has been due longest. Return None if none is due."""
    while (found := await tx.first_due_schedule()) is not None:
        # Locks the row before the clock is read.
        row = await tx.find_schedule(found[0])
        if row is None or row.due_at_ms != found[1]:
            continue  # pragma: no cover - another transaction came first
        if found[1] > tx.now_ms:
            return None
        due = rules.due(row, now_ms=tx.now_ms)
        tick = refusal = None
        try:
            tick = None if due.tick_ms is None else rules.tick_of(row, due.tick_ms)
        except Corrupt as damage:
            refusal = damage.message  # a damaged schedule must not keep the others back
        if tick is not None:
            refusal = await _refusal(tx, tick)
        after = due.row if refusal is None else rules.failed(due.row, refusal)
        expect_rows(await tx.save_schedule(after, seen_ms=row.seen_ms), "schedules", row.name)
        if tick is not None and refusal is None:
            return await _fire(tx, tick, batch_id)
    return None


async def _refusal(tx: Transaction, tick: rules.Tick) -> str | None:
    """Return why a tick must not start anything, None if it may."""
    if await tx.find_occurrence(tick.occurrence.occurrence_id) is not None:
        return "this tick was emitted before"
    if tick.work is not None:
        session = await tx.find_session(tick.work.session_id)
        if session is not None and session.deleted_at_ms is not None:
            return f"session {tick.work.session_id!r} was deleted: create it again"
        if session is not None and await _batch_of(tx, session, tick) is not None:
            return f"source key {tick.work.source_key!r} was used for other work"
    if tick.run is not None and await tx.find_process(tick.run.id) is not None:
        return f"process {tick.run.id!r} was registered before"
    return None


async def _fire(tx: Transaction, tick: rules.Tick, batch_id: str) -> Firing:
    """Emit the occurrence of a tick and start what it starts."""
    reserved = await triggers.emit(tx, tick.occurrence)
    started = None
    if tick.work is not None:
        session = await sessions.ensure(tx, (tick.work.session_id, None))
        started = (await queue.put(tx, session, tick.work, batch_id)).batch_id
    if tick.run is not None:
        await processes.register(tx, tick.run)
    return rules.firing_of(tick, trigger_rules.occurrence_of(reserved.occurrence), started)


async def run_now(tx: Transaction, name: str, key: str, batch_id: str) -> Firing:
    """Fire a schedule at once, paused or not. Its own ticks are unaffected, and an earlier failure is cleared."""
    row = await require(tx, name)
    tick = rules.requested_tick(row, key, tx.now_ms)
    existing = await tx.find_occurrence(tick.occurrence.occurrence_id)
    if existing is None:
        firing = await _fire(tx, tick, batch_id)
        if row.failure is not None:
            expect_rows(await tx.save_schedule(rules.without_failure(row), seen_ms=row.seen_ms), "schedules", name)
        return firing
    # Its work may have been pruned since. It is not started again.
    session = None if tick.work is None else await tx.find_session(tick.work.session_id)
    batch = None if session is None else await _batch_of(tx, session, tick)
    return rules.firing_of(tick, trigger_rules.occurrence_of(existing), None if batch is None else batch.batch_id)


async def _batch_of(tx: Transaction, session: SessionRow, tick: rules.Tick) -> BatchRow | None:
    assert tick.work is not None
    found = await tx.find_sources([(session.session_key, tick.work.source_key or "")])
    return found[0] if found else None
