"""Calls a handler, on the event loop or in a thread, within its time limit."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from holdfast.worker.handlers import Registered

THREAD_GRACE_S = 5.0
"""Time for a function in a thread to return at a shutdown, after it was told to. Then its work is given back."""


class Caller:
    """Calls the handlers of one worker."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_cancelling = False
        """True once a shutdown cancels the calls that run."""

    async def call(
        self, handler: Registered, arguments: tuple[Any, ...], subject: Any, named: dict[str, Any] | None = None
    ) -> Any:
        """Call a handler within its time. A function in a thread cannot be cancelled: wait until it returns."""
        limit = asyncio.timeout(handler.timeout_s)
        function = partial(handler.function, *arguments, **(named or {}))
        try:
            async with limit:
                if handler.is_async:
                    return await function()
                answer = await self._in_thread(function, subject)
                # A plain function may call an async one.
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"{handler.name} took longer than {handler.timeout_s:g} s") from None

    async def _in_thread(self, function: Callable[[], Any], subject: Any) -> Any:
        answer: asyncio.Future[Any] = self.loop.create_future()
        run = partial(_call_in_thread, copy_context(), function, self.loop, answer)
        # A daemon: a handler that never returns must not keep the process from ending.
        threading.Thread(target=run, name="holdfast-handler", daemon=True).start()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            subject.cancelled = True
            await self._returned(answer)
            raise

    async def _returned(self, answer: asyncio.Future[Any]) -> None:
        """Wait for a thread that cannot be cancelled, at a shutdown only for a while."""
        deadline_s = None
        while not answer.done():
            if self.is_cancelling and deadline_s is None:
                deadline_s = time.monotonic() + THREAD_GRACE_S
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            with suppress(asyncio.CancelledError):  # a second one, of the shutdown
                await asyncio.wait([answer], timeout=left_s)
        with suppress(BaseException):  # the cancel tells more
            answer.result()


def _call_in_thread(
    context: Context,
    function: Callable[[], Any],
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Any],
) -> None:
    """Call a handler in its thread, and hand its answer or its error to the event loop."""
    try:
        result = context.run(function)
    except BaseException as error:
        settle = partial(answer.set_exception, _raisable(error))
    else:
        settle = partial(answer.set_result, result)
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(lambda: None if answer.cancelled() else settle())


def _raisable(error: BaseException) -> BaseException:
    """Return an error that a future can carry: StopIteration would end the coroutine that waits for it."""
    return RuntimeError("the handler raised StopIteration") if isinstance(error, StopIteration) else error
