"""Refuse a blocking call that interrupts another one of its thread on the same store.

A signal handler or finalizer runs between any two steps of its thread, also inside of a transaction or while a lock is
held. A call that it begins there would read half a change, or wait for its own thread. So a call is closed to others,
except while it waits for a change and while it runs code of the application: then its thread holds no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError, NestedCall
from holdfast.log import ERROR, log_event

T = TypeVar("T")


Close = Callable[[], Awaitable[None]]


class BlockingCall:
    """A blocking call in progress. Its flag is a plain attribute, set in one step, which no interrupt divides."""

    __slots__ = ("_make", "_run", "backend", "closes", "is_open", "thread_id")

    def __init__(self, backend: object, run: Callable[..., Any], make: Callable[[], Awaitable[Any]]) -> None:
        self.backend = backend
        self.thread_id = threading.get_ident()
        self.is_open = False
        self.closes: list[Close] = []
        """Requests to close a store that came while the call was not open."""
        self._run = run
        self._make = make

    def close_afterwards(self, close: Close) -> None:
        """Request that a store be closed as soon as the call waits or ends, unless the call itself closes it."""
        if close != self._make and close not in self.closes:
            self.closes.append(close)

    def forget(self) -> None:
        """Drop the call's own objects: a context that is copied meanwhile keeps this value alive."""
        self._make = _NOTHING

    def close_stores(self) -> None:
        """Meet the requests."""
        for close in self.closes:
            try:
                run_call(self.backend, self._run, close)
            except HoldfastError as error:
                # The result of this call matters more.
                name = type(error).__name__
                log_event("closing", ERROR, "closing after a call failed (%(error_class)s)", error_class=name)


_NOTHING: Final[Any] = id
_CALLS: Final[ContextVar[tuple[BlockingCall, ...]]] = ContextVar("holdfast_blocking_calls", default=())
"""The calls in progress, outermost first. An event loop runs a call in a copy of its caller's context."""

_NONE: Final = BlockingCall(None, id, _NOTHING)


def calls_in_progress() -> tuple[BlockingCall, ...]:
    """Return the blocking calls that the current code runs inside of, outermost first."""
    return _CALLS.get()


def innermost_call() -> BlockingCall:
    """Return the blocking call that the current code belongs to, a placeholder outside of any."""
    calls = _CALLS.get()
    return calls[-1] if calls else _NONE


def interrupted_call(backend: object) -> BlockingCall | None:
    """Return the call of this thread on a backend that must end before another one may begin."""
    here = threading.get_ident()
    for call in reversed(_CALLS.get()):
        if call.backend is backend and call.thread_id == here and not call.is_open:
            return call
    return None


def refuse_nested(backend: object) -> None:
    """Raise NestedCall if this thread is in the middle of another call on the backend."""
    if interrupted_call(backend) is not None:
        raise NestedCall


def while_open(wait: Callable[..., T], *arguments: Any) -> T:
    """Wait, holding no lock. Meanwhile signal handlers and finalizers may use the store."""
    call = innermost_call()
    try:
        call.is_open = True
        if call.closes:
            call.close_stores()
        return wait(*arguments)
    finally:
        call.is_open = False


def run_call(backend: object, run: Callable[[Callable[[], Awaitable[T]]], T], make: Callable[[], Awaitable[T]]) -> T:
    """Run a blocking call, then the requests to close that came during it."""
    before = _CALLS.get()
    if before:
        refuse_nested(backend)
    call = BlockingCall(backend, run, make)
    try:
        _CALLS.set((*before, call))
        return run(make)
    finally:
        _CALLS.set(before)
        if call.closes:
            call.close_stores()
        call.forget()
