"""pgqueuer: its own worker, with an entrypoint that does nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks import crew


class Jobs(crew.Base):
    """Its queue."""

    module = "benchmarks.peers.pgqueuer_worker"

    async def open(self, url: str, slots: int) -> dict[str, Any]:
        self.where = {"url": url, "slots": slots}
        self.pool = await asyncpg.create_pool(url)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))
        await self.queries.install()
        return {"durable": await self.pool.fetchval("SHOW fsync") == "on"}

    async def fill(self, jobs: int) -> None:
        await self.queries.enqueue(["job"] * jobs, [str(each).encode() for each in range(jobs)], [0] * jobs)

    async def put(self, number: int) -> None:
        await self.queries.enqueue("job", str(number).encode())

    async def left(self) -> int:
        return int(await self.pool.fetchval("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')"))


async def _work(where: dict[str, Any], gate: crew.Gate) -> None:
    pool = await asyncpg.create_pool(where["url"], min_size=2, max_size=16)
    queue = PgQueuer(AsyncpgPoolDriver(pool))

    @queue.entrypoint("job")
    async def job(given: Any) -> None:
        await gate.pass_async(int(given.payload))

    await queue.run(batch_size=where["slots"], max_concurrent_tasks=2 * where["slots"])


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""
    asyncio.run(_work(where, gate))


if __name__ == "__main__":
    crew.main(Jobs, work)
