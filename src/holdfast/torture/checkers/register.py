"""The head of a session is a register: a commit moves it by one, a read sees its newest value.

A commit that expected another revision is refused, and the refusal names the revision that stood in the way.

Calls of a history:

- `commit`, given `(expected, value)`: answered with the revision; refused with the actual revision; or unknown.
  `expected` is None for a commit on whatever is current.
- `read`: answered with `(revision, value)`; the revision is 0 and the value None before the first commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.linear import Linear, linearize

Head = tuple[int, Any]


def check_register(history: Sequence[Call], initial: Head = (0, None)) -> Linear:
    """Search an order of commits and reads that one register explains."""
    return linearize(history, initial, _step)


def _step(head: Head, call: Call) -> Iterator[Head]:
    revision, _ = head
    if call.kind == "read":
        if tuple(call.answer) == head:
            yield head
        return
    expected, value = call.given
    fits = expected is None or expected == revision
    if call.outcome == "refused":
        if not fits and call.answer == revision:
            yield head
    elif fits and (call.outcome == "unknown" or call.answer == revision + 1):
        yield (revision + 1, value)
