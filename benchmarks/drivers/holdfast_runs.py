"""Holdfast's durable runs: steps, replays, runs that sleep, and runs that come due."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import Any

import holdfast
from benchmarks import child, crew
from benchmarks.drivers import durable

AT_ONCE = 100
"""Runs that are started at once while a store is filled."""
DAY_MS = 86_400_000


class Runs(crew.Base):
    """The runs of one store."""

    module = "benchmarks.drivers.holdfast_runs"

    async def open(self, url: str, slots: int) -> dict[str, Any]:
        self.where = {"url": url, "slots": slots}
        self.store = await holdfast.open(url)
        self.numbers = itertools.count()
        return durable.of_store(self.store)

    # Steps.

    async def steps(self, lanes: int, count: int) -> dict[str, Any]:
        """Run so many runs at once, each with so many steps that do nothing. Each step is timed in its handler."""
        latencies: list[float] = []
        times: list[float] = []
        worker = holdfast.Worker(self.store, concurrency=lanes)

        @worker.process("steps")
        async def stepping(run: Any) -> None:
            times.append(time.perf_counter())
            for number in range(count):
                began = time.perf_counter()
                await run.step(f"step-{number}", nothing, number)
                latencies.append((time.perf_counter() - began) * 1000)
            times.append(time.perf_counter())

        for _ in range(lanes):
            await self.store.processes.start("steps")
        used = child.Processors()
        await worker.serve(until_idle=True)
        return child.timing(max(times) - min(times), latencies, used)

    async def replay(self, count: int, rounds: int) -> list[float]:
        """Wake runs with so many recorded steps. Return the milliseconds from the signal to the code behind it."""
        worker = holdfast.Worker(self.store)
        passed: list[float] = []

        @worker.process("replay")
        async def replayed(run: Any) -> None:
            for number in range(count):
                await run.step(f"step-{number}", nothing, number)
            await run.signal("go")
            passed.append(time.perf_counter())

        serving = asyncio.create_task(worker.serve())
        taken: list[float] = []
        for _ in range(rounds):
            run = await self.store.processes.start("replay")
            while (process := await self.store.processes.get(run.id)) is not None and not process.suspended:
                await asyncio.sleep(0.005)
            began = time.perf_counter()
            await run.signal("go")
            await run.outcome()
            taken.append((passed[-1] - began) * 1000)
        worker.stop()
        await serving
        return taken

    # Sleepers.

    async def sleepers(self, count: int) -> None:
        """Add runs that sleep for a day or more."""
        due_at_ms = await self.store.now_ms() + DAY_MS
        await self._start([due_at_ms + each for each in range(count)])

    async def _start(self, due: list[int]) -> None:
        """Start runs whose numbers are their places in the list."""
        for first in range(0, len(due), AT_ONCE):
            some = enumerate(due[first : first + AT_ONCE], start=first)
            await asyncio.gather(*(self._put(number, at_ms) for number, at_ms in some))

    async def _put(self, number: int, due_at_ms: int | None = None) -> None:
        name = f"run-{next(self.numbers)}"
        await self.store.processes.start("job", {"number": number}, id=name, due_at_ms=due_at_ms)

    async def put(self, number: int) -> None:
        await self._put(number)

    async def rest(self, settle_s: float, seconds: float) -> dict[str, float]:
        """Return the memory of an idle worker process, and the share of a core that it and its server take."""
        team = crew.Crew(self.module, self.where, 1)
        try:
            await self.put(0)
            await asyncio.to_thread(team.begin)
            await asyncio.sleep(settle_s)
            before_s, used = team.used_s(), child.Processors()
            await asyncio.sleep(seconds)
            return {
                "memory": float(team.memory_bytes()),
                "client": (team.used_s() - before_s) / seconds,
                "server": used.since()["server_cpu_s"] / seconds,
            }
        finally:
            await asyncio.to_thread(team.end)

    async def due(self, count: int, in_ms: int) -> list[float]:
        """Let so many runs come due within one second. Return by how many milliseconds each was started late."""
        team = crew.Crew(self.module, self.where, 1)
        try:
            await self.put(0)
            await asyncio.to_thread(team.begin)
            now_ms, now_ns = await self.store.now_ms(), time.monotonic_ns()
            due = [now_ms + in_ms + 1000 * each // count for each in range(count)]
            await self._start(due)
            if await self.store.now_ms() >= due[0]:
                raise RuntimeError("the runs were due before all of them were there: give more time")
            stamps = await asyncio.to_thread(team.next_stamps, count)
            return [(at_ns - now_ns) / 1e6 - (due[number] - now_ms) for number, at_ns in stamps]
        finally:
            await asyncio.to_thread(team.end)

    async def outage(self, count: int) -> bool:
        """Let runs come due while no worker is there. Return whether one that comes then starts the oldest first."""
        now_ms = await self.store.now_ms()
        due = [now_ms - 10 * each - 1 for each in range(count)]
        random.Random(14).shuffle(due)
        await self._start(due)
        team = crew.Crew(self.module, self.where | {"slots": 1}, 1)
        try:
            stamps = await asyncio.to_thread(team.stamps, count)
        finally:
            await asyncio.to_thread(team.end)
        order = [due[number] for number, _ in stamps]
        return order == sorted(due)

    async def shut(self) -> None:
        await self.store.close()


async def nothing(number: int) -> int:
    return number


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""
    worker = holdfast.Worker(where["url"], concurrency=where["slots"])

    @worker.process("job")
    async def job(run: Any, number: int) -> None:  # noqa: ARG001 - a handler gets its run
        await gate.pass_async(number)

    worker.run()


if __name__ == "__main__":
    crew.main(Runs, work)
