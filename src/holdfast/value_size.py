"""Weigh a value before it is encoded: a shared part is encoded once for each of its places.

A value of some kilobytes in memory may encode to terabytes, and encoding it takes all memory before its length is
known. A character is at least one byte, and an element at least two, with its comma or bracket: a value that is too
long by that is too long for certain. A value that fits may still be too long, by a small factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

LIGHT_BYTES = 1 << 20
"""Up to here, every part is visited as often as it is encoded, which is fastest for values without shared parts."""
NUMBERS = frozenset({int, float, bool, type(None)})
SIMPLE = (str, int, float, type(None))

Weight = Literal["fits", "too long", "too deep", "odd"]
"""An odd value contains something that is not a JSON value."""


def is_light(value: object, depth: int, size: int) -> bool:
    """Return True if a value may be encoded at once: it nests at most `depth` levels, and takes about `size` bytes."""
    if isinstance(value, SIMPLE):
        return not isinstance(value, str) or len(value) <= size
    return isinstance(value, dict | list) and _room_left(value, depth, size) >= 0


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
    parts: Iterable[Any] = container
    if isinstance(container, dict):
        for key in cast("dict[object, Any]", container):
            if not isinstance(key, str):
                return -1
            room -= len(key)
        parts = cast("dict[object, Any]", container).values()
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
