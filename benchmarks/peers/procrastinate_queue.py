"""procrastinate: fetch a job, finish it, by its own job manager."""

from __future__ import annotations

from typing import Any

import procrastinate
from procrastinate.jobs import Status

from benchmarks import child


class Queue:
    """One app, several registered workers."""

    async def open(self, url: str) -> dict[str, Any]:
        self.app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=16))
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()
        row = await self.app.connector.execute_query_one_async("SELECT current_setting('fsync') AS fsync")
        self.waiting = 0
        self.workers: list[int] = []
        return {"durable": row["fsync"] == "on"}

    async def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0) -> dict[str, Any]:
        assert batch == 1
        while len(self.workers) < workers:
            self.workers.append(await self.app.job_manager.register_worker())
        missing = jobs + backlog - self.waiting
        await self.app.configure_task("job").batch_defer_async(*({"number": each} for each in range(missing)))
        each = jobs // workers
        answer = await child.at_once([[worker] * each for worker in self.workers[:workers]], self._turn)
        self.waiting = jobs + backlog - each * workers
        return answer

    async def _turn(self, worker: int) -> None:
        job = await self.app.job_manager.fetch_job(None, worker)
        assert job is not None
        await self.app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=True)


if __name__ == "__main__":
    child.serve(Queue())
