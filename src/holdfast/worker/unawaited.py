"""Calls of a run in an `async def` handler that were not awaited, and so never began."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import holdfast

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

FEW = 64
"""Calls that are kept before those that have begun are forgotten."""


class Unawaited:
    """The newest calls of a run, by which one that never begins is noticed."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._most = FEW

    def note(self, call: str, work: Coroutine[Any, Any, Any]) -> None:
        """Note a call that was made. It begins once it is awaited."""
        self._calls.append((call, work))
        if len(self._calls) > self._most:
            self._calls = self._left()
            self._most = max(FEW, 2 * len(self._calls))

    def _left(self) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
        return [one for one in self._calls if inspect.getcoroutinestate(one[1]) == inspect.CORO_CREATED]

    def require_none(self) -> None:
        """Raise `InvalidRequest` if the handler returned without having awaited a call: nothing of it was done."""
        left = self._left()
        self._calls = []
        for _, work in left:
            work.close()  # Python would warn of it, too
        if left:
            problem = "was not awaited, and so it did nothing: write `await` before it"
            raise holdfast.InvalidRequest(left[0][0], problem)


def noted(method: F) -> F:
    """Note each call of an async method of a run, so that a forgotten `await` is noticed."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        work = method(self, *args, **named)
        first = repr(args[0]) if args and isinstance(args[0], str) else "…" if args or named else ""
        self.steps.unawaited.note(f"run.{method.__name__}({first})", work)
        return work

    return cast("F", call)
