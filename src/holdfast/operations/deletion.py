"""A deleted session leaves a tombstone and nothing else that nobody shares with it."""

from __future__ import annotations

import msgspec

from holdfast.operations import attachments, processes, triggers
from holdfast.operations.work import queue_topic
from holdfast.operations.writes import hit
from holdfast.ports import Transaction
from holdfast.records.sessions import SessionDeletionReport
from holdfast.rows import AttachmentRow, SessionRow
from holdfast.rules import graph
from holdfast.rules import sessions as rules

EVERYTHING = 2**62
PAGE = 500


async def delete(tx: Transaction, session_id: str) -> tuple[SessionDeletionReport, int | None]:
    """Erase a session: head, history, queue, usage, manifest, grants, subscriptions and unshared blobs.

    Its nodes, of which there may be very many, are beyond reach from here on, but still there: the family is returned
    whose unreachable nodes are to be dropped, in steps of their own.
    """
    # Found first, because finding it holds it: nobody gives it a new edge while its old ones are erased.
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
    references = await _attachments(tx, row.session_key)
    revisions, usage, work, manifest = await tx.drop_session_content(row.session_key)
    for reference in references:
        await attachments.drop_if_unreferenced(tx, reference)
    await tx.drop_lease("session", str(row.session_key))
    hit(await tx.save_session(rules.tombstone(row, now_ms=tx.now_ms)), "sessions", row.session_key)
    blobs, _ = await tx.drop_unreferenced_blobs(row.family, limit=EVERYTHING, dry_run=False)
    tx.notify(queue_topic(session_id))
    report = msgspec.structs.replace(
        edges,
        deleted=True,
        revisions=revisions,
        usage_rows=usage,
        work_batches=work,
        attachments=manifest,
        blobs=blobs,
    )
    return report, row.family


async def _attachments(tx: Transaction, session_key: int) -> list[AttachmentRow]:
    rows: list[AttachmentRow] = []
    while True:
        page = await tx.list_attachments(session_key, after=rows[-1].attachment_id if rows else "", limit=PAGE)
        rows.extend(page)
        if len(page) < PAGE:
            return rows


async def drop_unreachable_nodes(tx: Transaction, family: int, limit: int) -> int:
    """Delete up to `limit` nodes of a family that no session, revision or fork sees any more."""
    sessions: list[SessionRow] = await tx.family_sessions(family)
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
