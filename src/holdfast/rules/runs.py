"""Decide when a run is due, which run may be claimed, and how its row changes when it sleeps, fails or ends.

Pure: decided from the row of the process, its lease and one clock reading. A run is a process with the input `Run`.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import msgspec

from holdfast.errors import AlreadyTerminal, InvalidRequest, UndeclaredSignal
from holdfast.records.common import Document
from holdfast.records.leases import Lease, OnProcess
from holdfast.records.limits import Limits
from holdfast.records.processes import RESERVED_SIGNALS, SIGNAL_NAME, RunWait, SignalWait
from holdfast.rows import LeaseRow, ProcessRow
from holdfast.rules import checks, leases

Kinds: TypeAlias = tuple[tuple[str, str | None], ...]
"""Kinds of runs, each with the wanted version; None stands for every version."""

CANCEL_REQUESTED = "process.cancel_requested"
CONTINUED = "run.continued"
"""The event type that ends a run which continues as a new one. It wakes no session: the end of the new one does."""
DECLARED = "run.signals"
"""The event type with the names of the signals that the handler of a run takes, None for any. The newest holds."""
RUN_TYPES = frozenset({"step", "progress", CONTINUED, DECLARED})
"""Event types that every run has, in addition to its signals."""
SIGNAL = "signal."


def is_signal(event_type: str) -> bool:
    """Return True for the event type of a signal."""
    return event_type.startswith(SIGNAL) and SIGNAL_NAME.fullmatch(event_type, len(SIGNAL)) is not None


def is_run_type(event_type: str) -> bool:
    """Return True for an event type that every run has without declaring it."""
    return event_type in RUN_TYPES or is_signal(event_type)


def check_declared(payload: Document) -> None:
    """Check the payload of an event that declares signals."""
    names = cast("list[object]", payload) if isinstance(payload, list) else [] if payload is None else [None]
    if not all(isinstance(name, str) and SIGNAL_NAME.fullmatch(name) for name in names):
        raise InvalidRequest("payload", "must be a list of names of signals, or None for any signal")


def require_declared(process_id: str, name: str, declared: Document) -> None:
    """Raise `UndeclaredSignal` if the handler of a run does not take this signal."""
    names = cast("list[str] | None", declared)
    if names is not None and name not in names and not name.startswith(RESERVED_SIGNALS):
        raise UndeclaredSignal(process_id, name, names)


class Sleep(msgspec.Struct, frozen=True):
    """A request to sleep until a time or a signal. `seen` is the last event that the holder has read.

    With an `error`, the run is held: its code does not fit its record, and it is tried again when it is due.
    """

    seen: int
    due_at_ms: int | None
    wait: SignalWait | None
    waits: tuple[RunWait, ...] = ()
    error: str | None = None


# Checks.


def check_kinds(value: object, limits: Limits) -> Kinds | None:
    """Check the requested kinds of runs, and list each once; None stands for all."""
    if value is None:
        return None
    kinds = checks.sequence("kinds", value, most=limits.page)
    if not kinds:
        raise InvalidRequest("kinds", "names no kind: leave it out to ask for every kind")
    return tuple(dict.fromkeys(_kind(f"kinds[{index}]", kind, limits) for index, kind in enumerate(kinds)))


def _kind(field: str, value: object, limits: Limits) -> tuple[str, str | None]:
    if isinstance(value, str):
        return checks.identifier(field, value, limits), None
    pair = checks.sequence(field, value, most=2)
    if len(pair) < 2:
        raise InvalidRequest(field, "must be a kind, or a kind and its version")
    return checks.identifier(f"{field}[0]", pair[0], limits), checks.identifier(f"{field}[1]", pair[1], limits)


def check_lease(field: str, value: object, limits: Limits) -> Lease:
    """Check a lease on a process."""
    lease = leases.check_lease(field, value, limits)
    if not isinstance(lease.resource, OnProcess):
        raise InvalidRequest(f"{field}.resource", "must be a process: take the lease of a claimed run")
    return lease


def check_sleep(asked: Sleep) -> None:
    """Refuse a sleep that only a request to cancel would end."""
    if asked.due_at_ms is None and asked.wait is None:
        raise InvalidRequest(
            "due_at_ms", "is missing, and so is wait: give the time or the signal at which the run continues"
        )
    if asked.error is not None and asked.due_at_ms is None:
        raise InvalidRequest("due_at_ms", "is missing: give the time of the next attempt")


def require_run(row: ProcessRow) -> ProcessRow:
    """Return the process if it is a run that has not ended."""
    if row.run_kind is None:
        problem = f"must be that of a run: process {row.process_id!r} is not a run, so no worker claims it"
        raise InvalidRequest("lease.resource", problem)
    if row.status != "running":
        raise AlreadyTerminal(row.process_id, row.status)
    return row


# The row.


def due_from(row: ProcessRow, due_at_ms: int | None) -> ProcessRow:
    """Return the run as it can be claimed from that time on, None being never. An external run is never claimed."""
    claimable_at_ms = None if row.recovery == "external" else due_at_ms
    return msgspec.structs.replace(row, due_at_ms=due_at_ms, claimable_at_ms=claimable_at_ms)


def claimable_now(row: ProcessRow, now_ms: int) -> ProcessRow:
    """Return a run whose lease has ended, and that can be claimed now."""
    if row.claimable_at_ms is None or row.due_at_ms is None:
        return row
    return msgspec.structs.replace(row, claimable_at_ms=max(row.due_at_ms, now_ms))


def is_claimable(row: ProcessRow, now_ms: int) -> bool:
    """Return True if the run may be claimed now, unless its lease is live."""
    return row.claimable_at_ms is not None and row.claimable_at_ms <= now_ms


def leased_until(row: ProcessRow, lease: LeaseRow) -> ProcessRow:
    """Return the run as it is found again when its live lease ends."""
    return msgspec.structs.replace(row, claimable_at_ms=lease.expires_at_ms)


def must_abandon(lost_owner_id: str | None, *recoveries: str) -> bool:
    """Return True if a run has lost a holder and must not be run again.

    A run that is not `rerunnable` must not. The run says that when it is started, and so does the handler that would
    run it: pass the recovery of each.

    >>> holdfast.processes.must_abandon("worker-1", "rerunnable", "owner_bound")
    True
    >>> holdfast.processes.must_abandon(None, "owner_bound")
    False
    """
    return lost_owner_id is not None and any(recovery != "rerunnable" for recovery in recoveries)


def claimed(row: ProcessRow, before: LeaseRow | None, lease: LeaseRow, *, now_ms: int) -> ProcessRow:
    """Return the run under a new lease. A takeover names the owner whose lease expired.

    An owner-bound run is not attempted again once a holder was lost. That holder stays named when a later one gives
    the run back.
    """
    lost = None if before is None or before.token_hash is None else before.owner_id
    if lost is None and row.recovery == "owner_bound":
        lost = row.lost_owner
    counts = not must_abandon(lost, row.recovery)
    return msgspec.structs.replace(
        row,
        claimable_at_ms=lease.expires_at_ms,
        claim_fence=lease.fence if counts else 0,
        attempt=row.attempt + int(counts),
        suspended=0,
        lost_owner=lost,
        wait=None,
        waiting=0,
        updated_at_ms=now_ms,
    )


def given_back(row: ProcessRow, fence: int, *, now_ms: int) -> ProcessRow:
    """Return the run after its holder released the lease: due as before. A claim that ends so was no attempt."""
    counted = row.claim_fence == fence
    freed = msgspec.structs.replace(
        row,
        attempt=row.attempt - int(counted),
        claim_fence=0 if counted else row.claim_fence,
        updated_at_ms=now_ms,
    )
    return due_from(freed, row.due_at_ms)


def suspended(row: ProcessRow, asked: Sleep, fence: int, *, now_ms: int) -> ProcessRow:
    """Return the run asleep. It is due at once if its log has grown since the holder read it.

    A sleep ends a series of attempts. A hold is neither an attempt nor the end of a series.
    """
    if asked.seen > row.event_count:
        raise InvalidRequest("seen", f"is {asked.seen}, but the log has only {row.event_count} events")
    asleep = msgspec.structs.replace(
        row,
        claim_fence=0,
        attempt=0 if asked.error is None else row.attempt - int(row.claim_fence == fence),
        suspended=1,
        lost_owner=row.lost_owner if row.recovery == "owner_bound" else None,
        last_error=asked.error,
        wait=None,
        waiting=0,
        updated_at_ms=now_ms,
    )
    return due_from(asleep, now_ms if row.event_count > asked.seen else asked.due_at_ms)


def failed(row: ProcessRow, error: str, *, retry_in_ms: int, now_ms: int) -> ProcessRow:
    """Return the run after a failed attempt, due again after the delay."""
    after = msgspec.structs.replace(row, claim_fence=0, last_error=error, updated_at_ms=now_ms)
    return due_from(after, leases.expiry(now_ms, retry_in_ms))


def woken(row: ProcessRow, event_type: str, *, now_ms: int) -> ProcessRow:
    """Return the process after an event of this type. A signal makes a suspended run due at once.

    A request to cancel makes any run due, also one in back-off or before its start.
    """
    sleeps = row.run_kind is not None and (row.due_at_ms is None or row.due_at_ms > now_ms)
    wakes = event_type == CANCEL_REQUESTED or (bool(row.suspended) and is_signal(event_type))
    return due_from(row, now_ms) if row.status == "running" and sleeps and wakes else row


def ended(row: ProcessRow) -> ProcessRow:
    """Return the process as it is never due again."""
    return msgspec.structs.replace(row, due_at_ms=None, claimable_at_ms=None, claim_fence=0, suspended=0)


def is_sound(row: ProcessRow) -> bool:
    """Return True if the columns of a run agree with each other, and if those of any other process are empty."""
    if row.run_kind is None:
        return (
            row.run_version is None
            and (row.due_at_ms, row.claimable_at_ms, row.last_error, row.lost_owner) == (None, None, None, None)
            and (row.claim_fence, row.attempt, row.suspended) == (0, 0, 0)
        )
    if row.status != "running":
        return (row.due_at_ms, row.claimable_at_ms, row.claim_fence, row.suspended) == (None, None, 0, 0)
    if row.suspended not in (0, 1) or (row.suspended and row.claim_fence):
        return False
    if row.suspended and row.attempt and row.last_error is None:
        return False  # only a run that is held keeps its attempts
    if row.due_at_ms is None or row.recovery == "external":
        return row.claimable_at_ms is None and (row.due_at_ms is not None or bool(row.suspended))
    return row.claimable_at_ms is not None and row.claimable_at_ms >= row.due_at_ms
