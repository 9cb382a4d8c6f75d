"""A contender as a process of its own: one JSON line asks, one JSON line answers, and the channel carries nothing else.

Standard library only, because the peers run it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
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

SERVER_VARIABLE = "HOLDFAST_BENCHMARK_SERVER"
"""Process id of the database server, if the processor time of its processes is measured."""


def serve(driver: object) -> None:
    """Answer requests until the channel closes. Methods may be coroutines; all of them run on one event loop."""
    # Libraries print to standard output; that must not look like an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                found = getattr(driver, request.pop("do"))(**request)
                answer = {"ok": runner.run(found) if inspect.iscoroutine(found) else found}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        # Close the database properly: its size is measured after the end.
        if hasattr(driver, "shut"):
            runner.run(driver.shut())


def one_after_another(calls: Sequence[T], call: Callable[[T], object]) -> dict[str, Any]:
    """Time each call, and all of them."""
    latencies: list[float] = []
    used = Processors()
    started = time.perf_counter()
    for argument in calls:
        began = time.perf_counter()
        call(argument)
        latencies.append((time.perf_counter() - began) * 1000)
    return timing(time.perf_counter() - started, latencies, used)


async def at_once(lanes: Iterable[Sequence[T]], call: Callable[[T], Awaitable[object]]) -> dict[str, Any]:
    """Run each lane as a task that makes its calls one after another, all lanes at the same time."""
    latencies: list[float] = []

    async def drive(lane: Sequence[T]) -> None:
        for argument in lane:
            began = time.perf_counter()
            await call(argument)
            latencies.append((time.perf_counter() - began) * 1000)

    used = Processors()
    started = time.perf_counter()
    await asyncio.gather(*(drive(lane) for lane in lanes))
    return timing(time.perf_counter() - started, latencies, used)


def timing(seconds: float, latencies_ms: list[float], used: Processors) -> dict[str, Any]:
    """Return the measurement of one round, as it is sent."""
    latencies = [round(ms, 4) for ms in latencies_ms]
    return {"seconds": seconds, "count": len(latencies_ms), "latencies_ms": latencies} | used.since()


class Processors:
    """Processor time from here on, of this process and of the database server."""

    def __init__(self) -> None:
        self._server = os.environ.get(SERVER_VARIABLE)
        self._before = self._read()

    def since(self) -> dict[str, float]:
        """Return the seconds of both until now."""
        client, server = self._read()
        return {"client_cpu_s": client - self._before[0], "server_cpu_s": server - self._before[1]}

    def _read(self) -> tuple[float, float]:
        return time.process_time(), 0.0 if self._server is None else family_cpu_s(self._server)


def family_cpu_s(process_id: str) -> float:
    """Return the processor time of a process and its living children, in seconds. Needs Linux."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text(encoding="ascii").split()
    used_ns = 0
    for each in (process_id, *children):
        # A worker of the server may have ended meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            used_ns += int(Path(f"/proc/{each}/schedstat").read_text(encoding="ascii").split()[0])
    return used_ns / 1e9


def file_bytes(path: str) -> int:
    """Return the size of a SQLite database on disk, with its log."""
    return sum(Path(path + suffix).stat().st_size for suffix in ("", "-wal") if Path(path + suffix).exists())


class Lanes:
    """The next turn number of each session, so that a round continues where the last one ended."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    def next(self, sessions: int, turns: int, prefix: str = "chat") -> list[list[Any]]:
        """Return the prepared turns of each session's lane."""
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
        """Return the number of all turns."""
        return sum(self.done.values())
