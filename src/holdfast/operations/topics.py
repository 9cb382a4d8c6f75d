"""Topics of waiters on processes and runs."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.rows import ProcessRow
from holdfast.rules.runs import CANCEL_REQUESTED

ANY_RUN = "runs"
"""The topic of waiters for a claimable run."""
ENDED_CLAIM = "runs:ended-claims"
"""The topic of such waiters while a kind is at its limit: also signalled when any claim on a run ends."""


def process_topic(process_id: str) -> str:
    """Return the topic of waiters on a process."""
    return f"process:{process_id}"


def event_topic(process_id: str, type: str | None) -> str:
    """Return the topic of waiters for events of a type. Requests to cancel have one of their own.

    A worker waits for such a request beside each call, and a step that the call records must not wake it.
    """
    return f"cancel:{process_id}" if type == CANCEL_REQUESTED else process_topic(process_id)


def notify_event(tx: Transaction, process_id: str, type: str) -> None:
    """Wake the waiters for an event that was appended."""
    tx.notify(process_topic(process_id))
    if type == CANCEL_REQUESTED:
        tx.notify(event_topic(process_id, type))


def notify_run(tx: Transaction, row: ProcessRow) -> None:
    """Wake the waiters for claimable runs if this process is one, now or at a later time."""
    if row.claimable_at_ms is not None:
        tx.notify(ANY_RUN)
        tx.notify(ENDED_CLAIM)


def notify_claim_ended(tx: Transaction, row: ProcessRow) -> None:
    """Wake the waiters for a free place in a kind of runs, if this process was a run."""
    if row.run_kind is not None:
        tx.notify(ENDED_CLAIM)
