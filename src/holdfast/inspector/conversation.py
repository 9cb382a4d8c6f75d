"""Turns nodes into a conversation as a person reads it: a role, a text, and the stored payload folded away."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

import holdfast
from holdfast.cli.renderers.parts import text_of
from holdfast.cli.rendering import RENDERERS

MOST_TEXT = 4_000
"""Characters of a message that a page shows. The rest is on a page of its own."""
ROLES = ("user", "assistant", "system", "tool", "call", "result", "reasoning")


class Entry(NamedTuple):
    """One node as it is shown."""

    id: str
    role: str
    text: str
    is_cut: bool
    payload: str
    at_ms: int | None


def entry_of(node: holdfast.Node) -> Entry:
    """Return a node as it is shown."""
    role, text = _message(node)
    payload = pretty(node.payload)
    is_cut = len(text) > MOST_TEXT or len(payload) > MOST_TEXT
    return Entry(node.id, role, text[:MOST_TEXT], is_cut, payload[:MOST_TEXT], node.created_at_ms)


def _message(node: holdfast.Node) -> tuple[str, str]:
    renderer = RENDERERS.get(node.kind)
    line = None if renderer is None else renderer(node.payload)
    if line is not None:
        first, _, rest = line.partition(" ")
        role = first.rstrip(":")
        return (role, rest if first.endswith(":") else line) if role in ROLES else (node.kind, line)
    payload: Any = node.payload
    if isinstance(payload, str):
        return node.kind, payload
    fields: dict[str, Any] = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    content = next((fields[name] for name in ("content", "text", "parts") if name in fields), None)
    said_by: Any = fields.get("role")
    if isinstance(said_by, str) and content is not None:
        return said_by, text_of(content)
    if content is not None and len(fields) == 1:
        return node.kind, text_of(content)
    return node.kind, pretty(node.payload)


def pretty(value: object) -> str:
    """Return a document as indented JSON, and bytes by their length."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """Return the components that differ, each as the lines of a diff."""
    found: list[tuple[str, list[str]]] = []
    for name in sorted({*before, *after}):
        old, new = (_lines(each.get(name)) for each in (before, after))
        if old != new:
            lines = difflib.unified_diff(old, new, "before", "after", lineterm="", n=2)
            found.append((name, list(lines)[2:202]))
    return found


def _lines(value: object) -> list[str]:
    return [] if value is None else pretty(value).splitlines()
