"""The work of validating a payload is known before it is done, and too much of it is refused.

A validator cannot be interrupted. References let a schema of a few lines visit one value billions of times, so the
visits are counted first: in the worst case of any payload, and if that is too much, for this payload. The count of a
payload follows the order of the validator: the cheap keywords of a schema come first, then the members of an object in
the order of the payload, and the first failure ends both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, TypeAlias, cast

import msgspec

from holdfast.rules.schema_graph import SchemaGraph, Visit, graph_of

LEVELS = 80
"""How many levels the worst case is followed through. A schema whose visits still multiply there has no bound."""

ENDLESS = 10**12
"""The worst case of a schema whose visits multiply from level to level."""

PATHS = 500_000
"""How large the table of the worst case may become: a schema that needs a larger one is counted for each payload."""

TEXT_UNIT = 64
"""How many characters of text are as much work as one more visit."""

Times: TypeAlias = dict[int, int]
"""How many times each schema is applied."""


class SchemaCost(msgspec.Struct, frozen=True):
    """The schemas of one schema, and the most work that one value of any payload can take."""

    graph: SchemaGraph
    worst: int


def cost_of(schema: Any) -> SchemaCost:
    """Return the cost of a schema. A `ValueError` says why it has none."""
    graph = graph_of(schema)
    return SchemaCost(graph, _worst(graph))


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
        most.append(min(ENDLESS, sum(count * visit.work for visit, count in live)))
        tables.append(
            [_with(_member_times(live, name), _name_times(live)) for name in (*names, None)]
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
    return ENDLESS  # pragma: no cover - a cost that grows by a little at each of very many levels


def _closure(graph: SchemaGraph, start: int) -> Times:
    """Return how many times a value that is checked against one schema is checked against each."""
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


def _member_times(live: list[tuple[Visit, int]], name: str | None) -> Times:
    """Return how many times a member of this name is checked against each schema; None is any other name."""
    times: Times = {}
    for visit, count in live:
        named = visit.members.get(name) if name is not None else None
        for other in (*(visit.other_members if named is None else (named,)), *visit.every_member):
            times[other] = min(ENDLESS, times.get(other, 0) + count)
    return times


def _name_times(live: list[tuple[Visit, int]]) -> Times:
    """Return how many times the name of a member is checked against each schema."""
    times: Times = {}
    for visit, count in live:
        for other in visit.names:
            times[other] = min(ENDLESS, times.get(other, 0) + count)
    return times


def _with(times: Times, more: Times) -> Times:
    return {place: min(ENDLESS, times.get(place, 0) + more.get(place, 0)) for place in times | more}


def _item_times(live: list[tuple[Visit, int]], index: int) -> Times:
    times: Times = {}
    for visit, count in live:
        first = visit.first_items
        for other in (*(first[index : index + 1] if index < len(first) else visit.other_items), *visit.every_item):
            times[other] = min(ENDLESS, times.get(other, 0) + count)
    return times


# One payload.


def scalars_first(payload: Any) -> Any:
    """Return the payload with the scalar members of each object in front, where a validator that fails ends early."""
    if isinstance(payload, list):
        items: list[Any] = cast("Any", payload)
        return [scalars_first(item) if isinstance(item, dict | list) else item for item in items]
    if not isinstance(payload, dict):
        return payload
    members = cast("dict[str, Any]", payload)
    deep = {name: scalars_first(value) for name, value in members.items() if isinstance(value, dict | list)}
    return {name: value for name, value in members.items() if name not in deep} | deep


def is_within(cost: SchemaCost, payload: object, *, most: int, most_steps: int) -> bool:
    """Return whether validating a payload whose scalars come first takes at most this much work.

    Counting takes steps of its own; if it takes too many, the answer is no.
    """
    counter = _Counter(cost.graph.visits, most, most_steps)
    # Iterators, so that a payload of very many values is given up before all of them were looked at.
    waiting = [iter([(payload, {cost.graph.root: 1})])]
    while waiting:
        value, times = next(waiting[-1], (None, None))
        if times is None:
            waiting.pop()
            continue
        live = counter.count(value, times)
        if counter.is_over:
            return False
        if live and isinstance(value, dict | list):
            waiting.append(_children(cast("object", value), live))
    return True


class _Counter:
    """Adds up the work of values."""

    def __init__(self, visits: tuple[Visit, ...], most: int, most_steps: int) -> None:
        self._visits = visits
        self._work_left = most
        self._steps_left = most_steps

    @property
    def is_over(self) -> bool:
        """Whether it is more than allowed."""
        return self._work_left < 0 or self._steps_left < 0

    def count(self, value: object, times: Times) -> list[tuple[Visit, int]]:
        """Count the work of one value, and return the schemas that go on to its members and items."""
        size = 1 + len(value) // TEXT_UNIT if isinstance(value, str) else 1
        members = _members(value)
        live: list[tuple[Visit, int]] = []
        times = dict(times)
        places = list(times)
        heapq.heapify(places)
        while places and not self.is_over:
            place = heapq.heappop(places)
            visit, count = self._visits[place], times[place]
            self._work_left -= count * visit.work * size
            self._steps_left -= 1
            if visit.fails_at_once(value):
                continue  # pragma: no cover - the same keywords were tried where the value was scheduled
            if visit.members and self._fails_at_a_member(visit, members):
                self._work_left -= count * len(members)
                continue
            live.append((visit, count))
            for other, more in visit.in_place:
                if other not in times:
                    times[other] = 0
                    heapq.heappush(places, other)
                times[other] += count * more
        self._steps_left -= len(live)
        return live

    def _fails_at_a_member(self, visit: Visit, members: dict[str, object]) -> bool:
        """Return whether a scalar member is refused at once, so that nothing else of the schema is applied."""
        return any(
            name in visit.members and self._visits[visit.members[name]].fails_at_once(member)
            for name, member in members.items()
            if not isinstance(member, dict | list)
        )


def _members(value: object) -> dict[str, object]:
    return cast("Any", value) if isinstance(value, dict) else {}


def _children(value: object, live: list[tuple[Visit, int]]) -> Iterator[tuple[object, Times]]:
    if isinstance(value, dict):
        of_names = _name_times(live)
        for name, member in cast("dict[str, object]", value).items():
            if of_names:
                yield name, of_names
            yield member, _member_times(live, name)
        return
    items = cast("list[object]", value)
    first = max(len(visit.first_items) for visit, _ in live)
    rest = _item_times(live, first)
    for index, item in enumerate(items):
        yield item, _item_times(live, index) if index < first else rest
