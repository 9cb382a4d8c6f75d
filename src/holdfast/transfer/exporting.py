"""Writes a session as a bundle, by the public store alone: first the lines into a spool, then manifest and lines."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

import msgspec

import holdfast
from holdfast.paging import every
from holdfast.records.graph import TOMBSTONE
from holdfast.transfer.bundle import (
    FORMAT,
    SPOOLED_BYTES,
    VERSION,
    AttachmentLine,
    BatchLine,
    ComponentLine,
    FirstLine,
    FrameLine,
    HeadLine,
    Line,
    Manifest,
    MetaLine,
    NodeLine,
    Source,
    Tally,
)


def export(
    store: holdfast.BlockingStore, session_id: str, out: IO[bytes], step: Callable[[int], None] = lambda _: None
) -> Manifest:
    """Write a session as a bundle. Calls `step` for each line."""
    session = store.sessions.handle(session_id)
    view = session.load(holdfast.sessions.FullGraph())
    state = Source(0, 0) if view is None else Source(view.revision, view.node_count)
    tally = Tally()
    with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as body:
        for line in lines_of(store, session, view):
            data = msgspec.json.encode(line) + b"\n"
            tally.add(line, data)
            body.write(data)
            step(1)
        if view is None and not any(tally.counts.values()):
            raise holdfast.UnknownSession(session_id)
        whole, turn = tally.hashes()
        manifest = Manifest(session_id, state, tally.counts, whole, turn, tally.without_bytes)
        out.write(_first_line(manifest))
        body.seek(0)
        while chunk := body.read(1 << 20):
            out.write(chunk)
    return manifest


def _first_line(manifest: Manifest) -> bytes:
    data = msgspec.json.encode(manifest)
    first = FirstLine(FORMAT, VERSION, hashlib.sha256(data).hexdigest(), msgspec.Raw(data))
    return msgspec.json.encode(first) + b"\n"


def about(store: holdfast.BlockingStore, session_id: str) -> int:
    """Return about how many lines a bundle of the session will have."""
    session = store.sessions.handle(session_id)
    view = session.load(holdfast.sessions.ActivePath(last=1))
    return (0 if view is None else view.node_count) + sum(1 for _ in _references(store, session))


def lines_of(
    store: holdfast.BlockingStore, session: holdfast.blocking.Session, view: holdfast.sessions.SessionView | None
) -> Iterator[Line]:
    """Yield every line of a session's bundle."""
    meta = session.meta()
    if meta is not None:
        yield MetaLine(meta)
    yield from _attachments(store, session)
    if view is not None:
        yield from _graph(view)
        yield from _state(view)
    for batch in every(store.queue.list, session.session_id or "", limit=store.limits.page):
        yield BatchLine(draft_of(batch))


def _references(
    store: holdfast.BlockingStore, session: holdfast.blocking.Session
) -> Iterable[holdfast.attachments.AttachmentRef]:
    return every(session.attachments.list, limit=store.limits.page)


def _attachments(store: holdfast.BlockingStore, session: holdfast.blocking.Session) -> Iterator[AttachmentLine]:
    for ref in _references(store, session):
        entry = session.attachments.entry(ref.id)
        data: bytes | None = None
        try:
            data = session.attachments.get(ref.id).data
        except holdfast.errors.UnknownRef:
            # The bytes are stored elsewhere, or were announced and never put. Move the reference alone.
            data = None
        yield AttachmentLine(ref, entry.uri, entry.committed_at_ms is not None, data)


def _graph(view: holdfast.sessions.SessionView) -> Iterator[NodeLine]:
    for hidden in tombstones_of(view.graph.nodes, view.graph.leaf):
        yield NodeLine(placeholder(hidden), hidden=True)
    for node in view.graph.nodes:
        if isinstance(node.payload, bytes):
            yield NodeLine(msgspec.structs.replace(node, payload=None), data=node.payload)
        else:
            yield NodeLine(node)


def tombstones_of(nodes: Sequence[holdfast.Node], leaf: str | None) -> list[str]:
    """Return the ids of hidden nodes that a node or the leaf still refers to."""
    live = {node.id for node in nodes}
    pointed_at = [node.parent for node in nodes if node.parent is not None]
    if leaf is not None:
        pointed_at.append(leaf)
    return list(dict.fromkeys(one for one in pointed_at if one not in live))


def placeholder(node_id: str) -> holdfast.Node:
    """Return a placeholder for a tombstoned node."""
    return holdfast.Node(node_id, parent=None, kind=TOMBSTONE, created_at_ms=0)


def _state(view: holdfast.sessions.SessionView) -> Iterator[Line]:
    components = {} if view.checkpoint is None else view.checkpoint.components()
    for name, value in components.items():
        ref = view.manifest.refs[name]
        if isinstance(value, bytes):
            yield ComponentLine(name, ref, data=value)
        else:
            yield ComponentLine(name, ref, document=value)
    for frame in view.frames:
        yield FrameLine(frame)
    if view.revision > 0:
        yield HeadLine(
            view.graph.leaf, view.config, view.current_frame_id, view.ledger, has_checkpoint=view.checkpoint is not None
        )


def draft_of(batch: holdfast.WorkBatch) -> holdfast.WorkDraft:
    """Return the work as it was enqueued, with a source key: importing it twice enqueues it once."""
    return holdfast.WorkDraft(
        payloads=[item.payload for item in batch.items],
        source_key=batch.source_key or f"import:{batch.batch_id}",
        delivery=batch.delivery,
        slot=batch.slot,
        merge_key=batch.merge_key,
        available_at_ms=max(batch.available_at_ms, batch.retry_at_ms),
        kind=batch.kind,
        priority=batch.priority,
        key=batch.key,
    )
