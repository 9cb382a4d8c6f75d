"""The form of a history: each call as a client saw it, with the times before it was sent and after its answer came.

Times are of one monotonic clock that all clients share, in nanoseconds. A call of unknown outcome has no end: it may
take effect at any later time, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]


class Call(msgspec.Struct, frozen=True):
    """One call of one client, with its arguments and its answer."""

    client: int
    kind: str
    given: Any
    answer: Any
    outcome: Outcome
    sent_ns: int
    answered_ns: int | None

    def __str__(self) -> str:
        end = "?" if self.answered_ns is None else str(self.answered_ns)
        return (
            f"client {self.client}: {self.kind}({self.given}) -> {self.outcome} {self.answer} [{self.sent_ns}, {end}]"
        )


def of_kind(history: Sequence[Call], *kinds: str) -> list[Call]:
    """Return the calls of these kinds, in the order in which they were sent."""
    return sorted((call for call in history if call.kind in kinds), key=lambda call: call.sent_ns)


def frozen(value: Any) -> Hashable:
    """Return a hashable stand-in for a value: equal for equal documents, and True is not 1."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        items: dict[Any, Any] = cast("Any", value)
        return "dict", frozenset((frozen(key), frozen(one)) for key, one in items.items())
    if isinstance(value, list | tuple):
        ones: Sequence[Any] = cast("Any", value)
        return "list", tuple(frozen(one) for one in ones)
    return type(value).__name__, repr(value)
