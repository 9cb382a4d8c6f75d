"""procrastinate: its own worker, with a task that does nothing."""

from __future__ import annotations

from typing import Any

import procrastinate

from benchmarks import crew


def made(url: str) -> procrastinate.App:
    """Return an app."""
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=16))


class Jobs(crew.Base):
    """The queue of an app."""

    module = "benchmarks.peers.procrastinate_worker"

    async def open(self, url: str, slots: int) -> dict[str, Any]:
        self.where = {"url": url, "slots": slots}
        self.app = made(url)
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()
        row = await self.app.connector.execute_query_one_async("SELECT current_setting('fsync') AS fsync")
        return {"durable": row["fsync"] == "on"}

    async def fill(self, jobs: int) -> None:
        await self.app.configure_task("job").batch_defer_async(*({"number": each} for each in range(jobs)))

    async def put(self, number: int) -> None:
        await self.app.configure_task("job").defer_async(number=number)

    async def left(self) -> int:
        statement = "SELECT count(*) AS found FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        return int((await self.app.connector.execute_query_one_async(statement))["found"])


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""
    app = made(where["url"])

    @app.task(name="job")
    async def job(number: int) -> None:
        await gate.pass_async(number)

    app.run_worker(concurrency=where["slots"], delete_jobs="always")


if __name__ == "__main__":
    crew.main(Jobs, work)
