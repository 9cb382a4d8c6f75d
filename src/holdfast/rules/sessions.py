"""Decide which incarnation of a session a handle may act on, and check metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest, SessionDeleted, UnknownRef
from holdfast.label_rows import LabelRow
from holdfast.next_step import NextStep
from holdfast.records.commits import Revision, Usage
from holdfast.records.limits import Limits
from holdfast.records.processes import ProcessSessionReport
from holdfast.records.sessions import Child, Relation, Root, SessionDeletionReport, SessionMeta, SessionSummary
from holdfast.rows import CommitPlan, NodeRow, RevisionRow, Segment, SessionRow
from holdfast.rules import checks, commits, graph, labels, ledgers

FORKED_AT = 1
"""The revision that a fork begins with. Its first turn makes the next."""


def admit(row: SessionRow | None, session_id: str, incarnation: int | None) -> SessionRow | None:
    """Return the session that a call may act on, or None if it was never made.

    A deleted session raises `SessionDeleted` for every handle that knew it, and for every call until a new one is
    created. `incarnation` is the one that the handle knows, None if it knows none.
    """
    if row is None:
        return None
    if row.deleted_at_ms is not None or (incarnation is not None and incarnation != row.incarnation):
        raise SessionDeleted(session_id)
    return row


def require_parent(parent: SessionRow | None) -> None:
    """Raise `SessionDeleted` for a parent that is known to be deleted. One that was never made may come later."""
    if parent is not None:
        admit(parent, parent.session_id, None)


def new_session(session_id: str, *, after: SessionRow | None, now_ms: int) -> SessionRow:
    """Return a session without metadata, in the incarnation after the given one."""
    return SessionRow(
        session_key=0,
        session_id=session_id,
        incarnation=1 if after is None else after.incarnation + 1,
        family=0,
        revision=0,
        node_count=0,
        epoch=0,
        lineage=graph.NO_LINEAGE,
        changed_at_ms=now_ms,
    )


def check_meta(value: object, limits: Limits, *, within: str = "meta.", id_field: str | None = None) -> SessionMeta:
    """Check metadata. Errors name fields as the caller wrote them: `within` a record, or as parameters."""
    meta = checks.instance("meta", value, SessionMeta)
    return SessionMeta(
        session_id=checks.identifier(id_field or f"{within}session_id", meta.session_id, limits),
        name=checks.text(f"{within}name", meta.name, limits),
        created_at_ms=checks.whole(f"{within}created_at_ms", meta.created_at_ms),
        model=checks.optional_text(f"{within}model", meta.model, limits),
        owner=checks.optional_identifier(f"{within}owner", meta.owner, limits),
        cwd=checks.optional_text(f"{within}cwd", meta.cwd, limits),
        relation=check_relation(f"{within}relation", meta.relation, limits),
        labels=labels.check(f"{within}labels", meta.labels, limits),
    )


def check_relation(field: str, value: object, limits: Limits) -> Relation:
    """Check the origin of a session."""
    relation = checks.instance(field, value, (Root, Child))
    if isinstance(relation, Child):
        checks.identifier(f"{field}.parent_session_id", relation.parent_session_id, limits)
        checks.optional_document(f"{field}.caused_by", relation.caused_by, limits)
        return codec.own_copy(Child, relation)
    return relation


def created(meta: SessionMeta, now_ms: int) -> SessionMeta:
    """Return the metadata of a session that is created now."""
    return msgspec.structs.replace(meta, created_at_ms=now_ms)


def with_meta(row: SessionRow, meta: SessionMeta, now_ms: int) -> SessionRow:
    """Return the session with this metadata."""
    child = meta.relation if isinstance(meta.relation, Child) else None
    return msgspec.structs.replace(
        row,
        changed_at_ms=now_ms,
        created_at_ms=meta.created_at_ms,
        name=meta.name,
        owner=meta.owner,
        model=meta.model,
        cwd=meta.cwd,
        parent_session_id=None if child is None else child.parent_session_id,
        caused_by=None if child is None or child.caused_by is None else codec.encode_document(child.caused_by),
    )


def is_open(row: SessionRow | None) -> bool:
    """Return True if a session can be opened: it exists and was given metadata."""
    return row is not None and row.deleted_at_ms is None and row.created_at_ms is not None


def has_content(row: SessionRow) -> bool:
    """Return True if anything was ever committed or added."""
    return row.revision > 0 or graph.visible_count(row) > 0


def meta_of(row: SessionRow, rows: Iterable[LabelRow] = ()) -> SessionMeta | None:
    """Return the session's metadata with its labels, None if it was never given any."""
    if row.created_at_ms is None:
        return None
    relation: Relation = Root()
    if row.parent_session_id is not None:
        cause = row.caused_by
        relation = Child(
            row.parent_session_id,
            None if cause is None else codec.decode_document(cause, table="sessions", key=row.session_key),
        )
    return SessionMeta(
        session_id=row.session_id,
        name=row.name or "",
        created_at_ms=row.created_at_ms,
        model=row.model,
        owner=row.owner,
        cwd=row.cwd,
        relation=relation,
        labels=labels.labels_of(rows),
    )


def summary_of(row: SessionRow, rows: Iterable[LabelRow] = ()) -> SessionSummary:
    """Return the session's entry in a listing, with its labels."""
    return SessionSummary(
        session_id=row.session_id,
        name=row.name,
        owner=row.owner,
        model=row.model,
        parent_session_id=row.parent_session_id,
        revision=row.revision,
        node_count=graph.visible_count(row),
        created_at_ms=row.created_at_ms,
        changed_at_ms=row.changed_at_ms,
        labels=labels.labels_of(rows),
    )


def history_of(row: RevisionRow) -> Revision:
    """Return the revision's entry in the history."""
    usage = tuple(Usage(one.source, one.model, *ledgers.counts_of(one)) for one in commits.body_of(row).usage)
    return Revision(row.revision, row.turn_id, row.leaf_id, row.checkpoint_ref, usage, row.committed_at_ms)


def fork_lineage(segments: Sequence[Segment], limits: Limits) -> tuple[Segment, ...]:
    """Return the segments that a fork inherits: those of its source's view that hold any nodes."""
    lineage = tuple(segment for segment in segments if segment.upto > segment.epoch)
    if len(lineage) > limits.fork_depth:
        raise InvalidRequest("source", f"is a fork of {limits.fork_depth} generations", limit=limits.fork_depth)
    return lineage


def first_revision(
    fork: SessionRow, base: RevisionRow | None, leaf: tuple[int, str] | None, *, now_ms: int
) -> CommitPlan:
    """Return the revision that a fork starts with: its source's state at that point, without the source's usage."""
    before = commits.TurnBody() if base is None else commits.body_of(base)
    body = msgspec.structs.replace(before, usage=(), enqueued=(), started=(), spent=0, tombstoned=0)
    leaf_key, leaf_id = leaf or (None, None)
    return CommitPlan(
        session=msgspec.structs.replace(fork, revision=FORKED_AT),
        revision=RevisionRow(
            session_key=fork.session_key,
            revision=FORKED_AT,
            family=fork.family,
            turn_id=None,
            fingerprint=None,
            epoch=0,
            node_count=0,
            leaf_key=leaf_key,
            leaf_id=leaf_id,
            checkpoint_ref=None if base is None else base.checkpoint_ref,
            refs=commits.encode_refs(body),
            body=codec.encode_record(body),
            committed_at_ms=now_ms,
        ),
    )


def is_fork_with_turn(row: SessionRow, source: str, turn: RevisionRow | None, fingerprint: str | None) -> bool:
    """Return True if a session was forked from this source together with this turn, as its first."""
    began = FORKED_AT + 1
    return (
        row.parent_session_id == source
        and turn is not None
        and turn.revision == began
        and turn.fingerprint == fingerprint
    )


def tombstone(row: SessionRow, *, now_ms: int) -> SessionRow:
    """Return the row that stays of a deleted session."""
    return SessionRow(
        session_key=row.session_key,
        session_id=row.session_id,
        incarnation=row.incarnation,
        family=row.family,
        revision=0,
        node_count=0,
        epoch=0,
        lineage=graph.NO_LINEAGE,
        changed_at_ms=now_ms,
        deleted_at_ms=now_ms,
    )


def is_deleted_with(row: SessionRow | None, parent_id: str) -> TypeGuard[SessionRow]:
    """Return True if a session, as it was found behind its lock, goes with the tree of its parent."""
    return row is not None and row.deleted_at_ms is None and row.parent_session_id == parent_id


def require_tree(session_id: str, size: int, limits: Limits) -> None:
    """Raises InvalidRequest if a session and its descendants are too many for one deletion."""
    if size > limits.tree_sessions:
        raise InvalidRequest(
            "session_id",
            f"{session_id!r} and its descendants are more than {limits.tree_sessions} sessions",
            NextStep("delete the trees of its children first, found with", "sessions.list()"),
            NextStep("raise", "Limits.tree_sessions"),
            limit=limits.tree_sessions,
        )


def tree_report(root: SessionDeletionReport, descendants: Sequence[SessionDeletionReport]) -> SessionDeletionReport:
    """Return the report of sessions that were deleted together, in the order in which they were deleted.

    A process that lost its last handle with a later session is an orphan, and not preserved.
    """
    reports = [root, *descendants]
    orphaned = {process_id for report in reports for process_id in report.orphaned_process_ids}
    preserved = {process_id for report in reports for process_id in report.preserved_process_ids}
    return SessionDeletionReport(
        session_id=root.session_id,
        deleted=root.deleted,
        usage_rows=sum(report.usage_rows for report in reports),
        batches=sum(report.batches for report in reports),
        attachments=sum(report.attachments for report in reports),
        revoked_grants=sum(report.revoked_grants for report in reports),
        subscriptions=sum(report.subscriptions for report in reports),
        cleared_wake_targets=sum(report.cleared_wake_targets for report in reports),
        orphaned_process_ids=tuple(sorted(orphaned)),
        preserved_process_ids=tuple(sorted(preserved - orphaned)),
        descendant_ids=tuple(report.session_id for report in descendants),
    )


def process_report(
    session_id: str, counts: Iterable[tuple[str, str, int]], *, revoked: int, cleared: int
) -> ProcessSessionReport:
    """Report the running processes that lost their last handle with the session, and those that keep one."""
    running = [(process_id, others) for process_id, status, others in counts if status == "running"]
    return ProcessSessionReport(
        session_id=session_id,
        revoked_grants=revoked,
        cleared_wake_targets=cleared,
        orphaned_process_ids=tuple(sorted({process_id for process_id, others in running if others == 0})),
        preserved_process_ids=tuple(sorted({process_id for process_id, others in running if others > 0})),
    )


def revision_of_node(at: str, session: SessionRow, named: Sequence[NodeRow]) -> int:
    """Return the revision of the turn that added a node to this session."""
    see = NextStep("see", "session.history()")
    if not named:
        raise UnknownRef("at", at, "there is no such turn and no such node", see)
    node = named[0]
    if node.session_key != session.session_key:
        raise UnknownRef("at", at, "this node is one of the session that this was forked from: load it there", see)
    if node.revision is None:
        raise UnknownRef("at", at, "this node was added outside the path, by no turn", see)
    return node.revision
