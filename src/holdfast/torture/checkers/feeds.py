"""Checks that a log is 1, 2, 3 … without a gap, and that a reader with a cursor sees each event once.

Calls of a history:

- `append`, given a unique value: answered with its place in the log, or unknown.
- `look`, given `(after, limit)`: answered with the list of `(sequence, value)` found behind `after`, at most `limit` of
  them. A `look` of unknown outcome proves nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from holdfast.torture.checkers.histories import Call, frozen, of_kind


class Entry(msgspec.Struct, frozen=True):
    """An event: its place in the log, and its unique value."""

    sequence: int
    value: Any


def check_log(log: Sequence[Entry], history: Sequence[Call]) -> list[str]:
    """Return the problems of a log after these calls."""
    appends = of_kind(history, "append")
    return [*_contents(log, appends), *_order(log, appends), *_looks(log, history)]


def _contents(log: Sequence[Entry], appends: Sequence[Call]) -> Iterator[str]:
    """Check that the log has no gap, no duplicate, no stray event, and each acknowledged event at its place."""
    if [entry.sequence for entry in log] != [*range(1, len(log) + 1)]:
        yield f"the log is not 1 … {len(log)}: {[entry.sequence for entry in log]}"
    tried = {frozen(call.given) for call in appends}
    found: set[Hashable] = set()
    for entry in log:
        value = frozen(entry.value)
        if value in found:
            yield f"event {entry.value} is in the log twice"
        if value not in tried:
            yield f"event {entry.value} was never appended"
        found.add(value)
    stored = _stored(log)
    for call in appends:
        if call.outcome == "ok" and frozen(stored.get(call.answer)) != frozen(call.given):
            yield f"event {call.given} was acknowledged at {call.answer}, where {stored.get(call.answer)} is"


def _order(log: Sequence[Entry], appends: Sequence[Call]) -> Iterator[str]:
    """Check that an event follows every event that was acknowledged before it was appended."""
    calls: dict[Hashable, list[Call]] = {}
    for call in appends:
        calls.setdefault(frozen(call.given), []).append(call)
    # From the end: of all events behind this one, the first that was acknowledged.
    first: tuple[int, Entry] | None = None
    for entry in reversed(log):
        tries = calls.get(frozen(entry.value), [])
        if first is not None and tries and first[0] < min(call.sent_ns for call in tries):
            yield f"event {entry.value} is at {entry.sequence}, before {first[1].value}, which was there already"
        for call in tries:
            if call.answered_ns is not None and (first is None or call.answered_ns < first[0]):
                first = (call.answered_ns, entry)


def _looks(log: Sequence[Entry], history: Sequence[Call]) -> Iterator[str]:
    """Check that a `look` returns all events that are there, and none that was not appended yet."""
    looks = [call for call in of_kind(history, "look") if call.outcome == "ok"]
    appends = of_kind(history, "append")
    stored = _stored(log)
    sent_ns: dict[Hashable, int] = {}
    for call in appends:
        sent_ns.setdefault(frozen(call.given), call.sent_ns)
    # The highest place that any client knew, after each time.
    reported = [(call.answered_ns or 0, call.answer) for call in appends if call.outcome == "ok"]
    reported += [(call.answered_ns or 0, call.answer[-1][0]) for call in looks if call.answer]
    reported.sort()
    times = [time_ns for time_ns, _ in reported]
    highest = [0, *accumulate((place for _, place in reported), max)]
    for call in looks:
        after, limit = call.given
        seen = [Entry(*one) for one in call.answer]
        reached = after + len(seen)
        yield from _passage(stored, seen, after, reached)
        there = highest[bisect_left(times, call.sent_ns)]
        if len(seen) < limit and reached < there:
            yield f"the reader saw nothing behind {reached}, after {there} was there"
        if len(seen) > limit:
            yield f"the reader asked for {limit} and saw {len(seen)}"
        for entry in seen:
            if sent_ns.get(frozen(entry.value), 0) > (call.answered_ns or 0):
                yield f"the reader saw {entry.value} at {entry.sequence}, before it was appended"


def check_reader(log: Sequence[Entry], seen: Sequence[Entry], *, after: int = 0, until: int | None = None) -> list[str]:
    """Return the problems of a reader that began behind `after` and must have come to `until`, or to the end."""
    return [*_passage(_stored(log), seen, after, len(log) if until is None else until)]


def _passage(stored: Mapping[int, Any], seen: Sequence[Entry], after: int, until: int) -> Iterator[str]:
    expected = after
    for entry in seen:
        expected += 1
        if entry.sequence != expected:
            what = "again" if entry.sequence < expected else f"and not {expected}"
            yield f"the reader saw {entry.sequence} {what}"
            expected = entry.sequence
        if entry.sequence not in stored:
            yield f"the reader saw {entry.sequence}, which is not in the log"
        elif frozen(stored[entry.sequence]) != frozen(entry.value):
            yield f"the reader saw {entry.value} at {entry.sequence}, where {stored[entry.sequence]} is"
    if expected < until:
        yield f"the reader ended at {expected} of {until}"


def _stored(log: Sequence[Entry]) -> Mapping[int, Any]:
    return {entry.sequence: entry.value for entry in log}
