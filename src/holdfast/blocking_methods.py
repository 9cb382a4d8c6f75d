"""Turn async methods into blocking ones: each runs to its end for the calling thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from holdfast.log import called_here
from holdfast.nesting import run_call
from holdfast.ports import Backend
from holdfast.wait import Deferred, NeverSuspends, run_made

P = ParamSpec("P")
T = TypeVar("T")


def driven(backend: Backend, make: Callable[[], Awaitable[T]]) -> T:
    """Run the coroutine that `make` returns to its end for the calling thread."""
    if isinstance(backend, NeverSuspends):
        return run_call(backend, run_made, make)
    drive: Callable[[Callable[[], Awaitable[T]]], T] = partial(_drive, backend)
    return run_call(backend, drive, make)


def _drive(backend: Backend, make: Callable[[], Awaitable[T]]) -> T:
    return backend.drive(Deferred(make))


class Facet:
    """A facet of a blocking store: an async one and the backend that drives it."""

    def __init__(self, facet: Any, backend: Backend) -> None:
        self.facet = facet
        self.backend = backend

    def __repr__(self) -> str:
        return f"Blocking{self.facet!r}"


def without_await(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Facet, P], T]:
    """Return an async method as a blocking one, with the same parameters and the same documentation."""
    name = method.__name__

    def call(self: Facet, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Looked up on the facet and not on the class: an observed store has facets of its own.
        made: Callable[[], Awaitable[T]] = partial(getattr(self.facet, name), *args, **kwargs)
        return driven(self.backend, made)

    return update_wrapper(call, method)


def warning_without_await(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Facet, P], T]:
    """Return an async method that may warn as a blocking one, whose warnings name the line of its caller."""
    inner = without_await(method)

    def call(self: Facet, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return called_here(partial(inner, self, *args, **kwargs))

    return update_wrapper(call, method)


def without_await_each(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Facet, P], Iterator[T]]:
    """Return an async iterator as a blocking one."""
    name = method.__name__

    def call(self: Facet, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = cast("AsyncIterator[T]", getattr(self.facet, name)(*args, **kwargs))
        while True:
            try:
                yield driven(self.backend, items.__anext__)
            except StopAsyncIteration:
                return

    return update_wrapper(call, method)
