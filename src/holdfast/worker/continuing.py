"""Continues a run as a new one: one transaction ends the old one and starts the new one, and no signal is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import holdfast
from holdfast.records.processes import CHILD_ENDED
from holdfast.run_chains import continuing_cause, next_in_chain
from holdfast.step_names import INHERITED, replay_key
from holdfast.worker.journal import CANCEL_REQUESTED, MOST_CARRIED, SIGNAL, STEP, Journal, require_few
from holdfast.worker.run import Run
from holdfast.worker.run_errors import ChildrenLeft, Continued
from holdfast.worker.successors import newest_run

CONTINUED = "run.continued"


TRANSACTION_MS = 5_000
"""Time limit of the transaction, without that for its signals."""
SIGNAL_MS = 20
"""Time for each signal in it."""


class _Cancelled(Exception):
    """The run was asked to cancel before it continued."""


class _AlreadyContinued(Exception):
    """An earlier try has continued the run meanwhile."""


async def continued(store: holdfast.Store, run: Run, journal: Journal, over: Continued) -> bool:
    """Continue a run. Idempotent. Return False, and change nothing, if the run was asked to cancel.

    Raises `SignalsLeft` if more signals have come meanwhile than a run carries over, and `ChildrenLeft` if more
    children have not ended.
    """
    await journal.refresh()  # outside of the transaction, which then reads little
    if journal.cancel is not None:
        return False
    require_few(run.id, journal.signals, run.signals.taken_or_rejected())
    process = run.claim.process
    following = next_in_chain(process.id)
    stored = await store.processes.get(process.id)
    if stored is not None and stored.continued_as == following:
        return True  # an earlier try did it, and its answer was lost
    children = await _living(store, run.all_children())
    if len(children) > MOST_CARRIED:
        raise ChildrenLeft(process.id, len(children), MOST_CARRIED)
    cause = continuing_cause(process.id, process.provenance.caused_by)
    registration = holdfast.ProcessRegistration(
        id=following,
        input=holdfast.processes.Run(run.kind, over.version or run.version, over.next_args),
        identity=process.identity,
        event_types=process.event_types,
        provenance=holdfast.processes.Provenance(process.provenance.originator, cause),
        wake_target=process.wake_target,
        recovery=process.recovery,
    )
    ending = {"await_output": {"type": "success", "value": None, "control": {"continued_as": following}}}
    known = min(MOST_CARRIED, sum(len(payloads) for payloads in journal.signals.values()))
    try:
        async with store.transaction(timeout_ms=TRANSACTION_MS + SIGNAL_MS * known) as tx:
            await tx.processes.register(registration)
            if children:
                facts = {"name": INHERITED, "value": children}
                await tx.events.append(following, STEP, facts, replay_key=replay_key(INHERITED))
            # Before the end, which locks the run: the heartbeat of this worker would wait for that.
            signals = {name: list(payloads) for name, payloads in journal.signals.items()}
            await _carry_over(tx, run, signals, Counter(), following)
            receipt = await tx.events.append(
                process.id,
                CONTINUED,
                ending,
                replay_key=f"process:{process.id}:terminal:{CONTINUED}",
                lease=run.claim.lease,
            )
            if receipt.replayed:
                raise _AlreadyContinued
            # Read after the end was appended: from then on no other signal comes.
            carried = Counter({name: len(payloads) for name, payloads in signals.items()})
            await _add_last(tx, run, journal, signals)
            await _carry_over(tx, run, signals, carried, following)
    except _Cancelled:
        return False
    except _AlreadyContinued:
        return True
    return True


async def _add_last(tx: holdfast.Store, run: Run, journal: Journal, signals: dict[str, list[Any]]) -> None:
    """Add the signals of the last moment, which the journal does not know."""
    async for event in holdfast.every(tx.events.after, run.id, after=journal.seen, limit=tx.limits.page):
        if event.type == CANCEL_REQUESTED:
            raise _Cancelled
        if event.type.startswith(SIGNAL):
            signals.setdefault(event.type.removeprefix(SIGNAL), []).append(event.payload)
    require_few(run.id, signals, run.signals.taken_or_rejected())


async def _carry_over(
    tx: holdfast.Store, run: Run, signals: dict[str, list[Any]], carried: Counter[str], following: str
) -> None:
    """Give the next run the signals that were not taken, after those that it has got of each name.

    Signals of children that ended are left: the next run reads a child before it waits for one.
    """
    gone = run.signals.taken_or_rejected()
    drafts = [
        holdfast.events.EventDraft(f"{SIGNAL}{name}", payloads[number], f"carried:{run.id}:{name}:{number + 1}")
        for name, payloads in signals.items()
        if name != CHILD_ENDED
        for number in range(carried[name], len(payloads))
        if number not in gone[name]
    ]
    most = tx.limits.batch_items
    for first in range(0, len(drafts), most):
        await tx.events.append_many(following, drafts[first : first + most])


async def _living(store: holdfast.Store, children: list[str]) -> list[str]:
    """Return the children that have not ended, and so belong to the next run."""
    living: list[str] = []
    for child_id in children:
        process = await newest_run(store, child_id)
        if process is not None and not process.is_terminal:
            living.append(child_id)
    return living


async def newest_id(store: holdfast.Store, run_id: str) -> str:
    """Return the id of the run that continues this one, its own if none does."""
    process = await newest_run(store, run_id)
    return run_id if process is None else process.id


async def cancel_newest(store: holdfast.Store, run_id: str, reason: str) -> None:
    """Ask a run to cancel, or the one that it continued as."""
    while True:
        found = await newest_id(store, run_id)
        try:
            await store.events.request_cancel(found, reason=reason)
        except holdfast.AlreadyTerminal:
            if await newest_id(store, found) == found:
                raise
        else:
            return
