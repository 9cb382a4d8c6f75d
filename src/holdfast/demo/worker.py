"""A worker process of the demo: reports each point at which the scenario may kill it, and waits there."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import holdfast
from holdfast.demo import agent, script
from holdfast.observers import Observation
from holdfast.worker import BlockingRun, Job

LEASE_S = 5
"""Time for which a dead worker holds its work where its death cannot be proven. On Linux, others take over at once."""
PLACES = {"session.commit": "committed", "events.append": "recorded", "processes.register": "triggered"}
"""Operations that are reported, and their names there."""


class Line:
    """The connection to the scenario. After each report, it waits until the scenario lets it continue."""

    def __init__(self) -> None:
        self.asked = 0
        self._answering = ""
        self._turn = threading.Lock()
        self._permits = threading.Semaphore(0)

    def report(self, place: str, name: str, **facts: Any) -> None:
        """Report a place, and wait there."""
        with self._turn:
            sys.stdout.write(json.dumps({"place": place, "name": name, "asked": self.asked, **facts}) + "\n")
            sys.stdout.flush()
            self._permits.acquire()

    def read_permits(self) -> None:
        """Read permits until the scenario closes the stream, then end abruptly, like a kill."""
        for _ in sys.stdin:
            self._permits.release()
        os._exit(0)

    # The places.

    def ask(self, messages: list[agent.Message]) -> agent.Message:
        """Ask the model, and count the call: it is an external effect, which a kill may cause to happen again."""
        self.asked += 1
        answer = script.model(messages)
        self.report("thought", self._answering, text=answer["text"], calls=answer["calls"])
        return answer

    def reply(self, turn: agent.Turn) -> None:
        """Run a turn."""
        assert turn.claim is not None
        batch = turn.claim.batches[0]
        name = f"{turn.ended.process_id}/end" if turn.ended else batch.source_key or batch.batch_id
        self._answering = name
        proof = {"session_id": turn.session_id, "claim_id": turn.claim.claim_id, **secret(turn.claim)}
        self.report("claimed", name, session=turn.session_id, batch_id=batch.batch_id, claim=proof)
        agent.reply(turn)
        self.report("acted", name)

    def build(self, run: BlockingRun, label: str, chat: str, *, asks: bool) -> agent.Message:
        """Run a build."""
        self.report("running", run.id, label=label, lease=secret(run.claim.lease), steps=run.claim.process.event_count)
        try:
            result = agent.build(run, label, chat, asks=asks)
            self.report("ended", run.id)
            return result
        finally:
            self.report("left", run.id)

    def subscribe(self, job: Job) -> None:
        """Run a job."""
        self.report("working", "subscribe", session=job.session_id, batch_id=job.batch.batch_id)
        agent.subscribe(job)

    # Operations of the worker itself, each at its end: the line is an observer of the store.

    def begin(self, operation: str, system: str, *, steps: bool) -> Callable[[Observation], None] | None:  # noqa: ARG002
        """Choose the operations to report."""
        return self._observe if operation in PLACES else None

    def _observe(self, seen: Observation) -> None:
        if seen.outcome == "ok":
            self.report(PLACES[seen.operation], seen.process_id or self._answering)


def secret(claim: holdfast.WorkClaim | holdfast.leases.Lease) -> dict[str, Any]:
    """Return the proof of a claim. Only the scenario gets it, to act as a worker that was believed dead."""
    return {"token": str(claim.token), "fence": claim.fence}


def watched(store: holdfast.Store, line: Line, owner: str) -> holdfast.Worker:
    """Return the agent's worker, with handlers that report where they are."""
    build_part = agent.build_part

    @wraps(build_part)
    def build(label: str, name: str) -> str:
        built = build_part(label, name)
        line.report("built", label, part=name)
        return built

    agent.model, agent.build_part = line.ask, build
    handlers = agent.worker.handlers
    worker = holdfast.Worker(store, lease_s=LEASE_S, name=owner, housekeeping_s=None)
    worker.turn(line.reply, retry=handlers.of("turn").retry)
    worker.job("subscribe", retry=handlers.of("subscribe").retry)(line.subscribe)
    worker.process("build", retry=handlers.of_run("build", "1").retry)(line.build)
    return worker


async def serve(given: dict[str, Any], line: Line) -> None:
    """Work until the scenario is gone."""
    options = holdfast.PostgresOptions(**given["postgres"]) if given["postgres"] else None
    async with holdfast.open(given["url"], options=options, observe=line) as store:
        await watched(store, line, given["owner"]).serve()


def main() -> None:
    """Read the store's address, then work."""
    given = json.loads(sys.stdin.readline())
    line = Line()
    threading.Thread(target=line.read_permits, daemon=True).start()
    asyncio.run(serve(given, line))


if __name__ == "__main__":
    main()
