"""Continues a run as a new one: the old one ends and the new one starts in one transaction, and no signal is lost."""

from __future__ import annotations

import re
from typing import Any, cast

import holdfast
from holdfast.worker.journal import CANCEL_REQUESTED, SIGNAL, Journal, require_few
from holdfast.worker.run import Run
from holdfast.worker.run_errors import Continued

CONTINUED = "run.continued"
_NUMBERED = re.compile(r"(.*)~([1-9][0-9]*)", re.DOTALL)


class _Cancelled(Exception):
    """The run was asked to cancel before it continued."""


def next_id(run_id: str) -> str:
    """Return the id of the run that goes on for this one."""
    numbered = _NUMBERED.fullmatch(run_id)
    return f"{run_id}~2" if numbered is None else f"{numbered[1]}~{int(numbered[2]) + 1}"


async def continued(store: holdfast.Store, run: Run, journal: Journal, over: Continued) -> bool:
    """Continue a run. Idempotent. Return False, and change nothing, if the run was asked to cancel.

    Raises `SignalsLeft` if more signals have come meanwhile than a run carries over.
    """
    await journal.refresh()  # outside of the transaction, which then reads little
    if journal.cancel is not None:
        return False
    require_few(run.id, journal.signals, run.taken)
    process = run.claim.process
    following = next_id(process.id)
    cause = _cause_of(process)
    registration = holdfast.ProcessRegistration(
        id=following,
        input=holdfast.processes.Run(run.kind, over.version or run.version, over.next_args),
        identity=process.identity,
        event_types=process.event_types,
        provenance=holdfast.processes.Provenance(process.provenance.originator, {**cause, "continues": process.id}),
        wake_target=process.wake_target,
        recovery=process.recovery,
    )
    ending = {"await_output": {"type": "success", "value": None, "control": {"continued_as": following}}}
    try:
        async with store.transaction() as tx:
            receipt = await tx.events.append(
                process.id,
                CONTINUED,
                ending,
                replay_key=f"process:{process.id}:terminal:{CONTINUED}",
                lease=run.claim.lease,
            )
            if not receipt.replayed:
                await tx.processes.register(registration)
                # Read after the end was appended: from then on no other signal comes.
                await _carry_over(tx, run, journal, following)
    except _Cancelled:
        return False
    return True


async def _carry_over(tx: holdfast.Store, run: Run, journal: Journal, following: str) -> None:
    """Give the next run the signals that were not taken: those that are known, and those of the last moment."""
    signals = {name: list(payloads) for name, payloads in journal.signals.items()}
    async for event in holdfast.every(tx.events.after, run.id, after=journal.seen, limit=tx.limits.page):
        if event.type == CANCEL_REQUESTED:
            raise _Cancelled
        if event.type.startswith(SIGNAL):
            signals.setdefault(event.type.removeprefix(SIGNAL), []).append(event.payload)
    require_few(run.id, signals, run.taken)
    for name, payloads in signals.items():
        for number, payload in enumerate(payloads[run.taken[name] :], start=run.taken[name] + 1):
            await tx.events.signal(following, name, payload, replay_key=f"carried:{run.id}:{name}:{number}")


async def newest_id(store: holdfast.Store, run_id: str) -> str:
    """Return the id of the run that goes on for this one, its own if none does."""
    while True:
        process = await store.processes.get(run_id)
        if process is None or process.continued_as is None:
            return run_id
        run_id = process.continued_as


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


def continues(process: holdfast.processes.Process) -> str | None:
    """Return the id of the run that this one goes on for, None if it is the first."""
    return _cause_of(process).get("continues")


def _cause_of(process: holdfast.processes.Process) -> dict[str, Any]:
    cause = process.provenance.caused_by
    return cast("dict[str, Any]", cause) if isinstance(cause, dict) else {}
