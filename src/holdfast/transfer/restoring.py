"""Judges an import as a whole on a scratch store, then writes it: a refused import leaves no trace in the target.

Writes before the import's turn are idempotent and move no head, so an interrupted import resumes when it is run again,
and the same bundle again is a replay. An import holds the session's lease from its first write to its turn, and reads
the facts by which it was judged once more under the lease. So two imports into one session never mix.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

import holdfast
from holdfast.next_step import NextStep
from holdfast.records.graph import TOMBSTONE
from holdfast.transfer.bundle import (
    MIB,
    AttachmentLine,
    BatchLine,
    Bundle,
    ComponentLine,
    FrameLine,
    HeadLine,
    Line,
    MetaLine,
    NodeLine,
)
from holdfast.transfer.exporting import draft_of

CHUNK_NODES = 500
CHUNK_REFS = 1000
CHUNK_BYTES = 64 * MIB
"""Upper bound on the memory of the nodes that are added in one call."""
IN_MEMORY_BYTES = 64 * MIB
"""A larger bundle is judged on a temporary SQLite file instead of in memory."""
ANOTHER_ID = NextStep("import it under another id with", "into")
LEASE_TTL_MS = 120_000
RENEW_EVERY_S = 20.0
TRIES = 3
"""Number of times that an import is judged, if the target keeps changing in between."""


class Restored(NamedTuple):
    """The outcome of an import."""

    session_id: str
    outcome: Literal["imported", "already_there"]


class Held:
    """The lease of a session that is being imported."""

    def __init__(self, store: holdfast.BlockingStore, session_id: str, turn_id: str) -> None:
        self._store = store
        self._session_id = session_id
        # The owner id is the turn's, so that a rerun after a kill need not wait until the old lease expires.
        self.lease = store.leases.claim(holdfast.leases.OnSession(session_id), owner_id=turn_id, ttl_ms=LEASE_TTL_MS)
        self._renew_at_s = time.monotonic() + RENEW_EVERY_S

    def keep(self) -> None:
        """Renew the lease if it is time to."""
        if time.monotonic() >= self._renew_at_s:
            self.lease = self._store.leases.renew(self.lease, ttl_ms=LEASE_TTL_MS)
            self._renew_at_s = time.monotonic() + RENEW_EVERY_S

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Release the lease. An error that ended the import takes precedence over one of the release."""
        with contextlib.nullcontext() if error is None else contextlib.suppress(holdfast.HoldfastError):
            self._store.leases.release(self.lease)
        if isinstance(error, holdfast.LeaseLost):
            raise holdfast.errors.ImportRefused(
                f"session {self._session_id!r} was taken over during the import: import it again to continue"
            ) from error


class Facts(NamedTuple):
    """The target's state of a session, by which an import is judged."""

    first_turn: str | None
    meta: holdfast.sessions.SessionMeta | None
    node_count: int
    node_ids: frozenset[str]
    work: tuple[str | None, ...]


class Target(NamedTuple):
    """The store that an import is written to: the target, or the scratch store on which it is judged."""

    store: holdfast.BlockingStore
    session: holdfast.blocking.Session
    turn_id: str
    is_replay: bool
    """True if the turn is stored already. Attachments and work may still be missing."""
    held: Held | None = None
    """The session's lease during the write. The scratch store has no other writers and needs none."""


class Parts:
    """Content that was read and is not stored yet, and whether anything new was stored."""

    def __init__(self) -> None:
        self.meta: holdfast.sessions.SessionMeta | None = None
        self.node_count = 0
        self.nodes: list[holdfast.Node] = []
        self.nodes_bytes = 0
        self.hidden: list[str] = []
        self.committed: list[str] = []
        self.components: dict[str, holdfast.sessions.Component] = {}
        self.frames: list[holdfast.sessions.AgentFrame] = []
        self.changed = False


def restore(
    store: holdfast.BlockingStore,
    bundle: Bundle,
    *,
    into: str | None = None,
    step: Callable[[int], None] = lambda _: None,
) -> Restored:
    """Import a session from a bundle, or find it there already. `ImportRefused` leaves the store unchanged."""
    session_id = bundle.manifest.session_id if into is None else into
    _check_id(store, session_id, chosen=into is not None)
    for _ in range(TRIES):
        parts = _try(store, session_id, bundle, step)
        if parts is not None:
            return Restored(session_id, "imported" if parts.changed else "already_there")
    raise holdfast.errors.ImportRefused(
        f"session {session_id!r} changes all the time: stop its writers, then import it again"
    )


def _try(store: holdfast.BlockingStore, session_id: str, bundle: Bundle, step: Callable[[int], None]) -> Parts | None:
    """Judge and write an import. Return None, with nothing written, if the target changed in between."""
    turn_id = bundle.manifest.turn_id
    facts = _facts(store, session_id, bundle)
    if facts.first_turn is not None and facts.first_turn != turn_id:
        raise holdfast.errors.ImportRefused(
            f"session {session_id!r} is there already, and did not come from this file", ANOTHER_ID
        )
    target = Target(store, store.sessions.handle(session_id), turn_id, is_replay=facts.first_turn is not None)
    _rehearse(target, bundle)
    if target.is_replay:
        return _write(target, bundle, step)
    if _facts(store, session_id, bundle) != facts:
        return None
    try:
        held = Held(store, session_id, turn_id)
    except holdfast.LeaseHeld as error:
        raise holdfast.errors.ImportRefused(
            f"session {session_id!r} is being imported or used elsewhere",
            NextStep("wait until that has ended, then import it again"),
            ANOTHER_ID,
        ) from error
    with held:
        if _facts(store, session_id, bundle) != facts:
            return None
        return _write(target._replace(held=held), bundle, step)


def _facts(store: holdfast.BlockingStore, session_id: str, bundle: Bundle) -> Facts:
    session = store.sessions.handle(session_id)
    first_turn = imported_as(store, session_id)
    if first_turn is not None:
        return Facts(first_turn, None, 0, frozenset(), ())
    view = session.load(holdfast.sessions.FullGraph())
    keys = (line.draft.source_key or "" for line in bundle.lines() if isinstance(line, BatchLine))
    work = (store.queue.find(session_id, key) for key in keys) if bundle.manifest.counts["batch"] else ()
    return Facts(
        first_turn,
        session.meta(),
        0 if view is None else view.node_count,
        frozenset() if view is None else frozenset(node.id for node in view.graph.nodes),
        tuple(None if one is None else one.batch_id for one in work),
    )


def _check_id(store: holdfast.BlockingStore, session_id: str, *, chosen: bool) -> None:
    """Check the id against the store. Raise `InvalidRequest` for a chosen id, `ImportRefused` for one from the file."""
    try:
        imported_as(store, session_id)
    except holdfast.InvalidRequest as error:
        if chosen:
            raise
        problem = f"the file names a session that the store refuses: {error.text}"
        raise holdfast.errors.ImportRefused(problem, *error.next_step) from error


def _rehearse(target: Target, bundle: Bundle) -> None:
    """Judge the whole import by running it on a scratch store that has the target's state of the session."""
    if not target.is_replay:
        _refuse_another(target.session, bundle)
    with _scratch(bundle, target.store.limits) as store:
        scratch = target._replace(store=store, session=store.sessions.handle(target.session.session_id or ""))
        try:
            _copy_relevant_state(target, scratch, bundle)
            _write(scratch, bundle, lambda _: None)
        except holdfast.errors.ImportRefused:
            raise
        except (holdfast.InvalidRequest, holdfast.Conflict, holdfast.NotFound) as error:
            problem = f"the store refuses content of the file: {error.text}"
            raise holdfast.errors.ImportRefused(problem, *error.next_step) from error


@contextlib.contextmanager
def _scratch(bundle: Bundle, limits: holdfast.Limits) -> Generator[holdfast.BlockingStore]:
    """Open an empty store with the same limits. Every backend decides alike."""
    if bundle.size_bytes <= IN_MEMORY_BYTES:
        with holdfast.open_blocking("memory:", limits=limits) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-import-") as folder:
        quick = holdfast.SqliteOptions(synchronous="off")
        with holdfast.open_blocking(Path(folder) / "scratch.db", options=quick, limits=limits) as store:
            yield store


def _copy_relevant_state(target: Target, scratch: Target, bundle: Bundle) -> None:
    """Copy to the scratch store what an interrupted import left in the target."""
    if not target.is_replay:
        view = target.session.load(holdfast.sessions.FullGraph())
        nodes = () if view is None else view.graph.nodes
        size = min(CHUNK_NODES, scratch.store.limits.commit_nodes)
        for start in range(0, len(nodes), size):
            scratch.session.add_nodes(nodes[start : start + size])
    for line in bundle.lines() if bundle.manifest.counts["batch"] else ():
        if isinstance(line, BatchLine):
            known = target.store.queue.find(target.session.session_id or "", line.draft.source_key or "")
            if known is not None:
                scratch.store.queue.restore(
                    msgspec.structs.replace(draft_of(known), session_id=target.session.session_id)
                )


def _write(target: Target, bundle: Bundle, step: Callable[[int], None]) -> Parts:
    parts = Parts()
    for line, size in bundle.sized_lines():
        if target.held is not None:
            target.held.keep()
        if isinstance(line, NodeLine) and line.hidden:
            parts.hidden.append(line.node.id)
        # If the turn is stored, so is its content. Attachments and work may still be missing.
        if not target.is_replay or isinstance(line, AttachmentLine | BatchLine):
            _take(target, line, size, parts)
        step(1)
    _flush(target, parts)
    _commit_refs(target, parts)
    _hide(target.session, parts.hidden)
    return parts


def imported_as(store: holdfast.BlockingStore, session_id: str) -> str | None:
    """Return the id of the session's first turn, None if it has no turn, or "" if that id is no longer stored."""
    try:
        first = store.sessions.handle(session_id).history(limit=1).items
    except holdfast.SessionDeleted:
        raise holdfast.errors.ImportRefused(f"session {session_id!r} was deleted here", ANOTHER_ID) from None
    return (first[0].turn_id or "") if first else None


def _take(target: Target, line: Line, size: int, parts: Parts) -> None:
    session = target.session
    match line:
        case MetaLine(meta):
            parts.meta = msgspec.structs.replace(meta, session_id=session.session_id)
            if session.meta() != parts.meta:
                session.save_meta(parts.meta)
                parts.changed = True
        case AttachmentLine():
            _put(session, line, parts)
        case NodeLine(node, _, data):
            parts.nodes.append(msgspec.structs.replace(node, payload=data) if isinstance(data, bytes) else node)
            parts.node_count += 1
            parts.nodes_bytes += size
            if (
                len(parts.nodes) >= min(CHUNK_NODES, target.store.limits.commit_nodes)
                or parts.nodes_bytes > CHUNK_BYTES
            ):
                _flush(target, parts)
        case ComponentLine(name, _, document, data):
            if name in parts.components:
                raise holdfast.errors.ImportRefused(
                    f"the file is damaged: component {name!r} comes twice; export it again"
                )
            parts.components[name] = document if data is None else data
        case FrameLine(frame):
            parts.frames.append(msgspec.structs.replace(frame, execution_state_ref=None))
        case HeadLine():
            _flush(target, parts)
            _commit(target, line, parts)
        case BatchLine(draft):
            # Work that was settled here meanwhile is known by its source key, and is not enqueued again.
            is_new = target.store.queue.find(session.session_id or "", draft.source_key or "") is None
            target.store.queue.restore(msgspec.structs.replace(draft, session_id=session.session_id))
            parts.changed |= is_new


def _refuse_another(session: holdfast.blocking.Session, bundle: Bundle) -> None:
    """Refuse to overwrite or mix a session that was begun here but never committed, and not by this bundle."""
    refusal = holdfast.errors.ImportRefused(
        f"session {session.session_id!r} was begun here, and not by this file", ANOTHER_ID
    )
    meta, view = session.meta(), session.load(holdfast.sessions.FullGraph())
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
    # Tombstoned nodes count but are not listed. An interrupted import has made none.
    if view is not None and (
        view.node_count != len(view.graph.nodes) or not ids.issuperset(node.id for node in view.graph.nodes)
    ):
        raise refusal


def _put(session: holdfast.blocking.Session, line: AttachmentLine, parts: Parts) -> None:
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
            raise holdfast.errors.ImportRefused(
                f"attachment {ref.id!r} is not the name of its content: the file was changed; export it again"
            )
        if known:
            # A put keeps bytes that are present, which may be damaged: read them to check.
            session.attachments.get(ref.id)


def has_attachment(session: holdfast.blocking.Session, attachment_id: str) -> bool:
    """Return whether the session has a reference to the attachment."""
    try:
        session.attachments.entry(attachment_id)
    except holdfast.errors.UnknownRef:
        return False
    return True


def has_bytes(session: holdfast.blocking.Session, attachment_id: str) -> bool:
    """Return whether the bytes can be read. An interrupted import may leave a reference alone, which comes first."""
    try:
        session.attachments.get(attachment_id)
    except (holdfast.errors.UnknownRef, holdfast.Corrupt):
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
    """Commit the turn that moves the head. Fails if another turn was committed in between."""
    _commit_refs(target, parts)
    if parts.components and not head.has_checkpoint:
        raise holdfast.errors.ImportRefused("the file is damaged: its head denies its checkpoint; export it again")
    parts.changed = True
    _require_nothing_else(target, parts)
    target.session.commit(
        holdfast.Commit(
            turn_id=target.turn_id,
            fingerprint=target.turn_id,
            expected_revision=0,
            graph=holdfast.sessions.Unchanged(leaf=head.leaf),
            checkpoint=holdfast.Checkpoint.of(parts.components) if head.has_checkpoint else None,
            config=head.config,
            frames=parts.frames or None,
            current_frame_id=head.current_frame_id,
            usage=head.usage,
            lease=None if target.held is None else target.held.lease,
        )
    )


def _require_nothing_else(target: Target, parts: Parts) -> None:
    """Refuse to commit on top of changes by a writer that ignores the lease."""
    view = target.session.load(holdfast.sessions.ActivePath(last=0))
    count = 0 if view is None else view.node_count
    if count != parts.node_count or target.session.meta() != parts.meta:
        raise holdfast.errors.ImportRefused(
            f"session {target.session.session_id!r} was changed during the import", ANOTHER_ID
        )


def _hide(session: holdfast.blocking.Session, ids: list[str]) -> None:
    """Tombstone the placeholders, unless a later graph uses the id for a node of its own."""
    standing = [one for one in ids if _is_placeholder(session.load_node(one))]
    for start in range(0, len(standing), CHUNK_REFS):
        session.tombstone(standing[start : start + CHUNK_REFS])


def _is_placeholder(node: holdfast.Node | None) -> bool:
    return node is not None and node.kind == TOMBSTONE
