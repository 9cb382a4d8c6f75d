"""Messages of A2A tasks."""

from __future__ import annotations

from typing import Any, cast

from holdfast.cli.renderers.parts import text_of


def message(payload: Any) -> str | None:
    """Return `user: hi`."""
    if not isinstance(payload, dict):
        return None
    fields = cast("dict[str, Any]", payload)
    if "role" not in fields:
        return None
    return f"{str(fields['role']).removeprefix('ROLE_').lower()}: {text_of(fields.get('parts'))}"
