"""Put positions on receipts.

A receipt has the position of the transaction that returned it, also if that transaction found the work done before.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.ports import Transaction
from holdfast.records.common import Receipt

R = TypeVar("R", bound=Receipt)


async def stamped(tx: Transaction, receipt: R) -> R:
    """Return the receipt with its position."""
    return msgspec.structs.replace(receipt, position=await tx.position())


async def position(tx: Transaction) -> str:
    """Return the position of a transaction that does nothing else."""
    return await tx.position()
