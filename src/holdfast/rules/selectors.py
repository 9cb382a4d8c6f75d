"""Selectors: take a value out of a payload, or fill a bounded template from it.

A field that a template does not name is ignored. The bound applies to all templates of one event together.
"""

from __future__ import annotations

import re
from typing import Any, cast

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Document
from holdfast.records.events import Const, Payload, Pointer, Present, Selector, Template
from holdfast.records.limits import MIB, Limits
from holdfast.rules import checks

SELECTORS = (Payload, Pointer, Const, Template, Present)
FIELD = re.compile(r"\{([^{}]*)\}")
LONGEST_TEXT = 16 * MIB
"""The most characters that the templates of one event may be filled with, nested ones included."""
MOST_SELECTORS = 1_000
"""The most selectors of one declaration, nested ones included."""


class Remaining:
    """The number of selectors that a declaration may still have."""

    __slots__ = ("selectors",)

    def __init__(self) -> None:
        self.selectors = MOST_SELECTORS


def check_selector(field: str, value: object, limits: Limits, left: Remaining, depth: int = 0) -> int:
    """Check a selector of a declaration, deduct it from `left`, and return its length in bytes."""
    selector = checks.instance(field, value, SELECTORS)
    if depth > limits.document_depth:
        raise InvalidRequest(
            field, f"is nested deeper than {limits.document_depth} levels", limit=limits.document_depth
        )
    left.selectors -= 1
    if left.selectors < 0:
        raise InvalidRequest(field, f"the event type has more than {MOST_SELECTORS} selectors", limit=MOST_SELECTORS)
    if isinstance(selector, Pointer | Present):
        path = checks.text(f"{field}.path", selector.path, limits)
        if path and not path.startswith("/"):
            raise InvalidRequest(f"{field}.path", "a JSON pointer is empty or starts with /")
        return len(path)
    if isinstance(selector, Const):
        return len(checks.document(f"{field}.value", selector.value, limits))
    if not isinstance(selector, Template):
        return 0
    size = len(checks.text(f"{field}.template", selector.template, limits))
    for name, inner in checks.mapping(f"{field}.fields", selector.fields, most=limits.batch_items).items():
        if "{" in checks.identifier(f"{field}.fields", name, limits) or "}" in name:
            raise InvalidRequest(f"{field}.fields", f"the name {name!r} must not contain braces")
        size += check_selector(f"{field}.fields.{name}", inner, limits, left, depth + 1)
    return size


class Room:
    """The number of characters that templates may still be filled with."""

    __slots__ = ("_left",)

    def __init__(self, most: int = LONGEST_TEXT) -> None:
        self._left = most

    def take(self, field: str, text: str) -> str:
        """Return the text if there is room for it, or raise `InvalidRequest`."""
        self._left -= len(text)
        if self._left < 0:
            raise InvalidRequest(
                field, f"fills its templates with more than {LONGEST_TEXT} characters", limit=LONGEST_TEXT
            )
        return text


def select(field: str, selector: Selector, payload: Document, room: Room | None = None) -> Document:
    """Return the value that a selector takes out of a payload."""
    if isinstance(selector, Payload):
        return payload
    if isinstance(selector, Const):
        return selector.value
    if isinstance(selector, Present):
        return _resolve(selector.path, payload)[0]
    if isinstance(selector, Pointer):
        found, value = _resolve(selector.path, payload)
        if not found:
            raise InvalidRequest(field, f"payload pointer {selector.path!r} did not match")
        return value
    return _fill(field, selector, payload, Room() if room is None else room)


def _resolve(path: str, payload: Document) -> tuple[bool, Any]:
    value: Any = payload
    for part in path.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found, value = _step(value, key)
        if not found:
            return False, None
    return True, value


def _step(value: Any, key: str) -> tuple[bool, Any]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return key in members, members.get(key)
    if isinstance(value, list):
        items: list[Any] = cast("Any", value)
        if _is_index(key) and int(key) < len(items):
            return True, items[int(key)]
    return False, None


def _is_index(key: str) -> bool:
    """Return True for an array index as JSON pointers write it: at most nine digits, no leading zero."""
    return key.isascii() and key.isdigit() and len(key) < 10 and (key == "0" or not key.startswith("0"))


def _fill(field: str, template: Template, payload: Document, room: Room) -> str:
    """Return the template with its fields filled in, in one pass: inserted text is not read again.

    A field that the template does not name is ignored.
    """
    values: dict[str, str] = {}

    def put_in(place: re.Match[str]) -> str:
        name = place[1]
        if name not in template.fields:
            return place[0]
        if name not in values:
            value = select(field, template.fields[name], payload, room)
            values[name] = value if isinstance(value, str) else room.take(field, as_text(value))
        return room.take(field, values[name])

    return FIELD.sub(put_in, room.take(field, template.template))


def most_values(selector: Selector) -> int | None:
    """Return the most different values that a selector can give over all payloads; None if there is no such bound."""
    if isinstance(selector, Template):
        named = {place[1] for place in FIELD.finditer(selector.template)}
        most = 1
        for name, inner in selector.fields.items():
            each = most_values(inner) if name in named else 1
            if each is None:
                return None
            most *= each
        return most
    if isinstance(selector, Present):
        return 2
    return 1 if isinstance(selector, Const) else None


def as_text(value: Document) -> str:
    """Return text as it is, anything else as JSON."""
    return value if isinstance(value, str) else codec.encode_document(value).decode()
