"""Calls a handler, on the event loop or in a thread, within its time limit; and plain steps in threads."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from holdfast.log import WARNING, log_event
from holdfast.worker.blocking_calls import IN_HANDLER
from holdfast.worker.claim_renewal import Held
from holdfast.worker.handlers import Registered

THREAD_GRACE_S = 5.0
"""Time for a function in a thread to return once a shutdown cancelled it. Then the worker gives its work back."""

CANCEL_S = 1.0
"""Time for a coroutine to end after it was cancelled at its limit. Then a warning is logged."""


class Caller:
    """Calls the handlers of one worker."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._serving = asyncio.current_task()
        self._is_cancelling = False

    @property
    def is_cancelling(self) -> bool:
        """True once a shutdown cancels the calls that run, or the end of the event loop cancels all its tasks."""
        return self._is_cancelling or (self._serving is not None and self._serving.cancelling() > 0)

    def begin_cancelling(self) -> None:
        """Note that a shutdown cancels the calls that run."""
        self._is_cancelling = True

    async def call(
        self,
        handler: Registered,
        arguments: tuple[Any, ...],
        subject: Any,
        named: dict[str, Any] | None = None,
        *,
        held: Held | None = None,
        left: Callable[[], list[asyncio.Future[Any]]] = list,
    ) -> Any:
        """Call a handler within its time. A function in a thread cannot be cancelled: wait until it returns.

        While it runs over its limit, the claim `held` says so. After an error, also wait for the steps in threads that
        are `left` running: the next attempt would call them a second time meanwhile.
        """
        limit = asyncio.timeout(handler.timeout_s)
        tell = partial(_warn_overdue, handler, limit, held, "in a thread, which cannot be stopped")
        function = partial(handler.function, *arguments, **(named or {}))
        try:
            return await self._within(limit, handler, function, subject, held, tell)
        except KeyboardInterrupt:
            raise
        except BaseException:
            calls = left()
            if calls:
                tell()
                await self._returned(calls)
            raise

    async def _within(
        self,
        limit: asyncio.Timeout,
        handler: Registered,
        function: Callable[[], Any],
        subject: Any,
        held: Held | None,
        tell: Callable[[], None],
    ) -> Any:
        if held is not None:
            held.is_out_of_time = limit.expired
        try:
            async with limit:
                if handler.is_async:
                    with self._watched(handler, limit, held):
                        answer = function()
                        answer = await answer if inspect.isawaitable(answer) else answer
                else:
                    answer = await self._in_thread(function, subject, tell)
                    # A plain function may call an async one.
                    answer = await answer if inspect.isawaitable(answer) else answer
            if limit.expired():
                raise TimeoutError  # it swallowed the cancel and returned
            return answer
        except (TimeoutError, asyncio.CancelledError) as error:
            was_stopped = self.is_cancelling or (held is not None and held.has_cancelled)
            if not limit.expired() or (was_stopped and isinstance(error, asyncio.CancelledError)):
                raise
            # Up to Python 3.12, a `TaskGroup` whose error the handler caught lets the limit end in a `CancelledError`.
            raise TimeoutError(f"{handler.name} took longer than {handler.timeout_s:g} s") from None
        finally:
            if held is not None:
                held.is_out_of_time = lambda: False

    @contextmanager
    def _watched(self, handler: Registered, limit: asyncio.Timeout, held: Held | None) -> Generator[None]:
        """Warn of a coroutine that keeps running after it was cancelled at its limit."""
        if handler.timeout_s is None:
            yield
            return
        tell = partial(_warn_overdue, handler, limit, held, "because it swallows CancelledError", CANCEL_S)
        timer = self.loop.call_later(handler.timeout_s + CANCEL_S, tell)
        try:
            yield
        finally:
            timer.cancel()

    async def _in_thread(self, function: Callable[[], Any], subject: Any, tell: Callable[[], None]) -> Any:
        answer: asyncio.Future[Any] = self.loop.create_future()
        context = copy_context()
        context.run(IN_HANDLER.set, subject)
        run = partial(_call_in_thread, context, function, self.loop, answer)
        # A daemon: a handler that never returns must not keep the process from ending.
        threading.Thread(target=run, name="holdfast-handler", daemon=True).start()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            subject.cancelled = True
            if not answer.done():
                tell()
            await self._returned([answer])
            raise

    async def _returned(self, answers: list[asyncio.Future[Any]]) -> None:
        """Wait for threads that cannot be cancelled, at a shutdown only for a while."""
        deadline_s = None
        while not all(answer.done() for answer in answers):
            if self.is_cancelling and deadline_s is None:
                deadline_s = time.monotonic() + THREAD_GRACE_S
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            with suppress(asyncio.CancelledError):  # a second one, of the shutdown
                await asyncio.wait(answers, timeout=left_s)
        for answer in answers:
            with suppress(BaseException):  # the cancel tells more
                answer.result()


def _warn_overdue(
    handler: Registered, limit: asyncio.Timeout, held: Held | None, reason: str, for_s: float = 0.0
) -> None:
    """Log a call that keeps running after its time limit cancelled it."""
    if held is None or not limit.expired():
        return
    held.overdue_since_s = time.monotonic() - for_s
    message = f"%(handler)s runs longer than its %(seconds)g s {reason}: %(work)s waits"
    log_event("worker", WARNING, message, handler=handler.name, seconds=handler.timeout_s, work=held.name())


class StepThreads:
    """The threads in which a worker calls the plain steps of `async def` handlers, at most this many at once.

    They are daemons, so that a step that does not return does not keep the process from ending. The event loop's own
    threads would, and are few.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(0)

    def noting(self, left: list[asyncio.Future[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function that calls another one in a thread. Calls that continue after a cancel are added to `left`.

        Called by the event loop's thread alone.
        """
        return partial(self._call, left)

    async def _call(
        self, left: list[asyncio.Future[Any]], function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        returned: asyncio.Future[None] = loop.create_future()
        begin = threading.Lock()
        """Taken by the thread that makes the call, or by a cancel before that."""

        def begun() -> None:
            if answer.cancelled() or not begin.acquire(blocking=False):
                return  # while it waited for a thread
            call()
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(returned.set_result, None)

        call = partial(_call_in_thread, copy_context(), partial(function, *args, **named), loop, answer)
        self._calls.put(begun)
        if not self._free.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name="holdfast-step", daemon=True).start()
        try:
            return await answer
        except asyncio.CancelledError:
            if not begin.acquire(blocking=False):
                left.append(returned)
            raise

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self._free.release()

    def close(self) -> None:
        """End the threads that are free, and the others once their call returns."""
        for _ in range(self._count):
            self._calls.put(None)


def _call_in_thread(
    context: Context,
    function: Callable[[], Any],
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Any],
) -> None:
    """Call a function in its thread, and hand its answer or its error to the event loop."""
    try:
        result = context.run(function)
    except BaseException as error:
        settle = partial(answer.set_exception, _raisable(error))
    else:
        settle = partial(answer.set_result, result)
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(lambda: None if answer.cancelled() else settle())


def _raisable(error: BaseException) -> BaseException:
    """Return an error that a future can carry: these two would end, or close, the coroutine that waits for it."""
    if isinstance(error, StopIteration | GeneratorExit):
        return RuntimeError(f"the function raised {type(error).__name__}")
    return error
