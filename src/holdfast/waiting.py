"""Ways of waiting for the future of another thread, chosen once when a store is opened: block, or suspend a task.

A coroutine of a backend with `BlockingWaiting` never suspends, so that one step runs it to its end; with `AsyncWaiting`
it suspends exactly where it waits for another thread.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast

from holdfast.clock import read_clock
from holdfast.loop_budget import BudgetExceeded, LoopBudget
from holdfast.nesting import innermost_call, while_open
from holdfast.ports import Clock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncFuture

P = ParamSpec("P")
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
        return cast("T", stop.value)
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
        return cast("T", stop.value)
    raise RuntimeError("an operation suspended where none may")


class OfThisThread(threading.local):
    """A mark of the calling thread."""

    is_inside = False


_LockOwnedByThread: Any = type(threading.RLock())


class _Gate(_LockOwnedByThread):  # type: ignore[misc]  # a class of the interpreter that is typed as a function
    """A condition whose `with` is one step of the interpreter: an interrupt comes before it or after it, never inside.

    The `with` of `threading.Condition` is Python code: an exception of a signal handler in the middle of it leaves the
    lock taken, and the thread that completes the future waits for ever.
    """

    def __init__(self) -> None:
        self._sleepers: list[threading.Lock] = []

    def notify_all(self) -> None:
        while self._sleepers:
            with suppress(RuntimeError, IndexError):
                self._sleepers.pop().release()

    def wait(self, timeout: float | None = None) -> bool:
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        self.release()
        try:
            return sleeper.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            self.acquire()


class Change(Future[T]):
    """A future that stays usable for other waiters when one of them is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Gate()

    def _invoke_callbacks(self) -> None:
        """Call all callbacks, and pass on an exception of a signal handler, which `Future` would log and drop."""
        interrupt: BaseException | None = None
        callbacks: list[Callable[[Future[T]], object]] = cast("Any", self)._done_callbacks
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:
                interrupt = error
                callback(self)
        if interrupt is not None:
            raise interrupt


def in_main_thread() -> bool:
    """Return True if the calling thread is the one in which signal handlers run."""
    return threading.get_ident() == threading.main_thread().ident


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. If an interrupt comes first, the thread may or may not be running, and is sound either way."""
    if not in_main_thread():
        thread.start()
        return
    # `Thread.start` waits on a condition, and breaks when it is interrupted in that. So another thread starts it.
    failures: list[BaseException] = []
    begun = threading.Lock()
    begun.acquire()

    def begin() -> None:
        try:
            thread.start()
        except BaseException as error:  # raised by the calling thread
            failures.append(error)
        finally:
            begun.release()

    _thread.start_new_thread(begin, ())
    begun.acquire()
    if failures:
        raise failures[0]


class _Errand(Generic[T]):
    """A call of the main thread that another thread runs."""

    __slots__ = ("_call", "done", "ended", "error", "result")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.done = threading.Lock()
        self.ended = threading.Lock()
        self.done.acquire()
        self.ended.acquire()
        self.error: BaseException | None = None
        self.result: T | None = None

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:  # raised by the calling thread
            self.error = error
        finally:
            self.done.release()
            self.ended.release()

    def drop(self, discard: Callable[[T], object]) -> None:
        # Not `done`, which the main thread may have taken already when it was interrupted.
        self.ended.acquire()
        if self.error is None:
            discard(cast("T", self.result))


def undisturbed(call: Callable[[], T], discard: Callable[[T], object] | None = None) -> T:
    """Run a call where no signal handler can raise: for the main thread, in another thread.

    Only there is an `OSError` always that of a system call, also inside the standard library, which often ignores it.
    If a handler raises meanwhile, the caller gets its exception at once. The call goes on, and its result is discarded.
    """
    if not in_main_thread():
        return call()
    errand = _Errand(partial(copy_context().run, call))
    # Bound beforehand: a call of the interpreter's own code at the very beginning of a handler cannot be interrupted.
    start, drop = _thread.start_new_thread, errand.drop
    try:
        start(errand.run, ())
        errand.done.acquire()
    except BaseException:
        if discard is not None:
            start(drop, (discard,))
        raise
    error = errand.error
    if error is None:
        return cast("T", errand.result)
    try:
        raise error
    finally:
        del errand, error, drop  # break the reference cycle through the traceback


def each_undisturbed(method: Callable[P, T]) -> Callable[P, T]:
    """Run every call of a method where no signal handler can raise."""

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        return undisturbed(partial(method, *arguments, **named))

    return call


def raised_by_handler(error: BaseException) -> bool:
    """Return True if an exception comes from a signal handler, which is called with the frame that it interrupts."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        if _has(trace.tb_frame.f_locals.values(), interrupted):
            return True
    return False


def _has(values: Iterable[object], frame: object) -> bool:
    # A handler may take its arguments one by one, or as one tuple.
    return any(value is frame or (type(value) is tuple and any(one is frame for one in value)) for value in values)


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
        for loop, told in loops.items():
            with suppress(RuntimeError):  # the loop is closed: no task waits on it any more
                loop.call_soon_threadsafe(_tell_each, told)


def _tell_each(answers: list[tuple[Ticket, Any, BaseException | None]]) -> None:
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
    """Waits by suspending the calling task; its event loop goes on."""

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
            with suppress(BudgetExceeded), LoopBudget():
                return call(), False
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


class Signals:
    """Wakes the watchers of a topic, each once, from any thread."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may take them again in the same thread.
        self._lock = threading.RLock()
        self._waking = threading.RLock()
        self._watchers: dict[str, set[Future[None]]] = {}

    def watch(self, topic: str) -> Future[None]:
        """Return a future that is done at the next publication of the topic. Cancelling it ends the watch."""
        change: Change[None] = Change()
        with self._lock:
            self._watchers.setdefault(topic, set()).add(change)
        change.add_done_callback(lambda done: self._forget(topic, done))
        return change

    def _forget(self, topic: str, change: Future[None]) -> None:
        with self._lock:
            watchers = self._watchers.get(topic)
            if watchers is not None:
                watchers.discard(change)
                if not watchers:
                    del self._watchers[topic]

    @property
    def watched(self) -> bool:
        """True if any topic is watched."""
        return bool(self._watchers)

    def publish(self, topics: Iterable[str]) -> None:
        """Wake all watchers of these topics."""
        with self._lock:
            changes = [(topic, change) for topic in set(topics) for change in self._watchers.get(topic, ())]
        # One publisher at a time, so that each watcher is woken once. A watcher stays registered until then: if this
        # thread is interrupted, the next publisher wakes the rest.
        with self._waking:
            for topic, change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler of this very thread was quicker
                        change.set_result(None)
                # Again, for a watcher that was interrupted while it was cancelled.
                self._forget(topic, change)

    def publish_all(self) -> None:
        """Wake all watchers, after a change of unknown topic."""
        with self._lock:
            topics = list(self._watchers)
        self.publish(topics)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all watchers, each with an error of its own: no more changes will come."""
        with self._lock:
            changes = [change for watchers in self._watchers.values() for change in watchers]
            self._watchers.clear()
        with self._waking:
            for change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler of this very thread was quicker
                        change.set_exception(error())


class WaitingBackend:
    """Base of backends whose operations never suspend: one clock, one way of waiting, signals inside the process."""

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        self._clock = clock
        self._waiting = waiting
        self._signals = Signals()
        subscribe = getattr(clock, "subscribe", None)
        if callable(subscribe):
            # A clock that is moved by hand calls back when it moved: waiters for a time must check again.
            subscribe(self._signals.publish_all)

    def _now_ms(self) -> int:
        return read_clock(self._clock)

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change. Return False if the time ran out first."""
        return await self._waiting.pause(change, timeout_ms)

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a call without effects. Return its result, and True if it was heavy."""
        return await self._waiting.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up other calls."""
        return await self._waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return run_to_end(work)
