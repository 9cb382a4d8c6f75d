"""A blocking caller waits in his own thread for what one event loop in another does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar, cast

from holdfast.errors import StoreClosed
from holdfast.waiting import run_to_end

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0


class LoopThread:
    """An event loop in a thread of its own, until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-postgres-loop", daemon=True)
        self._thread.start()

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine to its end; an interrupted caller takes it back."""
        coroutine = cast("Coroutine[Any, Any, T]", work)
        with self._lock:
            future = None if self._stopped else asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if future is None:
            # Nothing suspends any more: whatever is asked of a closed store is refused at once.
            return run_to_end(coroutine)
        try:
            return future.result()
        except CancelledError:
            if self._stopped:
                raise StoreClosed from None
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what is still running, and end the thread."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self._loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
