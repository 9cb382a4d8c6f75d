"""Claim, suspend and give back runs."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.rows import ProcessRow

ANY_RUN = "runs"
"""The topic of waiters for a claimable run."""


def tell(tx: Transaction, row: ProcessRow) -> None:
    """Wake the waiters for claimable runs if this process is one, now or at a later time."""
    if row.claimable_at_ms is not None:
        tx.notify(ANY_RUN)
