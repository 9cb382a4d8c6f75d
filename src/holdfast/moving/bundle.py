"""A bundle is one session as JSON lines: a first line that vouches for the rest, then everything that is moved.

The first line names the format and its version and holds the manifest with the SHA-256 of its bytes; the manifest holds
the number of lines of each kind and the SHA-256 of all of them. So no bit of a bundle can change unnoticed. The lines
come in the order in which a reader needs them: the session's metadata, its attachments, its nodes with parents before
children, the parts of its checkpoint, its frames, its head, and its unsettled work. A gzip file is recognised by its
first bytes. A reader checks all of it before it uses any of it, within `BundleLimits`.
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

FORMAT = "holdfast-session"
VERSION = 1
MIB = 1024**2
FIRST_LINE_BYTES = 64 * 1024
SPOOLED_BYTES = 16 * MIB
"""What is larger waits in a temporary file instead of in memory."""
TOMBSTONE = "holdfast.tombstone"
"""The kind of a node that stands for a tombstoned one."""
BESIDE_THE_TURN = ("attachment", "work")
ONCE = ("meta", "head")
DAMAGED = "the file is damaged"
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
DECODED_BYTES = {b"{": 200, b"[": 100, b":": 120, b",": 40, b'"': 80}
"""An estimate from above of what a dict, a list, an entry, an item and a text take besides the text itself."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BundleLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what reading a bundle takes; one that exceeds them is `ImportRefused`.

    The defaults hold every line that a store with default `Limits` exports. `decoded_bytes` bounds an estimate of the
    memory that one line takes once it is decoded, `total_bytes` is measured after decompression.

    >>> from holdfast import moving
    >>> moving.BundleLimits(lines=10).total_bytes
    4294967296
    """

    line_bytes: int = 144 * MIB
    decoded_bytes: int = 384 * MIB
    total_bytes: int = 4096 * MIB
    lines: int = 1_000_000


TRUSTED = BundleLimits(line_bytes=2**40, decoded_bytes=2**50, total_bytes=2**60, lines=2**60)
"""No bounds to speak of, for a bundle that comes from a store of one's own."""


class Source(msgspec.Struct, frozen=True):
    """Where the session stood that was exported."""

    revision: Count
    node_count: Count


def name_of_state(source: Source) -> str:
    """How the id of an import's turn begins."""
    return f"import:{source.revision}:{source.node_count}:"


class Manifest(msgspec.Struct, frozen=True):
    """What the other lines must be."""

    session_id: str
    source: Source
    counts: dict[str, Count]
    sha256: str
    turn_sha256: str
    """The hash of what the newest revision shows: the lines but for attachments and work, which change without one."""
    without_bytes: Count = 0
    """How many attachments are only referred to: their bytes are kept elsewhere, or could not be found."""

    @property
    def turn_id(self) -> str:
        """The id of the turn that an import commits: the same state again is the same turn."""
        return f"{name_of_state(self.source)}{self.turn_sha256}"


class FirstLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest, and the SHA-256 of its bytes as they stand in the line."""

    format: str
    version: int
    sha256: str
    manifest: msgspec.Raw


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


def kind_of(line: Line) -> str:
    """One of `KINDS`."""
    return str(type(line).__struct_config__.tag)


class Tally:
    """Counts and hashes of lines, as the manifest has them."""

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
        if kind not in BESIDE_THE_TURN:
            self._turn.update(data)

    def hashes(self) -> tuple[str, str]:
        """The hash of everything, and of what the newest revision shows."""
        return self._whole.hexdigest(), self._turn.hexdigest()


class Bundle:
    """A bundle whose every line was read and matched against its manifest; `lines` reads them again."""

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
        for number, data in self._read():
            if number - 1 > self._limits.lines:
                _refuse(f"the file has more than {self._limits.lines} lines")
            self.size_bytes += len(data)
            if self.size_bytes > self._limits.total_bytes:
                _refuse(f"the file has more than {self._limits.total_bytes} bytes")
            line = self._decode(number, data)
            _check_place(number, kind_of(line), before)
            _check_line(number, line)
            if isinstance(line, NodeLine):
                _check_parent(number, line.node, nodes)
            tally.add(line, data)
            before = kind_of(line)
        manifest = self.manifest
        if tally.hashes() != (manifest.sha256, manifest.turn_sha256) or tally.counts != manifest.counts:
            raise holdfast.ImportRefused(
                f"{DAMAGED} or cut short: its lines do not match its manifest; export it again"
            )
        counts = tally.counts
        if counts["head"] != (manifest.source.revision > 0) or (
            not counts["head"] and (counts["component"] or counts["frame"])
        ):
            raise holdfast.ImportRefused(f"{DAMAGED}: its head does not match its manifest; export it again")

    def _decode(self, number: int, data: bytes) -> Line:
        if decoded_bytes(data, self._limits.decoded_bytes) > self._limits.decoded_bytes:
            _refuse(f"line {number} would take more than {self._limits.decoded_bytes} bytes of memory")
        try:
            line: Line = msgspec.json.decode(data, type=Line)
        except (ValueError, RecursionError) as error:
            # Errors of msgspec's, and text that is not UTF-8, are value errors.
            raise holdfast.ImportRefused(f"{DAMAGED} in line {number}: {error}; export it again") from None
        return line

    def lines(self) -> Iterator[Line]:
        """Every line after the first."""
        for line, _ in self.sized_lines():
            yield line

    def sized_lines(self) -> Iterator[tuple[Line, int]]:
        """Every line after the first, with its length in bytes."""
        self._file.seek(0)
        self._readline(1)
        for number, data in self._read():
            yield self._decode(number, data), len(data)

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
            raise holdfast.ImportRefused(f"{DAMAGED}: {error}; export it again") from None
        if len(data) > most and number == 1:
            raise holdfast.ImportRefused(f"this is not an exported session: its first line has more than {most} bytes")
        if len(data) > most:
            _refuse(f"line {number} has more than {most} bytes")
        return data


def decoded_bytes(data: bytes, enough: int) -> int:
    """Estimate from above the memory that a JSON text takes once it is decoded.

    What strings hold is told apart from structure only if it matters: if the first estimate exceeds `enough`.
    """
    texts = len(data) * (1 if data.isascii() else 4)
    estimate = texts + _structure_bytes(data)
    return estimate if estimate <= enough else texts + _structure_bytes(STRING.sub(b'"', data))


def _structure_bytes(data: bytes) -> int:
    """What the containers and their entries take, without the text in them."""
    return sum(size * data.count(sign) for sign, size in DECODED_BYTES.items())


def _refuse(problem: str) -> NoReturn:
    raise holdfast.ImportRefused(f"{problem}: if you trust the file, raise the limits")


def _check_place(number: int, kind: str, before: str) -> None:
    """Refuse a line that comes before one that it needs, or twice."""
    if before and (KINDS.index(kind) < KINDS.index(before) or (kind == before and kind in ONCE)):
        raise holdfast.ImportRefused(f"{DAMAGED}: line {number} ({kind}) follows a line of {before}; export it again")


def _check_parent(number: int, node: holdfast.Node, before: set[str]) -> None:
    """Refuse a node that does not name its parent, or comes before it, or twice."""
    if node.parent is not None and node.parent not in before:
        raise holdfast.ImportRefused(f"{DAMAGED}: line {number} (node) comes before its parent; export it again")
    if not node.id or node.id in before:
        raise holdfast.ImportRefused(
            f"{DAMAGED}: line {number} (node) has no id, or that of an earlier one; export it again"
        )
    before.add(node.id)


def _check_line(number: int, line: Line) -> None:
    """Refuse what no export writes and no store would notice."""
    problem = None
    match line:
        case AttachmentLine(ref, uri, committed=True, data=None) if uri == f"sha256:{ref.id}":
            problem = f"attachment {ref.id!r} was committed, and its bytes are missing"
        case FrameLine(frame) if frame.execution_state is None and frame.execution_state_ref is not None:
            problem = f"the execution state of frame {frame.frame_id!r} is missing"
        case ComponentLine(name, _, document, data) if document is not None and data is not None:
            problem = f"component {name!r} has two contents"
        case WorkLine(draft) if draft.source_key is None or draft.session_id is not None:
            problem = "work needs a source key, and no session"
        case _:
            return
    raise holdfast.ImportRefused(f"{DAMAGED} in line {number}: {problem}; export it again")


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    head = file.read(2)
    file.seek(0)
    # A gzip file reads like any other; its type says less than it does.
    return gzip.GzipFile(fileobj=file, mode="rb") if head == b"\x1f\x8b" else file  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class _Format(msgspec.Struct):
    """What the first line of every version has."""

    format: str
    version: int


def _manifest(data: bytes) -> Manifest:
    try:
        said = msgspec.json.decode(data, type=_Format)
    except (ValueError, RecursionError):
        raise holdfast.ImportRefused("this is not an exported session: its first line has no format") from None
    if said.format != FORMAT:
        raise holdfast.ImportRefused("this is not an exported session: its format is another one")
    if said.version > VERSION:
        raise holdfast.ImportRefused(
            f"the file has format version {said.version}, this program knows {VERSION}: upgrade holdfast"
        )
    if said.version != VERSION:
        raise holdfast.ImportRefused(f"{DAMAGED}: there is no format version {said.version}; export it again")
    try:
        first = msgspec.json.decode(data, type=FirstLine)
        if hashlib.sha256(first.manifest).hexdigest() != first.sha256:
            raise holdfast.ImportRefused(f"{DAMAGED}: its manifest does not match its hash; export it again")
        return msgspec.json.decode(first.manifest, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise holdfast.ImportRefused(f"the manifest is damaged: {error}; export it again") from None
