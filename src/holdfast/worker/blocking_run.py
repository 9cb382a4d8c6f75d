"""A run for a plain handler in a thread: the same calls without await."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar, overload

import holdfast
from holdfast.worker.blocking_calls import IN_HANDLER, OnLoop, SharedStore
from holdfast.worker.children import Child
from holdfast.worker.journal import JournalUse
from holdfast.worker.retries import Retry
from holdfast.worker.run import Run
from holdfast.worker.step_calls import StepCall
from holdfast.worker.steps import in_step

T = TypeVar("T")
R = TypeVar("R")


class BlockingChild:
    """A run that another run has started."""

    def __init__(self, child: Child, loop: OnLoop, require_own_thread: Callable[[str], None]) -> None:
        self._child = child
        self._loop = loop
        self._require_own_thread = require_own_thread
        self.id = child.id

    @overload
    def result(self) -> Any: ...
    @overload
    def result(self, declared: type[T]) -> T: ...
    def result(self, declared: Any = None) -> Any:
        """Return the child's result once it has ended, as a value of a type if one is given; see `Child.result`."""
        self._require_own_thread("child.result")
        return self._loop.drive(self._child.result(declared))


class BlockingRun:
    """The run that a plain handler was called for. See `Run`."""

    def __init__(self, run: Run, loop: OnLoop, store: Any = None) -> None:
        self._run = run
        self._loop = loop
        self.claim = run.claim
        self.id = run.id
        self.kind = run.kind
        self.version = run.version
        self.args = run.args
        self.attempt = run.attempt
        self.store: Any = SharedStore(run.store, loop) if store is None else store

    def __repr__(self) -> str:
        return f"Blocking{self._run!r}"

    @property
    def cancelled(self) -> bool:
        """True once the worker has given up on this call, or the run is being cancelled: the handler should return."""
        return self._run.cancelled

    def _require_wanted(self) -> None:
        """End the handler once the worker has given up on this call: another one may run the handler already."""
        if self._run.cancelled:
            raise asyncio.CancelledError

    def _require_own_thread(self, call: str) -> None:
        """Refuse a wait, or a call without a name, in a thread that the handler made: their order is not the same."""
        if IN_HANDLER.get() is not self._run:
            problem = "is called in a thread that the handler started: only named steps and progress may be"
            raise holdfast.InvalidRequest(call, problem)

    def _drive(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        self._require_wanted()
        return self._loop.drive(call())

    @property
    def journal(self) -> JournalUse:
        """The part of the run's journal that the handler has got to, and the limits of the whole; see `Run.journal`."""
        return self._run.journal

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, retry: Retry | None = None, **named: Any
    ) -> T: ...
    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, retry: Retry | None = None, **named: Any
    ) -> Any:
        """Call a function in this thread, record its result under the name, and return it; see `Run.step`."""
        self._run.steps.has_other_tasks |= IN_HANDLER.get() is not self._run
        call = StepCall(self._run.steps, name, function, args, named, retry)
        while call.found is None:
            self._loop.drive(self._run.before(call))
            self._require_wanted()
            began_s = time.monotonic()
            try:
                with in_step(name):
                    value: Any = function(*args, **named)
                    if inspect.isawaitable(value):
                        value = self._loop.drive(value)
                    document = call.checked(value)
            except Exception as error:
                self._loop.drive(call.fail(error, began_s, self._run.store.now_ms))
            else:
                return self._loop.drive(call.record(document, began_s))
        return self._loop.drive(call.value())

    def key(self, name: str) -> str:
        """Return the idempotency key of a step."""
        return self._run.key(name)

    def continue_as_new(self, args: Any = None, *, version: str | None = None) -> NoReturn:
        """End this run, and continue as a new one with these arguments; see `Run.continue_as_new`."""
        self._require_own_thread("run.continue_as_new")
        self._run.continue_as_new(args, version=version)

    def gather(self, *branches: object) -> NoReturn:  # noqa: ARG002 - as of `Run`
        """Refuse: a plain handler has one thread, and calls its steps one after the other."""
        problem = "needs an `async def` handler; a plain one calls its steps one after the other, or starts children"
        raise holdfast.InvalidRequest("run.gather", problem)

    def now(self) -> int:
        """Return the recorded time of the store's clock in milliseconds."""
        self._require_own_thread("run.now")
        return self._drive(self._run.now)

    def uuid(self) -> str:
        """Return a recorded random UUID."""
        self._require_own_thread("run.uuid")
        return self._drive(self._run.uuid)

    def sleep(self, seconds: float) -> None:
        """Sleep durably."""
        self._require_own_thread("run.sleep")
        self._drive(lambda: self._run.sleep(seconds))

    def signal(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal and return its payload; `TimeoutError` if none comes in time."""
        self._require_own_thread("run.signal")
        return self._drive(lambda: self._run.signal(name, timeout_s=timeout_s))

    def start(
        self, kind: str, args: Any = None, *, id: str | None = None, version: str = "1", detached: bool = False
    ) -> BlockingChild:
        """Start a child run, once."""
        if id is None:
            self._require_own_thread("run.start without an id")
        child = self._drive(lambda: self._run.start(kind, args, id=id, version=version, detached=detached))
        return BlockingChild(child, self._loop, self._require_own_thread)

    def child(self, id: str) -> BlockingChild:
        """Return a handle on a child by its id; see `Run.child`."""
        return BlockingChild(self._run.child(id), self._loop, self._require_own_thread)

    @property
    def children(self) -> tuple[str, ...]:
        """The ids of the children that are cancelled with this run; see `Run.children`."""
        return self._run.children

    def progress(self, payload: Any) -> None:
        """Append a report for followers of the run; see `Run.progress`."""
        self._drive(lambda: self._run.progress(payload))
