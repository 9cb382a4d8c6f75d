"""Run calls where no signal handler can raise, and distinguish the exceptions of handlers."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial, wraps
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class OfThisThread(threading.local):
    """A mark of the calling thread."""

    is_inside = False


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


class _ThreadCall(Generic[T]):
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
    If a handler raises meanwhile, the caller gets its exception at once. The call continues; its result is discarded.
    """
    if not in_main_thread():
        return call()
    thread_call = _ThreadCall(partial(copy_context().run, call))
    # Bound beforehand: a call of the interpreter's own code at the very beginning of a handler cannot be interrupted.
    start, drop = _thread.start_new_thread, thread_call.drop
    try:
        start(thread_call.run, ())
        thread_call.done.acquire()
    except BaseException:
        if discard is not None:
            start(drop, (discard,))
        raise
    error = thread_call.error
    if error is None:
        return cast("T", thread_call.result)
    try:
        raise error
    finally:
        del thread_call, error, drop  # break the reference cycle through the traceback


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
