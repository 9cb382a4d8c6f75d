"""A selector takes a value out of a payload, or fills a template from it within a bound.

Only the fields that a template names are looked at, and all that the templates of one event are filled with counts.
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
"""The most characters that the templates of one event may be filled with, one inside the other included."""
MOST_SELECTORS = 1_000
"""The most selectors that one declaration may have, one inside the other included."""


class Remaining:
    """How many selectors a declaration may still have."""

    __slots__ = ("selectors",)

    def __init__(self) -> None:
        self.selectors = MOST_SELECTORS


def check_selector(field: str, value: object, limits: Limits, left: Remaining, depth: int = 0) -> int:
    """Check one of the selectors of a declaration, of which so many are left. Returns its length in bytes."""
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
    """How many characters templates may still be filled with."""

    __slots__ = ("_left",)

    def __init__(self, most: int = LONGEST_TEXT) -> None:
        self._left = most

    def take(self, field: str, text: str) -> str:
        """Return the text if there is room for it."""
        self._left -= len(text)
        if self._left < 0:
            raise InvalidRequest(
                field, f"fills its templates with more than {LONGEST_TEXT} characters", limit=LONGEST_TEXT
            )
        return text


def select(field: str, selector: Selector, payload: Document, room: Room | None = None) -> Document:
    """The value that a selector takes out of a payload."""
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
    """An array index as JSON pointers write it: digits, no leading zero, of sane length."""
    return key.isascii() and key.isdigit() and len(key) < 10 and (key == "0" or not key.startswith("0"))


def _fill(field: str, template: Template, payload: Document, room: Room) -> str:
    """The template with its fields put in, in one pass: what was put in is text and is not read again.

    A field that the template does not name is not looked at.
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


def is_constant(selector: Selector) -> bool:
    """Whether a selector gives the same value for every payload."""
    if isinstance(selector, Template):
        named = {place[1] for place in FIELD.finditer(selector.template)}
        return all(is_constant(inner) for name, inner in selector.fields.items() if name in named)
    return isinstance(selector, Const)


def as_text(value: Document) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else codec.encode_document(value).decode()
