"""Messages of Pydantic AI: each has parts, which are prompts, texts, tool calls and their results."""

from __future__ import annotations

from typing import Any, cast

from holdfast.cli.renderers.parts import MOST_PARTS, compact, text_of

SPEAKERS = {"user-prompt": "user", "system-prompt": "system", "text": "assistant", "thinking": "reasoning"}


def message(payload: Any) -> str | None:
    """Return `user: hi`, or `assistant: look; call weather({"city":"Oslo"})`."""
    if not isinstance(payload, dict):
        return None
    parts = cast("dict[str, Any]", payload).get("parts")
    if not isinstance(parts, list):
        return None
    lines = [_part(cast("dict[str, Any]", one)) for one in cast("Any", parts)[:MOST_PARTS] if isinstance(one, dict)]
    return "; ".join(lines) or None


def _part(part: dict[str, Any]) -> str:
    kind = str(part.get("part_kind"))
    content = text_of(part.get("content"))
    if kind in SPEAKERS:
        return f"{SPEAKERS[kind]}: {content}"
    if kind.endswith("tool-call"):
        return f"call {part.get('tool_name')}({compact(part.get('args') or '')})"
    if kind.endswith("tool-return"):
        return f"result of {part.get('tool_name')}: {content}"
    return f"{kind}: {content}"
