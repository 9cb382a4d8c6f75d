"""Holdfast's event logs: appends, a waiter in this process, and many idle waiters."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import holdfast
from benchmarks import child
from benchmarks.drivers import durable

PAYLOAD = {"percent": 50, "text": "x" * 180}


class Events:
    """One store. Processes are registered on first use."""

    async def open(self, url: str) -> dict[str, Any]:
        self.store = await holdfast.open(url)
        self.registered: set[str] = set()
        self.after = 0
        return durable.of_store(self.store)

    async def register(self, name: str) -> None:
        if name not in self.registered:
            kinds = [holdfast.events.EventType("progress")]
            await self.store.processes.register(
                holdfast.ProcessRegistration(name, holdfast.processes.External(), event_types=kinds)
            )
            self.registered.add(name)

    async def append(self, writers: int, events: int) -> dict[str, Any]:
        """Append with each writer to a process of its own."""
        names = [f"process-{number}" for number in range(writers)]
        for name in names:
            await self.register(name)
        return await child.at_once([[name] * events for name in names], self._append)

    async def _append(self, name: str) -> None:
        await self.store.events.append(name, "progress", PAYLOAD)

    async def wait(self, count: int) -> list[int]:
        """Return when each of `count` events was seen, on the clock that all processes of a machine share."""
        await self.register("woken")
        seen: list[int] = []
        after = self.after
        for _ in range(count):
            event = await self.store.events.wait_for("woken", "progress", after=after, timeout_ms=30_000)
            seen.append(time.monotonic_ns())
            after = event.sequence
        self.after = after
        return seen

    async def wake(self, count: int, pause_ms: float) -> list[int]:
        """Append events, and return when each append was called."""
        await self.register("woken")
        asked: list[int] = []
        for _ in range(count):
            await asyncio.sleep(pause_ms / 1000)
            asked.append(time.monotonic_ns())
            await self.store.events.append("woken", "progress", PAYLOAD)
        return asked

    async def idle(self, waiters: int, seconds: float) -> float:
        """Return the share of a core that idle waiters take."""
        names = [f"idle-{number}" for number in range(waiters)]
        for name in names:
            await self.register(name)

        async def one(name: str) -> None:
            try:
                await self.store.events.wait_for(name, "progress", timeout_ms=int(seconds * 1000) + 30_000)
            except holdfast.WaitTimeout:
                return

        tasks = [asyncio.create_task(one(name)) for name in names]
        await self._settle()
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (time.process_time() - before) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return share

    async def _settle(self) -> None:
        """Wait until all waiters have settled, or for 20 seconds."""
        for _ in range(20):
            before = time.process_time()
            await asyncio.sleep(1)
            if time.process_time() - before < 0.01:
                return

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Events())
