"""A log is 1, 2, 3 … without a gap, and a reader that goes on from its cursor sees each event once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """An event: its place in the log, and what tells it from all others."""

    sequence: int
    value: Any


def check_log(log: Sequence[Entry], acknowledged: Sequence[Entry], tried: Sequence[Any]) -> list[str]:
    """What is wrong with a log; `tried` are the values of all appends, whatever became of them."""
    wrong: list[str] = []
    if [entry.sequence for entry in log] != [*range(1, len(log) + 1)]:
        wrong.append(f"the log is not 1 … {len(log)}: {[entry.sequence for entry in log]}")
    values = [entry.value for entry in log]
    twice = {str(value) for value in values if values.count(value) > 1} if len(set(map(str, values))) < len(log) else ()
    wrong += [f"event {value} is in the log twice" for value in twice]
    stored = {entry.sequence: entry.value for entry in log}
    for entry in acknowledged:
        if stored.get(entry.sequence) != entry.value:
            wrong.append(
                f"event {entry.value} was acknowledged at {entry.sequence}, where {stored.get(entry.sequence)} is"
            )
    wrong += [f"event {value} was never appended" for value in values if value not in tried]
    return wrong


def check_reader(log: Sequence[Entry], seen: Sequence[Entry], *, after: int = 0, ended: bool = True) -> list[str]:
    """What is wrong with what a reader saw that began behind `after`; one that has `ended` must have seen all of it."""
    wrong: list[str] = []
    expected = after
    stored: Mapping[int, Any] = {entry.sequence: entry.value for entry in log}
    for entry in seen:
        expected += 1
        if entry.sequence != expected:
            what = "again" if entry.sequence < expected else f"and not {expected}"
            wrong.append(f"the reader saw {entry.sequence} {what}")
            expected = entry.sequence
        if entry.sequence in stored and stored[entry.sequence] != entry.value:
            wrong.append(f"the reader saw {entry.value} at {entry.sequence}, where {stored[entry.sequence]} is")
        elif entry.sequence not in stored:
            wrong.append(f"the reader saw {entry.sequence}, which is not in the log")
    if ended and expected < len(log):
        wrong.append(f"the reader ended at {expected} of {len(log)}")
    return wrong
