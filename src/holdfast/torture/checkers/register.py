"""Checks that the head of a session is a register: a commit moves it by one, a read sees its newest value.

A commit that expected another revision is refused, and the refusal names the actual one.

Calls of a history:

- `commit`, given `(expected, value)`: answered with the revision; refused with the actual revision; or unknown.
  `expected` is None for a commit on any head.
- `read`: answered with `(revision, value)`; the revision is 0 and the value None before the first commit. A read of
  unknown outcome says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.torture.checkers.histories import Call, frozen
from holdfast.torture.checkers.linear import Linear, linearize

Head = tuple[int, Any]

UNSEEN = ("unseen",)
"""Stands for every value that no read saw, as they cannot be distinguished."""


def check_register(history: Sequence[Call], initial: Head = (0, None)) -> Linear:
    """Search for an order of commits and reads that one register explains."""
    first = (initial[0], frozen(initial[1]))
    return linearize(_at_their_places(as_seen(history, "commit"), first), first, _step, _late)


def as_seen(history: Sequence[Call], write: str) -> list[Call]:
    """Return the history with comparable values, all unseen ones made equal, and without reads of unknown outcome.

    The last argument of `write` is the value that it writes.
    """
    seen = {frozen(call.answer[1]) for call in history if call.kind == "read" and call.outcome == "ok"}
    calls: list[Call] = []
    for call in history:
        if call.kind == "read" and call.outcome == "ok":
            revision, value = call.answer
            calls.append(msgspec.structs.replace(call, answer=(revision, frozen(value))))
        elif call.kind == write:
            value = frozen(call.given[1])
            calls.append(msgspec.structs.replace(call, given=(call.given[0], value if value in seen else UNSEEN)))
        elif call.kind != "read":
            calls.append(call)
    return calls


def _at_their_places(calls: list[Call], initial: Head) -> list[Call]:
    """Give an unknown commit the revision at which its value was read, if it is the only writer of that value."""
    places: dict[Hashable, int] = {call.answer[1]: call.answer[0] for call in calls if call.kind == "read"}
    writers = Counter([initial[1], *(call.given[1] for call in calls if call.kind == "commit")])
    placed: list[Call] = []
    for call in calls:
        if call.outcome == "unknown" and call.given[0] is None:
            value = call.given[1]
            if value != UNSEEN and writers[value] == 1:
                placed.append(msgspec.structs.replace(call, given=(places[value] - 1, value)))
                continue
        placed.append(call)
    return placed


def _late(head: Head, call: Call) -> bool:
    return call.given[0] is not None and call.given[0] < head[0]


def _step(head: Head, call: Call) -> Iterator[Head]:
    revision, _ = head
    if call.kind == "read":
        if call.answer == head:
            yield head
        return
    expected, value = call.given
    fits = expected is None or expected == revision
    if call.outcome == "refused":
        if not fits and call.answer == revision:
            yield head
    elif fits and (call.outcome == "unknown" or call.answer == revision + 1):
        yield (revision + 1, value)
