"""Retry a run that ended without a result: start a new one that begins with its recorded steps, in one transaction."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast.errors import InvalidRequest, RegistrationConflict, UnknownRef
from holdfast.operations import processes
from holdfast.operations.pages import may_follow
from holdfast.operations.positions import stamped
from holdfast.ports import Transaction
from holdfast.records.limits import Limits
from holdfast.records.processes import Process, StartReceipt
from holdfast.rows import EventFilter, EventRow, ProcessRow
from holdfast.rules import artifacts
from holdfast.rules import processes as process_rules
from holdfast.rules import retrying as rules
from holdfast.run_chains import next_in_chain

PAGE = 500


async def retry(tx: Transaction, process_id: str, limits: Limits) -> StartReceipt:
    """Retry a run, and the runs below it that ended without a result. A repeat returns the run of the first call."""
    # Locks the row: of two calls, the second finds the run of the first.
    old = process_rules.process_of(await processes.require(tx, process_id))
    new, created, children = await _retry(tx, old, limits)
    seen = {old.id}
    while children:
        child = await _newest(tx, children.pop())
        if child is None or child.id in seen or not rules.retries_with_parent(child):
            continue
        seen.add(child.id)
        if len(seen) > rules.MOST_RUNS:
            problem = f"has more than {rules.MOST_RUNS} runs below it that ended without a result: retry those first"
            raise InvalidRequest("process_id", problem, limit=rules.MOST_RUNS)
        children += (await _retry(tx, child, limits))[2]
    return await stamped(tx, StartReceipt(process=new, created=created))


async def following(tx: Transaction, process: Process) -> Process | None:
    """Return the run that retries this one, None if none does."""
    row = await tx.find_process(next_in_chain(process.id)) if process.is_retryable else None
    found = None if row is None else process_rules.process_of(row)
    return found if found is not None and found.retries == process.id else None


async def _newest(tx: Transaction, process_id: str) -> Process | None:
    """Return the last run that continued this one, or retried it; None if one of them is gone."""
    next_id: str | None = process_id
    process: Process | None = None
    while next_id is not None:
        row = await tx.find_process(next_id)
        if row is None:
            return None
        process = process_rules.process_of(row)
        after = await following(tx, process)
        next_id = process.continued_as if after is None else after.id
    return process


async def _retry(tx: Transaction, old: Process, limits: Limits) -> tuple[Process, bool, list[str]]:
    """Return the run that retries this one, whether it is new, and the children of a new one."""
    registered = process_rules.check_registration(rules.registration_of(old), limits)
    existing = await tx.find_process(registered.id)
    if existing is not None:
        new = process_rules.process_of(existing)
        if new.retries != old.id:
            hashed = process_rules.registration_hash(registered)
            raise RegistrationConflict(registered.id, existing.registration_hash, hashed)
        return new, False, []
    new = await processes.register(tx, registered)
    row = await processes.require(tx, new.id)
    children: list[str] = []
    after = 0
    while True:
        page = await tx.list_events(EventFilter(old.id, PAGE, after=after))
        copies: list[EventRow] = []
        for event in page:
            step = rules.payload_of(event)
            child = rules.child_in(step)
            children += [] if child is None else [child]
            if rules.is_copied(event, step):
                refs = await _copied_refs(tx, step, new, limits)
                copies.append(rules.copy_of(event, new, step, refs, now_ms=tx.now_ms))
                row, new = _with_event(row, new, now_ms=tx.now_ms)
        if not may_follow(page, PAGE):
            break
        await tx.append_events(copies, row)
        after = page[-1].sequence
    copies.append(rules.end_of_copy(old.id, new, now_ms=tx.now_ms))
    row, new = _with_event(row, new, now_ms=tx.now_ms)
    await tx.append_events(copies, row)
    return new, True, children


def _with_event(row: ProcessRow, new: Process, *, now_ms: int) -> tuple[ProcessRow, Process]:
    after = process_rules.with_event(row, None, now_ms=now_ms)
    return after, msgspec.structs.replace(new, event_count=after.event_count, updated_at_ms=after.updated_at_ms)


async def _copied_refs(tx: Transaction, step: dict[str, Any], new: Process, limits: Limits) -> list[str] | None:
    """Copy a result that is stored as artifacts. They go with their run, and the old one may be pruned first."""
    refs = cast("list[str] | None", step.get(rules.SPILLED))
    return None if refs is None else [await _copied(tx, ref, new, limits) for ref in refs]


async def _copied(tx: Transaction, ref: str, new: Process, limits: Limits) -> str:
    if artifacts.run_of_result(ref) is None:
        return ref  # named after its content, and kept
    row = await tx.find_artifact(artifacts.RUN_RESULT, ref)
    if row is None:
        raise UnknownRef("artifacts", ref, "a result of the run was stored there, and was deleted since")
    data = artifacts.opened(row).data
    place = artifacts.result_ref(new.id, new.created_at_ms, data, limits)
    place = artifacts.content_ref(artifacts.RUN_RESULT, data) if place is None else place
    await tx.save_artifact(msgspec.structs.replace(row, ref=place, stored_at_ms=tx.now_ms))
    return place
