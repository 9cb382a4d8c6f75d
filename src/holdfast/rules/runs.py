"""Decide when a run is due, and how its row changes when it is claimed, sleeps, fails or ends.

Pure: decided from the row of the process, its lease and one clock reading. A run is a process with the input `Run`.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.rows import ProcessRow

CANCEL_REQUESTED = "process.cancel_requested"
RUN_TYPES = frozenset({"step", "progress"})
"""Event types that every run has, beside those of its signals."""
SIGNAL = "signal."
SIGNAL_NAME = re.compile(r"[A-Za-z0-9_-]+")


def is_signal(event_type: str) -> bool:
    """Return True for the event type of a signal."""
    return event_type.startswith(SIGNAL) and SIGNAL_NAME.fullmatch(event_type, len(SIGNAL)) is not None


def is_run_type(event_type: str) -> bool:
    """Return True for an event type that every run has without declaring it."""
    return event_type in RUN_TYPES or is_signal(event_type)


def due_from(row: ProcessRow, due_at_ms: int | None) -> ProcessRow:
    """Return the run as it can be claimed from that time on, None being never. An external run is never claimed."""
    claimable_at_ms = None if row.recovery == "external" else due_at_ms
    return msgspec.structs.replace(row, due_at_ms=due_at_ms, claimable_at_ms=claimable_at_ms)


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
    if row.suspended not in (0, 1) or (row.suspended and (row.claim_fence or row.attempt)):
        return False
    if row.due_at_ms is None or row.recovery == "external":
        return row.claimable_at_ms is None and (row.due_at_ms is not None or bool(row.suspended))
    return row.claimable_at_ms is not None and row.claimable_at_ms >= row.due_at_ms
