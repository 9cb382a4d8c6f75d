"""Worker processes of one library: fills a queue, starts all of them at once, and reports each job when it runs.

Standard library only, because the peers run it, too. A driver module calls `main` with its class; the same module, with
`--worker` on its command line, is a worker process.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import child

STAMP = struct.Struct("<qq")
READY_TIMEOUT_S = 60
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Gate:
    """Called by handlers: the first call waits until all processes are ready; each reports the number of its job."""

    def __init__(self) -> None:
        self._stamps = int(sys.argv[sys.argv.index("--stamps") + 1])
        self._is_open = threading.Event()
        self._is_told = False

    def _reach(self) -> None:
        if not self._is_told:
            self._is_told = True
            threading.Thread(target=self._wait, daemon=True).start()
            print("ready", flush=True)

    def _wait(self) -> None:
        sys.stdin.readline()
        self._is_open.set()

    async def pass_async(self, number: int) -> None:
        """Run a job on an event loop."""
        if not self._is_open.is_set():
            self._reach()
            while not self._is_open.is_set():
                await asyncio.sleep(0.002)
        os.write(self._stamps, STAMP.pack(number, time.monotonic_ns()))

    def pass_blocking(self, number: int) -> None:
        """Run a job in a thread."""
        if not self._is_open.is_set():
            self._reach()
            self._is_open.wait()
        os.write(self._stamps, STAMP.pack(number, time.monotonic_ns()))


class Crew:
    """The worker processes of one round."""

    def __init__(self, module: str, where: dict[str, Any], processes: int) -> None:
        self._stamps, theirs = os.pipe()
        command = [sys.executable, "-m", module, "--worker", json.dumps(where), "--stamps", str(theirs)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs], text=True)
            for _ in range(processes)
        ]
        os.close(theirs)

    def work(self, jobs: int) -> dict[str, Any]:
        """Let them run all jobs. Return the time from the start of the first to that of the last."""
        self._wait_until_ready()
        before_s, used = self.used_s(), child.Processors()
        began_ns = time.monotonic_ns()
        self._open_gates()
        stamps = self._read(jobs)
        answer = {"client_cpu_s": self.used_s() - before_s, "server_cpu_s": used.since()["server_cpu_s"]}
        numbers = [number for number, _ in stamps]
        seconds = (max(at_ns for _, at_ns in stamps) - began_ns) / 1e9
        return answer | {"seconds": seconds, "count": jobs, "once": sorted(numbers) == list(range(jobs))}

    def _open_gates(self) -> None:
        for each in self._processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()

    def begin(self) -> None:
        """Let them run the first job of each, and wait until that is done."""
        self._wait_until_ready()
        self._open_gates()
        self._read(len(self._processes))

    def stamps(self, jobs: int) -> list[tuple[int, int]]:
        """Let them run so many jobs. Return the number of each and its time, in the order in which they were run."""
        self._wait_until_ready()
        self._open_gates()
        return self._read(jobs)

    def next_stamps(self, jobs: int) -> list[tuple[int, int]]:
        """Return the next jobs that workers which have begun run."""
        return self._read(jobs)

    def memory_bytes(self) -> int:
        """Return the resident memory of the worker processes. Needs Linux."""
        pages = (Path(f"/proc/{each.pid}/statm").read_text(encoding="ascii").split()[1] for each in self._processes)
        return sum(int(each) for each in pages) * os.sysconf("SC_PAGE_SIZE")

    def ran_ns(self) -> int:
        """Wait for the next job that is run, and return when that was."""
        [(_, at_ns)] = self._read(1)
        return at_ns

    def _wait_until_ready(self) -> None:
        watch = threading.Timer(READY_TIMEOUT_S, self.end)
        watch.start()
        try:
            for each in self._processes:
                assert each.stdout is not None
                if each.stdout.readline().strip() != "ready":
                    raise RuntimeError(f"a worker got no job within {READY_TIMEOUT_S} s, or ended")
        finally:
            watch.cancel()

    def _read(self, jobs: int) -> list[tuple[int, int]]:
        received = b""
        while len(received) < jobs * STAMP.size:
            part = os.read(self._stamps, jobs * STAMP.size - len(received))
            if not part:
                raise RuntimeError(f"all workers ended after {len(received) // STAMP.size} of {jobs} jobs")
            received += part
        return list(STAMP.iter_unpack(received))

    def used_s(self) -> float:
        """Return the processor time of the worker processes. Needs Linux."""
        ticks = 0
        for each in self._processes:
            fields = Path(f"/proc/{each.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_A_SECOND

    def end(self) -> None:
        """End them."""
        for each in self._processes:
            each.terminate()
        for each in self._processes:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


class Base:
    """A driver: `fill` puts jobs into its queue, `left` counts those that are not settled."""

    module: str
    where: dict[str, Any]

    async def fill(self, jobs: int) -> None:
        """Enqueue jobs whose payloads are the numbers from 0 on."""
        raise NotImplementedError

    async def put(self, number: int) -> None:
        """Enqueue one job."""
        raise NotImplementedError

    async def left(self) -> int:
        """Return the number of jobs that are not settled."""
        raise NotImplementedError

    async def work(self, processes: int, jobs: int) -> dict[str, Any]:
        """Run jobs by so many processes, then wait until all are settled."""
        await self.fill(jobs)
        crew = Crew(self.module, self.where, processes)
        try:
            answer = await asyncio.to_thread(crew.work, jobs)
            left, deadline_s = await self.left(), time.monotonic() + 10
            while left and time.monotonic() < deadline_s:
                await asyncio.sleep(0.05)
                left = await self.left()
        finally:
            await asyncio.to_thread(crew.end)
        return answer | {"left": left}

    async def wake(self, count: int, pause_ms: float) -> list[float]:
        """Wake an idle worker process by one job after another. Return the milliseconds of each."""
        crew = Crew(self.module, self.where, 1)
        try:
            await self.put(0)
            await asyncio.to_thread(crew.begin)
            taken: list[float] = []
            for number in range(count):
                await asyncio.sleep(pause_ms / 1000)
                asked_ns = time.monotonic_ns()
                await self.put(number)
                taken.append((await asyncio.to_thread(crew.ran_ns) - asked_ns) / 1e6)
            return taken
        finally:
            await asyncio.to_thread(crew.end)

    async def idle(self, processes: int, settle_s: float, seconds: float) -> dict[str, float]:
        """Return the share of a core that idle worker processes take, and the server for them."""
        crew = Crew(self.module, self.where, processes)
        try:
            await asyncio.sleep(settle_s)  # they start and find nothing to do
            before_s, used = crew.used_s(), child.Processors()
            await asyncio.sleep(seconds)
            return {
                "client": (crew.used_s() - before_s) / seconds,
                "server": used.since()["server_cpu_s"] / seconds,
            }
        finally:
            await asyncio.to_thread(crew.end)


def main(driver: Callable[[], Base], worker: Callable[[dict[str, Any], Gate], None]) -> None:
    """Be the driver, or one of its worker processes."""
    if "--worker" in sys.argv:
        worker(json.loads(sys.argv[sys.argv.index("--worker") + 1]), Gate())
    else:
        child.serve(driver())
