"""Reads a thread of LangGraph: its messages are a value of the newest checkpoint, not nodes of their own."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, NamedTuple, TypeAlias, cast

import holdfast
from holdfast.cli.renderers.langgraph import is_message, opened

CHECKPOINT: Final = "langgraph.checkpoint"
USUAL: Final = "messages"
"""The channel of messages, unless a graph names it otherwise."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""A larger value is not decoded for a page."""
ROLE_OF: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "function": "tool"}

Message: TypeAlias = dict[str, Any]


class Thread(NamedTuple):
    """The values of a checkpoint by their channels, and the messages among them, which one channel has."""

    values: dict[str, Any]
    channel: str | None
    messages: list[Message]


def thread_of(view: holdfast.sessions.SessionView | None) -> Thread | None:
    """Return what a session holds if it is a thread. The view has at least the newest node of its path."""
    leaf = view.graph.nodes[-1] if view is not None and view.graph.nodes else None
    if view is None or leaf is None or leaf.kind != CHECKPOINT or not isinstance(leaf.payload, dict):
        return None
    values = _values(cast("dict[str, Any]", leaf.payload), view.checkpoint)
    channels = [name for name, value in values.items() if _are_messages(value)]
    channel = USUAL if USUAL in channels else min(channels, default=None)
    return Thread(values, channel, [] if channel is None else values[channel])


def as_message(fields: Message) -> Message:
    """Return a message with its speaker under `role`, as other frameworks write it."""
    kind = str(fields["type"])
    return {"role": ROLE_OF.get(kind, kind), **fields}


def _values(payload: dict[str, Any], checkpoint: holdfast.Checkpoint | None) -> dict[str, Any]:
    """Return the values of a checkpoint: short ones stand in its node, others are components."""
    found: dict[str, Any] = {}
    inline, formats = payload.get("values"), payload.get("components")
    for name, typed in cast("dict[str, Any]", inline).items() if isinstance(inline, dict) else ():
        pair: list[Any] = cast("Any", typed) if isinstance(typed, list) else []
        if len(pair) == 2 and pair[0] != "null":
            found[name] = opened(pair[0], _bytes(pair[1]))
    known = cast("dict[str, Any]", formats) if isinstance(formats, dict) else {}
    for name, value in ({} if checkpoint is None else checkpoint.components()).items():
        found[name] = value
        if isinstance(value, bytes) and len(value) <= MOST_BYTES:
            found[name] = opened(known.get(name), value)
    return found


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""


def _are_messages(value: object) -> bool:
    listed: list[Any] = cast("Any", value) if isinstance(value, list) else []
    return bool(listed) and all(map(is_message, listed))
