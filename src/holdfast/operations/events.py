"""Events are appended to a process's log; what they mean happens in the same transaction."""

from __future__ import annotations

import msgspec

from holdfast.errors import UnknownProcess, UnknownWake
from holdfast.operations import sessions, work
from holdfast.operations.pages import page_of
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.events import AppendReceipt, ProcessEvent, Wake
from holdfast.records.processes import Process
from holdfast.rows import BatchRow, EventFilter, EventRow, EventWrite, ProcessRow
from holdfast.rules import events as rules
from holdfast.rules import processes
from holdfast.rules import work as work_rules


def process_topic(process_id: str) -> str:
    """What a waiter on a process watches."""
    return f"process:{process_id}"


class Unjudged(msgspec.Struct, frozen=True):
    """Nothing was written: the event must first be judged by the declarations of this process, outside."""

    process: Process


async def append(
    tx: Transaction, intent: rules.EventIntent, judgement: rules.Judgement | None, batch_id: str
) -> AppendReceipt | Unjudged:
    """Append an event, or give the one that its replay key made before; a wake is enqueued with it."""
    row = await _require(tx, intent.process_id)
    if intent.replay_key is not None:
        stored = rules.replayed(intent, await tx.find_replay(intent.process_id, intent.replay_key))
        if stored is not None:
            return await _replay(tx, row, stored, intent)
    appended = await append_new(tx, row, intent, judgement, batch_id)
    return appended if isinstance(appended, Unjudged) else appended[1]


async def append_new(
    tx: Transaction, row: ProcessRow, intent: rules.EventIntent, judgement: rules.Judgement | None, batch_id: str
) -> tuple[ProcessRow, AppendReceipt] | Unjudged:
    """Append an event that is known not to be a replay. Returns the process as it is then, too."""
    process = processes.process_of(row)
    if judgement is None or judgement.registration_hash != row.registration_hash:
        judgement = None
        if not rules.is_light(intent, process.event_types):
            return Unjudged(process)
    plan = rules.plan(intent, process, now_ms=tx.now_ms, judgement=judgement)
    target = intent.wake_target or process.wake_target
    wake = rules.wake_of(plan.row, plan.wake, target, process.provenance.caused_by)
    delivered, batch = (None, None) if wake is None else await _delivery(tx, wake, batch_id)
    after = processes.with_event(row, plan.outcome, now_ms=tx.now_ms, record=plan.outcome_record)
    written = await tx.apply_event(EventWrite(plan.row, after, batch))
    tx.notify(process_topic(row.process_id))
    if wake is not None and batch is not None:
        tx.notify(work.queue_topic(wake.target.session_id))
    return written.process, AppendReceipt(rules.with_payload(written.event, intent.payload), wake, delivered)


async def _delivery(tx: Transaction, wake: Wake, batch_id: str) -> tuple[str | None, BatchRow | None]:
    """The batch that carries a wake, and its row if it is new; a deleted session gets nothing."""
    session = await sessions.newest(tx, wake.target.session_id, presence=True)
    if session.deleted_at_ms is not None:
        return None, None
    known = await tx.find_sources([(session.session_key, wake.wake_id)])
    if known:
        return known[0].batch_id, None
    intent = work_rules.own_draft(rules.wake_draft(wake))
    return batch_id, work_rules.new_batch(
        intent, batch_id=batch_id, session_key=session.session_key, family=session.family, now_ms=tx.now_ms
    )


async def _replay(tx: Transaction, row: ProcessRow, stored: EventRow, intent: rules.EventIntent) -> AppendReceipt:
    process = processes.process_of(row)
    target = intent.wake_target or process.wake_target
    wake = rules.wake_of(stored, rules.wake_signal_of(stored), target, process.provenance.caused_by)
    return AppendReceipt(rules.event_of(stored), wake, await _delivered(tx, wake), replayed=True)


async def _delivered(tx: Transaction, wake: Wake | None) -> str | None:
    session = None if wake is None else await tx.find_session(wake.target.session_id)
    if wake is None or session is None:
        return None
    known = await tx.find_sources([(session.session_key, wake.wake_id)])
    return known[0].batch_id if known else None


async def _require(tx: Transaction, process_id: str) -> ProcessRow:
    row = await tx.find_process(process_id)
    if row is None:
        raise UnknownProcess(process_id)
    return row


def one_more(filter: EventFilter) -> EventFilter:
    """What is read for a page: one event more shows whether another page follows."""
    return EventFilter(filter.process_id, filter.limit + 1, filter.after, filter.type, filter.pending_wakes)


async def list_page(tx: Transaction, filter: EventFilter) -> Page[ProcessEvent]:
    """One page of a process's log."""
    await _require(tx, filter.process_id)
    rows = await tx.list_events(one_more(filter))
    return page_of(rows, filter.limit, rules.event_of, listing="events", place=lambda row: (row.sequence,))


async def follow_page(tx: Transaction, filter: EventFilter) -> tuple[Page[ProcessEvent], bool]:
    """One page of a process's log, and whether the process has ended."""
    return await list_page(tx, filter), (await _require(tx, filter.process_id)).status != "running"


async def recent(tx: Transaction, process_id: str, limit: int) -> tuple[ProcessEvent, ...]:
    """The last events, oldest first."""
    await _require(tx, process_id)
    return tuple(rules.event_of(row) for row in await tx.recent_events(process_id, limit))


async def count(tx: Transaction, process_id: str, type: str, through: int) -> int:
    """How many events of a type there are up to and including a sequence."""
    await _require(tx, process_id)
    return await tx.count_events(process_id, type, through)


async def ack_wake(tx: Transaction, process_id: str, sequence: int) -> None:
    """Take a wake off the list; again is no harm."""
    await _require(tx, process_id)
    row = await tx.find_event(process_id, sequence)
    if row is None or row.wake is None:
        raise UnknownWake(process_id, sequence)
    await tx.ack_wake(process_id, sequence)
    tx.notify(process_topic(process_id))
