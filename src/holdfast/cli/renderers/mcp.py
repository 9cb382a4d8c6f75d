"""Messages of MCP: requests, notifications, results and errors."""

from __future__ import annotations

from typing import Any, cast

from holdfast.cli.renderers.parts import compact


def message(payload: Any) -> str | None:
    """Return `request 1: tools/call {"name":"weather"}`, `result of 1: {...}` or `stream begins`."""
    if payload is None:
        return "stream begins"
    if not isinstance(payload, dict):
        return None
    fields = cast("dict[str, Any]", payload)
    if "method" in fields:
        what = f"request {fields['id']}" if "id" in fields else "notification"
        return f"{what}: {fields['method']} {compact(fields.get('params', ''))}".rstrip()
    for name in ("result", "error"):
        if name in fields:
            return f"{name} of {fields.get('id')}: {compact(fields[name])}"
    return None
