"""Wake the watchers of a topic, from any thread. An interrupt of one watcher or publisher leaves the others sound."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar, cast

T = TypeVar("T")


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

    concerns: Callable[[Any], Awaitable[bool]] | None = None
    """A read that decides if a change of unknown topic concerns the waiter, which keeps sleeping if not."""

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
        # A watcher looks after it is registered: one that comes now sees the change that is published.
        if self._watchers:
            self._wake(self._registered(set(topics)))

    def questions(self) -> list[tuple[Future[None], Callable[[Any], Awaitable[bool]]]]:
        """Return the watchers that can tell if a change of unknown topic concerns them, with their reads."""
        asked = [(change, cast("Change[None]", change).concerns) for _, change in self._registered()]
        return [(change, concerns) for change, concerns in asked if concerns is not None]

    def _registered(self, topics: Iterable[str] | None = None) -> list[tuple[str, Future[None]]]:
        """Return the watchers of these topics, or all, with their topics."""
        found: list[tuple[str, Future[None]]] = []
        with self._lock:
            # Copies, made without allocating an object for an entry: a signal handler, or a coroutine that is garbage,
            # may end a watch of this thread at any allocation, and the lock lets it in.
            for topic in list(self._watchers) if topics is None else topics:
                found += [(topic, change) for change in list(self._watchers.get(topic, ()))]
        return found

    def _wake(self, changes: Iterable[tuple[str, Future[None]]]) -> None:
        # One publisher at a time, so that each watcher is woken once. A watcher stays registered until then: if this
        # thread is interrupted, the next publisher wakes the rest.
        with self._waking:
            for topic, change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler in this thread was first
                        change.set_result(None)
                # Again, for a watcher that was interrupted while it was cancelled.
                self._forget(topic, change)

    def publish_all(self, is_concerned: Callable[[Future[None]], bool] | None = None) -> None:
        """Wake all watchers, after a change of unknown topic, or those that are concerned."""
        changes = self._registered()
        self._wake(changes if is_concerned is None else [one for one in changes if is_concerned(one[1])])

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all watchers, each with an error of its own: no more changes will come."""
        with self._lock:
            changes = self._registered()
            self._watchers.clear()
        with self._waking:
            for _, change in changes:
                if change.running() or (not change.done() and change.set_running_or_notify_cancel()):
                    with suppress(InvalidStateError):  # a signal handler in this thread was first
                        change.set_exception(error())
