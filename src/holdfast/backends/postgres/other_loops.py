"""Serve callers on other event loops than the one on which a store was opened.

The driver's connections belong to one event loop. Callers of the store's own loop use its connections directly. All
other callers share a second set of connections, on a background loop that starts with the first of them: they depend on
no loop but their own, so that the loop that opened the store may be busy, paused or ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from holdfast.backends.postgres.loop_thread import LoopThread
from holdfast.errors import StoreClosed
from holdfast.signals import Change

T = TypeVar("T")

Undo: TypeAlias = Callable[[T], Coroutine[Any, Any, None]]


class LoopBackend(Protocol):
    """The backend on the background loop."""

    def watch(self, topic: str) -> Future[None]: ...
    async def close(self) -> None: ...


B = TypeVar("B", bound=LoopBackend)


async def on_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]], undo: Undo[T] | None = None) -> T:
    """Await on another loop, from this one. Cancelling the caller cancels the work.

    The work may end before the cancellation reaches it. Then only `undo` gets its result.
    """
    if undo is None:
        return await _started(_awaited(make), loop)
    work = _Undoable(make, undo)
    try:
        return await _started(work.run(), loop)
    except BaseException:
        with suppress(RuntimeError):  # the loop is closed, and has ended its work
            loop.call_soon_threadsafe(work.give_up)
        raise


def _started(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    try:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:
        work.close()  # the loop is closed: nothing will await it
        raise


class _Undoable(Generic[T]):
    """Work whose result is undone if its caller has given up. Runs on the loop of the work."""

    def __init__(self, make: Callable[[], Awaitable[T]], undo: Undo[T]) -> None:
        self._make = make
        self._undo = undo
        self._results: list[T] = []
        self._given_up = False
        self._undoing: asyncio.Task[None] | None = None

    async def run(self) -> T:
        result = await self._make()
        self._results.append(result)
        if self._given_up:
            self.give_up()
        return result

    def give_up(self) -> None:
        self._given_up = True
        while self._results:
            self._undoing = asyncio.get_running_loop().create_task(self._undo(self._results.pop()))


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


class OtherLoops(Generic[B]):
    """A backend on a background loop, opened for the first caller that needs it. Any thread may use it."""

    def __init__(self, open_backend: Callable[[LoopThread], Awaitable[B]]) -> None:
        self._open_backend = open_backend
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._opening: Future[B] | None = None
        self._early: list[Change[None]] = []
        """Watches from before the backend was open. Its opening ends them, so that their callers look again."""
        self._closed = False

    async def run(self, call: Callable[[B], Awaitable[T]], undo: Undo[T] | None = None) -> T:
        """Run a call of the backend for a task of any loop. `undo` gets a result whose caller no longer waits."""
        # Shielded: other callers wait for the same opening.
        backend = await asyncio.shield(asyncio.wrap_future(self._opened()))
        try:
            return await on_loop(self._loop(), partial(call, backend), undo)
        except (CancelledError, RuntimeError) as error:
            if self._closed and not isinstance(error, asyncio.CancelledError):
                raise StoreClosed from None
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._thread is not None, "the thread starts before the backend is opened"
        return self._thread.loop

    def _opened(self) -> Future[B]:
        is_new = False
        with self._lock:
            if self._closed:
                raise StoreClosed
            if self._thread is None:
                self._thread = LoopThread()
                self._thread.start()
            if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
                work = partial(self._open_backend, self._thread)
                self._opening = asyncio.run_coroutine_threadsafe(_awaited(work), self._thread.loop)
                is_new = True
            opening = self._opening
        if is_new:
            # Not under the lock: an opening that is done by now calls back at once, and that takes the lock.
            opening.add_done_callback(self._end_early)
        return opening

    def watch(self, topic: str) -> Future[None]:
        """Return a future that is done at the next change of the topic."""
        opening = self._opened()
        change: Change[None] = Change()
        with self._lock:
            if not opening.done():
                self._early = [one for one in self._early if not one.done()] + [change]
                return change
        return opening.result().watch(topic)

    def _end_early(self, opening: Future[B]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            return
        with self._lock:
            early, self._early = self._early, []
        for change in early:
            with suppress(InvalidStateError):
                if change.set_running_or_notify_cancel():
                    change.set_result(None)

    async def close(self) -> None:
        """Close the backend, if it was opened, and end the background loop. Idempotent."""
        with self._lock:
            self._closed = True
            thread, opening = self._thread, self._opening
        if thread is None:
            return
        if opening is not None:
            with suppress(Exception):
                backend = await asyncio.shield(asyncio.wrap_future(opening))
                await on_loop(thread.loop, backend.close)
        await asyncio.to_thread(thread.stop)
