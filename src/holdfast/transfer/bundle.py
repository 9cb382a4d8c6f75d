"""The bundle format: one session as JSON lines, with a manifest in the first line.

The first line names the format and its version and holds the manifest with the SHA-256 of its bytes; the manifest holds
the number of lines of each kind and the SHA-256 of all of them. So no bit of a bundle can change unnoticed. The lines
come in the order in which a reader needs them: the session's metadata, its attachments, its nodes with parents before
children, the parts of its checkpoint, its frames, its head, and its unsettled work. A gzip file is recognised by its
first bytes. A reader checks all of it before it uses any of it. `BundleLimits` bounds the memory of a reader: one line,
and everything that an import holds until its turn.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import IO, Annotated, Any, NoReturn, TypeAlias

import msgspec

import holdfast
from holdfast.next_step import NextStep

FORMAT = "holdfast-session"
VERSION = 1
MIB = 1024**2
FIRST_LINE_BYTES = 64 * 1024
SPOOLED_BYTES = 16 * MIB
"""Larger content is spooled to a temporary file instead of memory."""
OUTSIDE_THE_TURN = ("attachment", "batch")
ONCE = ("meta", "head")
DAMAGED = "the file is damaged"
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
DECODED_BYTES = {b"{": 200, b"[": 100, b":": 120, b",": 40, b'"': 80}
"""Upper estimates of the memory of a dict, a list, an entry, an item and a string, besides the text itself."""
FAR_NUMBER = re.compile(rb"[eE][-+]?0*(?:29|[3-9][0-9]|[0-9]{3})[0-9]")
"""A number with a far exponent, which takes as long to parse as 200 others."""
HELD_ID_BYTES = 160
"""Upper estimate of the memory of an id in the sets that hold it, besides its text."""
CANONICAL = msgspec.json.Encoder(order="sorted")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BundleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on reading a bundle. A bundle that exceeds them raises `ImportRefused`.

    The defaults allow any export of a store with default `Limits`. `decoded_bytes` bounds an estimate of the memory of
    a line once it is decoded, together with the parts of the checkpoint, the frames and the ids before it, which are
    held until the turn. `total_bytes` is measured after decompression. `far_numbers` bounds numbers beyond 1e±290.

    >>> from holdfast import transfer
    >>> transfer.BundleLimits(lines=10).total_bytes
    4294967296
    """

    line_bytes: int = 144 * MIB
    decoded_bytes: int = 384 * MIB
    total_bytes: int = 4096 * MIB
    lines: int = 1_000_000
    far_numbers: int = 100_000


TRUSTED = BundleLimits(line_bytes=2**40, decoded_bytes=2**50, total_bytes=2**60, lines=2**60, far_numbers=2**60)
"""Practically no bounds, for a bundle from a store of your own."""


class Source(msgspec.Struct, frozen=True):
    """The state of the session when it was exported."""

    revision: Count
    node_count: Count


def name_of_state(source: Source) -> str:
    """Return the prefix of the id of an import's turn."""
    return f"import:{source.revision}:{source.node_count}:"


class Manifest(msgspec.Struct, frozen=True):
    """Counts and hashes that the other lines must match."""

    session_id: str
    source: Source
    counts: dict[str, Count]
    sha256: str
    turn_sha256: str
    """Hash of the newest revision: all lines but attachments and work, which change without a new revision."""
    without_bytes: Count = 0
    """Number of attachments without bytes: these are stored elsewhere, or could not be found."""

    @property
    def turn_id(self) -> str:
        """Return the id of the turn that an import commits. The same state gives the same turn."""
        return f"{name_of_state(self.source)}{self.turn_sha256}"


class FirstLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest, and the SHA-256 of its bytes as they stand in the line."""

    format: str
    version: int
    sha256: str
    manifest: msgspec.Raw


class MetaLine(msgspec.Struct, frozen=True, tag="meta", tag_field="line"):
    """The session's metadata."""

    meta: holdfast.sessions.SessionMeta


class AttachmentLine(msgspec.Struct, frozen=True, tag="attachment", tag_field="line"):
    """An attachment. Without `data`, its bytes are stored elsewhere, at `uri`."""

    ref: holdfast.attachments.AttachmentRef
    uri: str
    committed: bool
    data: bytes | None


class NodeLine(msgspec.Struct, frozen=True, tag="node", tag_field="line"):
    """A node. A hidden one replaces a tombstoned node without its content, so that its children have a parent.

    `data` is a payload of bytes; the node then has none.
    """

    node: holdfast.Node
    hidden: bool = False
    data: bytes | msgspec.UnsetType = msgspec.UNSET


class ComponentLine(msgspec.Struct, frozen=True, tag="component", tag_field="line"):
    """A part of the checkpoint: a document, or bytes. A reader checks that its content has this ref."""

    name: str
    ref: str
    document: Any = None
    data: bytes | None = None


class FrameLine(msgspec.Struct, frozen=True, tag="frame", tag_field="line"):
    """A frame, with its execution state."""

    frame: holdfast.sessions.AgentFrame


class HeadLine(msgspec.Struct, frozen=True, tag="head", tag_field="line"):
    """The rest of the newest revision. A session that was never committed has no such line."""

    leaf: str | None
    config: Any
    current_frame_id: str | None
    usage: tuple[holdfast.Usage, ...]
    has_checkpoint: bool


class BatchLine(msgspec.Struct, frozen=True, tag="batch", tag_field="line"):
    """A batch that was pending or claimed."""

    draft: holdfast.WorkDraft


Line: TypeAlias = MetaLine | AttachmentLine | NodeLine | ComponentLine | FrameLine | HeadLine | BatchLine
KINDS: tuple[str, ...] = ("meta", "attachment", "node", "component", "frame", "head", "batch")


def kind_of(line: Line) -> str:
    """Return the line's kind, one of `KINDS`."""
    return str(type(line).__struct_config__.tag)


class Tally:
    """Counts and hashes of lines, for the manifest."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.without_bytes = 0
        self._whole = hashlib.sha256()
        self._turn = hashlib.sha256()

    def add(self, line: Line, data: bytes) -> None:
        """Count one line."""
        kind = kind_of(line)
        self.counts[kind] += 1
        self.without_bytes += isinstance(line, AttachmentLine) and line.data is None
        self._whole.update(data)
        if kind not in OUTSIDE_THE_TURN:
            self._turn.update(data)

    def hashes(self) -> tuple[str, str]:
        """Return the hash of all lines, and that of the newest revision."""
        return self._whole.hexdigest(), self._turn.hexdigest()


class Bundle:
    """A bundle whose lines were all read and matched against its manifest. `lines` reads them again."""

    def __init__(self, file: IO[bytes], limits: BundleLimits = BundleLimits()) -> None:  # noqa: B008 - a frozen value
        self._file = _unpacked(file)
        self._limits = limits
        self._file.seek(0)
        self.manifest = _manifest(self._readline(1))
        self.size_bytes = 0
        self._check()

    def _check(self) -> None:
        tally = Tally()
        before = ""
        nodes: set[str] = set()
        held = far = 0
        for number, data in self._read():
            if number - 1 > self._limits.lines:
                _refuse(f"the file has more than {self._limits.lines} lines")
            self.size_bytes += len(data)
            if self.size_bytes > self._limits.total_bytes:
                _refuse(f"the file has more than {self._limits.total_bytes} bytes")
            far += far_numbers(data, self._limits.far_numbers - far)
            if far > self._limits.far_numbers:
                _refuse(f"the file has more than {self._limits.far_numbers} numbers beyond 1e±290")
            line, size = self._decode(number, data, held)
            held += _held_bytes(line, size)
            _check_place(number, kind_of(line), before)
            _check_line(number, line)
            if isinstance(line, NodeLine):
                _check_parent(number, line.node, nodes)
            tally.add(line, data)
            before = kind_of(line)
        manifest = self.manifest
        if tally.hashes() != (manifest.sha256, manifest.turn_sha256) or tally.counts != manifest.counts:
            raise holdfast.errors.ImportRefused(
                f"{DAMAGED} or cut short: its lines do not match its manifest; export it again"
            )
        counts = tally.counts
        if counts["head"] != (manifest.source.revision > 0) or (
            not counts["head"] and (counts["component"] or counts["frame"])
        ):
            raise holdfast.errors.ImportRefused(f"{DAMAGED}: its head does not match its manifest; export it again")

    def _decode(self, number: int, data: bytes, held: int = 0) -> tuple[Line, int]:
        """Return a line, and an estimate of its memory. `held` is the memory of lines that are kept until the turn."""
        left = self._limits.decoded_bytes - held
        size = decoded_bytes(data, left)
        if size > left:
            with_others = " with those that are held until the turn" if held else ""
            _refuse(f"line {number} would take more than {self._limits.decoded_bytes} bytes of memory{with_others}")
        try:
            line: Line = msgspec.json.decode(data, type=Line)
        except (ValueError, RecursionError) as error:
            # Errors of msgspec, and those of invalid UTF-8, are value errors.
            raise holdfast.errors.ImportRefused(f"{DAMAGED} in line {number}: {error}; export it again") from None
        return line, size

    def lines(self) -> Iterator[Line]:
        """Yield every line after the first."""
        for line, _ in self.sized_lines():
            yield line

    def sized_lines(self) -> Iterator[tuple[Line, int]]:
        """Yield every line after the first, with an estimate of its memory."""
        self._file.seek(0)
        self._readline(1)
        for number, data in self._read():
            yield self._decode(number, data)

    def _read(self) -> Iterator[tuple[int, bytes]]:
        number = 2
        while data := self._readline(number):
            yield number, data
            number += 1

    def _readline(self, number: int) -> bytes:
        most = min(self._limits.line_bytes, FIRST_LINE_BYTES) if number == 1 else self._limits.line_bytes
        try:
            data = self._file.readline(most + 1)
        except (EOFError, OSError, zlib.error) as error:
            raise holdfast.errors.ImportRefused(f"{DAMAGED}: {error}; export it again") from None
        if len(data) > most and number == 1:
            raise holdfast.errors.ImportRefused(
                f"this is not an exported session: its first line has more than {most} bytes"
            )
        if len(data) > most:
            _refuse(f"line {number} has more than {most} bytes")
        return data


def decoded_bytes(data: bytes, enough: int) -> int:
    """Estimate from above the memory of a JSON text once it is decoded.

    Signs inside strings are distinguished from structure only if the first estimate exceeds `enough`.
    """
    texts = len(data) * (1 if data.isascii() else 4)
    estimate = texts + _structure_bytes(data)
    return estimate if estimate <= enough else texts + _structure_bytes(STRING.sub(b'"', data))


def _structure_bytes(data: bytes) -> int:
    """Estimate the memory of the containers and their entries, without the text in them."""
    return sum(size * data.count(sign) for sign, size in DECODED_BYTES.items())


def far_numbers(data: bytes, enough: int) -> int:
    """Count numbers with a far exponent. Lookalikes inside strings are excluded only if the count exceeds `enough`."""
    found = len(FAR_NUMBER.findall(data))
    return found if found <= enough else len(FAR_NUMBER.findall(STRING.sub(b'"', data)))


def _held_bytes(line: Line, size: int) -> int:
    """Return the memory that an import holds of a line until its turn: all that the turn commits, and other ids."""
    match line:
        case ComponentLine() | FrameLine() | HeadLine():
            return size
        case NodeLine(node):
            return HELD_ID_BYTES + 4 * len(node.id)
        case AttachmentLine(ref):
            return HELD_ID_BYTES + 4 * len(ref.id)
        case _:
            return 0


def _refuse(problem: str) -> NoReturn:
    raise holdfast.errors.ImportRefused(problem, NextStep("if you trust the file, use", "transfer.TRUSTED"))


def _check_place(number: int, kind: str, before: str) -> None:
    """Refuse a line that comes before one that it needs, or twice."""
    if before and (KINDS.index(kind) < KINDS.index(before) or (kind == before and kind in ONCE)):
        raise holdfast.errors.ImportRefused(
            f"{DAMAGED}: line {number} ({kind}) follows a line of {before}; export it again"
        )


def _check_parent(number: int, node: holdfast.Node, before: set[str]) -> None:
    """Refuse a node whose parent did not come before it, or whose id is empty or came before."""
    if node.parent is not None and node.parent not in before:
        raise holdfast.errors.ImportRefused(f"{DAMAGED}: line {number} (node) comes before its parent; export it again")
    if not node.id or node.id in before:
        raise holdfast.errors.ImportRefused(
            f"{DAMAGED}: line {number} (node) has no id, or that of an earlier one; export it again"
        )
    before.add(node.id)


def _check_line(number: int, line: Line) -> None:
    """Refuse a line that no export writes and that no store would reject."""
    problem = None
    match line:
        case AttachmentLine(ref, uri, committed=True, data=None) if uri == f"sha256:{ref.id}":
            problem = f"attachment {ref.id!r} was committed, and its bytes are missing"
        case FrameLine(frame) if frame.execution_state is None and frame.execution_state_ref is not None:
            problem = f"the execution state of frame {frame.frame_id!r} is missing"
        case NodeLine(node, _, bytes()) if node.payload is not None:
            problem = f"node {node.id!r} has two contents"
        case ComponentLine(name, _, document, data) if document is not None and data is not None:
            problem = f"component {name!r} has two contents"
        case ComponentLine(name, ref) if ref != _ref_of(line):
            problem = f"the ref of component {name!r} is not the name of its content"
        case BatchLine(draft) if draft.source_key is None or draft.session_id is not None:
            problem = "work needs a source key, and no session"
        case _:
            return
    raise holdfast.errors.ImportRefused(f"{DAMAGED} in line {number}: {problem}; export it again")


def _ref_of(line: ComponentLine) -> str:
    """Return the ref of a content: its format, and the hash of its bytes."""
    if line.data is not None:
        return f"bytes-sha256:{hashlib.sha256(line.data).hexdigest()}"
    try:
        return f"json-sha256:{hashlib.sha256(CANONICAL.encode(line.document)).hexdigest()}"
    except (ValueError, OverflowError):
        return ""  # a number that no document can hold


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    head = file.read(2)
    file.seek(0)
    # A GzipFile can be read like any file, but its type lacks that.
    return gzip.GzipFile(fileobj=file, mode="rb") if head == b"\x1f\x8b" else file  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class _Format(msgspec.Struct):
    """The fields of the first line in every version."""

    format: str
    version: int


def _manifest(data: bytes) -> Manifest:
    try:
        header = msgspec.json.decode(data, type=_Format)
    except (ValueError, RecursionError):
        raise holdfast.errors.ImportRefused("this is not an exported session: its first line has no format") from None
    if header.format != FORMAT:
        raise holdfast.errors.ImportRefused("this is not an exported session: its format is another one")
    if header.version > VERSION:
        raise holdfast.errors.ImportRefused(
            f"the file has format version {header.version}, this program knows {VERSION}: upgrade holdfast"
        )
    if header.version != VERSION:
        raise holdfast.errors.ImportRefused(f"{DAMAGED}: there is no format version {header.version}; export it again")
    try:
        first = msgspec.json.decode(data, type=FirstLine)
        if hashlib.sha256(first.manifest).hexdigest() != first.sha256:
            raise holdfast.errors.ImportRefused(f"{DAMAGED}: its manifest does not match its hash; export it again")
        return msgspec.json.decode(first.manifest, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise holdfast.errors.ImportRefused(f"the manifest is damaged: {error}; export it again") from None
