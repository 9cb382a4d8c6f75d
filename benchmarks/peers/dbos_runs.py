"""DBOS: workflows with steps that do nothing."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy
from dbos import DBOS

from benchmarks import child

LATENCIES: list[float] = []
TIMES: list[float] = []


@DBOS.step()
def nothing(number: int) -> int:
    return number


@DBOS.workflow()
def stepping(count: int) -> None:
    TIMES.append(time.perf_counter())
    for number in range(count):
        began = time.perf_counter()
        nothing(number)
        LATENCIES.append((time.perf_counter() - began) * 1000)
    TIMES.append(time.perf_counter())


class Runs:
    """Workflows of one process."""

    def open(self, url: str, slots: int) -> dict[str, Any]:  # noqa: ARG002 - as of the other contenders
        system = url if url.startswith("postgres") else f"sqlite:///{url}"
        engine = sqlalchemy.create_engine(system.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.connect() as connection:
            if system.startswith("sqlite"):
                durable = connection.execute(sqlalchemy.text("PRAGMA synchronous")).scalar() >= 2
            else:
                asked = sqlalchemy.text("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
                durable = tuple(connection.execute(asked).one()) == ("on", "on")
        DBOS(config={"name": "bench", "system_database_url": system, "run_admin_server": False, "log_level": "ERROR"})
        DBOS.launch()
        return {"durable": durable}

    def steps(self, lanes: int, count: int) -> dict[str, Any]:
        LATENCIES.clear()
        TIMES.clear()
        used = child.Processors()
        for handle in [DBOS.start_workflow(stepping, count) for _ in range(lanes)]:
            handle.get_result()
        return child.timing(max(TIMES) - min(TIMES), LATENCIES, used)


if __name__ == "__main__":
    child.serve(Runs())
