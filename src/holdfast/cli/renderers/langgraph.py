"""Checkpoints, writes and items of LangGraph: messages, tool calls and values. Nothing is imported to decode them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.cli.renderers.parts import MOST_PARTS, compact, text_of


def checkpoint(payload: Any) -> str | None:
    """Return `step 3, loop: ai: hello`."""
    if not isinstance(payload, dict) or not isinstance(payload.get("metadata"), dict):  # pyright: ignore[reportUnknownMemberType]
        return None
    fields = cast("dict[str, Any]", payload)
    metadata: dict[str, Any] = fields["metadata"]
    made = ", ".join(
        f"{word}{metadata[name]}" for name, word in (("step", "step "), ("source", "")) if name in metadata
    )
    return ": ".join(part for part in (made or "checkpoint", str(fields.get("gist", ""))) if part)


def write(payload: Any) -> str | None:
    """Return `messages: ai: hello`, `messages: call weather({"city": "Oslo"})` or `plan: ["look", "leap"]`."""
    import msgspec

    if not isinstance(payload, bytes):
        return None
    line, _, data = payload.partition(b"\n")
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    channel = fields.get("channel")
    return f"{channel}: {_value(fields.get('type'), data)}" if isinstance(channel, str) else None


def item(payload: Any) -> str | None:
    """Return the value of an item of long-term memory. Its namespace and key stand in the node's id."""
    fields = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    return compact(fields["value"]) if isinstance(fields.get("value"), dict) else None


def opened(kind: object, data: bytes) -> Any:
    """Return a serialised value with the fields of each object in its place, the bytes themselves if that fails."""
    import msgspec

    if kind == "null":
        return None
    try:
        if kind == "msgpack":
            value = msgspec.msgpack.decode(data, ext_hook=_opened)
            msgspec.json.encode(value)
            return value
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError):
        # Damaged, or a value that JSON has no form for, such as a dict with tuples as keys.
        pass
    return data


def _value(kind: object, data: bytes) -> str:
    value = opened(kind, data)
    if kind == "null":
        return "null"
    return f"{len(data)} bytes" if value is data else _shown(value)


def _opened(_: int, data: memoryview) -> Any:
    """Return the fields of an object in place of the object."""
    import msgspec

    found: Any = msgspec.msgpack.decode(data, ext_hook=_opened)
    if isinstance(found, list):
        parts: list[Any] = cast("Any", found)
        if len(parts) > 2 and isinstance(parts[2], dict):
            return cast("dict[str, Any]", parts[2])
        return parts[2] if len(parts) > 2 else None
    return found


def _shown(value: Any) -> str:
    parts: list[Any] = cast("Any", value) if isinstance(value, list) else []
    if parts and all(map(is_message, parts)):
        return " | ".join(map(_message, parts[:MOST_PARTS]))
    if is_message(value):
        return _message(cast("dict[str, Any]", value))
    return compact(value)


def is_message(value: Any) -> bool:
    """Return True for the fields of a message."""
    return isinstance(value, dict) and "content" in value and isinstance(value.get("type"), str)  # pyright: ignore[reportUnknownMemberType]


def _message(fields: Mapping[str, Any]) -> str:
    text = text_of(fields.get("content"))
    called: Any = fields.get("tool_calls")
    made: list[Any] = cast("Any", called) if isinstance(called, list) else []
    calls = [_call(cast("dict[str, Any]", one)) for one in made if isinstance(one, dict)]
    return f"{fields['type']}: {' '.join(part for part in (text, *calls) if part)}"


def _call(fields: Mapping[str, Any]) -> str:
    return f"call {fields.get('name')}({compact(fields.get('args', {}))})"
