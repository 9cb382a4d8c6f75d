"""A worker process of the demo. It stops at each place that it reports until the stage nods or kills it."""

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
    """The connection to the stage. Each report waits for a nod before the next one is sent."""

    def __init__(self) -> None:
        self.asked = 0
        self._turn = threading.Lock()
        self._nods = threading.Semaphore(0)

    def report(self, place: str, name: str, **facts: Any) -> None:
        """Report a place, and wait there."""
        if "lease" in facts:
            facts["lease"] = told(facts["lease"])
        with self._turn:
            sys.stdout.write(json.dumps({"place": place, "name": name, "asked": self.asked, **facts}) + "\n")
            sys.stdout.flush()
            self._nods.acquire()

    def ask(self, conversation: list[Message]) -> Message:
        """Ask the model, and count the call: it is an external effect, which a kill may cause to happen again."""
        self.asked += 1
        return model(conversation)

    def hear(self) -> None:
        """Read nods until the stage closes the stream."""
        for _ in sys.stdin:
            self._nods.release()


def told(lease: holdfast.leases.Lease) -> dict[str, Any]:
    """Return a lease with its token. Only the stage gets it, to act as a worker that was believed dead."""
    resource = lease.resource
    return {
        "session_id": resource.session_id if isinstance(resource, holdfast.leases.OnSession) else None,
        "process_id": resource.process_id if isinstance(resource, holdfast.leases.OnProcess) else None,
        "token": str(lease.token),
        "fence": lease.fence,
        "claimed_at_ms": lease.claimed_at_ms,
        "expires_at_ms": lease.expires_at_ms,
    }


def main() -> None:
    """Read the store's address, then work until the stage is gone."""
    given = json.loads(sys.stdin.readline())
    options = holdfast.PostgresOptions(**given["postgres"]) if given["postgres"] else None
    store = holdfast.open_blocking(given["url"], options=options)
    line = Line()
    worker = Worker(store, given["session"], holdfast.new_owner_id(given["owner"]), line.ask, line.report)
    for loop in (converse, run_processes):
        threading.Thread(target=loop, args=(worker,), daemon=True).start()
    line.hear()
    os._exit(0)  # abrupt on purpose, like a kill


def leave(error: threading.ExceptHookArgs) -> None:
    """End the whole process when one of its threads fails."""
    threading.__excepthook__(error)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = leave
    main()
