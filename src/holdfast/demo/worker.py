"""A worker of the demo is a process that stops at every place it reports until the stage nods, or kills it there."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import holdfast
from holdfast.demo.agent import Message, Worker, converse, run_processes
from holdfast.demo.script import model


class Line:
    """The line to the stage: a report goes out, a nod comes back, and the next report may go out."""

    def __init__(self) -> None:
        self.asked = 0
        self._turn = threading.Lock()
        self._nods = threading.Semaphore(0)

    def report(self, place: str, name: str, **facts: Any) -> None:
        """Say where we are, and wait there."""
        if "lease" in facts:
            facts["lease"] = told(facts["lease"])
        with self._turn:
            sys.stdout.write(json.dumps({"place": place, "name": name, "asked": self.asked, **facts}) + "\n")
            sys.stdout.flush()
            self._nods.acquire()

    def ask(self, conversation: list[Message]) -> Message:
        """Ask the model, and count that: it is a call to the outside, which a kill may cause to be made again."""
        self.asked += 1
        return model(conversation)

    def hear(self) -> None:
        """Take nods for as long as the stage is there."""
        for _ in sys.stdin:
            self._nods.release()


def told(lease: holdfast.Lease) -> dict[str, Any]:
    """A lease with its secret, which only the stage gets: it tries what a worker could do that was believed dead."""
    resource = lease.resource
    return {
        "session_id": resource.session_id if isinstance(resource, holdfast.OnSession) else None,
        "process_id": resource.process_id if isinstance(resource, holdfast.OnProcess) else None,
        "token": str(lease.token),
        "fence": lease.fence,
        "claimed_at_ms": lease.claimed_at_ms,
        "expires_at_ms": lease.expires_at_ms,
    }


def main() -> None:
    """Read where the store is, then work until the stage has gone."""
    given = json.loads(sys.stdin.readline())
    options = holdfast.PostgresOptions(**given["postgres"]) if given["postgres"] else None
    store = holdfast.open_blocking(given["url"], options=options)
    line = Line()
    worker = Worker(store, given["session"], holdfast.new_owner_id(given["owner"]), line.ask, line.report)
    for loop in (converse, run_processes):
        threading.Thread(target=loop, args=(worker,), daemon=True).start()
    line.hear()
    os._exit(0)  # as abrupt as anything that happens here


def leave(error: threading.ExceptHookArgs) -> None:
    """Half a worker is worse than none."""
    threading.__excepthook__(error)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = leave
    main()
