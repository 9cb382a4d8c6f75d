"""Messages of LangChain in the format of LangGraph's serialiser, byte for byte, in a third of its time.

A thread consists mostly of messages, and all of them are written again by each step that adds one. LangGraph's
serialiser copies every message into a dict, and builds it again through three constructors and an import. Here its
fields are encoded where they are, and validated into a new object.

The first message of each class is also written and read in LangGraph's way. If the two differ, or a message holds
anything but plain values, LangGraph's way is the one that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde import jsonplus

Hook: TypeAlias = Callable[[int, bytes], Any]
"""Returns the value of an extension of msgpack."""

MODEL: Final = 5
"""The extension code of a pydantic model: its module, its name, its fields, and the name of a method."""
METHOD: Final = "model_validate_json"
KINDS: Final[tuple[type[BaseMessage], ...]] = (HumanMessage, AIMessage, SystemMessage, ToolMessage)
"""Classes whose constructor passes on its arguments, unless they have content blocks."""

LOADING: Final = ormsgpack.OPT_NON_STR_KEYS
STORING: Final = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
"""Everything but plain values is left to LangGraph."""

_msgpack_default: Callable[[Any], Any] | None = getattr(jsonplus, "_msgpack_default", None)
_written: dict[type[BaseMessage], bool] = {}
"""Classes whose first message was written: True if both ways gave the same bytes."""
_read: dict[type[BaseMessage], bool] = {}
"""Classes whose first message was read: True if both ways gave the same message."""


def dumped(value: object) -> bytes | None:
    """Return a value in msgpack, None if LangGraph must write it."""
    if _msgpack_default is None:
        return None
    try:
        return ormsgpack.packb(value, default=_extension, option=STORING)
    except ormsgpack.MsgpackEncodeError:
        return None


def _extension(value: BaseMessage) -> Any:
    kind = type(value)
    body = _body(kind, value) if kind in _FIELDS and _written.get(kind, True) else None
    if body is not None and (kind in _written or _is_proven(value, body)):
        return ormsgpack.Ext(MODEL, body)
    assert _msgpack_default is not None
    return _msgpack_default(value)


def _body(kind: type[BaseMessage], message: BaseMessage) -> bytes | None:
    """Return the data of a message's extension, None if it has other fields or values than usual."""
    fields = message.__dict__
    if len(fields) != _FIELDS[kind]:
        return None
    if message.__pydantic_extra__:
        fields = {**fields, **message.__pydantic_extra__}
    try:
        return ormsgpack.packb((kind.__module__, kind.__name__, fields, METHOD), default=_refuse, option=STORING)
    except ormsgpack.MsgpackEncodeError:
        return None


def _is_proven(message: BaseMessage, body: bytes) -> bool:
    """Compare the data of the first message of a class with those that LangGraph writes."""
    kind = type(message)
    parts = kind.__module__, kind.__name__, message.model_dump(), METHOD
    _written[kind] = ormsgpack.packb(parts, default=_msgpack_default, option=STORING) == body
    return _written[kind]


def _refuse(value: object) -> Any:
    raise TypeError(type(value).__name__)


def head_of(data: bytes) -> bytes:
    """Return the bytes up to the end of the two texts that a list begins with, b"" if their form is rare."""
    try:
        # Nearly every module and class has a name of at most 31 bytes, in a list of at most 15 parts.
        middle = 2 + (data[1] & 0x1F)
        if 0x90 <= data[0] <= 0x9F and 0xA0 <= data[1] <= 0xBF and 0xA0 <= data[middle] <= 0xBF:
            return data[: middle + 1 + (data[middle] & 0x1F)]
    except IndexError:
        pass
    return b""


def loaded(data: bytes, head: bytes, hook: Hook) -> BaseMessage | None:
    """Return the message of a model's extension, None if LangGraph must build the value."""
    kind = _HEADS.get(head)
    if kind is None or not _read.get(kind, True):
        return None
    try:
        _, _, fields, _ = ormsgpack.unpackb(data, ext_hook=hook, option=LOADING)
        if "content_blocks" in fields:
            return None
        given = fields if kind in _read else dict(fields)
        message: BaseMessage = cast("Any", kind).__new__(kind)
        kind.__pydantic_validator__.validate_python(fields, self_instance=message)
        if kind not in _read:
            _read[kind] = kind(**given) == message
    except Exception:
        # Fields that are not valid: LangGraph makes a message of them, too.
        return None
    return message if _read[kind] else None


_FIELDS: Final[dict[type[BaseMessage], int]] = {kind: len(kind.model_fields) for kind in KINDS}
_HEADS: Final = {head_of(ormsgpack.packb((kind.__module__, kind.__name__, None, None))): kind for kind in KINDS}
