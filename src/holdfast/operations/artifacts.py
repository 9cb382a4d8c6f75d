"""Put, get, list and delete artifacts by kind and ref."""

from __future__ import annotations

from typing import Final

from msgspec import UnsetType

from holdfast import codec
from holdfast.columns import fitting
from holdfast.operations.pages import page_of
from holdfast.ports import Transaction
from holdfast.records.artifacts import Artifact, ArtifactSummary
from holdfast.records.common import Page
from holdfast.rows import ArtifactRange
from holdfast.rules import artifacts as rules

LISTING: Final = "artifacts"


async def put(tx: Transaction, kind: str, ref: str, data: bytes, expected_hash: str | UnsetType | None) -> str:
    """Store bytes under their ref, in place of the expected ones, or of any."""
    row = rules.packed(kind, ref, data, now_ms=tx.now_ms)
    if isinstance(expected_hash, str):
        written = await tx.replace_artifact(row, expected_hash)
    elif tx.is_retry:
        written = 0
    elif expected_hash is None:
        written = await tx.add_artifact(row)
    else:
        written = await tx.save_artifact(row)
    if not written:
        rules.require_stored(row, await tx.find_artifact(kind, ref), is_retry=tx.is_retry)
    return ref


async def get(tx: Transaction, kind: str, ref: str) -> Artifact | None:
    """Return the artifact, or None."""
    row = await tx.find_artifact(kind, ref)
    return None if row is None else rules.opened(row)


async def list_page(tx: Transaction, range: ArtifactRange, limit: int) -> Page[ArtifactSummary]:
    """Return one page of artifacts, without their bytes."""
    rows = await tx.list_artifacts(range, limit + 1)
    return page_of(rows, limit, rules.summary_of, listing=LISTING, place=lambda row: (row.kind, row.ref))


async def read_page(tx: Transaction, range: ArtifactRange, limit: int) -> Page[Artifact]:
    """Return one page of artifacts with their bytes. It ends with the artifact with which it reaches a page's bytes."""
    heads = await tx.list_artifacts(range, limit + 1)
    count = fitting(head.size for head in heads[:limit])
    if not count:
        return Page(())
    rows = await tx.read_artifacts(rules.upto(range, heads[count - 1]), count)
    place = heads[count - 1].kind, heads[count - 1].ref
    cursor = codec.encode_cursor(LISTING, place) if len(heads) > count else None
    return Page(tuple(rules.opened(row) for row in rows), cursor)


async def delete(tx: Transaction, kind: str, ref: str) -> bool:
    """Delete an artifact. Return False if it does not exist."""
    return await tx.drop_artifact(kind, ref) > 0


async def delete_range(tx: Transaction, range: ArtifactRange) -> int:
    """Delete the artifacts of a range. Return how many."""
    return await tx.drop_artifacts(range)
