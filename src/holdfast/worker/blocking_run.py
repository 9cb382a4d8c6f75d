"""A run for a plain handler in a thread: the same calls without await."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from holdfast.worker.driving import OnLoop, SharedStore
from holdfast.worker.run import Child, Run, in_step

T = TypeVar("T")


class BlockingChild:
    """A run that another run has started."""

    def __init__(self, child: Child, loop: OnLoop) -> None:
        self._child = child
        self._loop = loop
        self.id = child.id

    def result(self) -> Any:
        """Return the child's result once it has ended; `ChildFailed` if it has none."""
        return self._loop.drive(self._child.result())


class BlockingRun:
    """The run that a plain handler was called for. See `Run`."""

    def __init__(self, run: Run, loop: OnLoop) -> None:
        self._run = run
        self._loop = loop
        self.id = run.id
        self.kind = run.kind
        self.version = run.version
        self.args = run.args
        self.attempt = run.attempt
        self.store = SharedStore(run.store, loop)

    def __repr__(self) -> str:
        return f"Blocking{self._run!r}"

    @property
    def cancelled(self) -> bool:
        """True once the worker has given up on this call, or the run is to be cancelled: return then."""
        return self._run.cancelled

    def step(self, name: str, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call a function in this thread, record its result under the name, and return it; see `Run.step`."""
        facts = self._run.facts_of(name, function, args, named)
        found = self._run.find_step(name, facts)
        if found is not None:
            return cast("T", found["value"])
        began_s = time.monotonic()
        with in_step(name):
            value: Any = function(*args, **named)
            if inspect.isawaitable(value):
                value = self._loop.drive(value)
        return cast("T", self._loop.drive(self._run.record_step(name, facts, value, began_s)))

    def now(self) -> int:
        """Return the recorded time of the store's clock in milliseconds."""
        return self._loop.drive(self._run.now())

    def uuid(self) -> str:
        """Return a recorded random UUID."""
        return self._loop.drive(self._run.uuid())

    def sleep(self, seconds: float) -> None:
        """Sleep durably."""
        self._loop.drive(self._run.sleep(seconds))

    def signal(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal and return its payload; `TimeoutError` if none comes in time."""
        return self._loop.drive(self._run.signal(name, timeout_s=timeout_s))

    def start(
        self, kind: str, args: Any = None, *, id: str | None = None, version: str = "1", detached: bool = False
    ) -> BlockingChild:
        """Start a child run, once."""
        child = self._loop.drive(self._run.start(kind, args, id=id, version=version, detached=detached))
        return BlockingChild(child, self._loop)

    def progress(self, payload: Any) -> None:
        """Append a report for those who follow the run."""
        self._loop.drive(self._run.progress(payload))
