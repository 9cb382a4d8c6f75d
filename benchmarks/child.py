"""A contender is a process of its own: one JSON line asks, one JSON line answers, and nothing else is on that channel.

Standard library only, because the peers run it, too.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def serve(driver: object) -> None:
    """Answer until the asker hangs up. Methods may be coroutines; all of them run on one event loop."""
    # Libraries print; what they print must not look like an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                told = getattr(driver, request.pop("do"))(**request)
                answer = {"ok": runner.run(told) if inspect.iscoroutine(told) else told}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        # What is measured after the end is a database that was closed properly.
        if hasattr(driver, "shut"):
            runner.run(driver.shut())


def one_after_another(calls: Sequence[T], call: Callable[[T], object]) -> dict[str, Any]:
    """Time each call, and all of them."""
    latencies: list[float] = []
    started = time.perf_counter()
    for argument in calls:
        began = time.perf_counter()
        call(argument)
        latencies.append((time.perf_counter() - began) * 1000)
    return timing(time.perf_counter() - started, latencies)


async def at_once(lanes: Iterable[Sequence[T]], call: Callable[[T], Awaitable[object]]) -> dict[str, Any]:
    """Each lane is a task that makes its calls one after another; all lanes run at the same time."""
    latencies: list[float] = []

    async def drive(lane: Sequence[T]) -> None:
        for argument in lane:
            began = time.perf_counter()
            await call(argument)
            latencies.append((time.perf_counter() - began) * 1000)

    started = time.perf_counter()
    await asyncio.gather(*(drive(lane) for lane in lanes))
    return timing(time.perf_counter() - started, latencies)


def timing(seconds: float, latencies_ms: list[float]) -> dict[str, Any]:
    """The measurement of one round, as it is sent."""
    return {"seconds": seconds, "count": len(latencies_ms), "latencies_ms": [round(ms, 4) for ms in latencies_ms]}


def file_bytes(path: str) -> int:
    """What a SQLite database takes on disk, its log included."""
    return sum(Path(path + suffix).stat().st_size for suffix in ("", "-wal") if Path(path + suffix).exists())


class Lanes:
    """Where each session stands: the next numbers of turns, so that rounds go on where the last one ended."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    def next(self, sessions: int, turns: int, prefix: str = "chat") -> list[list[Any]]:
        """The turns of each session's lane, prepared."""
        from benchmarks import work

        lanes = []
        for number in range(sessions):
            session = f"{prefix}-{number}"
            first = self.done.get(session, 0) + 1
            lanes.append(work.turns(session, first, turns))
            self.done[session] = first + turns - 1
        return lanes

    @property
    def turns(self) -> int:
        """How many turns there are in all."""
        return sum(self.done.values())
