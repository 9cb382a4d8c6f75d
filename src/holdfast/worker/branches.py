"""Runs the branches of `run.gather` concurrently: the run sleeps, fails or continues as new once all of them stop.

A branch ends as the first call says that ended it, whatever its code catches.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import GeneratorType
from typing import Any, NoReturn, Protocol, cast

import holdfast
from holdfast.worker.run_errors import Continued, Suspended
from holdfast.worker.steps import Steps, in_branch


class Branching(Protocol):
    """The run, as far as its branches need it."""

    steps: Steps
    wrap_branch: Callable[[Awaitable[Any]], Awaitable[Any]]

    async def fall_asleep(
        self,
        due_at_ms: int | None,
        wait: holdfast.processes.SignalWait | None,
        *waits: holdfast.processes.RunWait,
    ) -> NoReturn:
        """End the call of the handler until then."""
        ...


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def gathered(run: Branching, branches: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return the results of branches that run concurrently; see `Run.gather`."""
    try:
        _require_awaitable(branches)
        run.steps.require_outside("run.gather")
        place = run.steps.number("gather")
        gathering = asyncio.gather(
            *(_caught(run, f"{place}.{index}.", run.wrap_branch(one)) for index, one in enumerate(branches))
        )
        # A call that ends before its branches reads their errors nowhere else.
        gathering.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        results = await gathering
    finally:
        for branch in branches:
            # Cancelled or refused before it began: Python would warn of it.
            if inspect.iscoroutine(branch) and inspect.getcoroutinestate(branch) == inspect.CORO_CREATED:
                branch.close()
    run.steps.adopt_failures(place)
    asleep = [one for one in results if isinstance(one, Suspended)]
    for one in results:
        if isinstance(one, _Failed):
            raise one.error
    for one in results:
        if isinstance(one, Continued):
            run.steps.continue_as_new(one)
    if asleep:
        times = [one.due_at_ms for one in asleep if one.due_at_ms is not None]
        waits = [one.wait for one in asleep if one.wait is not None]
        shown = [each for one in asleep for each in one.waits]
        await run.fall_asleep(min(times) if times else None, waits[0] if waits else None, *shown)
    return results


def _require_awaitable(branches: Sequence[object]) -> None:
    for index, branch in enumerate(branches):
        if not inspect.isawaitable(branch):
            is_several = isinstance(branch, list | tuple | GeneratorType)
            name = type(branch).__name__
            hint = ": unpack it with `*`" if is_several else ""
            problem = f"takes calls that can be awaited: argument {index} is of type {name}{hint}"
            raise holdfast.InvalidRequest("run.gather", problem)


async def _caught(run: Branching, place: str, branch: Awaitable[Any]) -> Any:
    if run.steps.tasks is not None:
        run.steps.tasks.add(cast("asyncio.Task[Any]", asyncio.current_task()))
    try:
        with in_branch(place):
            value = await branch
    except (Suspended, Continued) as over:
        return over
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # raised once the other branches have ended
        return _Failed(error)
    caught = run.steps.end_of(place)
    return value if caught is None else caught
