"""Base of backends whose operations never suspend: one clock, one way of waiting, signals inside the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from holdfast.clock import read_clock
from holdfast.ports import Clock
from holdfast.signals import Signals
from holdfast.wait import NeverSuspends, Waiting, run_to_end

T = TypeVar("T")


class LocalBackend(NeverSuspends):
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
