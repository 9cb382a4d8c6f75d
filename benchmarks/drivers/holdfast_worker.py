"""Holdfast's worker: jobs of many sessions, or of one, run by a handler that does nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from benchmarks import crew
from benchmarks.drivers import durable

SESSIONS = 100


class Jobs(crew.Base):
    """The queue of one store."""

    module = "benchmarks.drivers.holdfast_worker"

    async def open(self, url: str, slots: int, sessions: int = SESSIONS) -> dict[str, Any]:
        self.where = {"url": url, "slots": slots}
        self.sessions = sessions
        self.store = await holdfast.open(url)
        return durable.of_store(self.store)

    async def fill(self, jobs: int) -> None:
        for first in range(0, jobs, 50):
            drafts = [
                holdfast.WorkDraft(session_id=f"s-{each % self.sessions}", payloads=[each], kind="job")
                for each in range(first, min(first + 50, jobs))
            ]
            await asyncio.gather(*map(self.store.queue.enqueue, drafts))

    async def put(self, number: int) -> None:
        await self.store.queue.enqueue(holdfast.WorkDraft(session_id="s-0", payloads=[number], kind="job"))

    async def left(self) -> int:
        counts = [len(await self.store.queue.list(f"s-{each}", limit=50)) for each in range(self.sessions)]
        return sum(counts)

    async def shut(self) -> None:
        await self.store.close()


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""
    worker = holdfast.Worker(where["url"], concurrency=where["slots"])

    @worker.job("job")
    async def job(given: Any) -> None:
        await gate.pass_async(given.payload)

    worker.run()


if __name__ == "__main__":
    crew.main(Jobs, work)
