"""Text out of the parts that messages of several frameworks consist of."""

from __future__ import annotations

from typing import Any, cast

MOST_PARTS = 50
"""Parts of a message that are looked at: a line has no room for more."""


def text_of(content: Any) -> str:
    """Return the text of a message's content: the text itself, or the texts of its parts, others by their type."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = cast("Any", content)
        return " ".join(_part(one) for one in parts[:MOST_PARTS])
    return "" if content is None else compact(content)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        for name in ("text", "refusal", "transcript"):
            if isinstance(fields.get(name), str):
                return str(fields[name])
        if isinstance(fields.get("type"), str):
            return f"[{fields['type']}]"
    return compact(part)


def compact(value: Any) -> str:
    """Return a value as JSON, text as it is."""
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
