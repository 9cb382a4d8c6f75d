"""Delete sessions. Only a tombstone stays, and the content that other sessions share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast.label_rows import SessionFilter
from holdfast.operations import attachments, limits, processes, triggers
from holdfast.operations.pages import may_follow
from holdfast.operations.ready import notify
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.records.sessions import SessionDeletionReport
from holdfast.rows import AttachmentRow, SessionRow
from holdfast.rules import graph, heads
from holdfast.rules import sessions as rules

PAGE = 500
CHILDREN_PAGE = 25


class Erased(msgspec.Struct, frozen=True):
    """Counts of one step of erasing a family. `complete`: no unreachable rows are left."""

    revisions: int = 0
    nodes: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    complete: bool = False


async def delete(
    tx: Transaction, session_id: str, *, expected_revision: int | None, tree: bool, bounds: Limits
) -> tuple[SessionDeletionReport, tuple[int, ...]]:
    """Erase a session, and its descendants with `tree`: head, queue, usage, manifest, grants and subscriptions.

    Return the report, and the families of the deleted sessions. Turns, nodes and contents, of which there may be very
    many, can no longer be reached, but are still stored. `erase` deletes them from a family in steps of its own.
    """
    # Found first because that locks the session: it gets no new edge, fork or child while its old ones are erased.
    row = await tx.find_session(session_id)
    if row is not None and row.deleted_at_ms is None:
        heads.require_revision(row, expected_revision)
    descendants = await _descendants(tx, session_id, bounds) if tree else []
    root = await _delete(tx, session_id, row)
    report = rules.tree_report(root, [await _delete(tx, child.session_id, child) for child in descendants])
    deleted = [*([row] if row is not None and root.deleted else []), *descendants]
    return report, tuple(dict.fromkeys(session.family for session in deleted))


async def _descendants(tx: Transaction, session_id: str, bounds: Limits) -> list[SessionRow]:
    """Return the sessions that stem from one, each once, locked, and parents before their children.

    Every session is locked before its children are listed, and making a child locks its parent: so none is missed.
    """
    found: dict[str, SessionRow] = {}
    parents = deque([session_id])
    while parents:
        parent_id = parents.popleft()
        after: tuple[int, ...] | None = None
        while True:
            page = await tx.list_sessions(SessionFilter(limit=CHILDREN_PAGE, parent=parent_id, after=after))
            for listed in page:
                if listed.session_id == session_id or listed.session_id in found:
                    continue
                child = await tx.find_session(listed.session_id)
                if rules.is_deleted_with(child, parent_id):
                    found[child.session_id] = child
                    parents.append(child.session_id)
                    rules.require_tree(session_id, 1 + len(found), bounds)
            if not may_follow(page, CHILDREN_PAGE):
                break
            after = (page[-1].session_key,)
    return list(found.values())


async def _delete(tx: Transaction, session_id: str, row: SessionRow | None) -> SessionDeletionReport:
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
        return edges
    # Before its content is dropped: a tombstoned session gets no new content.
    expect_rows(await tx.save_session(rules.tombstone(row, now_ms=tx.now_ms)), "sessions", row.session_key)
    references = await _attachments(tx, row.session_key)
    await limits.free_slots(tx, await tx.slots_of(row.session_key))
    usage, work, manifest = await tx.drop_session_content(row.session_key)
    for reference in references:
        await attachments.drop_if_unreferenced(tx, reference)
    await tx.drop_lease("session", str(row.session_key))
    notify(tx, session_id)
    return msgspec.structs.replace(edges, deleted=True, usage_rows=usage, batches=work, attachments=manifest)


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
