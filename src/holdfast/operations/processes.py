"""Register, list, wait on and complete processes. A process is completed once."""

from __future__ import annotations

import msgspec

from holdfast.errors import UnknownProcess
from holdfast.operations import events, triggers
from holdfast.operations.pages import page_of
from holdfast.operations.positions import stamped
from holdfast.operations.topics import notify_run, process_topic
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.leases import Lease
from holdfast.records.limits import Limits
from holdfast.records.processes import ExternalRef, Process, ProcessSessionReport, SignalWait, StartReceipt
from holdfast.rows import ProcessFilter, ProcessRow
from holdfast.rules import events as event_rules
from holdfast.rules import leases, replacements, sessions
from holdfast.rules import processes as rules
from holdfast.rules import triggers as trigger_rules


async def require(tx: Transaction, process_id: str) -> ProcessRow:
    """Return the process. Raises UnknownProcess if it does not exist."""
    row = await tx.find_process(process_id)
    if row is None:
        raise UnknownProcess(process_id)
    return row


async def register(tx: Transaction, registered: rules.Registered) -> Process:
    """Register a process. Return the existing one if it was registered alike."""
    process, _ = await _register(tx, registered, None)
    return process


async def start(tx: Transaction, registered: rules.Registered, due_at_ms: int | None) -> StartReceipt:
    """Register a run that is due at that time, None being now. Return the existing one if it was registered alike."""
    process, created = await _register(tx, registered, due_at_ms)
    return await stamped(tx, StartReceipt(process=process, created=created))


async def _register(tx: Transaction, registered: rules.Registered, due_at_ms: int | None) -> tuple[Process, bool]:
    existing = await tx.find_process(registered.id)
    if existing is not None:
        return rules.process_of(rules.same_registration(registered, existing)), False
    row = rules.new_process(registered, now_ms=tx.now_ms, due_at_ms=due_at_ms)
    if registered.wake_target is not None:
        target = await tx.find_session(registered.wake_target.session_id, key_only=True)
        row = rules.without_dead_target(row, target)
    await tx.insert_process(row)
    await triggers.note_started(tx, registered.id)
    tx.notify(process_topic(registered.id))
    notify_run(tx, row)
    return rules.process_of(row), True


async def redeliver(tx: Transaction, process_id: str, limits: Limits) -> Process:
    """Register the process of a delivery. A process that was started and pruned is unknown: its work was done."""
    delivery = await triggers.delivery_of_process(tx, process_id)
    if delivery.state == "started":
        return rules.process_of(await require(tx, process_id))
    return await register(tx, rules.check_registration(trigger_rules.registration_for(delivery), limits))


async def get(tx: Transaction, process_id: str) -> Process | None:
    """Return the process, or None."""
    row = await tx.find_process(process_id)
    return None if row is None else rules.process_of(row)


async def list_page(tx: Transaction, filter: ProcessFilter) -> Page[Process]:
    """Return one page of processes."""
    rows = await tx.list_processes(msgspec.structs.replace(filter, limit=filter.limit + 1))
    return page_of(rows, filter.limit, rules.process_of, listing="processes", place=lambda row: (row.process_id,))


async def ended_page(tx: Transaction, after: tuple[int, str], limit: int) -> Page[Process]:
    """Return one page of ended processes."""
    rows = await tx.list_ended_processes(after, limit + 1)
    return page_of(
        rows, limit, rules.process_of, listing="ended processes", place=lambda row: (row.updated_at_ms, row.process_id)
    )


async def set_external_ref(tx: Transaction, process_id: str, ref: ExternalRef) -> Process:
    """Record where the work really runs."""
    before = await require(tx, process_id)
    after = rules.with_external_ref(before, ref, now_ms=tx.now_ms)
    what = f"external ref of process {process_id!r}"
    if tx.is_retry and replacements.is_stored(before.external_ref, after.external_ref, what):
        # Waiters have not been notified of the earlier try.
        tx.notify(process_topic(process_id))
        return rules.process_of(before)
    return await _save(tx, after)


async def set_wait(tx: Transaction, process_id: str, wait: SignalWait) -> Process:
    """Record the signal that a running process waits for."""
    return await _save(tx, rules.with_wait(await require(tx, process_id), wait, now_ms=tx.now_ms))


async def clear_wait(tx: Transaction, process_id: str) -> Process:
    """Record that the process no longer waits."""
    row = await require(tx, process_id)
    return await _save(tx, rules.without_wait(row, now_ms=tx.now_ms)) if row.waiting else rules.process_of(row)


async def _save(tx: Transaction, row: ProcessRow) -> Process:
    expect_rows(await tx.save_process(row), "processes", row.process_id)
    tx.notify(process_topic(row.process_id))
    return rules.process_of(row)


async def complete(
    tx: Transaction,
    intent: event_rules.EventIntent,
    judgement: event_rules.Judgement | None,
    lease: Lease | None,
    batch_id: str,
) -> ProcessRow | events.Unjudged:
    """End a process in one transaction: check the lease, append the terminal event, set the status, drop the lease.

    A repeated completion is answered from the log, before the lease is checked: the first one dropped it.
    """
    proof = None if lease is None else leases.proof_of(lease)
    decided = await events.decide(tx, intent, judgement, batch_id, proof)
    if decided is not None:
        return decided if isinstance(decided, events.Unjudged) else decided[0]
    row = await require(tx, intent.process_id)
    replay = event_rules.replayed(intent, await tx.find_replay(intent.process_id, intent.replay_key or ""))
    if replay is not None:
        return row
    await events.require_lease(tx, row, lease)
    appended = await events.append_new(tx, row, intent, judgement, batch_id)
    return appended if isinstance(appended, events.Unjudged) else appended[0]


async def forget_session(tx: Transaction, session_id: str) -> ProcessSessionReport:
    """Erase a session's grants and wake targets. The processes themselves continue."""
    counts = await tx.count_grants(session_id)
    revoked = await tx.drop_session_grants(session_id)
    cleared = await tx.clear_wake_targets(session_id, tx.now_ms)
    return sessions.process_report(session_id, counts, revoked=revoked, cleared=cleared)
