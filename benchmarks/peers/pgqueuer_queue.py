"""pgqueuer: dequeue, then log as successful, by its own queries."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import asyncpg
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import EntrypointExecutionParameter, Queries

from benchmarks import child

HEARTBEAT = datetime.timedelta(minutes=15)


class Queue:
    """One pool, several queue managers."""

    async def open(self, url: str) -> dict[str, Any]:
        self.pool = await asyncpg.create_pool(url, min_size=8, max_size=16)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))
        await self.queries.install()
        self.waiting = 0
        return {"durable": await self.pool.fetchval("SHOW fsync") == "on"}

    async def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0) -> dict[str, Any]:
        missing = jobs + backlog - self.waiting
        if missing > 0:
            await self.queries.enqueue(["job"] * missing, [b"job"] * missing, [0] * missing)
        each = jobs // batch // workers
        answer = await child.at_once([[(uuid.uuid4(), batch)] * each for _ in range(workers)], self._turn)
        self.waiting = jobs + backlog - each * workers * batch
        return answer | {"count": answer["count"] * batch}

    async def _turn(self, asked: tuple[uuid.UUID, int]) -> None:
        manager, batch = asked
        jobs = await self.queries.dequeue(batch, {"job": EntrypointExecutionParameter(0)}, manager, None, HEARTBEAT)
        assert len(jobs) == batch
        await self.queries.log_jobs([(job, "successful", None) for job in jobs])


if __name__ == "__main__":
    child.serve(Queue())
