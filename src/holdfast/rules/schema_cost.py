"""Bound the work of validating a payload before it is done, and refuse too much of it.

A validator cannot be interrupted. References let a schema of a few lines visit one value billions of times, so the
visits are counted first: in the worst case of any payload, and if that is too much, for this payload. A visit counts
for as much as its keywords can take for the value. The count of a payload follows the order of the validator: the cheap
keywords of a schema come first, then the members of an object in the order of the payload, and the first failure ends
both.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.rules.schema_graph import SchemaGraph, Visit, graph_of
from holdfast.rules.schema_keywords import (
    DECIMAL_WORK,
    ENDLESS,
    EXTREME_WORK,
    whole_of,
    work_of_number,
    work_of_unique,
)

LEVELS = 80
"""Levels through which the worst case is followed. A schema whose visits still multiply there has no bound."""

PATHS = 500_000
"""Largest table of the worst case. The visits of a schema that needs a larger one are counted for each payload."""

TEXT_UNIT, SIZE_UNIT = 64, 16
"""Characters of text, and members to look up, that are as much work as one more visit."""

DECIMAL = re.compile(rb"[0-9]\.[0-9]|[0-9][eE]|[0-9]{16}")
EXTREME = re.compile(rb"[0-9][eE]")
"""Match numbers that take exact arithmetic, and those with an exponent. Texts may look the same."""

STRETCH, LONGEST_LOOK = 256 * 1024, 16
"""Bytes that are searched for numbers at a time, and the most bytes of a match."""

Times: TypeAlias = dict[int, int]
"""The number of times that each schema is applied."""


class SchemaCost(msgspec.Struct, frozen=True):
    """The schemas of one schema, and the most work that one value of any payload can take."""

    graph: SchemaGraph
    worst: int
    """Excludes work that is out of proportion to the value."""
    has_numbers: bool
    """True if numbers are compared."""
    leads_to_uneven: frozenset[int]
    """The schemas whose work is out of proportion, or that lead to such a schema."""

    def most_work(self, encoded: bytes) -> int:
        """Return the most proportional work that a payload can take, without looking at its values."""
        values = values_in(encoded)
        exactly = 1
        if self.has_numbers and _occurs(DECIMAL, encoded):
            exactly += EXTREME_WORK if _occurs(EXTREME, encoded) else DECIMAL_WORK
        return self.worst * exactly * (values + values // SIZE_UNIT + len(encoded) // TEXT_UNIT)


def _occurs(numbers: re.Pattern[bytes], encoded: bytes) -> bool:
    """Return whether such numbers occur, looking at a stretch at a time: no other thread runs during a search."""
    stretches = range(0, len(encoded), STRETCH)
    return any(numbers.search(encoded, start, start + STRETCH + LONGEST_LOOK) for start in stretches)


def values_in(encoded: bytes) -> int:
    """Return an upper bound of the number of values in a document."""
    return 1 + encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{")


def cost_of(schema: Any) -> SchemaCost:
    """Return the cost of a schema. Raise `ValueError` with the reason if it has none."""
    graph = graph_of(schema)
    has_numbers = any(visit.numbers for visit in graph.visits)
    return SchemaCost(graph, _worst(graph), has_numbers, _leading_to_uneven(graph))


def _leading_to_uneven(graph: SchemaGraph) -> frozenset[int]:
    """Return the schemas whose work is out of proportion to a value, and those that lead to them."""
    applied_by: dict[int, list[int]] = {}
    for place, visit in enumerate(graph.visits):
        for other in visit.applies():
            applied_by.setdefault(other, []).append(place)
    waiting = [place for place, visit in enumerate(graph.visits) if not visit.is_even]
    found = set(waiting)
    while waiting:
        for place in applied_by.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    return frozenset(found)


def _worst(graph: SchemaGraph) -> int:
    """Return the most work that one value can take, at any level of any payload."""
    most: list[int] = []
    tables: list[list[Times]] = []
    size = 0
    for start in range(len(graph.visits)):
        live = [(graph.visits[place], count) for place, count in _closure(graph, start).items()]
        names = sorted({name for visit, _ in live for name in visit.members})
        places = 1 + max(len(visit.first_items) for visit, _ in live)
        size += len(live) * (len(names) + 1 + places)
        if size > PATHS:
            return ENDLESS
        most.append(min(ENDLESS, sum(count * visit.unit_work for visit, count in live)))
        of_names = _name_times(live)
        tables.append(
            [_times(chain(_member_times(live, name).items(), of_names.items())) for name in (*names, None)]
            + [_item_times(live, index) for index in range(places)]
        )
    for _ in range(LEVELS):
        deeper = [
            max([here, *(min(ENDLESS, sum(most[other] * count for other, count in one.items())) for one in table)])
            for here, table in zip(most, tables, strict=True)
        ]
        if deeper == most:
            return most[graph.root]
        most = deeper
    return ENDLESS


def _closure(graph: SchemaGraph, start: int) -> Times:
    """Return the number of times that a value checked against one schema is checked against each."""
    times: Times = {start: 1}
    places = [start]
    while places:
        place = heapq.heappop(places)
        for other, more in graph.visits[place].in_place:
            if other not in times:
                times[other] = 0
                heapq.heappush(places, other)
            times[other] = min(ENDLESS, times[other] + times[place] * more)
    return times


def _times(applied: Iterable[tuple[int, int]]) -> Times:
    """Add up how many times each schema is applied."""
    times: Times = {}
    for place, count in applied:
        times[place] = min(ENDLESS, times.get(place, 0) + count)
    return times


def _member_times(live: list[tuple[Visit, int]], name: str | None) -> Times:
    """Return the number of times that a member of this name is checked against each schema; None is any other name."""
    return _times((other, count) for visit, count in live for other in visit.for_member(name))


def _name_times(live: list[tuple[Visit, int]]) -> Times:
    """Return the number of times that the name of a member is checked against each schema."""
    return _times((other, count) for visit, count in live for other in visit.names)


def _item_times(live: list[tuple[Visit, int]], index: int) -> Times:
    """Return the number of times that an item at this place is checked against each schema."""
    return _times((other, count) for visit, count in live for other in visit.for_item(index))


# One payload.


def scalars_first(payload: Any) -> Any:
    """Return the payload with the scalar members of each object first, so that a validator that fails ends early."""
    if isinstance(payload, list):
        items: list[Any] = cast("Any", payload)
        return [scalars_first(item) if isinstance(item, dict | list) else item for item in items]
    if not isinstance(payload, dict):
        return payload
    members = cast("dict[str, Any]", payload)
    deep = {name: scalars_first(value) for name, value in members.items() if isinstance(value, dict | list)}
    return {name: value for name, value in members.items() if name not in deep} | deep


def is_within(
    cost: SchemaCost,
    payload: object,
    *,
    most: int,
    most_steps: int,
    ends_early: bool = True,
    only_uneven: bool = False,
) -> bool:
    """Return True if validating a payload whose scalars come first takes at most this much work.

    Counting takes steps of its own; if it takes too many, the answer is False. Validation that lists all errors does
    not end early. With `only_uneven`, the proportional work is known already and only the rest is counted.
    """
    counter = _Counter(cost, most, most_steps, ends_early, only_uneven)
    # Iterators, so that counting a payload of very many values stops before all of them are visited.
    waiting = [iter([(payload, {cost.graph.root: 1})])]
    while waiting and not counter.is_over:
        value, times = next(waiting[-1], (None, None))
        if times is None:
            waiting.pop()
            continue
        live = counter.count(value, times)
        if live and isinstance(value, dict | list):
            waiting.append(counter.children(cast("object", value), live))
    return not counter.is_over


class _Counter:
    """Adds up the work of values, and the steps of counting it."""

    def __init__(self, cost: SchemaCost, most: int, most_steps: int, ends_early: bool, only_uneven: bool) -> None:
        self._visits = cost.graph.visits
        self._work_left = most
        self._steps_left = most_steps
        self._ends_early = ends_early
        self._only = cost.leads_to_uneven if only_uneven else None

    @property
    def is_over(self) -> bool:
        """True once more than allowed was counted."""
        return self._work_left < 0 or self._steps_left < 0

    def count(self, value: object, times: Times) -> list[tuple[Visit, int]]:
        """Count the work of one value, and return the schemas that apply to its members and items."""
        members = _members(value)
        live: list[tuple[Visit, int]] = []
        times = self._counted(times)
        places = list(times)
        heapq.heapify(places)
        while places and not self.is_over:
            place = heapq.heappop(places)
            visit, count = self._visits[place], times[place]
            self._steps_left -= 1
            self._work_left -= count * self._work(visit, value)
            if self._ends_early and visit.fails_at_once(value):
                continue
            if self._ends_early and visit.members and self._fails_at_a_member(visit, members):
                self._work_left -= count * len(members)
                continue
            live.append((visit, count))
            for other, more in visit.in_place:
                if self._only is not None and other not in self._only:
                    continue
                if other not in times:
                    times[other] = 0
                    heapq.heappush(places, other)
                times[other] += count * more
        return live

    def _counted(self, times: Times) -> Times:
        """Return a copy that keeps only the schemas to be counted."""
        if self._only is None:
            return dict(times)
        return {place: count for place, count in times.items() if place in self._only}

    def _work(self, visit: Visit, value: object) -> int:
        """Return the work of one schema for one value, without the schemas that it applies."""
        if isinstance(value, str):
            length = len(value)
            return visit.work * (1 + length // TEXT_UNIT) + sum(one.work(length) for one in visit.patterns)
        if not isinstance(value, dict | list):
            return visit.work + (visit.numbers and visit.numbers * work_of_number(value))
        work = visit.work
        if visit.members:
            work += work * len(_members(cast("object", value))) // SIZE_UNIT
        if visit.wholes:
            whole = whole_of(cast("object", value), self._steps_left)
            self._steps_left -= whole.steps
            work += visit.wholes * whole.work
        if visit.is_unique and isinstance(value, list):
            unique, steps = work_of_unique(cast("Any", value), self._steps_left)
            self._steps_left -= steps
            work += unique
        return work

    def _fails_at_a_member(self, visit: Visit, members: dict[str, object]) -> bool:
        """Return True if a scalar member is refused at once, so that nothing else of the schema is applied."""
        names = visit.members if len(visit.members) < len(members) else members
        self._steps_left -= len(names) // 4
        return any(
            name in visit.members
            and name in members
            and not isinstance(members[name], dict | list)
            and self._visits[visit.members[name]].fails_at_once(members[name])
            for name in names
        )

    def children(self, value: object, live: list[tuple[Visit, int]]) -> Iterator[tuple[object, Times]]:
        """Yield the members and items of a value, with the schemas that each is checked against."""
        if isinstance(value, dict):
            yield from self._children_of_object(cast("dict[str, object]", value), live)
            return
        items = cast("list[object]", value)
        first = max(len(visit.first_items) for visit, _ in live)
        rest = self._counted(_item_times(live, first))
        for index, item in enumerate(items if rest else items[:first]):
            self._steps_left -= 1 + (len(live) // 4 if index < first else 0)
            yield item, _item_times(live, index) if index < first else rest

    def _children_of_object(
        self, members: dict[str, object], live: list[tuple[Visit, int]]
    ) -> Iterator[tuple[object, Times]]:
        of_names = self._counted(_name_times(live))
        rest = self._counted(_member_times(live, None))
        named = [visit.members for visit, _ in live if visit.members]
        for name, member in members.items() if named or rest or of_names else ():
            self._steps_left -= 1 + len(named) // 4
            if self.is_over:
                return
            if of_names:
                yield name, of_names
            if any(name in one for one in named):
                self._steps_left -= len(live) // 4
                yield member, _member_times(live, name)
            elif rest:
                yield member, rest


def _members(value: object) -> dict[str, object]:
    return cast("Any", value) if isinstance(value, dict) else {}
