"""A bundle is one session as JSON lines: a manifest that vouches for the rest, then everything that is moved.

The manifest is the first line: the format and its version, how many lines of each kind follow, and the SHA-256 of all
of them. The lines come in the order in which a reader needs them: the session's metadata, its attachments, its nodes
with parents before children, the parts of its checkpoint, its frames, its head, and its unsettled work. A gzip file is
recognised by its first bytes. A reader checks all of it before it uses any of it.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, Any, TypeAlias

import msgspec

import holdfast
from holdfast.paging import every
from holdfast.wide import WIDE

FORMAT = "holdfast-session"
VERSION = 1
SPOOLED_BYTES = 16 * 1024 * 1024
"""What is larger waits in a temporary file instead of in memory."""
LINE_BYTES = 2 * 1024**3
PAGE = 1000
TOMBSTONE = "holdfast.tombstone"
"""The kind of a node that stands for a tombstoned one."""
BESIDE_THE_TURN = ("attachment", "work")


class Source(msgspec.Struct, frozen=True):
    """Where the session stood that was exported."""

    revision: int
    node_count: int


def name_of_state(source: Source) -> str:
    """How the id of an import's turn begins."""
    return f"import:{source.revision}:{source.node_count}:"


class Manifest(msgspec.Struct, frozen=True):
    """The first line."""

    format: str
    version: int
    session_id: str
    source: Source
    counts: dict[str, int]
    sha256: str
    turn_sha256: str
    """The hash of what the newest revision shows: the lines but for attachments and work, which change without one."""
    without_bytes: int = 0
    """How many attachments are only referred to: their bytes are kept elsewhere, or could not be found."""

    @property
    def turn_id(self) -> str:
        """The id of the turn that an import commits: the same state again is the same turn."""
        return f"{name_of_state(self.source)}{self.turn_sha256}"


class MetaLine(msgspec.Struct, frozen=True, tag="meta", tag_field="line"):
    """The session's metadata."""

    meta: holdfast.SessionMeta


class AttachmentLine(msgspec.Struct, frozen=True, tag="attachment", tag_field="line"):
    """An attachment; without `data`, its bytes are kept elsewhere, at `uri`."""

    ref: holdfast.AttachmentRef
    uri: str
    committed: bool
    data: bytes | None


class NodeLine(msgspec.Struct, frozen=True, tag="node", tag_field="line"):
    """A node. A hidden one stands for a tombstoned node, so that its children have a parent; its content is gone."""

    node: holdfast.Node
    hidden: bool = False


class ComponentLine(msgspec.Struct, frozen=True, tag="component", tag_field="line"):
    """A part of the checkpoint: a document, or bytes. A reader checks that its content has this ref."""

    name: str
    ref: str
    document: Any = None
    data: bytes | None = None


class FrameLine(msgspec.Struct, frozen=True, tag="frame", tag_field="line"):
    """A frame, with its execution state."""

    frame: holdfast.AgentFrame


class HeadLine(msgspec.Struct, frozen=True, tag="head", tag_field="line"):
    """What else the newest revision has. A session that was never committed has none."""

    leaf: str | None
    config: Any
    current_frame_id: str | None
    usage: tuple[holdfast.Usage, ...]
    has_checkpoint: bool


class WorkLine(msgspec.Struct, frozen=True, tag="work", tag_field="line"):
    """A batch that was pending or claimed."""

    draft: holdfast.WorkDraft


Line: TypeAlias = MetaLine | AttachmentLine | NodeLine | ComponentLine | FrameLine | HeadLine | WorkLine
KINDS: tuple[str, ...] = ("meta", "attachment", "node", "component", "frame", "head", "work")


class Tally:
    """What the manifest says of the lines."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.without_bytes = 0
        self._whole = hashlib.sha256()
        self._turn = hashlib.sha256()

    def add(self, line: Line, data: bytes) -> None:
        """Count one line."""
        kind = str(type(line).__struct_config__.tag)
        self.counts[kind] += 1
        self.without_bytes += isinstance(line, AttachmentLine) and line.data is None
        self._whole.update(data)
        if kind not in BESIDE_THE_TURN:
            self._turn.update(data)

    def hashes(self) -> tuple[str, str]:
        """The hash of everything, and of what the newest revision shows."""
        return self._whole.hexdigest(), self._turn.hexdigest()


# Writing.


def export(
    store: holdfast.BlockingStore, session_id: str, out: IO[bytes], step: Callable[[int], None] = lambda _: None
) -> Manifest:
    """Write a session as a bundle. Each line is a step."""
    session = store.sessions.handle(session_id)
    view = session.load(holdfast.FullGraph())
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
        manifest = Manifest(FORMAT, VERSION, session_id, state, tally.counts, whole, turn, tally.without_bytes)
        out.write(msgspec.json.encode(manifest) + b"\n")
        body.seek(0)
        while chunk := body.read(1 << 20):
            out.write(chunk)
    return manifest


def about(store: holdfast.BlockingStore, session_id: str) -> int:
    """How many lines a bundle of the session will have, but for a few."""
    session = store.sessions.handle(session_id)
    view = session.load(holdfast.ActivePath(last=1))
    return (0 if view is None else view.node_count) + sum(1 for _ in _references(session))


def lines_of(
    store: holdfast.BlockingStore, session: holdfast.BlockingSession, view: holdfast.SessionView | None
) -> Iterator[Line]:
    """Everything of a session that is moved."""
    meta = session.meta()
    if meta is not None:
        yield MetaLine(meta)
    yield from _attachments(session)
    if view is not None:
        yield from _graph(view)
        yield from _state(view)
    for batch in every(partial(store.queue.list, session.session_id or ""), size=PAGE):
        yield WorkLine(_draft(batch))


def _references(session: holdfast.BlockingSession) -> Iterator[holdfast.AttachmentRef]:
    return every(session.attachments.list, size=PAGE)


def _attachments(session: holdfast.BlockingSession) -> Iterator[AttachmentLine]:
    for ref in _references(session):
        entry = session.attachments.entry(ref.id)
        data: bytes | None = None
        try:
            data = session.attachments.get(ref.id).data
        except holdfast.UnknownRef:
            # Kept elsewhere, or announced and never put: the reference is moved as it is.
            data = None
        yield AttachmentLine(ref, entry.uri, entry.committed_at_ms is not None, data)


def _graph(view: holdfast.SessionView) -> Iterator[NodeLine]:
    for hidden in tombstones_of(view.graph.nodes, view.graph.leaf):
        yield NodeLine(placeholder(hidden), hidden=True)
    for node in view.graph.nodes:
        yield NodeLine(node)


def tombstones_of(nodes: Sequence[holdfast.Node], leaf: str | None) -> list[str]:
    """The hidden nodes that something still points at."""
    live = {node.id for node in nodes}
    pointed_at = [node.parent for node in nodes if node.parent is not None]
    if leaf is not None:
        pointed_at.append(leaf)
    return list(dict.fromkeys(one for one in pointed_at if one not in live))


def placeholder(node_id: str) -> holdfast.Node:
    """What stands for a tombstoned node."""
    return holdfast.Node(node_id, kind=TOMBSTONE, created_at_ms=0)


def _state(view: holdfast.SessionView) -> Iterator[Line]:
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


def _draft(batch: holdfast.WorkBatch) -> holdfast.WorkDraft:
    """The work anew. Without a source key it gets one, so that importing it twice enqueues it once."""
    return holdfast.WorkDraft(
        payloads=[item.payload for item in batch.items],
        source_key=batch.source_key or f"import:{batch.batch_id}",
        delivery=batch.delivery,
        slot=batch.slot,
        merge_key=batch.merge_key,
        available_at_ms=batch.available_at_ms,
    )


# Reading.


class Bundle:
    """A bundle whose every line was read and proven once; `lines` reads them again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = _unpacked(file)
        self._file.seek(0)
        self.manifest = _manifest(_readline(self._file))
        self._check()

    def _check(self) -> None:
        tally = Tally()
        for data in iter(lambda: _readline(self._file), b""):
            line = self._decode(data)
            _check_name(line)
            tally.add(line, data)
        said = (self.manifest.sha256, self.manifest.turn_sha256)
        if tally.hashes() != said or tally.counts != self.manifest.counts:
            raise holdfast.ImportRefused(
                "the file is damaged or cut short: its lines do not match its manifest; export it again"
            )

    def _decode(self, data: bytes) -> Line:
        try:
            line: Line = msgspec.json.decode(data, type=Line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise holdfast.ImportRefused(f"the file is damaged: {error}; export it again") from None
        return line

    def lines(self) -> Iterator[Line]:
        """Every line after the manifest."""
        self._file.seek(0)
        _readline(self._file)
        for data in iter(lambda: _readline(self._file), b""):
            yield self._decode(data)


def _check_name(line: Line) -> None:
    """Refuse content under the name of another: a store in memory says which name it would give."""
    if not isinstance(line, ComponentLine) and (not isinstance(line, AttachmentLine) or line.data is None):
        return
    said = line.ref if isinstance(line, ComponentLine) else line.ref.id
    with holdfast.open_blocking("memory:", limits=WIDE) as scratch:
        try:
            given = _name_given(scratch.sessions.handle("scratch"), line)
        except holdfast.InvalidRequest as error:
            raise holdfast.ImportRefused(f"the file is damaged: {error}; export it again") from None
    if given != said:
        raise holdfast.ImportRefused(f"{said!r} is not the name of its content: the file was changed; export it again")


def _name_given(session: holdfast.BlockingSession, line: ComponentLine | AttachmentLine) -> str:
    if isinstance(line, AttachmentLine):
        return session.attachments.put(line.data or b"").id
    checkpoint = holdfast.Checkpoint.of({line.name: line.document if line.data is None else line.data})
    return session.commit(holdfast.Commit(checkpoint=checkpoint)).manifest.refs[line.name]


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    head = file.read(2)
    file.seek(0)
    # A gzip file reads like any other; its type says less than it does.
    return gzip.GzipFile(fileobj=file, mode="rb") if head == b"\x1f\x8b" else file  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


def _readline(file: IO[bytes]) -> bytes:
    try:
        data = file.readline(LINE_BYTES)
    except (EOFError, OSError, zlib.error) as error:
        raise holdfast.ImportRefused(f"the file is damaged: {error}; export it again") from None
    if len(data) == LINE_BYTES:
        raise holdfast.ImportRefused(f"the file has a line of more than {LINE_BYTES} bytes, which no export writes")
    return data


def _manifest(data: bytes) -> Manifest:
    try:
        head: Any = msgspec.json.decode(data)
        name, version = head["format"], head["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise holdfast.ImportRefused("this is no exported session: its first line is no manifest") from None
    if name != FORMAT or not isinstance(version, int):
        raise holdfast.ImportRefused(f"this is no exported session: its format is {name!r}")
    if version > VERSION:
        raise holdfast.ImportRefused(
            f"the file has format version {version}, this program knows {VERSION}: upgrade holdfast"
        )
    try:
        return msgspec.convert(head, Manifest)
    except msgspec.ValidationError as error:
        raise holdfast.ImportRefused(f"the manifest is damaged: {error}; export it again") from None
