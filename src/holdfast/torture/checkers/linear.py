"""A history is linearizable if each call can be given one moment of its own that explains all the answers.

The moment lies between the beginning and the end of the call, and the calls in that order are what one client alone
could have seen.

This is the search of Wing and Gong with the memory of Lowe: a set of calls that took effect, together with the state
that they led to, is looked at once. Only a call that began before every call that has not taken effect yet ended may
be the next. A call of unknown outcome may take effect at any time after it was sent, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from holdfast.torture.checkers.histories import Call

State = TypeVar("State", bound=Hashable)
Step = Callable[[State, Call], Iterable[State]]
"""Every state in which a call that is given this answer may leave a thing that is in this state; none if it may not."""

Path: TypeAlias = "tuple[int, Path] | None"

MOST_STATES = 2_000_000
"""A search that needs more is given up: the history had too many calls at once."""


class TooWide(Exception):
    """The history has too many orders to look at all of them."""


class Linear(msgspec.Struct, frozen=True):
    """An order was found, or the longest beginning of one and the calls of which none could come next."""

    ok: bool
    order: tuple[Call, ...]
    stuck: tuple[Call, ...] = ()

    def __str__(self) -> str:
        if self.ok:
            return f"linearizable: {len(self.order)} calls"
        lines = [f"not linearizable: after {len(self.order)} calls none of these can be next"]
        lines += [f"  {call}" for call in self.stuck]
        lines += ["the last calls before:", *(f"  {call}" for call in self.order[-5:])]
        return "\n".join(lines)


def linearize(history: Sequence[Call], initial: State, step: Step[State]) -> Linear:
    """Search an order of the calls that explains every answer."""
    calls = sorted(history, key=lambda call: call.sent_ns)
    known = sum(call.outcome != "unknown" for call in calls)
    # What took effect is all calls below `low` and those of the bits of `more` above it: a few, however long the
    # history is. `path` is the last of them and the path before it.
    stack: list[tuple[int, int, int, State, Path]] = [(0, 0, known, initial, None)]
    seen: set[tuple[int, int, State]] = set()
    best: tuple[int, int, int, Path] = (known, 0, 0, None)
    while stack:
        low, more, left, state, path = stack.pop()
        if not left:
            return Linear(True, _order(calls, path))
        if (low, more, state) in seen:
            continue
        seen.add((low, more, state))
        if len(seen) > MOST_STATES:
            raise TooWide(f"more than {MOST_STATES} states of {len(calls)} calls")
        if left < best[0]:
            best = (left, low, more, path)
        for index in reversed(_next(calls, low, more)):
            call = calls[index]
            still = left - (call.outcome != "unknown")
            stack.extend((*_with(low, more, index), still, after, (index, path)) for after in step(state, call))
    _, low, more, path = best
    return Linear(False, _order(calls, path), tuple(calls[index] for index in _next(calls, low, more)))


def _with(low: int, more: int, index: int) -> tuple[int, int]:
    """The set with one call more."""
    more |= 1 << (index - low)
    # The lowest bits that are all set belong below.
    whole = (~more & (more + 1)).bit_length() - 1
    return low + whole, more >> whole


def _order(calls: Sequence[Call], path: Path) -> tuple[Call, ...]:
    order: list[Call] = []
    while path is not None:
        index, path = path
        order.append(calls[index])
    return tuple(reversed(order))


def _next(calls: Sequence[Call], low: int, more: int) -> list[int]:
    """The calls that may take effect next: those that began before any other that is left over ended."""
    found: list[int] = []
    first_end: int | None = None
    for index in range(low, len(calls)):
        call = calls[index]
        if first_end is not None and call.sent_ns > first_end:
            break
        if not more >> (index - low) & 1:
            found.append(index)
            if call.answered_ns is not None and (first_end is None or call.answered_ns < first_end):
                first_end = call.answered_ns
    return found
