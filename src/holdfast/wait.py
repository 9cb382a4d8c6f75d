"""Ways of waiting for the future of another thread, chosen once when a store is opened: block, or suspend a task.

A coroutine of a backend with `BlockingWaiting` never suspends, so that one step runs it to its end; with `AsyncWaiting`
it suspends exactly where it waits for another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.loop_budget import BudgetExceeded, LoopBudget
from holdfast.nesting import innermost_call, while_open

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncFuture
    from concurrent.futures import Future

T = TypeVar("T")


class Deferred(Awaitable[T]):
    """A call whose coroutine is created where it runs: an interrupt before that leaves no coroutine behind."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, T]:
        return self._call().__await__()


def run_to_end(work: Awaitable[T]) -> T:
    """Return the result of a coroutine that never suspends."""
    steps = work.__await__()
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise RuntimeError("an operation suspended where none may")


_SEND = methodcaller("send", None)


def run_made(make: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Return the result of the coroutine that a call makes, and that never suspends.

    It is created and started in one step of the interpreter: a coroutine that an interrupt keeps from being started
    would be reported on standard error as never awaited.
    """
    try:
        next(map(_SEND, iter(partial(make, *arguments), None)))
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("an operation suspended where none may")


def wait_for(future: Future[Any], timeout_s: float = -1, *, is_open: bool = False) -> bool:
    """Block until a future is done, or the time is up; -1 for no limit. An interrupt leaves no lock taken.

    With `is_open`, signal handlers may use the store meanwhile.
    """
    gate = threading.Lock()
    gate.acquire()
    future.add_done_callback(partial(_open, gate))
    return while_open(gate.acquire, True, timeout_s) if is_open else gate.acquire(timeout=timeout_s)


def _open(gate: threading.Lock, _: object) -> None:
    if gate.locked():
        gate.release()


class NeverSuspends:
    """Marks a backend whose coroutines never suspend, so that one step runs each to its end."""

    __slots__ = ()


class Ticket:
    """A task's place in another thread's queue. The task may cancel it until the other thread has begun."""

    __slots__ = ("_future", "_open", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._future: AsyncFuture[Any] = loop.create_future()
        self._open = threading.Lock()

    def close(self) -> bool:
        """Close it; True the first time. The other thread closes it when it begins, the task when it gives up."""
        return self._open.acquire(blocking=False)

    async def answer(self) -> Any:
        """Wait for the result. Cancelling this gives up the ticket."""
        try:
            return await self._future
        finally:
            self.close()

    def tell(self, result: Any, error: BaseException | None) -> None:
        """Set the result, on its own loop."""
        if self._future.done():  # given up meanwhile
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    @staticmethod
    def tell_all(answers: Iterable[tuple[Ticket, Any, BaseException | None]]) -> None:
        """Answer many tickets at once, from any thread: a loop is woken once, however many of its tasks wait."""
        loops: dict[AbstractEventLoop, list[tuple[Ticket, Any, BaseException | None]]] = {}
        for answer in answers:
            loops.setdefault(answer[0].loop, []).append(answer)
        for loop, outcomes in loops.items():
            with suppress(RuntimeError):  # the loop is closed: no task waits on it
                loop.call_soon_threadsafe(_deliver, outcomes)


def _deliver(answers: list[tuple[Ticket, Any, BaseException | None]]) -> None:
    for ticket, result, error in answers:
        ticket.tell(result, error)


class Waiting(Protocol):
    """A way of waiting."""

    def ticket(self) -> Ticket | None:
        """Return the ticket that another thread answers; None if the calling thread may block."""
        ...

    async def settle(self, future: Future[T]) -> T:
        """Wait for the future's result."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Return the result of a call that blocks on files or locks."""
        ...

    async def compute(self, call: Callable[[], T], *, heavy: bool = False) -> tuple[T, bool]:
        """Run a call without effects. Return its result, and True if it was heavy."""
        ...

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Return True once the change came, False if the time ran out first. Ends the watch."""
        ...


class BlockingWaiting:
    """Waits by holding the calling thread."""

    def ticket(self) -> None:
        """Return None: the calling thread may block without holding up other work."""

    async def settle(self, future: Future[T]) -> T:
        """Block until the result is there."""
        wait_for(future)
        return future.result()

    async def offload(self, call: Callable[[], T]) -> T:
        """Run the call in the calling thread, which may block."""
        return call()

    async def compute(self, call: Callable[[], T], *, heavy: bool = False) -> tuple[T, bool]:  # noqa: ARG002 - the port
        """Run the call here: no event loop waits for it."""
        return call(), False

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Block until the change or the deadline."""
        if not wait_for(change, timeout_ms / 1000, is_open=True) and change.cancel():
            return False
        wait_for(change)
        change.result()
        return True


class AsyncWaiting:
    """Waits by suspending the calling task; its event loop continues."""

    def __init__(self, budget_bytes: int | None = None) -> None:
        self._budget_bytes = budget_bytes

    def ticket(self) -> Ticket:
        """Return a ticket for the calling task."""
        import asyncio  # never loaded by blocking callers

        return Ticket(asyncio.get_running_loop())

    async def settle(self, future: Future[T]) -> T:
        """Suspend until the result is there. Cancelling the task also cancels work that has not started."""
        import asyncio  # never loaded by blocking callers

        return await asyncio.wrap_future(future)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run the call in a worker thread."""
        import asyncio  # never loaded by blocking callers

        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def compute(self, call: Callable[[], T], *, heavy: bool = False) -> tuple[T, bool]:
        """Run on the loop. If that exceeds the budget, start over in a thread, which no cancellation stops."""
        if not heavy:
            try:
                with LoopBudget(self._budget_bytes):
                    return call(), False
            except BudgetExceeded:
                pass
        from holdfast.compute_threads import compute_threads  # few calls are heavy

        return await self.settle(compute_threads.submit(call)), True

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Suspend until the change or the deadline."""
        import asyncio  # never loaded by blocking callers

        call = innermost_call()
        try:
            call.is_open = True
            waiting = asyncio.wrap_future(change)
            # Not `wait_for`: in Python 3.11 that swallows a cancellation that comes together with the change.
            async with asyncio.timeout(timeout_ms / 1000):
                # Closing the store ends the wait.
                await (asyncio.gather(waiting, *(close() for close in call.closes)) if call.closes else waiting)
        except TimeoutError:
            return False
        finally:
            call.is_open = False
        return True


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Let a call end even if the calling task is cancelled: its result must not get lost. Then pass on the cancel."""
    import asyncio  # never loaded by blocking callers

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # a second one
                await asyncio.wait([task])
        with suppress(BaseException):  # the cancel tells more
            task.result()
        raise
