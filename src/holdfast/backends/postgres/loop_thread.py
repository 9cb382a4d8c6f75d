"""Runs coroutines on a background event loop, for callers that block.

A caller that a signal handler interrupts stops waiting and cancels its coroutine. It takes no lock but that of its own
call, which only the loop's thread releases: the loop never waits for a caller, nor a caller for one that it interrupts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar, cast

from holdfast.errors import NestedCall, StoreClosed
from holdfast.interrupts import raised_by_handler, start_thread
from holdfast.wait import run_to_end

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
GRACE_S = 3.0
"""Time for interrupted work to close its connections before it is cancelled."""


class Call(Generic[T]):
    """One awaitable that runs on the loop, and its outcome."""

    __slots__ = ("_error", "_given_up", "_result", "_task", "_work", "done", "is_late")

    def __init__(self, work: Awaitable[T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._given_up = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self.is_late = False
        self.done = threading.Lock()
        self.done.acquire()

    def start(self) -> None:
        """Start the work, unless its caller has given up. Runs on the loop."""
        if not self._given_up:
            self._task = asyncio.get_running_loop().create_task(_awaited(self._work))
            self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Cancel the work. Runs on the loop."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def reject(self) -> None:
        """End a call that came too late for the loop. Runs in the loop's thread."""
        self.is_late = True
        self.done.release()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self.done.release()

    def outcome(self) -> T:
        """Return the result of the work, or raise its error, once `done` is free."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class LoopThread:
    """An event loop in a thread of its own, from `start` to `stop`.

    Everything that must be released is made in that thread, where no signal handler interrupts. `stop` undoes an
    interrupted start, also if the thread was not running yet.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepted: set[Call[Any]] = set()
        """Calls that have not been started."""
        self._stopped = False
        self._ending: asyncio.Task[None] | None = None
        self._ready = threading.Lock()
        self._ready.acquire()
        self._thread = threading.Thread(target=self._serve, name="holdfast-postgres-loop", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until the loop exists. Call it once."""
        start_thread(self._thread)
        self._ready.acquire()

    def _serve(self) -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_leave_out_lost_connections)
        self._loop = loop
        try:
            if not self._stopped:
                self._ready.release()
                loop.run_forever()
        finally:
            loop.close()
            # A caller adds its call before it wakes the loop: one that adds it later finds the loop closed.
            for call in list(self._accepted):
                call.reject()

    def _begin(self, call: Call[Any]) -> None:
        self._accepted.discard(call)
        if self._stopped:
            # The loop would end before the call.
            call.reject()
        else:
            call.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, which exists once `start` has returned."""
        assert self._loop is not None, "a loop is started before it is used"
        return self._loop

    def drive(self, work: Awaitable[T]) -> T:
        """Run work to its end. If the caller is interrupted, the work is cancelled."""
        loop = self._loop
        assert loop is not None, "a loop is started before it is used"
        if threading.get_ident() == self._thread.ident:
            raise NestedCall  # a finalizer, or code that the driver calls
        call = Call(work)
        try:
            self._accepted.add(call)
            if _wake(loop, self._begin, call):
                call.done.acquire()
            else:
                call.is_late = True
        except BaseException:
            _wake(loop, call.cancel)
            raise
        finally:
            self._accepted.discard(call)
        if call.is_late:
            # Nothing suspends here: a closed store refuses every call at once.
            return run_to_end(work)
        try:
            return call.outcome()
        except CancelledError:
            if self._stopped:
                raise StoreClosed from None
            raise

    def stop(self) -> None:
        """Cancel work that is still running, and end the thread. An interrupted stop can be repeated."""
        self._stopped = True
        loop = self._loop
        if loop is None or loop.is_closed():
            # A thread that has not made its loop yet ends by itself.
            return
        _wake(loop, self._begin_end, loop)
        self._thread.join(STOP_TIMEOUT_S)

    def _begin_end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ending is None:
            self._ending = loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            await _cancel_others()
        finally:
            asyncio.get_running_loop().stop()


def _wake(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Let a loop run a call. Return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError as error:
        if not loop.is_closed() or raised_by_handler(error):
            raise
        return False
    return True


def _leave_out_lost_connections(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors on the loop, except the one that the driver leaves behind when a connect is cancelled.

    The driver then completes a future of its own with an error, and nothing refers to that future.
    """
    if "task" in context or not isinstance(context.get("exception"), ConnectionError):
        loop.default_exception_handler(context)


async def _cancel_others() -> None:
    own = {cast("asyncio.Task[Any]", asyncio.current_task())}
    if tasks := asyncio.all_tasks() - own:
        await asyncio.wait(tasks, timeout=GRACE_S)
    if tasks := asyncio.all_tasks() - own:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    # One more pass of the loop, in which terminated connections close their sockets.
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
