"""Work on an event loop has a budget; work that exceeds it starts over in another thread.

The codec charges each document and content. Exceeding the budget raises `BudgetExceeded`, so everything that is charged
must be free of effects, or roll back.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, cast

import msgspec

BUDGET_BYTES: Final = 256 * 1024
"""Bytes that one call may encode, decode, hash and compress on an event loop."""

OWN_LOOP_BYTES: Final = 4 * BUDGET_BYTES
"""The same on a loop that serves only callers that wait for it. Going to another thread takes as long as such work."""

CALL_WEIGHT: Final = 1024
"""Weight of a document beside its content: the checks of its record, and its row."""

VALUE_WEIGHT: Final = 24
CONTAINER_WEIGHT: Final = 64
SCALARS: Final = frozenset({int, float, bool, type(None)})


class BudgetExceeded(BaseException):
    """The work is too much for an event loop. Never reaches a caller of the store."""


class LoopBudget:
    """Limits the work inside of `with`: more than the budget raises `BudgetExceeded`."""

    __slots__ = ("_token", "left")

    def __init__(self, size_bytes: int | None = None) -> None:
        self.left = BUDGET_BYTES if size_bytes is None else size_bytes

    def __enter__(self) -> None:
        self._token = _budget.set(self)

    def __exit__(self, *_: object) -> None:
        _budget.reset(self._token)


_budget: ContextVar[LoopBudget | None] = ContextVar("holdfast_loop_budget", default=None)


def is_limited() -> bool:
    """Return True if the caller runs on an event loop, under a budget."""
    return _budget.get() is not None


def charge(weight: int) -> None:
    """Charge one document or content to the budget, if there is one."""
    budget = _budget.get()
    if budget is not None:
        budget.left -= weight + CALL_WEIGHT
        if budget.left < 0:
            raise BudgetExceeded


def charge_rows(weight: int) -> None:
    """Charge rows that hold no documents, or whose documents are charged when they are decoded."""
    budget = _budget.get()
    if budget is not None:
        budget.left -= weight
        if budget.left < 0:
            raise BudgetExceeded


def is_large(value: object) -> bool:
    """Return True if a value by itself exceeds the budget."""
    return weigh(value) > BUDGET_BYTES


def weigh(value: object) -> int:
    """Estimate the work on a value, in bytes of text. Stops counting soon after `BUDGET_BYTES`."""
    total = 0
    waiting: list[Any] = [value]
    for one in waiting:
        kind = cast("type[object]", type(one))
        if kind is str:
            total += len(one)
        elif kind in SCALARS:
            continue
        elif kind is list or kind is tuple:
            # Charged before its items are touched: there may be very many of them.
            total += CONTAINER_WEIGHT + VALUE_WEIGHT * len(one)
            if total <= BUDGET_BYTES:
                waiting += one
        elif kind is dict:
            total += CONTAINER_WEIGHT + 2 * VALUE_WEIGHT * len(one)
            if total <= BUDGET_BYTES:
                total += _weigh_keys(one)
                waiting += one.values()
        elif isinstance(one, msgspec.Struct):
            total += CONTAINER_WEIGHT
            waiting += msgspec.structs.astuple(one)
        elif isinstance(one, str | bytes | bytearray):
            total += len(one)
        else:
            total += CONTAINER_WEIGHT
        if total > BUDGET_BYTES:
            break
    return total


def _weigh_keys(value: dict[Any, Any]) -> int:
    try:
        return sum(map(len, value))
    except TypeError:  # keys that are not text, which a check refuses
        return VALUE_WEIGHT * len(value)
