"""Run an operation in steps between its statements: statements on the event loop, heavy steps in a thread.

The connection belongs to the loop. So an operation never awaits its connection itself: it yields the call, and resumes
in a thread if the answer is large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from asyncpg import Record

from holdfast.compute_threads import compute_threads
from holdfast.loop_budget import BUDGET_BYTES, CALL_WEIGHT, OWN_LOOP_BYTES

T = TypeVar("T")


class LoopCall(Generic[T]):
    """A call that an operation awaits and only the event loop may make."""

    __slots__ = ("start",)

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self.start = start

    def __await__(self) -> Generator[LoopCall[T], T, T]:
        answer = yield self
        return answer


class LeaveLoop:
    """Asks to run the rest of an operation in a thread."""

    __slots__ = ()

    def __await__(self) -> Generator[LeaveLoop, None, None]:
        yield self


class ForeignAwait:
    """Passes on to the event loop anything else that an operation awaits."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, Any]:
        answer = yield self._value
        return answer


class Stepped(Protocol):
    """The statement runner of an operation that runs in steps."""

    budget_bytes: int
    """Most bytes that a step may unpack on the loop."""

    heavy: bool
    """The next step runs in a thread."""
    stepping: bool
    """A step runs now."""


class Steps:
    """Runs operations in steps. Once a step is heavy, all that follow are."""

    def __init__(self, runner: Stepped, *, heavy: bool = False, budget_bytes: int = BUDGET_BYTES) -> None:
        self._runner = runner
        runner.heavy = heavy
        runner.budget_bytes = budget_bytes

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an operation to its end. Cancellation during a heavy step reaches the operation after that step."""
        runner = self._runner
        advance: Callable[[], Any] = partial(work.send, None)
        while True:
            try:
                ended, value = await self._in_thread(advance) if runner.heavy else self._step(advance)
            except Cancelled as cancelled:
                if cancelled.ended:
                    raise cancelled.cause from None
                runner.heavy = False
                advance = partial(work.throw, cancelled.cause)
                continue
            if ended:
                return cast("T", value)
            if isinstance(value, LeaveLoop):
                runner.heavy = True
                advance = partial(work.send, None)
                continue
            try:
                answer = await _awaitable(value)
            except BaseException as error:  # for the operation to handle
                advance = partial(work.throw, error)
            else:
                advance = partial(work.send, answer)
                runner.heavy = runner.heavy or weight_of(answer) > runner.budget_bytes

    def _step(self, advance: Callable[[], Any]) -> tuple[bool, Any]:
        """Run one step. Return whether it was the last, and its result or the call that it awaits."""
        self._runner.stepping = True
        try:
            return False, advance()
        except StopIteration as stop:
            return True, stop.value
        finally:
            self._runner.stepping = False

    async def _in_thread(self, advance: Callable[[], Any]) -> tuple[bool, Any]:
        step = asyncio.wrap_future(compute_threads.submit(partial(self._step, advance)))
        cause: asyncio.CancelledError | None = None
        while not step.done():
            try:
                await asyncio.wait([step])
            except asyncio.CancelledError as error:
                cause = error
        if cause is not None:
            raise Cancelled(cause, ended=step.exception() is not None or step.result()[0])
        return step.result()


def _awaitable(value: object) -> Awaitable[Any]:
    start: Callable[[], Awaitable[Any]] | None = getattr(value, "start", None)
    return ForeignAwait(value) if start is None else start()


class Cancelled(Exception):
    """The caller was cancelled during a step. Unless that step ended the operation, it must get the cancellation."""

    def __init__(self, cause: asyncio.CancelledError, *, ended: bool) -> None:
        self.cause = cause
        self.ended = ended


kind_of: Callable[[object], object] = type
"""`type` for the type checker, which does not know the types of values from the database."""


def weight_of(rows: object) -> int:
    """Estimate the work on the answer to a statement. Stops counting soon after `OWN_LOOP_BYTES`."""
    total = 0
    waiting: list[Any] = [rows]
    for one in waiting:
        kind = kind_of(one)
        if kind is Record or kind is tuple:
            total += CALL_WEIGHT
            for value in one:
                kind = kind_of(value)
                if kind is bytes or kind is str:
                    total += len(value)
                elif kind is list or kind is Record or kind is tuple:
                    waiting.append(value)
        elif kind is list:
            total += len(one)
            if total <= OWN_LOOP_BYTES:
                waiting += one
        elif kind is bytes or kind is str:
            total += len(one)
        if total > OWN_LOOP_BYTES:
            break
    return total
