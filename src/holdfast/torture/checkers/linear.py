"""Checks linearizability: each call can be given one moment of its own such that all answers are explained.

The moment lies between the beginning and the end of the call, and the calls in that order are what one client alone
could have seen.

This is the search of Wing and Gong with the memory of Lowe: a set of calls that took effect, together with the
resulting state, is visited once. Only a call that began before every call that has not taken effect yet ended may be
the next. A call of unknown outcome has no end: it may take effect at any time after it was sent, or never, and is tried
only where the calls of known outcome do not continue by themselves.

Three rules keep the search narrow. A call that fits now and changes nothing is taken at once: any call that could come
before it could come after it as well. Of calls of unknown outcome with equal arguments, the earliest is taken first,
since it could stand wherever a later one stands. And once such calls are too late to take effect at all, the search
forgets which of them did.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.torture.checkers.histories import Call, frozen

State = TypeVar("State", bound=Hashable)
Step = Callable[[State, Call], Iterable[State]]
"""Yields every state that a call with this answer may lead to from a state; none if the answer does not fit."""

Late = Callable[[State, Call], bool]
"""Returns whether a call can no longer take effect once this state is reached."""

Path: TypeAlias = "tuple[Call, Path] | None"

MOST_STATES = 400_000
"""A search with more states is given up: the history had too many concurrent calls."""


class TooWide(Exception):
    """The history has too many orders to search them all. It is neither right nor wrong."""


class Linear(msgspec.Struct, frozen=True):
    """The order that was found; or the longest beginning of one, and the calls of which none could come next."""

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


class _Done(NamedTuple, Generic[State]):
    """The calls that took effect, and the resulting state.

    The known calls in it are all below `low`, and those of the bits of `more` above it: a few, however long the history
    is. The unknown calls in it are the first so many of each group.
    """

    low: int
    more: int
    used: tuple[int, ...]
    state: State


class _At(NamedTuple, Generic[State]):
    """A position of the search: how many of the known calls took effect, and the order."""

    done: _Done[State]
    known: int
    path: Path


def never(_: object, _call: Call) -> bool:
    """Return False: no call is ever too late."""
    return False


def linearize(history: Sequence[Call], initial: State, step: Step[State], late: Late[State] = never) -> Linear:
    """Search for an order of the calls that explains every answer. Raise `TooWide` if there are too many orders."""
    return _Search(history, step, late).run(initial)


class _Search(Generic[State]):
    def __init__(self, history: Sequence[Call], step: Step[State], late: Late[State]) -> None:
        calls = sorted(history, key=lambda call: call.sent_ns)
        self._known = [call for call in calls if call.outcome != "unknown"]
        self._step = step
        self._late = late
        groups: dict[Hashable, list[Call]] = {}
        for call in calls:
            if call.outcome == "unknown":
                groups.setdefault(frozen((call.kind, call.given)), []).append(call)
        self._unknown = list(groups.values())

    def run(self, initial: State) -> Linear:
        first = _At(_Done(0, 0, (0,) * len(self._unknown), initial), 0, None)
        # Positions that continue with a call of unknown outcome wait below those that continue without.
        stack: list[tuple[_At[State], bool]] = [(first, False)]
        seen: set[_Done[State]] = set()
        best = first
        while stack:
            at, doubtful = stack.pop()
            if doubtful:
                stack += [(after, False) for after in self._after_unknown(at)]
                continue
            if at.done in seen:
                continue
            seen.add(at.done)
            if len(seen) > MOST_STATES:
                total = len(self._known) + sum(map(len, self._unknown))
                raise TooWide(f"too wide to be judged: more than {MOST_STATES} states of {total} calls")
            best = at if at.known > best.known else best
            if at.known == len(self._known):
                return Linear(True, _order(at.path))
            after, certain = self._after_known(at)
            if self._unknown and not certain:
                stack.append((at, True))
            stack += [(one, False) for one in after]
        return Linear(False, _order(best.path), tuple(self._known[index] for index in self._next(best.done)[0]))

    def _next(self, done: _Done[State]) -> tuple[list[int], int]:
        """Return the known calls that may take effect next (each began before any other ended), and the first end."""
        found: list[int] = []
        first_end_ns = -1
        low, more = done.low, done.more
        for index in range(low, len(self._known)):
            call = self._known[index]
            if found and call.sent_ns > first_end_ns:
                break
            if not more >> (index - low) & 1:
                assert call.answered_ns is not None, f"it has an answer and no end: {call}"
                first_end_ns = min(call.answered_ns, first_end_ns) if found else call.answered_ns
                found.append(index)
        return found, first_end_ns

    def _after_known(self, at: _At[State]) -> tuple[list[_At[State]], bool]:
        """Return the positions after a known call, the first call's last, and whether they suffice."""
        found: list[_At[State]] = []
        for index in reversed(self._next(at.done)[0]):
            call = self._known[index]
            states = list(self._step(at.done.state, call))
            after = [_At(self._with(at.done, index, state), at.known + 1, (call, at.path)) for state in states]
            if states == [at.done.state]:
                return after, True
            found += after
        return found, False

    def _after_unknown(self, at: _At[State]) -> list[_At[State]]:
        """Return the positions after a call of unknown outcome that was sent before the first known one ended."""
        _, first_end_ns = self._next(at.done)
        found: list[_At[State]] = []
        for number, group in enumerate(self._unknown):
            used = at.done.used[number]
            if used == len(group) or group[used].sent_ns > first_end_ns:
                continue
            for state in self._step(at.done.state, group[used]):
                more_used = (*at.done.used[:number], used + 1, *at.done.used[number + 1 :])
                done = at.done._replace(used=self._but_late(more_used, state), state=state)
                found.append(_At(done, at.known, (group[used], at.path)))
        return found

    def _but_late(self, used: tuple[int, ...], state: State) -> tuple[int, ...]:
        """Return `used` with the groups that are too late marked as used up."""
        return tuple(
            len(group) if count < len(group) and self._late(state, group[count]) else count
            for count, group in zip(used, self._unknown, strict=True)
        )

    def _with(self, done: _Done[State], index: int, state: State) -> _Done[State]:
        """Return the set with one more known call."""
        more = done.more | 1 << (index - done.low)
        # The lowest bits that are all set move below `low`.
        whole = (~more & (more + 1)).bit_length() - 1
        return _Done(done.low + whole, more >> whole, done.used, state)


def _order(path: Path) -> tuple[Call, ...]:
    order: list[Call] = []
    while path is not None:
        call, path = path
        order.append(call)
    return tuple(reversed(order))
