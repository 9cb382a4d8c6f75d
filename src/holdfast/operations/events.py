"""Append events to a process's log and list them. Status and wake change in the event's own transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.columns import fitting, weight
from holdfast.errors import UnknownProcess, UnknownWake
from holdfast.operations import ready, sessions
from holdfast.operations.pages import may_follow, page_of
from holdfast.operations.positions import stamped
from holdfast.operations.topics import notify_claim_ended, notify_event, notify_run, process_topic
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import UNTIMED, ClaimRunParams, EventParams, LeaseProof
from holdfast.ports.verdicts import EventVerdict, RunVerdict
from holdfast.records.common import Document, Page
from holdfast.records.events import AppendReceipt, ProcessEvent, Wake
from holdfast.records.leases import Lease
from holdfast.records.processes import Process
from holdfast.rows import BatchRow, EventFilter, EventRow, EventWrite, ProcessRow
from holdfast.rules import events as rules
from holdfast.rules import joint_events, leases, processes, verdicts
from holdfast.rules import queue as queue_rules
from holdfast.rules import runs as run_rules
from holdfast.rules.sequences import require_gapless

MOST_PLANS = 4
"""Number of plans on a process that keeps moving, before a transaction locks the process."""


class Unjudged(msgspec.Struct, frozen=True):
    """Nothing was written: the caller must first judge the event by this process's declarations, outside."""

    process: Process


async def append(
    tx: Transaction,
    intent: rules.EventIntent,
    judgement: rules.Judgement | None,
    lease: Lease | None,
    batch_id: str,
) -> AppendReceipt | Unjudged:
    """Append an event and enqueue its wake, or return the event that its replay key made before.

    A replay is answered before the lease is checked: an event that ended the process has dropped the lease.
    """
    decided = await decide(tx, intent, judgement, batch_id, None if lease is None else leases.proof_of(lease))
    if decided is not None:
        return decided if isinstance(decided, Unjudged) else await stamped(tx, decided[1])
    row = await _require(tx, intent.process_id)
    if intent.replay_key is not None:
        stored = rules.replayed(intent, await tx.find_replay(intent.process_id, intent.replay_key))
        if stored is not None:
            return await stamped(tx, await _replay(tx, row, stored, intent))
    await require_lease(tx, row, lease)
    appended = await append_new(tx, row, intent, judgement, batch_id)
    return appended if isinstance(appended, Unjudged) else await stamped(tx, appended[1])


async def require_lease(tx: Transaction, row: ProcessRow, lease: Lease | None) -> None:
    """Raise `LeaseLost` unless a given lease is held. An ended process has none: its end is the better answer."""
    if lease is not None and row.status == "running":
        leases.require(await tx.find_lease("process", row.process_id), lease, tx.now_ms)


async def decide(
    tx: Transaction,
    intent: rules.EventIntent,
    judgement: rules.Judgement | None,
    batch_id: str,
    lease: LeaseProof | None = None,
    then: ClaimRunParams | None = None,
) -> tuple[ProcessRow, AppendReceipt, RunVerdict | None] | Unjudged | None:
    """Append an event by a verdict of the database. Return the process after it, too, or None if the rule must decide.

    Plans the event on the process as last seen. If that has moved, plans it again on the row that came back. With
    `then`, the verdict on the claim of the next run comes last.
    """
    row = await tx.hinted_process(intent.process_id)
    for _ in range(MOST_PLANS):
        if row is None:
            return None
        process = processes.process_of(row)
        if judgement is None or judgement.registration_hash != row.registration_hash:
            if not rules.is_light(intent, process):
                return Unjudged(process)
            judgement = rules.judge(intent, process)
        if judgement.refusal is not None:
            return None
        plan = rules.plan_on(intent, process, judgement, now_ms=UNTIMED)
        wake = rules.wake_of(plan.row, plan.wake, intent.wake_target or process.wake_target, _cause(process))
        answer = await tx.append_event(_params(row, plan, judgement, wake, batch_id, lease), then)
        if answer is None:
            return None  # pragma: no cover - a database that remembers processes and does not judge events
        verdicts.refuse_event(answer, intent.process_id)
        match answer.verdict:
            case "appended":
                return *_appended(tx, answer, row, plan, wake, intent), answer.following
            case "replayed":
                assert answer.event is not None, "a replay comes with its event"
                assert answer.process is not None, "and with its process"
                rules.replayed(intent, answer.event)
                return answer.process, await _replay(tx, answer.process, answer.event, intent), answer.following
            case "target_absent":
                assert wake is not None, "only a wake has a target"
                await sessions.newest(tx, wake.target.session_id, key_only=True)
            case _:
                row = answer.process
    return None  # pragma: no cover - the process moved at each try


def _params(
    row: ProcessRow,
    plan: rules.EventPlan,
    judgement: rules.Judgement,
    wake: Wake | None,
    batch_id: str,
    lease: LeaseProof | None,
) -> EventParams:
    batch = None
    if wake is not None:
        draft = queue_rules.own_draft(rules.wake_draft(wake))
        batch = queue_rules.new_batch(draft, batch_id=batch_id, session_key=0, family=0, now_ms=UNTIMED)
    return EventParams(
        event=plan.row,
        process=row,
        after_terminal=judgement.after_terminal,
        outcome=plan.outcome_record,
        lease=lease,
        target_session_id=None if wake is None else wake.target.session_id,
        batch=batch,
    )


def _appended(
    tx: Transaction,
    answer: EventVerdict,
    before: ProcessRow,
    plan: rules.EventPlan,
    wake: Wake | None,
    intent: rules.EventIntent,
) -> tuple[ProcessRow, AppendReceipt]:
    """Return the process and the receipt of an event that the database appended and gave a sequence and a time."""
    event = msgspec.structs.replace(plan.row, sequence=answer.sequence, occurred_at_ms=answer.now_ms)
    notify_event(tx, event.process_id, event.type)
    if wake is not None:
        wake = msgspec.structs.replace(wake, created_at_ms=answer.now_ms)
        if answer.is_enqueued:
            ready.notify(tx, wake.target.session_id)
    if answer.process is not None:
        notify_run(tx, answer.process)
    if plan.outcome is not None:
        notify_claim_ended(tx, before)
    process = answer.process or msgspec.structs.replace(
        before, event_count=answer.sequence, updated_at_ms=answer.now_ms
    )
    return process, AppendReceipt(rules.with_payload(event, intent.payload), wake, answer.batch_id)


def _cause(process: Process) -> Document | None:
    return process.provenance.caused_by


async def append_new(
    tx: Transaction, row: ProcessRow, intent: rules.EventIntent, judgement: rules.Judgement | None, batch_id: str
) -> tuple[ProcessRow, AppendReceipt] | Unjudged:
    """Append an event that is known not to be a replay. Return the process after it, too."""
    process = processes.process_of(row)
    if judgement is None or judgement.registration_hash != row.registration_hash:
        judgement = None
        if not rules.is_light(intent, process):
            return Unjudged(process)
    plan = rules.plan(intent, process, now_ms=tx.now_ms, judgement=judgement)
    target = intent.wake_target or process.wake_target
    wake = rules.wake_of(plan.row, plan.wake, target, process.provenance.caused_by)
    delivered, batch = (None, None) if wake is None else await _delivery(tx, wake, batch_id)
    counted = processes.with_event(row, plan.outcome, now_ms=tx.now_ms, record=plan.outcome_record)
    after = run_rules.woken(counted, intent.type, now_ms=tx.now_ms)
    written = await tx.apply_event(EventWrite(plan.row, after, batch))
    notify_event(tx, row.process_id, intent.type)
    if after.due_at_ms != row.due_at_ms:
        notify_run(tx, after)
    if plan.outcome is not None:
        notify_claim_ended(tx, row)
    if wake is not None and batch is not None:
        await ready.update(tx, batch.session_key, batch.family, freed=False)
        ready.notify(tx, wake.target.session_id)
    return written.process, AppendReceipt(rules.with_payload(written.event, intent.payload), wake, delivered)


async def append_many(
    tx: Transaction, process_id: str, intents: Sequence[rules.EventIntent], lease: Lease | None
) -> tuple[AppendReceipt, ...]:
    """Append events that neither end the process nor wake a session, in order: all of them or none."""
    row = await _require(tx, process_id)
    keys = [intent.replay_key for intent in intents if intent.replay_key is not None]
    known = {event.replay_key: event for event in (await tx.find_replays(process_id, keys) if keys else ())}
    await require_lease(tx, row, lease if any(intent.replay_key not in known for intent in intents) else None)
    process, after = processes.process_of(row), row
    position = await tx.position()
    new: list[EventRow] = []
    receipts: list[AppendReceipt] = []
    for intent in intents:
        stored = None if intent.replay_key is None else rules.replayed(intent, known.get(intent.replay_key))
        event = stored or joint_events.require_plain(rules.plan(intent, process, now_ms=tx.now_ms)).row
        receipts.append(
            AppendReceipt(rules.with_payload(event, intent.payload), replayed=stored is not None, position=position)
        )
        if stored is not None:
            continue
        new.append(event)
        known |= {} if event.replay_key is None else {event.replay_key: event}
        after = run_rules.woken(processes.with_event(after, None, now_ms=tx.now_ms), intent.type, now_ms=tx.now_ms)
        process = msgspec.structs.replace(process, event_count=after.event_count)
    if new:
        await tx.append_events(new, after)
        for type in {event.type for event in new}:
            notify_event(tx, process_id, type)
        if after.due_at_ms != row.due_at_ms:
            notify_run(tx, after)
    return tuple(receipts)


async def _delivery(tx: Transaction, wake: Wake, batch_id: str) -> tuple[str | None, BatchRow | None]:
    """Return the id of the batch that carries a wake, and its row if it is new. A deleted session gets no batch."""
    session = await sessions.newest(tx, wake.target.session_id, key_only=True)
    if session.deleted_at_ms is not None:
        return None, None
    known = await tx.find_sources([(session.session_key, wake.wake_id)])
    if known:
        return known[0].batch_id, None
    intent = queue_rules.own_draft(rules.wake_draft(wake))
    return batch_id, queue_rules.new_batch(
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
    """Return the filter with a limit of one more: the extra event shows that another page follows."""
    return EventFilter(filter.process_id, filter.limit + 1, filter.after, filter.type, filter.pending_wakes)


async def is_known(tx: Transaction, process_id: str, replay_key: str) -> bool:
    """Return whether an event has this replay key."""
    return await tx.find_replay(process_id, replay_key) is not None


async def list_page(tx: Transaction, filter: EventFilter) -> Page[ProcessEvent]:
    """Return one page of a process's log. A log with a hole is Corrupt, as far as the page shows every event."""
    process = await _require(tx, filter.process_id)
    rows = await tx.list_events(one_more(filter))
    page = page_of(rows, filter.limit, rules.event_of, listing="events", place=lambda row: (row.sequence,))
    if filter.type is None and not filter.pending_wakes:
        upto = process.event_count if page.next is None else None
        require_gapless("events", filter.process_id, [row.sequence for row in rows], after=filter.after, upto=upto)
    return page


async def follow_page(tx: Transaction, filter: EventFilter) -> tuple[Page[ProcessEvent], bool]:
    """Return one page of a process's log, and whether the process has ended."""
    return await list_page(tx, filter), (await _require(tx, filter.process_id)).status != "running"


async def recent(tx: Transaction, process_id: str, limit: int) -> tuple[ProcessEvent, ...]:
    """Return the last events, oldest first, up to a page."""
    process = await _require(tx, process_id)
    rows = await tx.recent_events(process_id, limit)
    after = None if may_follow(rows, limit) else 0
    require_gapless("events", process_id, [row.sequence for row in rows], after=after, upto=process.event_count)
    shown = fitting(weight(msgspec.structs.astuple(row)) for row in reversed(rows))
    return tuple(rules.event_of(row) for row in rows[len(rows) - shown :])


async def count(tx: Transaction, process_id: str, type: str, through: int) -> int:
    """Count the events of a type up to and including a sequence."""
    await _require(tx, process_id)
    return await tx.count_events(process_id, type, through)


async def ack_wake(tx: Transaction, process_id: str, sequence: int) -> None:
    """Take a wake off the list of pending wakes. Idempotent."""
    process = await _require(tx, process_id)
    row = await tx.find_event(process_id, sequence)
    if row is None and 0 < sequence <= process.event_count:
        require_gapless("events", process_id, (), after=sequence - 1, upto=sequence)
    if row is None or row.wake is None:
        raise UnknownWake(process_id, sequence)
    await tx.ack_wake(process_id, sequence)
    tx.notify(process_topic(process_id))
