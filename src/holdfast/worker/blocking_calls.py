"""Blocking calls on an async store, from threads of the worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import holdfast

T = TypeVar("T")

IN_HANDLER: ContextVar[object] = ContextVar("holdfast_handler", default=None)
"""The turn, job or run of the plain handler whose thread this is. Threads that the handler starts have none."""


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class OnLoop:
    """Runs the calls of any thread on the event loop of the worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def drive(self, work: Awaitable[T]) -> T:
        """Run a call, and return its result. A cancelled one raises that of asyncio.

        Raises InvalidRequest on the event loop, which would wait for itself, and StoreClosed after the worker's end.
        """
        if _running_loop() is self._loop:
            if isinstance(work, Coroutine):
                work.close()
            raise holdfast.InvalidRequest(
                "handler", "is a plain function whose coroutine made a blocking call: declare the handler async def"
            )
        made = _awaited(work)
        try:
            running = asyncio.run_coroutine_threadsafe(made, self._loop)
        except RuntimeError:  # the loop is closed
            made.close()
            if isinstance(work, Coroutine):
                work.close()
            raise holdfast.errors.StoreClosed from None
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            # The class of threads is an `Exception`: a handler may catch it as an error of its own.
            raise asyncio.CancelledError from None


class OwnLoop:
    """Runs the calls of one thread on an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def drive(self, work: Awaitable[T]) -> T:
        """Run a call, and return its result."""
        return self._loop.run_until_complete(_awaited(work))

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()


class SharedStore(holdfast.BlockingStore):
    """The worker's store, for handlers in threads. Closing it has no effect."""

    def __init__(self, store: holdfast.Store, loop: OnLoop) -> None:
        super().__init__(store, cast("Any", loop))

    def close(self) -> None:
        """Leave the store open: it is the worker's."""


class CallerStore(holdfast.BlockingStore):
    """A store of the caller's, for one thread. Closing it leaves the store open."""

    def __init__(self, store: holdfast.Store, loop: OwnLoop) -> None:
        super().__init__(store, cast("Any", loop))
        self._own_loop = loop

    def close(self) -> None:
        """Close the loop only."""
        self._own_loop.close()
