"""DBOS: one process sends a workflow messages, another receives them in it."""

from __future__ import annotations

import time
from typing import Any

from dbos import DBOS, SetWorkflowID

from benchmarks import child

SEEN: list[int] = []


@DBOS.workflow()
def receiver(count: int) -> None:
    for _ in range(count):
        DBOS.recv(timeout_seconds=30)
        SEEN.append(time.monotonic_ns())


class Wakes:
    """Both the sender and the receiver."""

    def open(self, url: str) -> dict[str, Any]:
        DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"})
        DBOS.launch()
        return {"durable": True}

    def wait(self, count: int) -> list[int]:
        SEEN.clear()
        with SetWorkflowID("woken"):
            receiver(count)
        return SEEN

    def wake(self, count: int, pause_ms: float) -> list[int]:
        asked: list[int] = []
        for _ in range(count):
            time.sleep(pause_ms / 1000)
            asked.append(time.monotonic_ns())
            DBOS.send("woken", "now")
        return asked


if __name__ == "__main__":
    child.serve(Wakes())
