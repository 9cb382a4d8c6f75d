"""An import is judged as a whole on a scratch store, then written: a refused one leaves no trace in the target.

What it writes before its turn is idempotent and moves no head, so an interrupted import goes on when it is run again,
and the same bundle again is a replay.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import holdfast
from holdfast.moving.bundle import (
    MIB,
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
from holdfast.moving.exporting import draft_of

CHUNK_NODES = 500
CHUNK_REFS = 1000
CHUNK_BYTES = 16 * MIB
IN_MEMORY_BYTES = 64 * MIB
"""A bundle of more bytes is judged on a temporary SQLite file instead of in memory."""


class Restored(NamedTuple):
    """The outcome of an import."""

    session_id: str
    outcome: Literal["imported", "already_there"]


class Target(NamedTuple):
    """Where an import is written: the target store, or the scratch store on which it is judged."""

    store: holdfast.BlockingStore
    session: holdfast.BlockingSession
    turn_id: str
    is_replay: bool
    """Whether the turn is there already: attachments and work may still be missing."""


class Parts:
    """What was read and is not stored yet, and whether anything was stored that was not there before."""

    def __init__(self) -> None:
        self.nodes: list[holdfast.Node] = []
        self.nodes_bytes = 0
        self.hidden: list[str] = []
        self.committed: list[str] = []
        self.components: dict[str, holdfast.Component] = {}
        self.refs: dict[str, str] = {}
        self.frames: list[holdfast.AgentFrame] = []
        self.changed = False


def restore(
    store: holdfast.BlockingStore,
    bundle: Bundle,
    *,
    into: str | None = None,
    step: Callable[[int], None] = lambda _: None,
) -> Restored:
    """Put a session from a bundle into a store, or find it there. `ImportRefused` leaves the store unchanged."""
    turn_id = bundle.manifest.turn_id
    session_id = bundle.manifest.session_id if into is None else into
    there = _first_turn(store, session_id, chosen=into is not None)
    if there is not None and there != turn_id:
        raise holdfast.ImportRefused(
            f"session {session_id!r} is there already, and did not come from this file: import it under another id"
        )
    target = Target(store, store.sessions.handle(session_id), turn_id, is_replay=there is not None)
    _rehearse(target, bundle)
    parts = _write(target, bundle, step)
    return Restored(session_id, "imported" if parts.changed else "already_there")


def _first_turn(store: holdfast.BlockingStore, session_id: str, *, chosen: bool) -> str | None:
    try:
        return imported_as(store, session_id)
    except holdfast.InvalidRequest as error:
        if chosen:
            raise
        raise holdfast.ImportRefused(f"the file names a session that the store refuses: {error}") from error


def _rehearse(target: Target, bundle: Bundle) -> None:
    """Judge the whole import by making it on a scratch store that has what the target has of the session."""
    if not target.is_replay:
        _refuse_another(target.session, bundle)
    with _scratch(bundle, target.store.limits) as store:
        scratch = target._replace(store=store, session=store.sessions.handle(target.session.session_id or ""))
        try:
            _set_the_scene(target, scratch, bundle)
            _write(scratch, bundle, lambda _: None)
        except holdfast.ImportRefused:
            raise
        except (holdfast.InvalidRequest, holdfast.Conflict, holdfast.NotFound) as error:
            raise holdfast.ImportRefused(f"the file holds what the store refuses: {error}") from error


@contextlib.contextmanager
def _scratch(bundle: Bundle, limits: holdfast.Limits) -> Generator[holdfast.BlockingStore]:
    """Open an empty store with the same limits: every store judges alike."""
    if bundle.size_bytes <= IN_MEMORY_BYTES:
        with holdfast.open_blocking("memory:", limits=limits) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-import-") as folder:
        quick = holdfast.SqliteOptions(synchronous="off")
        with holdfast.open_blocking(Path(folder) / "scratch.db", options=quick, limits=limits) as store:
            yield store


def _set_the_scene(target: Target, scratch: Target, bundle: Bundle) -> None:
    """Give the scratch store what the target has of the session, if an import was interrupted there."""
    if not target.is_replay:
        view = target.session.load(holdfast.FullGraph())
        nodes = () if view is None else view.graph.nodes
        size = min(CHUNK_NODES, scratch.store.limits.commit_nodes)
        for start in range(0, len(nodes), size):
            scratch.session.add_nodes(nodes[start : start + size])
    for line in bundle.lines() if bundle.manifest.counts["work"] else ():
        if isinstance(line, WorkLine):
            known = target.store.queue.find(target.session.session_id or "", line.draft.source_key or "")
            if known is not None:
                scratch.store.queue.enqueue(
                    msgspec.structs.replace(draft_of(known), session_id=target.session.session_id)
                )


def _write(target: Target, bundle: Bundle, step: Callable[[int], None]) -> Parts:
    parts = Parts()
    for line, size in bundle.sized_lines():
        if isinstance(line, NodeLine) and line.hidden:
            parts.hidden.append(line.node.id)
        # What the turn holds is there if the turn is; what stands beside it may be missing.
        if not target.is_replay or isinstance(line, AttachmentLine | WorkLine):
            _take(target, line, size, parts)
        step(1)
    _flush(target, parts)
    _commit_refs(target, parts)
    _hide(target.session, parts.hidden)
    return parts


def imported_as(store: holdfast.BlockingStore, session_id: str) -> str | None:
    """The turn with which a session began here, None if it has none yet; empty if that is not remembered."""
    try:
        first = store.sessions.handle(session_id).history(limit=1).items
    except holdfast.SessionDeleted:
        raise holdfast.ImportRefused(f"session {session_id!r} was deleted here: import it under another id") from None
    return (first[0].turn_id or "") if first else None


def _take(target: Target, line: Line, size: int, parts: Parts) -> None:
    session = target.session
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
            parts.nodes_bytes += size
            if (
                len(parts.nodes) >= min(CHUNK_NODES, target.store.limits.commit_nodes)
                or parts.nodes_bytes > CHUNK_BYTES
            ):
                _flush(target, parts)
        case ComponentLine(name, ref, document, data):
            if name in parts.components:
                raise holdfast.ImportRefused(f"the file is damaged: component {name!r} comes twice; export it again")
            parts.components[name] = document if data is None else data
            parts.refs[name] = ref
        case FrameLine(frame):
            parts.frames.append(msgspec.structs.replace(frame, execution_state_ref=None))
        case HeadLine():
            _flush(target, parts)
            _commit(target, line, parts)
        case WorkLine(draft):
            # What was settled here meanwhile is remembered by its key, and is not enqueued again.
            is_new = target.store.queue.find(session.session_id or "", draft.source_key or "") is None
            target.store.queue.enqueue(msgspec.structs.replace(draft, session_id=session.session_id))
            parts.changed |= is_new


def _refuse_another(session: holdfast.BlockingSession, bundle: Bundle) -> None:
    """Refuse a session that was begun here otherwise, though never committed: it is neither overwritten nor mixed."""
    refusal = holdfast.ImportRefused(
        f"session {session.session_id!r} was begun here, and not by this file: import it under another id"
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
    # A tombstone is not listed, and an interrupted import has made none.
    if view is not None and (
        view.node_count != len(view.graph.nodes) or not ids.issuperset(node.id for node in view.graph.nodes)
    ):
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
        stored = session.attachments.put(
            line.data, media_type=ref.media_type, width=ref.width, height=ref.height, label=ref.label
        )
        if stored != ref:
            raise holdfast.ImportRefused(
                f"attachment {ref.id!r} is not the name of its content: the file was changed; export it again"
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


def _flush(target: Target, parts: Parts) -> None:
    if parts.nodes:
        parts.changed |= target.session.add_nodes(parts.nodes).added > 0
        parts.nodes, parts.nodes_bytes = [], 0


def _commit_refs(target: Target, parts: Parts) -> None:
    size = min(CHUNK_REFS, target.store.limits.commit_items)
    for start in range(0, len(parts.committed), size):
        changed = target.session.attachments.commit_refs(parts.committed[start : start + size])
        parts.changed |= changed > 0
    parts.committed = []


def _commit(target: Target, head: HeadLine, parts: Parts) -> None:
    """Commit the turn that moves the head. A turn that was committed in between is not overwritten."""
    _commit_refs(target, parts)
    if parts.components and not head.has_checkpoint:
        raise holdfast.ImportRefused("the file is damaged: its head denies its checkpoint; export it again")
    parts.changed = True
    receipt = target.session.commit(
        holdfast.Commit(
            turn_id=target.turn_id,
            fingerprint=target.turn_id,
            expected_revision=0,
            graph=holdfast.Unchanged(leaf=head.leaf),
            checkpoint=holdfast.Checkpoint.of(parts.components) if head.has_checkpoint else None,
            config=head.config,
            frames=parts.frames or None,
            current_frame_id=head.current_frame_id,
            usage=head.usage,
        )
    )
    for name, ref in parts.refs.items():
        if receipt.manifest.refs[name] != ref:
            raise holdfast.ImportRefused(
                f"{ref!r} is not the name of component {name!r}: the file was changed; export it again"
            )


def _hide(session: holdfast.BlockingSession, ids: list[str]) -> None:
    """Hide what stands for tombstoned nodes, unless a later graph uses the id for a node of its own."""
    standing = [one for one in ids if _stands_for_another(session.load_node(one))]
    for start in range(0, len(standing), CHUNK_REFS):
        session.tombstone(standing[start : start + CHUNK_REFS])


def _stands_for_another(node: holdfast.Node | None) -> bool:
    return node is not None and node.kind == TOMBSTONE
