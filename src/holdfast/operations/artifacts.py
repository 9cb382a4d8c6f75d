"""Put, get, list and delete artifacts by kind and ref."""

from __future__ import annotations

from holdfast.operations.pages import page_of
from holdfast.ports import Transaction
from holdfast.records.artifacts import Artifact, ArtifactSummary
from holdfast.records.common import Page
from holdfast.rules import artifacts as rules
from holdfast.rules import replacements


async def put(tx: Transaction, kind: str, ref: str, data: bytes) -> str:
    """Store bytes under their ref, replacing any earlier ones."""
    row = rules.packed(kind, ref, data, now_ms=tx.now_ms)
    if tx.is_retry:
        found = await tx.find_artifact(kind, ref)
        what = f"artifact {kind}/{ref}"
        if found is None:
            # The earlier try may have stored it and a later delete removed it; storing again would undo that delete.
            raise replacements.gone(what)
        replacements.is_stored(found.hash, row.hash, what)
    else:
        await tx.save_artifact(row)
    return ref


async def get(tx: Transaction, kind: str, ref: str) -> Artifact | None:
    """Return the artifact, None if there is none."""
    row = await tx.find_artifact(kind, ref)
    return None if row is None else rules.opened(row)


async def list_page(tx: Transaction, *, after: tuple[str, str], limit: int) -> Page[ArtifactSummary]:
    """Return one page of artifacts, without their bytes."""
    rows = await tx.list_artifacts(after=after, limit=limit + 1)
    return page_of(rows, limit, rules.summary_of, listing="artifacts", place=lambda row: (row.kind, row.ref))


async def delete(tx: Transaction, kind: str, ref: str) -> bool:
    """Delete an artifact. Return False if there was none."""
    return await tx.drop_artifact(kind, ref) > 0
