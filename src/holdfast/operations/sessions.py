"""Create, describe, list, read and fork sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast.errors import Corrupt, SessionExists, UnknownRef, UnknownSession
from holdfast.label_rows import LabelRow, SessionFilter
from holdfast.next_step import NextStep
from holdfast.operations.pages import may_follow, page_of
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.checkpoints import CheckpointManifest
from holdfast.records.commits import Revision, SessionView, Usage
from holdfast.records.common import Page
from holdfast.records.graph import ActivePath, AgentFrame, FullGraph, Graph, IdRange, Node, ReadScope
from holdfast.records.limits import Limits
from holdfast.records.sessions import Child, SessionMeta, SessionSummary
from holdfast.rows import LIVE, NodeRow, RevisionRow, Segment, SessionRow
from holdfast.rules import checkpoints, commits, deltas, graph, labels, ledgers, node_ranges, replacements
from holdfast.rules import sessions as rules
from holdfast.rules.sequences import require_gapless

Address: TypeAlias = tuple[str, int | None]
"""A session id, and the incarnation that the caller knows, if any."""

SCAN_PAGE = 500


async def find(tx: Transaction, address: Address) -> SessionRow | None:
    """Return the session, None if it was never made. Raises SessionDeleted if it is deleted."""
    session_id, incarnation = address
    return rules.admit(await tx.find_session(session_id), session_id, incarnation)


async def require(tx: Transaction, address: Address) -> SessionRow:
    """Return the session. Raises UnknownSession if it was never made."""
    row = await find(tx, address)
    if row is None:
        raise UnknownSession(address[0])
    return row


async def ensure(tx: Transaction, address: Address) -> SessionRow:
    """Return the session, created now if it was never made."""
    row = await newest(tx, address[0])
    rules.admit(row, *address)
    return row


async def newest(tx: Transaction, session_id: str, *, key_only: bool = False) -> SessionRow:
    """Return the newest incarnation of an id, deleted or not, created now if there never was one."""
    row = await tx.find_session(session_id, key_only=key_only)
    if row is None:
        return await tx.insert_session(rules.new_session(session_id, after=None, now_ms=tx.now_ms))
    return row


async def create(tx: Transaction, meta: SessionMeta) -> SessionRow:
    """Create the session if it is absent or deleted. Give it the metadata unless it has some already."""
    parent = await _hold_parent(tx, meta)
    row = await tx.find_session(meta.session_id)
    if tx.is_retry and row is not None and row.deleted_at_ms is not None:
        # The earlier try may have made it and a later delete removed it; making it again would undo that delete.
        raise replacements.uncertain(f"session {meta.session_id!r}")
    if row is None or row.deleted_at_ms is not None or row.created_at_ms is None:
        rules.require_parent(parent)
    if row is None or row.deleted_at_ms is not None:
        fresh = rules.new_session(meta.session_id, after=row, now_ms=tx.now_ms)
        row = await tx.insert_session(rules.with_meta(fresh, meta, tx.now_ms))
        await _write_labels(tx, row, {}, meta.labels)
    elif row.created_at_ms is None:
        row = rules.with_meta(row, meta, tx.now_ms)
        expect_rows(await tx.save_session(row), "sessions", row.session_key)
        await _write_labels(tx, row, {}, meta.labels)
    return row


async def _write_labels(tx: Transaction, row: SessionRow, known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    saved, dropped = labels.writes(row, known, wanted)
    if saved:
        await tx.save_labels(saved)
    if dropped:
        expect_rows(await tx.drop_labels(row, dropped), "session_labels", row.session_key, expected=len(dropped))


async def find_meta(tx: Transaction, address: Address) -> tuple[SessionRow | None, list[LabelRow]]:
    """Return the session and its labels."""
    row = await find(tx, address)
    return row, [] if row is None or row.created_at_ms is None else await tx.read_labels([row])


async def set_labels(
    tx: Transaction, address: Address, changes: Mapping[str, str | None], limits: Limits
) -> tuple[SessionRow, dict[str, str]]:
    """Change labels of a session, None being a removal. Return all of its labels afterwards.

    A session without metadata gets what `create` would give it, so that its labels are part of its metadata.
    """
    row = await require(tx, address)
    known = {} if row.created_at_ms is None else labels.labels_of(await tx.read_labels([row]))
    wanted = labels.changed(known, changes, limits)
    if wanted == known:
        return row, known
    if tx.is_retry:
        replacements.is_stored(
            labels.touched(known, changes), labels.touched(wanted, changes), f"labels of session {address[0]!r}"
        )
    meta = rules.meta_of(row) or SessionMeta(address[0], address[0], tx.now_ms)
    row = rules.with_meta(row, meta, tx.now_ms)
    expect_rows(await tx.save_session(row), "sessions", row.session_key)
    await _write_labels(tx, row, known, wanted)
    return row, wanted


async def save_meta(tx: Transaction, address: Address, meta: SessionMeta) -> SessionRow:
    """Replace the session's metadata."""
    await _hold_parent(tx, meta)
    row = await ensure(tx, address)
    known = [] if row.created_at_ms is None else await tx.read_labels([row])
    if tx.is_retry and replacements.is_stored(rules.meta_of(row, known), meta, f"metadata of session {address[0]!r}"):
        return row
    row = rules.with_meta(row, meta, tx.now_ms)
    expect_rows(await tx.save_session(row), "sessions", row.session_key)
    await _write_labels(tx, row, labels.labels_of(known), meta.labels)
    return row


async def _hold_parent(tx: Transaction, meta: SessionMeta) -> SessionRow | None:
    """Lock the parent that the metadata names, before the session itself: a deletion of its tree misses no child."""
    return await tx.find_session(meta.relation.parent_session_id) if isinstance(meta.relation, Child) else None


async def list_page(tx: Transaction, filter: SessionFilter, listing: str) -> Page[SessionSummary]:
    """Return one page of live sessions."""
    rows = await tx.list_sessions(msgspec.structs.replace(filter, limit=filter.limit + 1))
    known = labels.by_session(await tx.read_labels(rows)) if rows else {}

    def summary(row: SessionRow) -> SessionSummary:
        return rules.summary_of(row, known.get(row.session_key, ()))

    return page_of(rows, filter.limit, summary, listing=listing, place=filter.place)


async def load(
    tx: Transaction, address: Address, scope: ReadScope, at: int | str | None, most_bytes: int
) -> tuple[SessionRow | None, SessionView | None]:
    """Return one snapshot of a session, None if nothing was ever committed or added."""
    row = await find(tx, address)
    if row is None or not rules.has_content(row):
        return row, None
    revision = await _named(tx, row, at)
    return row, await _view(tx, row, scope, revision, most_bytes, is_newest=at is None)


async def _named(tx: Transaction, row: SessionRow, at: int | str | None) -> RevisionRow | None:
    """Return a revision by its number, the id of its turn or that of a node that it added; the head's by default."""
    if at is None:
        return await newest_revision(tx, row)
    if isinstance(at, int):
        return await revision_at(tx, row, at)
    turn = await tx.find_turn(row, at)
    if turn is not None:
        return turn
    named = await tx.find_nodes(graph.segments_of(row), [at])
    return await revision_at(tx, row, rules.revision_of_node(at, row, named))


async def load_turn(
    tx: Transaction, address: Address, turn_id: str, last: int | None, most_bytes: int
) -> tuple[SessionRow | None, tuple[SessionView | None, RevisionRow | None]]:
    """Return the newest snapshot; if the turn was committed before, its revision and the snapshot at it."""
    row = await find(tx, address)
    if row is None or not rules.has_content(row):
        return row, (None, None)
    turn = await tx.find_turn(row, turn_id)
    at = None if turn is None or turn.revision == row.revision else turn.revision
    # Read again: a prefetched view has the contents of the newest revision only, and refuses any other.
    revision = await _named(tx, row, at)
    return row, (await _view(tx, row, ActivePath(last=last), revision, most_bytes, is_newest=at is None), turn)


async def _view(
    tx: Transaction,
    row: SessionRow,
    scope: ReadScope,
    revision: RevisionRow | None,
    most_bytes: int,
    *,
    is_newest: bool,
) -> SessionView:
    body = commits.TurnBody() if revision is None else commits.body_of(revision)
    if revision is None or is_newest:
        segments = graph.segments_of(row)
    else:
        segments = graph.segments_of(row, epoch=revision.epoch, upto=revision.node_count)
    refs = commits.body_refs(body)
    blobs = await tx.load_blobs(row.family, refs) if refs else ()
    deltas.require_room(blobs, most_bytes, needed_by=described(row, revision))
    bodies = deltas.opened(blobs)
    counters = await tx.read_ledger(row.session_key)
    later: Sequence[Usage | ledgers.Spent] = ()
    if counters and revision is not None and revision.revision < row.revision:
        # Without counters, no turn has used anything.
        later = [usage for _, usage in await usage_after(tx, row.session_key, revision.revision)]
    found = await _read_graph(tx, segments, revision, scope)
    ledger = ledgers.ledger_of(counters, later, spent=body.spent, session_key=row.session_key)
    return view_of(row, revision, body, bodies, graph=found, node_count=node_ranges.count_of(segments), ledger=ledger)


def view_of(
    row: SessionRow,
    revision: RevisionRow | None,
    body: commits.TurnBody,
    bodies: dict[str, bytes],
    *,
    graph: Graph,
    node_count: int,
    ledger: tuple[Usage, ...],
) -> SessionView:
    """Return a view of what was read. `bodies` has the contents that the revision needs."""
    needed_by = described(row, revision)
    manifest = body.manifest
    config = None if body.config_ref is None else checkpoints.content_of(body.config_ref, bodies, needed_by=needed_by)
    return SessionView(
        session_id=row.session_id,
        revision=0 if revision is None else revision.revision,
        graph=graph,
        node_count=node_count,
        config=config,
        frames=_frames(body, bodies, needed_by),
        current_frame_id=body.current_frame_id,
        checkpoint_ref=None if revision is None else revision.checkpoint_ref,
        manifest=CheckpointManifest() if manifest is None else manifest,
        checkpoint=None if manifest is None else checkpoints.checkpoint_of(manifest, bodies, needed_by=needed_by),
        ledger=ledger,
    )


def described(row: SessionRow, revision: RevisionRow | None) -> str:
    """Return a revision as errors name it."""
    return f"revision {row.session_key}/{row.revision if revision is None else revision.revision}"


async def newest_revision(tx: Transaction, row: SessionRow) -> RevisionRow | None:
    """Return the head's revision, None if the session has none yet."""
    return await revision_at(tx, row, row.revision) if row.revision > 0 else None


async def revision_at(tx: Transaction, row: SessionRow, revision: int) -> RevisionRow:
    """Return a revision. Raises UnknownRef if it is not retained."""
    found = await tx.find_revision(row.session_key, revision)
    if found is None and revision == row.revision and revision > 0:
        raise Corrupt("revisions", f"{row.session_key}/{revision}", "the head's revision is missing")
    if (
        found is None
        and 0 < revision < row.revision
        and await tx.list_revisions_down(row.session_key, before=revision, limit=1)
    ):
        # Pruning begins with the oldest: one before it is kept, so this one was lost.
        require_gapless("revisions", row.session_key, (), after=revision - 1, upto=revision)
    if found is None:
        see = NextStep("see", "session.history()")
        raise UnknownRef("at", str(revision), "there is no such retained revision", see)
    return found


async def _read_graph(
    tx: Transaction, segments: tuple[Segment, ...], revision: RevisionRow | None, scope: ReadScope
) -> Graph:
    leaf_key, leaf_id = graph.leaf_of(revision) or (None, None)
    if isinstance(scope, FullGraph):
        rows = await tx.read_nodes(segments, kind=None, after=None, descending=False, limit=None)
        await _require_stored(tx, node_ranges.key_ranges_of(segments), rows)
        return graph.graph_of(rows, leaf_id)
    if scope.leaf is not None:
        named = await tx.find_nodes(segments, [scope.leaf])
        leaf_id, leaf_key = scope.leaf, named[0].node_key if named else None
    if leaf_key is None:
        return Graph((), leaf_id)
    path = await tx.read_path(leaf_key, scope.last)
    if not path and scope.last != 0:
        await require_node(tx, segments, leaf_key, leaf_id or "")
    return graph.graph_of(reversed(path), leaf_id)


async def _require_stored(tx: Transaction, view: Iterable[node_ranges.KeyRange], rows: Iterable[NodeRow]) -> None:
    """Raises Corrupt if a node is missing. Nodes that were not read must be hidden or of another kind."""
    for keys in node_ranges.unread(view, rows):
        node_ranges.require_stored(keys, await tx.count_nodes(*keys))


async def require_node(tx: Transaction, segments: tuple[Segment, ...], node_key: int, node_id: str) -> None:
    """Raises Corrupt if the leaf is missing. An empty path should mean that the leaf is tombstoned."""
    if not any(row.node_key == node_key for row in await tx.find_nodes(segments, [node_id])):
        raise Corrupt("nodes", str(node_key), "the leaf is missing")


def _frames(body: commits.TurnBody, bodies: dict[str, bytes], needed_by: str) -> tuple[AgentFrame, ...]:
    if body.frames_ref is None:
        return ()
    document = checkpoints.content_of(body.frames_ref, bodies, needed_by=needed_by)
    frames = checkpoints.frames_of(document, needed_by=needed_by)
    return tuple(
        frame
        if frame.execution_state_ref is None
        else msgspec.structs.replace(
            frame, execution_state=checkpoints.content_of(frame.execution_state_ref, bodies, needed_by=needed_by)
        )
        for frame in frames
    )


async def usage_after(tx: Transaction, session_key: int, revision: int) -> list[tuple[int, Usage | ledgers.Spent]]:
    """Return what the turns after a revision used, each with the turn's revision, in their order."""
    later: list[tuple[int, Usage | ledgers.Spent]] = []
    while True:
        rows = await tx.list_revisions(session_key, after=revision, limit=SCAN_PAGE)
        require_gapless("revisions", session_key, [row.revision for row in rows], after=revision)
        later.extend((row.revision, usage) for row in rows for usage in commits.body_of(row).usage)
        if not may_follow(rows, SCAN_PAGE):
            return later
        revision = rows[-1].revision


async def load_node(tx: Transaction, address: Address, node_id: str) -> tuple[SessionRow | None, Node | None]:
    """Return one node of the session, None if it is missing or tombstoned."""
    row = await find(tx, address)
    if row is None:
        return None, None
    segments = graph.segments_of(row)
    found = await tx.find_nodes(segments, [node_id])
    if not found:
        await _require_stored(tx, node_ranges.key_ranges_of(segments), ())
    live = [one for one in found if one.mark == LIVE]
    return row, graph.node_of(live[0]) if live else None


async def nodes_page(
    tx: Transaction,
    address: Address,
    *,
    kind: str | None,
    at: int | None,
    after: tuple[int, int] | None,
    newest_first: bool,
    limit: int,
) -> tuple[SessionRow | None, Page[Node]]:
    """Return one page of the session's nodes in insertion order, as they are or as a revision saw them."""
    row = await find(tx, address)
    if row is None:
        return None, Page(())
    segments = await _segments_at(tx, row, at)
    epoch = segments[0].epoch
    place = None if after is None else node_ranges.place_in("after", epoch, after)
    rows: list[NodeRow] = await tx.read_nodes(
        segments, kind=kind, after=place, descending=newest_first, limit=limit + 1
    )
    page = page_of(rows, limit, graph.node_of, listing="nodes", place=lambda one: (one.node_key, epoch))
    shown = rows[: len(page)]
    begin = None if place is None else place - 1 if newest_first else place + 1
    end = None if page.next is None else shown[-1].node_key
    first_key, last_key = (end, begin) if newest_first else (begin, end)
    await _require_stored(tx, node_ranges.key_ranges_of(segments, first_key=first_key, last_key=last_key), shown)
    return row, page


async def nodes_by_id_page(
    tx: Transaction,
    address: Address,
    ids: IdRange,
    *,
    kind: str | None,
    at: int | None,
    after: tuple[str, int] | None,
    newest_first: bool,
    limit: int,
) -> tuple[SessionRow | None, Page[Node]]:
    """Return one page of the nodes whose ids lie in a range, in the order of their ids."""
    row = await find(tx, address)
    if row is None:
        return None, Page(())
    segments = await _segments_at(tx, row, at)
    epoch = segments[0].epoch
    place = None if after is None else node_ranges.place_in("after", epoch, after)
    asked = node_ranges.rest_of(ids, place, descending=newest_first)
    reads: list[tuple[list[NodeRow], bool]] = []
    for segment in segments:
        found = await tx.read_nodes_by_id(
            segment, kind=kind, first=asked.first, before=asked.before, descending=newest_first, limit=limit + 1
        )
        reads.append((found, may_follow(found, limit + 1)))
    rows, left_out = node_ranges.merged(reads, descending=newest_first)
    page = page_of(
        rows[: limit + 1],
        limit,
        graph.node_of,
        listing="nodes by id",
        place=lambda one: (one.node_id, epoch),
        more=left_out,
    )
    return row, page


async def _segments_at(tx: Transaction, row: SessionRow, at: int | None) -> tuple[Segment, ...]:
    if at is None:
        return graph.segments_of(row)
    revision = await revision_at(tx, row, at)
    return graph.segments_of(row, epoch=revision.epoch, upto=revision.node_count)


async def history_page(
    tx: Transaction, address: Address, *, after: int | None, newest_first: bool, limit: int
) -> tuple[SessionRow | None, Page[Revision]]:
    """Return one page of the session's retained revisions."""
    row = await find(tx, address)
    if row is None:
        return None, Page(())
    # A cursor may come from another session, or from one of this id that was deleted: it may lie beyond the head.
    before = row.revision + 1 if after is None else min(after, row.revision + 1)
    if newest_first:
        rows = await tx.list_revisions_down(row.session_key, before=before, limit=limit + 1)
    else:
        rows = await tx.list_revisions(row.session_key, after=after or 0, limit=limit + 1)
    page = page_of(rows, limit, rules.history_of, listing="history", place=lambda one: (one.revision,))
    numbers = [one.revision for one in rows]
    if newest_first and rows:
        require_gapless("revisions", row.session_key, [*reversed(numbers), before])
    elif not newest_first:
        upto = row.revision if page.next is None and row.revision > (after or 0) else None
        require_gapless("revisions", row.session_key, numbers, upto=upto)
    return row, page


async def fork(
    tx: Transaction, source: Address, at: str | int | None, meta: SessionMeta, limits: Limits
) -> SessionRow | SessionExists:
    """Create a session in the family of its source that sees the same nodes, up to a point.

    Return, not raise, SessionExists: the caller raises it once the transaction is durable. The id may be taken by an
    earlier try of the same call, whose replication was not confirmed.
    """
    origin = await require(tx, source)
    existing = await tx.find_session(meta.session_id)
    if existing is not None and existing.deleted_at_ms is None:
        return SessionExists(meta.session_id)
    segments, base, leaf = await _fork_point(tx, origin, at)
    lineage = rules.fork_lineage(segments, limits)
    fresh = msgspec.structs.replace(
        rules.new_session(meta.session_id, after=existing, now_ms=tx.now_ms),
        family=origin.family,
        lineage=graph.encode_lineage(lineage),
    )
    row = await tx.insert_session(rules.with_meta(fresh, meta, tx.now_ms))
    await _write_labels(tx, row, {}, meta.labels)
    plan = rules.first_revision(row, base, leaf, now_ms=tx.now_ms)
    await tx.apply_commit(plan, tx.now_ms)
    await tx.copy_committed_attachments(origin.session_key, row.session_key)
    return plan.session


async def _fork_point(
    tx: Transaction, origin: SessionRow, at: str | int | None
) -> tuple[tuple[Segment, ...], RevisionRow | None, tuple[int, str] | None]:
    """Return the segments that the fork sees, the revision whose state it starts with, and its leaf."""
    if isinstance(at, str):
        return await _fork_node(tx, origin, at)
    if at is None and origin.revision == 0:
        return graph.segments_of(origin), None, None
    revision = await revision_at(tx, origin, origin.revision if at is None else at)
    leaf = graph.leaf_of(revision)
    if at is None:
        return graph.segments_of(origin), revision, leaf
    return graph.segments_of(origin, epoch=revision.epoch, upto=revision.node_count), revision, leaf


async def _fork_node(
    tx: Transaction, origin: SessionRow, node_id: str
) -> tuple[tuple[Segment, ...], RevisionRow | None, tuple[int, str] | None]:
    """Return the graph as it was when the node was added, with the state of the node's turn if the node ended it."""
    segments = graph.segments_of(origin)
    found = await tx.find_nodes(segments, [node_id])
    if not found or found[0].mark != LIVE:
        raise UnknownRef("at", node_id, "the source has no such node")
    node = found[0]
    revision = await tx.find_leaf_revision(origin.session_key, node.node_key)
    if revision is None and node.revision is not None:
        added_by = await tx.find_revision(node.session_key, node.revision)
        revision = added_by if added_by is not None and added_by.leaf_key == node.node_key else None
    return graph.cut(segments, node.node_key), revision, (node.node_key, node_id)
