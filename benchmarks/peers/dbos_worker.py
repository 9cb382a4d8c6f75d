"""DBOS: workflows in a queue, run by processes that listen to it. A workflow without steps does nothing else."""

from __future__ import annotations

import os
import threading
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks import crew

NAME = "jobs"
SHARE = 8
"""It runs one in so many jobs: by its polling it takes minutes for all of them, at the same rate."""


class Jobs(crew.Base):
    """Its queue."""

    module = "benchmarks.peers.dbos_worker"

    async def open(self, url: str, slots: int) -> dict[str, Any]:
        system = url if url.startswith("postgres") else f"sqlite:///{url}"
        self.where = {"url": system, "slots": slots}
        launched(system)
        DBOS.destroy()
        self.client = DBOSClient(system_database_url=system)
        self.engine = sqlalchemy.create_engine(system.replace("postgresql://", "postgresql+psycopg://"))
        return {"durable": True}

    async def fill(self, jobs: int) -> None:
        for each in range(jobs):
            self.client.enqueue({"workflow_name": "job", "queue_name": NAME}, each)

    async def put(self, number: int) -> None:
        self.client.enqueue({"workflow_name": "job", "queue_name": NAME}, number)

    async def work(self, processes: int, jobs: int) -> dict[str, Any]:
        return await super().work(processes, max(100, jobs // SHARE))

    async def left(self) -> int:
        schema = "dbos." if self.where["url"].startswith("postgres") else ""
        statement = f"SELECT count(*) FROM {schema}workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
        with self.engine.connect() as connection:
            return int(connection.execute(sqlalchemy.text(statement)).scalar_one())


def launched(url: str) -> None:
    """Start DBOS. Each process is an executor of its own: at its launch, one recovers the workflows of its own id."""
    config = {"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"}
    DBOS(config={**config, "executor_id": f"process-{os.getpid()}"})
    DBOS.launch()


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""

    @DBOS.workflow(name="job")
    def job(number: int) -> None:
        gate.pass_blocking(number)

    launched(where["url"])
    DBOS.register_queue(NAME, worker_concurrency=where["slots"], polling_interval_sec=0.1)
    threading.Event().wait()


if __name__ == "__main__":
    crew.main(Jobs, work)
