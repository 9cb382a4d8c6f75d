"""Find the schemas inside a JSON Schema, and those that each of them applies to a value, its members and its items.

References are followed by their address inside the schema. A reference that leads elsewhere, or back to itself, is
refused, because its cost cannot be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, cast
from urllib.parse import unquote, urljoin

import msgspec

from holdfast.rules.schema_keywords import ENDLESS, weight_of, work_of_unique
from holdfast.rules.schema_patterns import PatternCost, cost_of_pattern
from holdfast.rules.schemas import PATTERN_STATES, PATTERNS, SUBSCHEMAS

CHAIN = 256
"""Longest chain of schemas that refer to each other without going deeper into the payload."""

COMPARING_WORK = 50_000_000
"""Most work of comparing the options of all enums with each other."""

PATTERN_CHARACTERS = 64 * 1024
"""Most characters of all patterns of a schema."""

IN_PLACE = ("allOf", "anyOf", "oneOf")
IN_PLACE_ONE = ("not", "if", "then", "else")
IN_PLACE_NAMED = ("dependentSchemas", "dependencies")
DEEPER = ("additionalProperties", "propertyNames", "additionalItems", "contains")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
PLACES = ("$defs", "definitions", "properties", "patternProperties")
KNOWN = ("http://json-schema.org/", "https://json-schema.org/")
TYPES: dict[type, frozenset[str]] = {
    type(None): frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),  # 1.0 is an integer
    str: frozenset({"string"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
}


PUBLISHED: dict[str, Any] = {"allOf": [True] * 64, "format": "regex", "uniqueItems": True}
"""Stands for a published meta-schema, which the validator includes: an estimate of its work for each value."""
PUBLISHED["additionalProperties"] = PUBLISHED["items"] = PUBLISHED


class Visit(msgspec.Struct):
    """One schema inside a schema: its own work, its cheap keywords, and the schemas that it applies."""

    work: int = 1
    """The work for any value, and for each 64 characters of text or 16 members of it."""
    numbers: int = 0
    """Comparisons of a number with a number of the schema."""
    wholes: int = 0
    """Comparisons of an array or object with one of the schema."""
    is_unique: bool = False
    """True if the items of an array are compared with each other."""
    patterns: list[PatternCost] = []
    types: frozenset[str] | None = None
    options: frozenset[str] | None = None
    """The texts of `const` or `enum`, None if there is neither."""
    in_place: list[tuple[int, int]] = []
    """The schemas applied to the same value, each with the number of times."""
    members: dict[str, int] = {}
    other_members: list[int] = []
    """Applied to members that `members` does not name."""
    every_member: list[int] = []
    names: list[int] = []
    """Applied to the names of members."""
    first_items: list[int] = []
    other_items: list[int] = []
    every_item: list[int] = []

    def fails_at_once(self, value: object) -> bool:
        """Return True if the cheap keywords alone refuse a value."""
        is_of_another_type = self.types is not None and not self.types & TYPES[type(value)]
        return is_of_another_type or (self.options is not None and isinstance(value, str) and value not in self.options)

    def for_member(self, name: str | None) -> list[int]:
        """Return the schemas that it applies to a member of this name; None is any name that it does not list."""
        named = [self.members[name]] if name in self.members else self.other_members
        return named + self.every_member

    def for_item(self, index: int) -> list[int]:
        """Return the schemas that it applies to the item at this place."""
        first = self.first_items
        return (first[index : index + 1] if index < len(first) else self.other_items) + self.every_item

    def applies(self) -> Iterator[int]:
        """Yield the schemas that it applies to a value, or to its members and items."""
        yield from (other for other, _ in self.in_place)
        yield from self.members.values()
        yield from chain(self.other_members, self.every_member, self.names)
        yield from chain(self.first_items, self.other_items, self.every_item)

    @property
    def unit_work(self) -> int:
        """The most proportional work for one value without its contents, or for 64 characters of text."""
        return self.work + self.numbers + sum(one.unit_work for one in self.patterns if one.going != "back")

    @property
    def is_even(self) -> bool:
        """True if the work for a payload is in proportion to its size."""
        return not (self.wholes or self.is_unique or any(one.going == "back" for one in self.patterns))


class SchemaGraph(msgspec.Struct, frozen=True):
    """The schemas inside one schema, each before those that it applies in place."""

    visits: tuple[Visit, ...]
    root: int
    has_alternatives: bool
    """True if a value may fail several schemas at once, each for reasons that an error would list."""
    states: int
    """The size of its patterns when they are compiled."""
    patterns: int
    """The number of different patterns."""


def graph_of(schema: Any) -> SchemaGraph:
    """Return the schemas inside a schema. Raise `ValueError` with the reason if it cannot be used."""
    reader = _Reader(schema)
    root = reader.number(schema, "")
    reader.read_all()
    visits, places = _ordered(reader.visits)
    states = sum(one.states for one in reader.patterns.values())
    return SchemaGraph(tuple(visits), places[root], reader.has_alternatives, states, len(reader.patterns))


class _Reader:
    """Finds every schema that can be applied, however it is referred to."""

    def __init__(self, schema: Any) -> None:
        self.visits: list[Visit] = []
        self.has_alternatives = False
        self.patterns: dict[str, PatternCost] = {}
        self._comparing_left = COMPARING_WORK
        self._characters_left = PATTERN_CHARACTERS
        self._states_left = PATTERN_STATES
        self._numbers: dict[int, int] = {}
        self._unread: list[tuple[Any, str, int]] = []
        self._resources: dict[str, Any] = {"": schema}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: dict[str, list[tuple[Any, str]]] = {}
        self._id = "id" if "draft-04" in str(_member(schema, "$schema")) else "$id"
        self._index(schema)

    def number(self, schema: Any, base: str) -> int:
        """Return the number of a schema, which `read_all` reads later."""
        found = self._numbers.get(id(cast("Any", schema))) if isinstance(schema, dict) else None
        if found is None:
            found = self._add(Visit())
            if isinstance(schema, dict):
                self._numbers[id(cast("Any", schema))] = found
                self._unread.append((cast("Any", schema), base, found))
        return found

    def _add(self, visit: Visit) -> int:
        if len(self.visits) >= SUBSCHEMAS:
            raise ValueError(f"it consists of more than {SUBSCHEMAS} schemas")
        self.visits.append(visit)
        return len(self.visits) - 1

    def read_all(self) -> None:
        """Read every schema that is referred to."""
        while self._unread:
            schema, base, number = self._unread.pop()
            self._read(schema, self._base_of(schema, base), self.visits[number])

    def _index(self, root: Any) -> None:
        """Record the schemas that have ids or anchors."""
        waiting: list[tuple[Any, str]] = [(root, "")]
        seen: set[int] = set()
        while waiting:
            schema, outer = waiting.pop()
            if not isinstance(schema, dict) or id(cast("Any", schema)) in seen:
                continue
            members = cast("dict[str, Any]", schema)
            seen.add(id(members))
            self._compare_options(_listed(members.get("enum")))
            base = self._base_of(members, outer)
            if base != outer:
                self._resources[base] = members
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(members.get(key), str):
                    self._anchors[base, members[key]] = members
            name = members.get(self._id)
            if isinstance(name, str) and name.startswith("#"):
                self._anchors[base, name[1:]] = members
            if isinstance(members.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(members["$dynamicAnchor"], []).append((members, base))
            if members.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("$recursive", []).append((members, base))
            waiting.extend((inner, base) for inner in _inner(members))

    def _compare_options(self, options: list[Any]) -> None:
        """Charge the work of comparing options with each other, which some drafts require to be unique."""
        work, _ = work_of_unique(options, ENDLESS)
        self._comparing_left -= work
        if self._comparing_left < 0:
            raise ValueError("the options of its enums take too much work to compare")

    def _read(self, schema: dict[str, Any], base: str, visit: Visit) -> None:
        self.has_alternatives |= any(keyword in schema for keyword in ("anyOf", "oneOf"))
        weights = [weight_of(keyword, value) for keyword, value in schema.items()]
        visit.work = 1 + sum(one.work for one in weights)
        visit.numbers = sum(one.numbers for one in weights)
        visit.wholes = sum(one.wholes for one in weights)
        visit.is_unique = any(one.is_unique for one in weights)
        if isinstance(schema.get("pattern"), str):
            visit.patterns = [self._pattern(schema["pattern"])]
        named: list[Any] = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
        if all(isinstance(name, str) for name in named):
            visit.types = frozenset(named)
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(options, list):
            visit.options = frozenset(one for one in cast("list[object]", options) if isinstance(one, str))
        visit.in_place = [(self.number(inner, base), 1) for inner in _in_place(schema)]
        for keyword in REFERENCES:
            for target, its_base in self._targets(keyword, schema.get(keyword), base):
                visit.in_place.append((self.number(target, its_base), 1))
        self._read_members(schema, base, visit)
        self._read_items(schema, base, visit)
        if any(keyword in schema for keyword in UNEVALUATED):
            # The validator applies the schemas in place once more to find what was evaluated.
            visit.in_place = [(number, -1) for number, _ in visit.in_place]

    def _pattern(self, pattern: str) -> PatternCost:
        """Return the cost of a pattern. Each pattern is compiled, and so counted, once."""
        found = self.patterns.get(pattern)
        if found is None:
            self._characters_left -= len(pattern)
            if self._characters_left < 0:
                raise ValueError(f"its patterns have more than {PATTERN_CHARACTERS} characters")
            if len(self.patterns) == PATTERNS:
                raise ValueError(f"it has more than {PATTERNS} patterns: describe some of its texts by one of them")
            self.patterns[pattern] = found = cost_of_pattern(pattern)
            self._states_left -= found.states
            if self._states_left < 0:
                raise ValueError(
                    f"its patterns take more than {PATTERN_STATES} states when compiled, with {pattern[:40]!r}: "
                    "limit the length of a text by maxLength, or simplify the pattern"
                )
        return found

    def _read_members(self, schema: dict[str, Any], base: str, visit: Visit) -> None:
        visit.members = {name: self.number(inner, base) for name, inner in _named(schema, "properties")}
        for pattern, inner in _named(schema, "patternProperties"):
            # The validator matches all patterns once more to find the members that no pattern names.
            visit.names.append(self._add(Visit(patterns=[self._pattern(pattern)] * 3)))
            visit.every_member.append(self.number(inner, base))
        if "propertyNames" in schema:
            visit.names.append(self.number(schema["propertyNames"], base))
        if "unevaluatedProperties" in schema:
            visit.every_member.append(self.number(schema["unevaluatedProperties"], base))
        if "additionalProperties" in schema:
            visit.other_members = [self.number(schema["additionalProperties"], base)]

    def _read_items(self, schema: dict[str, Any], base: str, visit: Visit) -> None:
        items = schema.get("items")
        rest = schema.get("additionalItems") if isinstance(items, list) else items
        visit.first_items = [
            self.number(inner, base)
            for inner in _listed(schema.get("items" if isinstance(items, list) else "prefixItems"))
        ]
        visit.other_items = [] if rest is None else [self.number(rest, base)]
        visit.every_item = [
            self.number(schema[keyword], base) for keyword in ("contains", "unevaluatedItems") if keyword in schema
        ]

    def _targets(self, keyword: str, value: object, base: str) -> Iterator[tuple[Any, str]]:
        if not isinstance(value, str):
            return
        yield self._resolve(value, base)
        name = "$recursive" if keyword == "$recursiveRef" else value.rpartition("#")[2]
        if keyword != "$ref":
            yield from self._dynamic.get(name, ())

    def _resolve(self, reference: str, base: str) -> tuple[Any, str]:
        whole = base + reference if reference.startswith("#") else urljoin(base, reference)
        address, _, fragment = whole.partition("#")
        if address.startswith(KNOWN) and address not in self._resources:
            return PUBLISHED, ""
        fragment = unquote(fragment)
        if address in self._resources and (not fragment or fragment.startswith("/")):
            return self._pointed(self._resources[address], fragment, address, reference)
        if (address, fragment) in self._anchors:
            return self._anchors[address, fragment], address
        raise ValueError(f"{reference!r} is not in the schema")

    def _pointed(self, resource: Any, pointer: str, base: str, reference: str) -> tuple[Any, str]:
        found = resource
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            inner = _listed(found)
            if isinstance(found, dict) and key in found:
                found = _member(found, key)
            elif key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(inner):
                found = inner[int(key)]
            else:
                raise ValueError(f"{reference!r} is not in the schema")
            base = self._base_of(found, base)
        return found, base

    def _base_of(self, schema: Any, outer: str) -> str:
        """Return the address that references in a schema are relative to."""
        name = _member(schema, self._id)
        if isinstance(name, str) and not name.startswith("#"):
            return urljoin(outer, name).partition("#")[0]
        return outer


def _member(schema: Any, key: str) -> Any:
    return cast("dict[str, Any]", schema).get(key) if isinstance(schema, dict) else None


def _listed(value: object) -> list[Any]:
    return cast("Any", value) if isinstance(value, list) else []


def _named(schema: dict[str, Any], keyword: str) -> list[tuple[str, Any]]:
    value = schema.get(keyword)
    return list(cast("dict[str, Any]", value).items()) if isinstance(value, dict) else []


def _in_place(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword in IN_PLACE:
        if isinstance(schema.get(keyword), list):
            yield from schema[keyword]
    yield from (schema[keyword] for keyword in IN_PLACE_ONE if keyword in schema)
    for keyword in IN_PLACE_NAMED:
        yield from (inner for _, inner in _named(schema, keyword) if not isinstance(inner, list))


def _inner(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield every schema in a position where a schema is expected."""
    yield from _in_place(schema)
    for keyword in PLACES:
        yield from (inner for _, inner in _named(schema, keyword))
    yield from (schema[keyword] for keyword in (*DEEPER, *UNEVALUATED) if keyword in schema)
    for keyword in ("items", "prefixItems"):
        value = schema.get(keyword)
        yield from _listed(schema[keyword]) if isinstance(value, list) else (value,)


def _ordered(found: list[Visit]) -> tuple[list[Visit], list[int]]:
    """Return the visits ordered so that each comes before those that it applies in place, and the new place of each."""
    height = [0] * len(found)
    state = [0] * len(found)
    done: list[int] = []
    for start in range(len(found)):
        path = [start] if state[start] == 0 else []
        while path:
            number = path[-1]
            if state[number] == 2:
                path.pop()
                continue
            inner = [other for other, _ in found[number].in_place]
            if state[number] == 1:
                state[number] = 2
                height[number] = 1 + max((height[other] for other in inner), default=0)
                if height[number] > CHAIN:
                    raise ValueError(f"more than {CHAIN} schemas of it refer to one another")
                done.append(path.pop())
                continue
            state[number] = 1
            for other in inner:
                if state[other] == 1:
                    raise ValueError("it refers to itself without going deeper into the payload")
                if state[other] == 0:
                    path.append(other)
    done.reverse()
    places = [0] * len(found)
    for place, number in enumerate(done):
        places[number] = place
    for number, visit in enumerate(found):
        times = 2 + height[number]
        visit.in_place = [(places[other], times if one < 0 else one) for other, one in visit.in_place]
        visit.members = {name: places[other] for name, other in visit.members.items()}
        for inner_list in (
            visit.other_members, visit.every_member, visit.names,
            visit.first_items, visit.other_items, visit.every_item,
        ):  # fmt: skip
            inner_list[:] = [places[other] for other in inner_list]
    return [found[number] for number in done], places
