"""The handlers of a worker: which function runs which kind of work, and under which terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

import holdfast
from holdfast.worker.retries import Retry

Handler = Callable[[Any], Any]
Shape = Literal["turn", "job"]
SHAPES: tuple[Shape, ...] = ("turn", "job")


class Registered(msgspec.Struct, frozen=True):
    """One kind of work: its function and its terms."""

    kind: str
    shape: Shape
    function: Handler
    retry: Retry
    timeout_s: float | None

    @property
    def is_async(self) -> bool:
        """True if the function is a coroutine function. Any other runs in a thread."""
        call = getattr(type(self.function), "__call__", None)  # noqa: B004 - of an object that is called
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    @property
    def name(self) -> str:
        """The name of the function, for messages."""
        return getattr(self.function, "__qualname__", repr(self.function))


class Handlers:
    """All handlers of a worker, by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Registered] = {}

    def add(self, registered: Registered) -> None:
        """Add a handler. Raises InvalidRequest if it cannot run or its kind is taken."""
        if not callable(registered.function):
            raise holdfast.InvalidRequest("handler", f"must be a function, not {type(registered.function).__name__}")
        if inspect.isasyncgenfunction(registered.function) or inspect.isgeneratorfunction(registered.function):
            raise holdfast.InvalidRequest("handler", f"{registered.name} is a generator: use a function that returns")
        if registered.kind in self._by_kind:
            other = self._by_kind[registered.kind].name
            raise holdfast.InvalidRequest("kind", f"{registered.kind!r} has a handler already: {other}")
        self._by_kind[registered.kind] = registered

    def of(self, kind: str) -> Registered:
        """Return the handler of a kind."""
        return self._by_kind[kind]

    def kinds(self, shape: Shape) -> list[str]:
        """Return the kinds of one shape."""
        return [one.kind for one in self._by_kind.values() if one.shape == shape]

    def __bool__(self) -> bool:
        return bool(self._by_kind)


def check_kind(value: object) -> str:
    """Return a checked kind of work."""
    if not isinstance(value, str) or not value.strip():
        raise holdfast.InvalidRequest("kind", "must be text that is not blank")
    return value


def check_number(field: str, value: object, *, least: float, most: float) -> float:
    """Return a checked number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise holdfast.InvalidRequest(field, f"must be a number from {least:g} to {most:g}")
    return value


def check_retry(value: object) -> Retry:
    """Return a checked retry policy."""
    if not isinstance(value, Retry):
        raise holdfast.InvalidRequest("retry", f"must be a Retry, not {type(value).__name__}")
    return value


def listed(kinds: Iterable[str]) -> str:
    """Return kinds as a text for people."""
    return ", ".join(sorted(kinds))
