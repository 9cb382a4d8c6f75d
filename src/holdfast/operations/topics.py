"""Topics of waiters on processes and runs."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.rows import ProcessRow

ANY_RUN = "runs"
"""The topic of waiters for a claimable run."""


def process_topic(process_id: str) -> str:
    """Return the topic of waiters on a process."""
    return f"process:{process_id}"


def tell_run(tx: Transaction, row: ProcessRow) -> None:
    """Wake the waiters for claimable runs if this process is one, now or at a later time."""
    if row.claimable_at_ms is not None:
        tx.notify(ANY_RUN)
