"""Read the facts for a diagnosis. Changes nothing; damage is returned and never raised."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.records.diagnosis import StoreFacts


async def facts(tx: Transaction) -> StoreFacts:
    """Return the database's facts about itself, and counts of expired leases, undelivered deliveries and ready work."""
    return await tx.facts(tx.now_ms)


async def structures(tx: Transaction) -> list[str]:
    """Return the problems that the database finds in its own pages and indexes."""
    return await tx.check_structures()
