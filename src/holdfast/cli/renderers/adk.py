"""Events of Google ADK: texts, function calls and their responses, by an author."""

from __future__ import annotations

from typing import Any, cast

from holdfast.cli.renderers.parts import MOST_PARTS, compact


def event(payload: Any) -> str | None:
    """Return `user: hi` or `helper: call weather({"city":"Oslo"})`."""
    if not isinstance(payload, dict):
        return None
    fields = cast("dict[str, Any]", payload)
    if "author" not in fields:
        return None
    parts = _inside(fields, "content").get("parts")
    found: Any = cast("Any", parts)[:MOST_PARTS] if isinstance(parts, list) else ()
    lines = [_part(cast("dict[str, Any]", one)) for one in found if isinstance(one, dict)]
    if fields.get("error_message") or fields.get("error_code"):
        lines.append(f"error {fields.get('error_message') or fields['error_code']}")
    if not lines:
        lines = [
            f"{name.removesuffix('_delta')} {compact(value)}" for name, value in _inside(fields, "actions").items()
        ]
    return f"{fields['author']}: {'; '.join(lines)}"


def _part(part: dict[str, Any]) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    call, response = _inside(part, "function_call"), _inside(part, "function_response")
    code, outcome = _inside(part, "executable_code"), _inside(part, "code_execution_result")
    if code:
        return f"call code({code.get('code')})"
    if outcome:
        return f"result of code: {outcome.get('output')}"
    if call:
        return f"call {call.get('name')}({compact(call.get('args') or '')})"
    if response:
        return f"result of {response.get('name')}: {compact(response.get('response'))}"
    return f"[{', '.join(part)}]"


def _inside(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
