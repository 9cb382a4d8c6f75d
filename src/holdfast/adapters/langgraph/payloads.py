"""The nodes of a LangGraph thread: checkpoints as JSON, writes as bytes, and the ids that group them.

Does not import LangGraph, so that a thread can be read without it. Every id of a checkpoint's group begins with the
checkpoint's id, in the order of checkpoint ids: the checkpoint itself, its later versions, and the writes on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

import holdfast
from holdfast.errors import Corrupt, Incompatible
from holdfast.sessions import IdRange

CHECKPOINT: Final = "langgraph.checkpoint"
WRITE: Final = "langgraph.write"
FORMAT: Final = 1
"""The version of the payloads. Code that knows less refuses them."""
INLINE_BYTES: Final = 128
"""Longest value of a channel that is stored with its checkpoint and not as a component of its own."""
GIST_CHARACTERS: Final = 80
PLAIN_LEVELS: Final = 32
"""Levels of lists and dicts that are stored as JSON. A store refuses documents of 64 levels or more."""

Typed: TypeAlias = tuple[str, bytes]
"""A serialised value: the serialiser's name for its format, and the bytes."""

_SEPARATOR = "!"
_AFTER_SEPARATOR = '"'
_VERSION = "%"
_SPECIAL = re.compile("[\\x00-!%]")
"""The separators, and every character before them."""
_ESCAPE = re.compile("%([0-9A-F]{2})")


class StoredCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checkpoint without the large values of its channels, which are components of the commit.

    `greatest` is the greatest checkpoint id of the session at the time, left out if that is the checkpoint's own.
    `typed_state` and `typed_metadata` have fields and metadata that JSON cannot hold. `components` has the format of
    each value that is a component. `gist` is the beginning of the last message that it added, for people.
    """

    format: int
    id: str
    greatest: str = ""
    parent: str | None = None
    state: dict[str, Any] = {}
    typed_state: dict[str, Typed] = {}
    metadata: dict[str, Any] = {}
    typed_metadata: dict[str, Typed] = {}
    values: dict[str, Typed] = {}
    components: dict[str, str] = {}
    gist: str = ""

    @property
    def newest(self) -> str:
        """The greatest checkpoint id of the session at the time."""
        return self.greatest or self.id

    @property
    def versions(self) -> dict[str, Any]:
        """The version of each channel."""
        found: dict[str, Any] = self.state.get("channel_versions", {})
        return found


class StoredWrite(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pending write. An index below 0 is one that a later write replaces. Task and index stand in the node's id."""

    format: int
    channel: str
    type: str
    data: bytes = b""
    path: str = ""
    task: str = ""
    index: int = 0


P = TypeVar("P", StoredCheckpoint, StoredWrite)


def encoded(payload: StoredCheckpoint | StoredWrite) -> Any:
    """Return the payload of a node: a JSON value, or for a write a line of JSON and the bytes of its value."""
    if isinstance(payload, StoredWrite):
        line = msgspec.structs.replace(payload, task="", index=0, data=b"")
        return msgspec.json.encode(line) + b"\n" + payload.data
    return msgspec.json.decode(msgspec.json.encode(payload))


def _fields(payload: object) -> dict[str, Any]:
    """Return the fields of a payload, none if it has another form."""
    if not isinstance(payload, bytes):
        return cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    line, _, data = payload.partition(b"\n")
    try:
        return {**msgspec.json.decode(line, type=dict[str, Any]), "data": data}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _decoded(kind: type[P], node: holdfast.Node) -> P:
    payload = _fields(node.payload)
    found = payload.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise Incompatible(
            f"node {node.id!r} was written by a newer LangGraph adapter: it has format {found}, this Holdfast knows "
            f"{FORMAT}: upgrade Holdfast"
        )
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise Corrupt("nodes", node.id, f"its payload is not one of kind {node.kind}") from error


def is_plain(value: object, levels: int = PLAIN_LEVELS) -> bool:
    """Return True if a value comes back equal from JSON, with the same types, and is nested in few levels."""
    if value is None or type(value) is bool:
        return True
    if type(value) is str:
        return _is_text(value)
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is float:
        return math.isfinite(value)
    if levels == 0:
        return False
    if type(value) is list:
        return all(is_plain(one, levels - 1) for one in cast("list[object]", value))
    if type(value) is dict:
        return all(
            type(key) is str and _is_text(key) and is_plain(one, levels - 1) for key, one in cast("Any", value).items()
        )
    return False


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------------------- ids


def escaped(text: str) -> str:
    """Return a text as a part of an id: without separators and characters before them."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescaped(part: str) -> str:
    """Return the text of a part of an id."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), part)


def node_id(checkpoint_id: str, version: int = 0) -> str:
    """Return the id of a checkpoint's node. A checkpoint that is put again with other content has a later version."""
    first = escaped(checkpoint_id)
    return first if version == 0 else _SEPARATOR.join((first, _VERSION, f"{version:06}"))


def turn_id(checkpoint_id: str, version: int) -> str:
    """Return the turn id of a checkpoint's commit."""
    return node_id(checkpoint_id, version)


def write_id(checkpoint_id: str, task_id: str, index: int, version: int = 0) -> str:
    """Return the id of a write. Only writes with an index below 0 have versions."""
    parts = [escaped(checkpoint_id), escaped(task_id), f"{index:06}" if index >= 0 else f"-{-index}"]
    return _SEPARATOR.join(parts if index >= 0 else [*parts, f"{version:06}"])


def group(checkpoint_id: str) -> IdRange:
    """Return the range of ids of a checkpoint, its versions and its writes."""
    first = escaped(checkpoint_id)
    return IdRange(first, first + _AFTER_SEPARATOR)


def from_group(checkpoint_id: str) -> IdRange:
    """Return the range of ids from a checkpoint's group on."""
    return IdRange(escaped(checkpoint_id))


def before_group(checkpoint_id: str | None) -> IdRange:
    """Return the range of ids before a checkpoint's group."""
    return IdRange(before=None if checkpoint_id is None else escaped(checkpoint_id))


# ---------------------------------------------------------------------------- groups


class Group(msgspec.Struct):
    """Everything that is stored under one checkpoint id. Writes may come before their checkpoint."""

    checkpoint: StoredCheckpoint | None = None
    version: int = 0
    writes: dict[tuple[str, int], StoredWrite] = msgspec.field(default_factory=dict)
    versions: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)

    def add(self, node: holdfast.Node) -> None:
        """Take in a node of the group, in any order."""
        if node.kind == CHECKPOINT:
            version = _version_of(node.id)
            if self.checkpoint is None or version >= self.version:
                self.checkpoint, self.version = _decoded(StoredCheckpoint, node), version
        elif node.kind == WRITE:
            task, index, version = _write_of(node.id)
            write = msgspec.structs.replace(_decoded(StoredWrite, node), task=task, index=index)
            place = (task, index)
            if version >= self.versions.get(place, 0):
                self.writes[place], self.versions[place] = write, version

    def ordered(self) -> list[StoredWrite]:
        """Return the writes in the order in which a run applies them."""
        return sorted(self.writes.values(), key=lambda one: (one.path, one.task, one.index))


def _version_of(id: str) -> int:
    _, separator, last = id.rpartition(_SEPARATOR)
    return int(last) if separator and last.isdigit() else 0


def _write_of(id: str) -> tuple[str, int, int]:
    """Return the task, the index and the version of a write, by the id of its node."""
    parts = id.split(_SEPARATOR)
    try:
        index = int(parts[2])
        return unescaped(parts[1]), index, int(parts[3]) if index < 0 else 0
    except (IndexError, ValueError) as error:
        raise Corrupt("nodes", id, "is not the id of a write") from error


def group_key(id: str) -> str:
    """Return the part of a node's id that all ids of its group have in common."""
    return id.partition(_SEPARATOR)[0]


def checkpoint_of(node: holdfast.Node) -> StoredCheckpoint:
    """Return the checkpoint of a node."""
    return _decoded(StoredCheckpoint, node)


def split_plain(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that JSON can hold, and the others."""
    plain = {key: value for key, value in values.items() if is_plain(value)}
    return plain, {key: value for key, value in values.items() if key not in plain}
