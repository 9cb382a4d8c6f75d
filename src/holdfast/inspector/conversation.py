"""Turns nodes into a conversation as a person reads it: a role, a text, and the stored payload folded away."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

import holdfast
from holdfast.cli.renderers.parts import MOST_PARTS, compact, text_of
from holdfast.cli.rendering import RENDERERS
from holdfast.cli.terminal import clipped
from holdfast.inspector.threads import Message, as_message

MOST_TEXT = 4_000
"""Characters of a message that a page shows. The rest is on a page of its own."""
MOST_TEXT_LINES = 100
ROLES = ("user", "assistant", "system", "tool", "call", "result", "reasoning")
OF_TOOLS = frozenset({"tool", "call", "result"})
"""Roles of what an assistant does with tools. A page folds what follows each other into one line."""
ROLE_NAMES = {"agent": "assistant", "ai": "assistant", "model": "assistant", "human": "user"}
"""Names that frameworks have for roles."""
PARTED = "pydantic-ai.message"
OF_TOOL = re.compile(r"(call|result) (?:\S+\(|of \S+: )")
MOST_TITLE = 100
MOST_LINES = 200
"""Lines of a diff that a page shows."""
MOST_COMPARED = 500
"""Lines that one diff compares, from the first that differs."""
CONTEXT = 2


HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e01ef]|\r(?!\n)"
)
"""Control characters, those that turn the direction of writing, and those that are not seen: a text of tags or of
variation selectors can hide instructions to a model. Joiners are left, because scripts and emoji need them."""


def visible(value: object) -> object:
    r"""Return stored text with each hidden character written out: a text must not look like another one.

    >>> from holdfast.inspector.conversation import visible
    >>> visible("to\x1b[31m \u202e")
    'to\\x1b[31m \\u202e'
    """
    return HIDDEN.sub(_written, value) if type(value) is str else value


def _written(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65_536 else f"\\U{number:08x}"


class Entry(NamedTuple):
    """One node as it is shown."""

    id: str
    role: str
    text: str
    is_cut: bool
    payload: str
    is_payload_cut: bool
    at_ms: int | None
    message: int | None = None
    """Its place in a thread, None for a node."""


class Block(NamedTuple):
    """Entries that a page shows together: one message, or calls of tools with their results."""

    tools: bool
    title: str
    entries: list[Entry]


def blocks_of(nodes: Iterable[holdfast.Node]) -> list[Block]:
    """Return nodes as blocks, in their order."""
    return together(entry for node in nodes for entry in _entries(node))


def blocks_of_thread(messages: Sequence[Message], most: int) -> list[Block]:
    """Return the last messages of a thread as blocks, in their order."""
    first = max(0, len(messages) - most)
    return together(entry_of_message(one, first + at) for at, one in enumerate(messages[first:]))


def together(entries: Iterable[Entry]) -> list[Block]:
    """Return entries as blocks, in their order."""
    blocks: list[Block] = []
    for entry in entries:
        is_tool = entry.role in OF_TOOLS
        if is_tool and blocks and blocks[-1].tools:
            blocks[-1].entries.append(entry)
        else:
            blocks.append(Block(is_tool, clipped(" ".join(entry.text.split()), MOST_TITLE), [entry]))
    return blocks


def _entries(node: holdfast.Node) -> list[Entry]:
    """Return a node as it is shown, a message of several parts part by part: each has its name."""
    is_parted = node.kind == PARTED and isinstance(node.payload, dict)
    parts: Any = cast("dict[str, Any]", node.payload).get("parts") if is_parted else None
    if not isinstance(parts, list):
        return [entry_of(node)]
    alone = [msgspec.structs.replace(node, payload={"parts": [one]}) for one in cast("Any", parts)[:MOST_PARTS]]
    return [entry_of(one) for one in alone] or [entry_of(node)]


def entry_of(node: holdfast.Node) -> Entry:
    """Return a node as it is shown."""
    role, text = _message(node)
    shown = "\n".join(text[:MOST_TEXT].split("\n", MOST_TEXT_LINES)[:MOST_TEXT_LINES])
    payload = pretty(node.payload)
    return Entry(
        node.id,
        role,
        shown,
        len(shown) < len(text),
        payload[:MOST_TEXT],
        len(payload) > MOST_TEXT,
        node.created_at_ms,
    )


def entry_of_message(message: Message, number: int) -> Entry:
    """Return a message of a thread as it is shown."""
    entry = entry_of(holdfast.Node(str(message.get("id") or number), kind="message", payload=as_message(message)))
    payload = pretty(message)
    return entry._replace(
        payload=payload[:MOST_TEXT], is_payload_cut=len(payload) > MOST_TEXT, at_ms=None, message=number
    )


def _message(node: holdfast.Node) -> tuple[str, str]:
    renderer = RENDERERS.get(node.kind)
    line = None if renderer is None else renderer(node.payload)
    if line is not None:
        return _role_and_text(node.kind, line)
    payload: Any = node.payload
    if isinstance(payload, str):
        return node.kind, payload
    fields: dict[str, Any] = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    content = next((fields[name] for name in ("content", "text", "parts") if name in fields), None)
    role_name: Any = fields.get("role")
    if isinstance(role_name, str):
        called = _calls(fields.get("tool_calls"))
        if called and not content:
            return "call", called
        if called or content is not None:
            return role_name, f"{text_of(content)}\n\n{called}".rstrip()
    if content is not None and len(fields) == 1:
        return node.kind, text_of(content)
    return node.kind, pretty(node.payload)


def _role_and_text(kind: str, line: str) -> tuple[str, str]:
    """Return the role and the text of a line of a renderer, the kind as the role if it names none of `ROLES`."""
    name, mark, text = line.partition(": ")
    role = ROLE_NAMES.get(name, name)
    if mark and role in ROLES:
        return role, text
    word, _, rest = line.partition(" ")
    if word in ROLES:
        return word, rest.removeprefix("of ")
    if mark and kind == "adk.event":  # the name of an agent
        of_tool = OF_TOOL.match(text)
        return ("assistant", text) if of_tool is None else (of_tool[1], text.partition(" ")[2].removeprefix("of "))
    if mark and kind == "langgraph.write":  # the name of a channel
        inner = _role_and_text("", text)
        return inner if inner[0] in ROLES else (kind, line)
    return kind, line


def _calls(calls: Any) -> str:
    """Return the calls of tools in a message, as chat models write them, one a line."""
    if not isinstance(calls, list):
        return ""
    listed = cast("Any", calls)
    lines: list[str] = []
    for one in listed[:MOST_PARTS]:
        call: Any = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        function: Any = call.get("function", call)
        fields: dict[str, Any] = cast("dict[str, Any]", function) if isinstance(function, dict) else {}
        lines.append(f"{fields.get('name', 'a tool')}({compact(fields.get('arguments', fields.get('args', '')))})")
    return "\n".join(lines)


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
            lines = difflib.unified_diff(*_differing(old, new), "before", "after", lineterm="", n=CONTEXT)
            # The numbers of lines count from where the comparison began.
            found.append((name, ["…" if line.startswith("@@") else line for line in lines][2 : 2 + MOST_LINES]))
    return found


def _differing(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines that differ, with some around them, at most `MOST_COMPARED` of each.

    The time that a comparison takes grows with the square of the lines.
    """
    alike = enumerate(zip(old, new, strict=False))
    first = next((at for at, (one, other) in alike if one != other), min(len(old), len(new)))
    begin = max(0, first - CONTEXT)
    backwards = zip(reversed(old[first:]), reversed(new[first:]), strict=False)
    same = next((at for at, (one, other) in enumerate(backwards) if one != other), min(len(old), len(new)) - first)
    ends = [min(len(lines), len(lines) - same + CONTEXT, begin + MOST_COMPARED) for lines in (old, new)]
    return old[begin : ends[0]], new[begin : ends[1]]


def _lines(value: object) -> list[str]:
    return [] if value is None else pretty(value).splitlines()
