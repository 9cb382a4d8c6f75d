"""Delete sessions. Only a tombstone stays, and the content that other sessions share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.operations import attachments, limits, processes, triggers
from holdfast.operations.ready import tell
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.sessions import SessionDeletionReport
from holdfast.rows import AttachmentRow, SessionRow
from holdfast.rules import graph
from holdfast.rules import sessions as rules

PAGE = 500


class Erased(msgspec.Struct, frozen=True):
    """Counts of one step of erasing a family. `complete`: no unreachable rows are left."""

    revisions: int = 0
    nodes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    complete: bool = False


async def delete(tx: Transaction, session_id: str) -> tuple[SessionDeletionReport, int | None]:
    """Erase a session: head, queue, usage, manifest, grants and subscriptions. Return the report and its family.

    Its turns, nodes and contents, of which there may be very many, can no longer be reached, but are still stored.
    `erase` deletes them from the family in steps of its own.
    """
    # Found first because that locks the session: it gets no new edge while its old ones are erased.
    row = await tx.find_session(session_id)
    forgotten = await processes.forget_session(tx, session_id)
    edges = SessionDeletionReport(
        session_id,
        deleted=False,
        revoked_grants=forgotten.revoked_grants,
        subscriptions=await triggers.forget_session(tx, session_id),
        cleared_wake_targets=forgotten.cleared_wake_targets,
        orphaned_process_ids=forgotten.orphaned_process_ids,
        preserved_process_ids=forgotten.preserved_process_ids,
    )
    if row is None or row.deleted_at_ms is not None:
        # Grants, subscriptions and wake targets need no session to exist, and must not outlive its deletion.
        return edges, None
    # Before its content is dropped: a tombstoned session gets no new content.
    expect_rows(await tx.save_session(rules.tombstone(row, now_ms=tx.now_ms)), "sessions", row.session_key)
    references = await _attachments(tx, row.session_key)
    await limits.free_slots(tx, await tx.slots_of(row.session_key))
    usage, work, manifest = await tx.drop_session_content(row.session_key)
    for reference in references:
        await attachments.drop_if_unreferenced(tx, reference)
    await tx.drop_lease("session", str(row.session_key))
    tell(tx, session_id)
    report = msgspec.structs.replace(
        edges,
        deleted=True,
        usage_rows=usage,
        batches=work,
        attachments=manifest,
    )
    return report, row.family


async def _attachments(tx: Transaction, session_key: int) -> list[AttachmentRow]:
    rows: list[AttachmentRow] = []
    while True:
        page = await tx.list_attachments(session_key, after=rows[-1].attachment_id if rows else "", limit=PAGE)
        rows.extend(page)
        if len(page) < PAGE:
            return rows


async def erase(tx: Transaction, family: int, limit: int) -> Erased:
    """Delete the unreachable rows of a family, up to `limit` of each kind: first the turns of deleted sessions."""
    sessions = await tx.family_sessions(family)
    revisions = 0
    for session in sessions:
        if session.deleted_at_ms is not None:
            revisions += await tx.drop_revisions(session.session_key, below=LARGEST_INTEGER, limit=limit - revisions)
        if revisions >= limit:
            return Erased(revisions)
    nodes = await _drop_unreachable_nodes(tx, sessions, limit)
    blobs, freed = await tx.drop_unreferenced_blobs(family, limit=limit, dry_run=False)
    return Erased(revisions, nodes, blobs, freed, complete=nodes < limit and blobs < limit)


async def _drop_unreachable_nodes(tx: Transaction, sessions: Sequence[SessionRow], limit: int) -> int:
    """Delete up to `limit` nodes of a family that no session, revision or fork sees."""
    views = {
        session.session_key: await tx.revision_epochs(session.session_key)
        for session in sessions
        if session.deleted_at_ms is None
    }
    reach = graph.retained_segments(sessions, views)
    dropped = 0
    for session in sessions:
        for epoch in await tx.node_epochs(session.session_key):
            above = reach.get((session.session_key, epoch), 0)
            dropped += await tx.drop_nodes(session.session_key, epoch, above=above, limit=limit - dropped)
            if dropped >= limit:
                return dropped
    return dropped
