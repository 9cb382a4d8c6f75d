"""Artifacts are put, got and deleted by kind and ref."""

from __future__ import annotations

from holdfast.ports import Transaction
from holdfast.records.artifacts import Artifact
from holdfast.rules import artifacts as rules


async def put(tx: Transaction, kind: str, ref: str, data: bytes) -> str:
    """Store bytes under their ref, over what was there."""
    await tx.save_artifact(rules.packed(kind, ref, data, now_ms=tx.now_ms))
    return ref


async def get(tx: Transaction, kind: str, ref: str) -> Artifact | None:
    """The artifact, None if there is none."""
    row = await tx.find_artifact(kind, ref)
    return None if row is None else rules.opened(row)


async def delete(tx: Transaction, kind: str, ref: str) -> bool:
    """Remove; False if there was none."""
    return await tx.drop_artifact(kind, ref) > 0
