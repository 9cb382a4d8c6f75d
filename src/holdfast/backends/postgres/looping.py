"""Runs coroutines on a background event loop, for callers that block.

A caller that a signal handler interrupts stops waiting and cancels its coroutine. It shares nothing with the loop's
thread but a lock that only the loop's thread releases, so that the loop never waits for a caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar, cast

from holdfast.errors import StoreClosed
from holdfast.waiting import run_to_end, start_thread

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0


class Call(Generic[T]):
    """One coroutine on the loop, and its outcome."""

    __slots__ = ("_coroutine", "_error", "_result", "_task", "done")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def start(self) -> None:
        """Begin, on the loop."""
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        """Give up, on the loop."""
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self.done.release()

    def outcome(self) -> T:
        """Return or raise what the coroutine did, once `done` is free."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class LoopThread:
    """An event loop in a thread of its own, until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="holdfast-postgres-loop", daemon=True)
        start_thread(self._thread)

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine to its end; an interrupted caller takes it back."""
        coroutine = cast("Coroutine[Any, Any, T]", work)
        call = Call(coroutine)
        try:
            with self._lock:
                stopped = self._stopped
                if not stopped:
                    self._loop.call_soon_threadsafe(call.start)
            if stopped:
                # Nothing suspends any more: whatever is asked of a closed store is refused at once.
                return run_to_end(coroutine)
            call.done.acquire()
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        try:
            return call.outcome()
        except CancelledError:
            if self._stopped:
                raise StoreClosed from None
            raise

    def stop(self) -> None:
        """Cancel what is still running, and end the thread. A stop that was interrupted can be repeated."""
        with self._lock:
            self._stopped = True
            if self._loop.is_closed():
                return
            self._loop.call_soon_threadsafe(self._begin_end)
        self._thread.join(STOP_TIMEOUT_S)

    def _begin_end(self) -> None:
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            await _cancel_others()
        finally:
            self._loop.stop()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
