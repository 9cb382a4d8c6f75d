"""An import is a turn: what comes before it is idempotent and moves no head, and the same bundle again is a replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import msgspec

import holdfast
from holdfast.moving.bundle import (
    TOMBSTONE,
    AttachmentLine,
    Bundle,
    ComponentLine,
    FrameLine,
    HeadLine,
    Line,
    MetaLine,
    NodeLine,
    WorkLine,
)
from holdfast.paging import every

CHUNK_NODES = 500
CHUNK_REFS = 1000


class Restored(NamedTuple):
    """What an import did."""

    session_id: str
    outcome: Literal["imported", "already_there"]


class Parts:
    """What was read and is not stored yet, and whether anything was stored that was not there before."""

    def __init__(self) -> None:
        self.nodes: list[holdfast.Node] = []
        self.hidden: list[str] = []
        self.committed: list[str] = []
        self.components: dict[str, holdfast.Component] = {}
        self.frames: list[holdfast.AgentFrame] = []
        self.queued: set[str | None] | None = None
        self.changed = False


def restore(
    store: holdfast.BlockingStore,
    bundle: Bundle,
    *,
    into: str | None = None,
    step: Callable[[int], None] = lambda _: None,
) -> Restored:
    """Put a session from a bundle into a store, or find it there."""
    manifest = bundle.manifest
    session_id = manifest.session_id if into is None else into
    there = imported_as(store, session_id)
    again = there is not None and there == manifest.turn_id
    if there is not None and not again:
        raise holdfast.ImportRefused(
            f"session {session_id!r} is there already, and did not come from this file: import it under another id"
        )
    session = store.sessions.handle(session_id)
    if there is None:
        _refuse_another(session, bundle)
    parts = Parts()
    for line in bundle.lines():
        if isinstance(line, NodeLine) and line.hidden:
            parts.hidden.append(line.node.id)
        # What the turn holds is there if the turn is; what stands beside it may be missing.
        if not again or isinstance(line, AttachmentLine | WorkLine):
            _take(store, session, line, parts, manifest.turn_id)
        step(1)
    _flush(session, parts)
    _commit_refs(session, parts)
    _hide(session, parts.hidden)
    return Restored(session_id, "imported" if parts.changed else "already_there")


def imported_as(store: holdfast.BlockingStore, session_id: str) -> str | None:
    """The turn with which a session began here, None if it has none yet; empty if that is not remembered."""
    try:
        first = store.sessions.handle(session_id).history(limit=1).items
    except holdfast.SessionDeleted:
        raise holdfast.ImportRefused(f"session {session_id!r} was deleted here: import it under another id") from None
    return (first[0].turn_id or "") if first else None


def _take(
    store: holdfast.BlockingStore,
    session: holdfast.BlockingSession,
    line: Line,
    parts: Parts,
    turn_id: str,
) -> None:
    match line:
        case MetaLine(meta):
            ours = msgspec.structs.replace(meta, session_id=session.session_id)
            if session.meta() != ours:
                session.save_meta(ours)
                parts.changed = True
        case AttachmentLine():
            _put(session, line, parts)
        case NodeLine(node):
            parts.nodes.append(node)
            if len(parts.nodes) == CHUNK_NODES:
                _flush(session, parts)
        case ComponentLine(name, _, document, data):
            parts.components[name] = document if data is None else data
        case FrameLine(frame):
            parts.frames.append(msgspec.structs.replace(frame, execution_state_ref=None))
        case HeadLine():
            _flush(session, parts)
            _commit(session, line, parts, turn_id)
        case WorkLine(draft):
            _enqueue(store, msgspec.structs.replace(draft, session_id=session.session_id), parts)


def _enqueue(store: holdfast.BlockingStore, draft: holdfast.WorkDraft, parts: Parts) -> None:
    if parts.queued is None:
        parts.queued = {batch.source_key for batch in every(partial(store.queue.list, draft.session_id or ""))}
    if draft.source_key not in parts.queued:
        # What was settled here meanwhile is remembered by its key, and is not enqueued again.
        parts.changed |= store.queue.enqueue(draft).state == "pending"


def _refuse_another(session: holdfast.BlockingSession, bundle: Bundle) -> None:
    """A session that was begun here by somebody else, though never committed, is not overwritten or mixed with."""
    refusal = holdfast.ImportRefused(
        f"session {session.session_id!r} was begun here by somebody else: import it under another id"
    )
    meta, view = session.meta(), session.load(holdfast.FullGraph())
    if meta is None and view is None:
        return
    ids: set[str] = set()
    for line in bundle.lines():
        if isinstance(line, MetaLine):
            ours = msgspec.structs.replace(line.meta, session_id=session.session_id)
            if meta is not None and meta != ours:
                raise refusal
        elif isinstance(line, NodeLine):
            ids.add(line.node.id)
    if view is not None and not ids.issuperset(node.id for node in view.graph.nodes):
        raise refusal


def _put(session: holdfast.BlockingSession, line: AttachmentLine, parts: Parts) -> None:
    ref = line.ref
    if line.committed:
        parts.committed.append(ref.id)
    known = has_attachment(session, ref.id)
    if known and (line.data is None or has_bytes(session, ref.id)):
        return
    parts.changed = True
    if line.data is None:
        session.attachments.record_intent(
            ref.id,
            uri=line.uri,
            media_type=ref.media_type,
            byte_count=ref.byte_count,
            width=ref.width,
            height=ref.height,
            label=ref.label,
        )
    else:
        session.attachments.put(
            line.data, media_type=ref.media_type, width=ref.width, height=ref.height, label=ref.label
        )
        if known:
            # Bytes that lay there already stay, and may be the damage for which this one is put again.
            session.attachments.get(ref.id)


def has_attachment(session: holdfast.BlockingSession, attachment_id: str) -> bool:
    """Whether the session has a reference to it."""
    try:
        session.attachments.entry(attachment_id)
    except holdfast.UnknownRef:
        return False
    return True


def has_bytes(session: holdfast.BlockingSession, attachment_id: str) -> bool:
    """Whether it can be read: its reference comes first, and an import that ends there leaves that alone."""
    try:
        session.attachments.get(attachment_id)
    except (holdfast.UnknownRef, holdfast.Corrupt):
        return False
    return True


def _flush(session: holdfast.BlockingSession, parts: Parts) -> None:
    if parts.nodes:
        parts.changed |= session.add_nodes(parts.nodes).added > 0
        parts.nodes = []


def _commit_refs(session: holdfast.BlockingSession, parts: Parts) -> None:
    for start in range(0, len(parts.committed), CHUNK_REFS):
        changed = session.attachments.commit_refs(parts.committed[start : start + CHUNK_REFS])
        parts.changed |= changed > 0
    parts.committed = []


def _commit(session: holdfast.BlockingSession, head: HeadLine, parts: Parts, turn_id: str) -> None:
    """The turn that moves the head. Whoever commits first in between is not overwritten."""
    _commit_refs(session, parts)
    parts.changed = True
    session.commit(
        holdfast.Commit(
            turn_id=turn_id,
            fingerprint=turn_id,
            expected_revision=0,
            graph=holdfast.Unchanged(leaf=head.leaf),
            checkpoint=holdfast.Checkpoint.of(parts.components) if head.has_checkpoint else None,
            config=head.config,
            frames=parts.frames or None,
            current_frame_id=head.current_frame_id,
            usage=head.usage,
        )
    )


def _hide(session: holdfast.BlockingSession, ids: list[str]) -> None:
    """Hide what stands for tombstoned nodes, unless a later graph uses the id for a node of its own."""
    standing = [one for one in ids if _stands_for_another(session.load_node(one))]
    for start in range(0, len(standing), CHUNK_REFS):
        session.tombstone(standing[start : start + CHUNK_REFS])


def _stands_for_another(node: holdfast.Node | None) -> bool:
    return node is not None and node.kind == TOMBSTONE
