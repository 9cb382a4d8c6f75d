"""Items of the OpenAI Agents SDK: messages, tool calls and their results."""

from __future__ import annotations

from typing import Any, cast

from holdfast.cli.renderers.parts import compact, text_of

ARGUMENTS = ("arguments", "action", "input", "queries", "code", "operation")
"""Fields in which a call has its arguments, by the kind of the tool."""


def item(payload: Any) -> str | None:
    """Return `user: hi`, `call weather({"city": "Oslo"})` or `result of call_1: 21 degrees`."""
    if not isinstance(payload, dict):
        return None
    fields = cast("dict[str, Any]", payload)
    kind = fields.get("type")
    if "role" in fields:
        return f"{fields['role']}: {text_of(fields.get('content'))}"
    if not isinstance(kind, str):
        return None
    if kind == "reasoning":
        return f"reasoning: {text_of(fields.get('summary') or fields.get('content'))}"
    if kind.endswith("_output"):
        return f"result of {fields.get('call_id')}: {text_of(fields.get('output'))}"
    if kind.endswith("_call"):
        arguments = next((fields[name] for name in ARGUMENTS if name in fields), "")
        return f"call {fields.get('name') or kind.removesuffix('_call')}({compact(arguments)})"
    if kind == "item_reference":
        return f"see {fields.get('id')}"
    return f"{kind}: {compact({name: value for name, value in fields.items() if name not in {'type', 'id'}})}"
