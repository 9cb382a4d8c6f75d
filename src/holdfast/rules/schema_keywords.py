"""The work of each keyword of a schema: small only where that is known.

Work is measured in visits, the time that a validator takes for the cheapest keyword: some 20 nanoseconds. The work of a
comparison grows with the size of the compared values. Numbers are compared exactly, as fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

REGEX_WORK = 100_000
"""The work of checking that a text is a valid pattern."""

FORMAT_WORK = 256
"""The work of checking the format of 64 characters of text."""

LEAF_WORK, ENTRY_WORK = 5, 12
"""The work of comparing a scalar or an array, and a member of an object, with another."""

SCANNED_TEXTS = 10
"""Up to this many texts are compared one by one; more are looked up by hash."""

DECIMAL_WORK, EXTREME_WORK = 100, 16_000
"""The work of exact arithmetic with a number that is not a small whole number, and with one of a large exponent."""

SMALLEST_DECIMAL, LARGEST_DECIMAL = 1e-20, 1e20

HASH_WORK = 20
"""The work of finding an item among others by its hash."""

PAIRED = 15
"""Up to this many items are compared pairwise."""

ENDLESS = 10**12
"""More work than is ever allowed."""

UNKNOWN_WORK = 1_000
"""The work of an unknown keyword. The validator ignores it today, and may not tomorrow."""

NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
APPLYING = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "properties", "patternProperties",
    "additionalProperties", "propertyNames", "items", "prefixItems", "additionalItems", "contains",
    "unevaluatedProperties", "unevaluatedItems", "$ref", "$dynamicRef", "$recursiveRef", "pattern",
})  # fmt: skip
"""Keywords whose work is that of the schemas and patterns that they apply."""
SIMPLE = frozenset({
    "type", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
})  # fmt: skip
"""Keywords that take the same time for every value."""
DESCRIBING = frozenset({
    "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs",
    "definitions", "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "contentSchema", "nullable", "discriminator", "xml", "externalDocs",
})  # fmt: skip
"""Keywords that no validator applies. Names that begin with `x-` are reserved for such keywords, too."""
CHEAP = APPLYING | SIMPLE | DESCRIBING


class Weight(NamedTuple):
    """The work of a keyword, without the schemas and patterns that it applies."""

    work: int
    """The work for any value, and for each 64 characters of text or 16 members of it."""
    numbers: int = 0
    """Comparisons of a number with a number of the schema."""
    wholes: int = 0
    """Comparisons of an array or object with one of the schema."""
    is_unique: bool = False
    """True if the items of an array are compared with each other."""


def weight_of(keyword: str, value: object) -> Weight:
    """Return the weight of one keyword. An unknown one is heavy."""
    if keyword in CHEAP or keyword.startswith("x-"):
        return Weight(1)
    if keyword in NUMBERS:
        return Weight(1 + work_of_number(value), numbers=1)
    if keyword in ("enum", "const"):
        return _weight_of_options([value] if keyword == "const" else _listed(value))
    if keyword == "uniqueItems":
        return Weight(1, is_unique=value is not False)
    if keyword == "format":
        return Weight(REGEX_WORK if value == "regex" else FORMAT_WORK)
    if keyword in ("contentEncoding", "contentMediaType"):
        return Weight(FORMAT_WORK)
    if keyword in ("required", "dependentRequired", "dependencies"):
        return Weight(1 + _names_in(value))
    return Weight(UNKNOWN_WORK)


def _listed(value: object) -> list[Any]:
    return cast("Any", value) if isinstance(value, list) else []


def _names_in(value: object) -> int:
    """Return the number of names in a list of names, or in an object of such lists."""
    if isinstance(value, dict):
        return sum(1 + len(_listed(names)) for names in cast("dict[str, object]", value).values())
    return len(_listed(value))


def _weight_of_options(options: list[Any]) -> Weight:
    """Return the weight of comparing a value with each of the options."""
    if all(isinstance(one, str) for one in options):
        return Weight(1 + min(len(options), SCANNED_TEXTS))
    return Weight(
        1 + sum(work_of_comparing(one) for one in options),
        numbers=sum(isinstance(one, int | float) for one in options),
        wholes=sum(isinstance(one, list | dict) for one in options),
    )


def work_of_number(value: object) -> int:
    """Return the work of comparing a number exactly: as a fraction, unless it is a small whole number."""
    if isinstance(value, float):
        return DECIMAL_WORK if not value or SMALLEST_DECIMAL <= abs(value) <= LARGEST_DECIMAL else EXTREME_WORK
    return DECIMAL_WORK if isinstance(value, int) and abs(value) >= 2**53 else 1


class Whole(NamedTuple):
    """A value with all of its contents."""

    work: int
    """The work of comparing it with another value."""
    sign: int
    """Equal for values that have the same scalars and names in any arrangement: a hash may not tell those apart."""
    steps: int
    """Steps that weighing it took."""


def whole_of(value: object, most_steps: int) -> Whole:
    """Weigh a value with all of its contents. After `most_steps`, its work is reported as `ENDLESS`."""
    work = sign = steps = 0
    waiting: list[Iterator[object]] = [iter((value,))]
    while waiting:
        one = next(waiting[-1], waiting)
        steps += 1
        if one is waiting:
            waiting.pop()
        elif isinstance(one, dict):
            members = cast("dict[str, object]", one)
            work += ENTRY_WORK * (1 + len(members)) + sum(map(len, members)) // 64
            sign += sum(map(hash, members))
            steps += len(members) // 8
            waiting.append(iter(members.values()))
        elif isinstance(one, list):
            items: list[object] = cast("Any", one)
            steps += len(items) // 8
            alike = _alike(items)
            if alike is None:
                work += LEAF_WORK
                waiting.append(iter(items))
            else:
                work, sign = work + LEAF_WORK + alike.work, sign + alike.sign
        elif isinstance(one, str):
            work += LEAF_WORK + len(one) // 64
            sign += hash(one)
        else:
            work += LEAF_WORK + work_of_number(one)
            sign += hash(one if one is None else float(cast("float", one)))  # large close numbers count as equal
        if steps > most_steps:
            return Whole(ENDLESS, sign, steps)
    return Whole(work, sign, steps)


def _alike(items: list[Any]) -> Whole | None:
    """Weigh items that are all texts, or all numbers, faster than one by one; None for any others."""
    kinds = set(map(type, items))
    if kinds == {str}:
        return Whole(LEAF_WORK * len(items) + sum(map(len, items)) // 64, sum(map(hash, items)), 0)
    if not kinds or kinds - {int, float}:
        return None
    sizes: list[float] = [abs(item) for item in items]
    each = max(map(work_of_number, (max(sizes), min(filter(None, sizes), default=0))))
    if float in kinds:
        each = max(each, DECIMAL_WORK)
    return Whole((LEAF_WORK + each) * len(items), sum(map(hash, map(float, items))), 0)


def work_of_comparing(value: object) -> int:
    """Return the work of comparing a value of a schema as a whole."""
    return whole_of(value, ENDLESS).work


def work_of_unique(items: list[Any], most_steps: int) -> tuple[int, int]:
    """Return the most work of finding out whether items differ from each other, and the steps that weighing them took.

    Few items are compared pairwise; more are distinguished by a hash, and those that share one are compared.
    """
    alike = _alike(items)
    if alike is not None and len(items) > PAIRED and not _are_close(items):
        return HASH_WORK * len(items) + 2 * alike.work, len(items) // 8
    steps = 0
    counts: dict[int, int] = {}
    works: dict[int, int] = {}
    for item in items:
        whole = whole_of(item, most_steps - steps)
        steps += whole.steps
        if steps > most_steps:
            return ENDLESS, steps
        sign = 0 if len(items) <= PAIRED else whole.sign
        counts[sign] = counts.get(sign, 0) + 1
        works[sign] = works.get(sign, 0) + HASH_WORK + 2 * whole.work
    return sum(counts[sign] * work for sign, work in works.items()), steps


def _are_close(items: list[Any]) -> bool:
    """Return True if there are whole numbers so large that several of them map to the same float."""
    return any(type(item) is not str and abs(item) >= 2**53 for item in items)
