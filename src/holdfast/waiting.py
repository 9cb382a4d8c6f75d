"""How a caller waits is chosen once, when a store is opened; what it waits for is always a future of a thread.

A coroutine of a backend with `BlockingWaiting` never suspends, so that one step runs it to its end; with `AsyncWaiting`
it suspends exactly where it waits for another thread.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from holdfast.clock import read_clock
from holdfast.errors import InvalidRequest
from holdfast.ports import Backend, Clock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from asyncio import Future as AsyncFuture

T = TypeVar("T")


def run_to_end(work: Awaitable[T]) -> T:
    """The result of a coroutine that never suspends."""
    coroutine = cast("Coroutine[Any, Any, T]", work)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    coroutine.close()
    raise RuntimeError("an operation suspended where none may")


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
    """A future that an interrupted caller leaves usable for everybody else."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Gate()


def in_main_thread() -> bool:
    """Tell whether the calling thread is the one in which signal handlers run."""
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
        except BaseException as error:  # raised where it was to be started
            failures.append(error)
        finally:
            begun.release()

    _thread.start_new_thread(begin, ())
    begun.acquire()
    if failures:
        raise failures[0]


def wait_for(future: Future[Any], timeout_s: float = -1) -> bool:
    """Block until a future is done, or until the time is up; -1 for no limit. An interrupt leaves no lock taken."""
    gate = threading.Lock()
    gate.acquire()
    future.add_done_callback(lambda _: gate.release())
    return gate.acquire(timeout=timeout_s)


class Ticket:
    """A task's place in another thread's queue: the task may give it up until the other has begun."""

    __slots__ = ("_future", "_open", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._future: AsyncFuture[Any] = loop.create_future()
        self._open = threading.Lock()

    def close(self) -> bool:
        """Whether nobody has closed it before: the other thread when it begins, the task when it gives up."""
        return self._open.acquire(blocking=False)

    async def answer(self) -> Any:
        """What became of it; whoever is cancelled meanwhile has given up."""
        try:
            return await self._future
        finally:
            self.close()

    def tell(self, result: Any, error: BaseException | None) -> None:
        """Answer it, on its own loop."""
        if self._future.done():  # given up meanwhile
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    @staticmethod
    def tell_all(answers: Iterable[tuple[Ticket, Any, BaseException | None]]) -> None:
        """Answer many at once, from any thread: a loop is woken once, however many of its tasks wait."""
        loops: dict[AbstractEventLoop, list[tuple[Ticket, Any, BaseException | None]]] = {}
        for answer in answers:
            loops.setdefault(answer[0].loop, []).append(answer)
        for loop, told in loops.items():
            with suppress(RuntimeError):  # the loop is closed, and nobody on it waits any more
                loop.call_soon_threadsafe(_tell_each, told)


def _tell_each(answers: list[tuple[Ticket, Any, BaseException | None]]) -> None:
    for ticket, result, error in answers:
        ticket.tell(result, error)


class Waiting(Protocol):
    """How a caller waits."""

    def ticket(self) -> Ticket | None:
        """What another thread answers to; none if the calling thread is the caller's own and may block."""
        ...

    async def settle(self, future: Future[T]) -> T:
        """The future's result, once it is there."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """The result of a call that blocks on files or locks."""
        ...

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """True once the change came, False when the time ran out; the change is not watched any longer."""
        ...


class BlockingWaiting:
    """Waits by holding the calling thread."""

    def ticket(self) -> None:
        """None: nobody else's work stands still with the caller's thread."""

    async def settle(self, future: Future[T]) -> T:
        """Block until the result is there."""
        wait_for(future)
        return future.result()

    async def offload(self, call: Callable[[], T]) -> T:
        """The calling thread is the caller's own: just call."""
        return call()

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Block until the change or the deadline."""
        if not wait_for(change, timeout_ms / 1000) and change.cancel():
            return False
        wait_for(change)
        change.result()
        return True


class AsyncWaiting:
    """Waits by suspending the calling task; its event loop goes on."""

    def ticket(self) -> Ticket:
        """One for the calling task."""
        import asyncio  # a blocking user never pays for it

        return Ticket(asyncio.get_running_loop())

    async def settle(self, future: Future[T]) -> T:
        """Suspend until the result is there; a cancelled task takes back what has not started yet."""
        import asyncio  # a blocking user never pays for it

        return await asyncio.wrap_future(future)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run the call in a worker thread."""
        import asyncio  # a blocking user never pays for it

        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Suspend until the change or the deadline."""
        import asyncio  # a blocking user never pays for it

        try:
            await asyncio.wait_for(asyncio.wrap_future(change), timeout_ms / 1000)
        except TimeoutError:
            return False
        return True


class Signals:
    """Wakes the watchers of a topic, each once, from any thread."""

    def __init__(self) -> None:
        # Of those that a signal handler may take again in the same thread.
        self._lock = threading.RLock()
        self._waking = threading.RLock()
        self._watchers: dict[str, set[Future[None]]] = {}

    def watch(self, topic: str) -> Future[None]:
        """A future that is done at the next publication of the topic. Cancelling it ends the watch."""
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
        """Whether anybody watches anything."""
        return bool(self._watchers)

    def publish(self, topics: Iterable[str]) -> None:
        """Wake everybody who watches one of the topics."""
        with self._lock:
            changes = [(topic, change) for topic in set(topics) for change in self._watchers.get(topic, ())]
        # One publisher at a time, so that each watcher is woken once. A watcher stays registered until it is woken: if
        # this thread is interrupted in between, whoever publishes next wakes the rest.
        with self._waking:
            for topic, change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler of this very thread was quicker
                        change.set_result(None)
                # Again, for one that was interrupted while it was cancelled.
                self._forget(topic, change)

    def publish_all(self) -> None:
        """Wake everybody: something changed and nobody knows what."""
        with self._lock:
            topics = list(self._watchers)
        self.publish(topics)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Tell everybody, with an error each of his own, that nothing will come any more."""
        with self._lock:
            changes = [change for watchers in self._watchers.values() for change in watchers]
            self._watchers.clear()
        with self._waking:
            for change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler of this very thread was quicker
                        change.set_exception(error())


class WaitingBackend:
    """What backends share whose operations never suspend: one clock, one way of waiting, signals inside the process."""

    def __init__(self, clock: Clock, waiting: Waiting) -> None:
        self._clock = clock
        self._waiting = waiting
        self._signals = Signals()
        subscribe = getattr(clock, "subscribe", None)
        if callable(subscribe):
            # A clock that is moved by hand tells when it moved: those who wait for a time must look again.
            subscribe(self._signals.publish_all)

    def _now_ms(self) -> int:
        return read_clock(self._clock)

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change; False when the time ran out first."""
        return await self._waiting.pause(change, timeout_ms)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up anybody else."""
        return await self._waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return run_to_end(work)


class BorrowedBackend:
    """What backends share that work inside a transaction of the caller's: nobody can wait in one for what others do."""

    def watch(self, topic: str) -> Future[None]:  # noqa: ARG002 - the port's signature
        """Refused: whoever waits here keeps others from what he waits for, and sees nothing of it."""
        raise self._no_waiting()

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:  # noqa: ARG002 - the port's signature
        """Refused, like the watch."""
        raise self._no_waiting()

    def borrow(self, connection: object) -> Backend:  # noqa: ARG002 - the port's signature
        """Refused: one transaction is not lent twice."""
        raise InvalidRequest("store", "works inside a transaction already: call within() on the store that was opened")

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Refused: tests look at the store itself."""
        raise InvalidRequest("store", "works inside a transaction: look at the store that was opened")

    def _no_waiting(self) -> InvalidRequest:
        return InvalidRequest(
            "connection", "nobody can wait inside a transaction of his own: end it, then wait on the store itself"
        )
