"""Weigh a value before it is encoded, and find the part that JSON cannot hold.

A shared part is encoded once for each of its places.

A value of some kilobytes in memory may encode to terabytes, and encoding it takes all memory before its length is
known. A character is at least one byte, and an element at least two, with its comma or bracket: a value that is too
long by that is too long for certain. A value that fits may still be too long, by a small factor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal, cast

from holdfast.records.limits import SMALLEST_INTEGER

LIGHT_BYTES = 1 << 20
"""Up to here, every part is visited as often as it is encoded, which is fastest for values without shared parts."""
LARGEST_UNSIGNED = 2**64 - 1
NUMBERS = frozenset({int, float, bool, type(None)})
SIMPLE = (str, int, float, type(None))
FLOATS_AND_FLAGS = (float, bool)
CONTAINERS = (dict, list)

Weight = Literal["fits", "too long", "too deep", "odd"]
"""An odd value contains something that is not a JSON value."""


def is_light(value: object, depth: int, size: int) -> bool:
    """Return True if a value may be encoded at once: it nests at most `depth` levels, and takes about `size` bytes.

    Its whole numbers have 64 bits: longer ones may come back from JSON as floats.
    """
    if isinstance(value, CONTAINERS):
        return _room_left(value, depth, size) >= 0
    if isinstance(value, str):
        return len(value) <= size
    return value is None or isinstance(value, FLOATS_AND_FLAGS)


def weigh(value: object, depth: int, size: int) -> Weight:
    """Decide whether a container may be encoded: it nests at most `depth` levels, and takes about `size` bytes."""
    if not isinstance(value, dict | list):
        return "odd"
    if _room_left(value, depth, min(size, LIGHT_BYTES)) >= 0:
        return "fits"
    return _weigh_shared(cast("object", value), depth, size)


def _room_left(container: Any, depth: int, room: int) -> int:
    """Return the most room that an encoding leaves; negative if it may be too long, or needs a closer look."""
    if depth == 0:
        return -1
    room -= 2 * len(container)
    values: Any = container
    parts: Iterable[Any] = container
    if isinstance(container, dict):
        for key in parts:
            if not isinstance(key, str):
                return -1
            room -= len(key)
        parts = values.values()
    if room < 0:
        return room
    for part in parts:
        kind = cast("type[object]", type(part))
        if kind is str:
            room -= len(part)
        elif kind is dict or kind is list:
            room = _room_left(part, depth - 1, room)
            if room < 0:
                return room
        elif kind is int:
            if not SMALLEST_INTEGER <= part <= LARGEST_UNSIGNED:
                return -1
        elif kind not in NUMBERS:
            return -1
    return room


def _weigh_shared(value: object, depth: int, size: int) -> Weight:
    """Weigh level by level: every part of a level once, times its number of places."""
    room = size
    level: dict[int, Any] = {id(value): value}
    places = {id(value): 1}
    for _ in range(depth):
        inside: dict[int, Any] = {}
        places_inside: dict[int, int] = {}
        for key, one in level.items():
            times = places[key]
            room -= times * (2 * len(one) + (_length(cast("Any", one)) if isinstance(one, dict) else 0))
            if room < 0:
                return "too long"
            parts: list[Any] = list(cast("Any", one.values())) if isinstance(one, dict) else one
            room -= times * _length(parts)
            for part in [part for part in parts if not isinstance(part, SIMPLE)]:
                if not isinstance(part, dict | list):
                    return "odd"
                place = id(cast("object", part))
                inside[place] = part
                places_inside[place] = places_inside.get(place, 0) + times
        if not inside:
            return "too long" if room < 0 else "fits"
        level, places = inside, places_inside
    return "too deep"


def _length(values: Iterable[object]) -> int:
    """Return the number of characters of those values that are text."""
    return sum([len(one) for one in values if isinstance(one, str)])


# Values that JSON cannot hold.

MISFIT_STEPS = 100_000
"""The most values that are searched for the one that does not fit."""
PLAIN_KEY = re.compile(r"\w{1,64}", re.ASCII)
CONVERSIONS = {
    "tuple": "use a list",
    "set": "use a list",
    "frozenset": "use a list",
    "bytes": "encode it as text, or put it into an attachment",
    "bytearray": "encode it as text, or put it into an attachment",
    "datetime": "convert it to text or a number first",
    "date": "convert it to text first",
    "Decimal": "convert it to text or a number first",
    "UUID": "convert it to text first",
}


def misfit(value: object) -> str:
    """Return the place and type of the first value that JSON cannot hold, without repeating the value."""
    for pointer, one in islice(_parts(value), MISFIT_STEPS):
        problem = _problem(one)
        if problem is not None:
            return f"{f'value at {pointer}' if pointer else 'it'} {problem}"
    return "it does not survive its own encoding"


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """Yield a value and everything in it, in the order of the document, each part with its place."""
    yield "", value
    under: list[tuple[str, Iterator[tuple[object, Any]]]] = [("", _children(value))]
    while under:
        pointer, children = under[-1]
        for step, one in children:
            place = f"{pointer}/{_step(step) if isinstance(step, str) else step}"
            yield place, one
            if isinstance(one, dict | list):
                under.append((place, _children(one)))
                break
        else:
            under.pop()


def _children(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, dict):
        return iter(cast("dict[object, Any]", value).items())
    items: list[Any] = cast("Any", value) if isinstance(value, list) else []
    return enumerate(items)


def _problem(value: Any) -> str | None:
    """Return the problem of one value, apart from its contents."""
    if isinstance(value, str):
        return None if _is_text(value) else "contains a lone surrogate, which is not text"
    if isinstance(value, bool) or value is None or isinstance(value, list):
        return None
    if isinstance(value, int):
        return None if SMALLEST_INTEGER <= value <= LARGEST_UNSIGNED else "is a whole number of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is NaN or infinite, which JSON does not have"
    if isinstance(value, dict):
        keys: Iterable[Any] = cast("Any", value)
        return next((problem for key in keys if (problem := _key_problem(key))), None)
    name = type(value).__name__
    return f"is of type {name}; {CONVERSIONS.get(name, 'convert it to JSON values first')}"


def _key_problem(key: object) -> str | None:
    if not isinstance(key, str):
        return f"has a key of type {type(key).__name__}; keys must be text"
    return None if _is_text(key) else "has a key with a lone surrogate, which is not text"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _step(key: str) -> str:
    """Return a key as a pointer writes it. One that is not a plain word may be the caller's content, and is hidden."""
    return key if PLAIN_KEY.fullmatch(key) else "…"
