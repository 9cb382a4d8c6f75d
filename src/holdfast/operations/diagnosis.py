"""A diagnosis reads what the database says about itself and changes nothing; damage is an answer and never an error."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.records.diagnosis import StoreFacts


async def facts(tx: Transaction) -> StoreFacts:
    """What the database says about itself, and what has been waiting."""
    return await tx.facts(tx.now_ms)


async def structures(tx: Transaction) -> list[str]:
    """What the database itself finds wrong with its pages and indexes."""
    return await tx.check_structures()
