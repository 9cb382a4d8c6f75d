"""Agents of a pool: durable runs that step, branch, wait for signals and children, and continue as new ones."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import holdfast
from holdfast.torture.checkers.agents import BRANCHES, DRAW, HELP, LINKS, Drawn, Sent, Shown, check_agents

T = TypeVar("T")
AGENT, HELPER = "agent", "helper"
SHARE_CANCELLED = 0.2
RETRY = holdfast.Retry(1_000, backoff_s=0)


def register(worker: holdfast.Worker, path: Path, pause_s: Callable[[], float]) -> None:
    """Register the handlers of agents. Their steps note each call in a file, which outlives the process."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def draw(run_id: str, step: str, seen: str | None = None) -> str:
        await asyncio.sleep(pause_s() / 4)
        token = secrets.token_hex(6)
        os.write(file, pickle.dumps(Drawn(run_id, step, token, seen)).hex().encode() + b"\n")
        return token

    @worker.process(AGENT, retry=RETRY, signals=["go"])
    async def agent(run: Any, link: int, parts: list[Any]) -> list[Any]:
        token = await run.step(DRAW, draw, run.id, DRAW)
        both = await run.gather(*(run.step(name, draw, run.id, name, token) for name in BRANCHES))
        child = await run.start(HELPER, {"token": token})
        await run.progress({"link": link})
        word = await run.signal("go")
        parts = [*parts, [token, word, await child.result(), *both]]
        if link < LINKS:
            run.continue_as_new({"link": link + 1, "parts": parts})
        return parts

    @worker.process(HELPER, retry=RETRY)
    async def helper(run: Any, token: str) -> list[str]:
        await run.sleep(0.001)
        return [token, await run.step(HELP, draw, run.id, HELP)]


def _outcome(run: Any, timeout_ms: Callable[[], int]) -> object:
    return run.outcome(timeout_ms=timeout_ms())


class Agents:
    """The agents that a pool was given, and what they are still to get."""

    def __init__(
        self, store: holdfast.BlockingStore, path: Path, rng: random.Random, again: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._store = store
        self._path = path
        self._rng = rng
        self._again = again
        self._left: list[Callable[[], None]] = []
        self.sent: list[Sent] = []

    def give(self) -> None:
        """Start an agent. It gets its signals, or is asked to cancel, at later moments."""
        id = f"agent-{len(self.sent)}"
        self._again(lambda: self._store.processes.start(AGENT, {"link": 1, "parts": []}, id=id))
        words = tuple(range(LINKS))
        is_cancelled = self._rng.random() < SHARE_CANCELLED
        self.sent.append(Sent(id, words, is_cancelled))
        self._left += [partial(self._signal, id, word) for word in words]
        if is_cancelled:
            self._left.insert(self._rng.randrange(len(self._left) + 1), lambda: self._cancel(id))

    def send_due(self, *, to_the_end: bool = False) -> None:
        """Send what is due: one of what is left, or all of it."""
        while self._left:
            self._left.pop(0)()
            if not to_the_end:
                return

    def _signal(self, id: str, word: int) -> None:
        run = self._store.processes.handle(id)
        self._unless_over(lambda: run.signal("go", word, replay_key=f"word-{word}"))

    def _cancel(self, id: str) -> None:
        self._unless_over(lambda: self._store.processes.handle(id).cancel(reason="by the client"))

    def _unless_over(self, call: Callable[[], Any]) -> None:
        try:
            self._again(call)
        except holdfast.AlreadyTerminal:
            return

    def wait(self, timeout_ms: Callable[[], int]) -> None:
        """Wait until every agent and its children have ended. Raises `WaitTimeout` if they do not."""
        processes = self._store.processes
        for agent in self.sent:
            run = processes.handle(agent.id)
            self._again(partial(_outcome, run, timeout_ms))
        for each, shown in self._shown().items():
            if shown.status == "running":
                self._again(partial(_outcome, processes.handle(each), timeout_ms))

    def _shown(self) -> dict[str, Shown]:
        found: dict[str, Shown] = {}
        for process in holdfast.every(self._store.processes.list, status="any", limit=self._store.limits.page):
            if process.identity.kind in (AGENT, HELPER):
                outcome = process.outcome
                value = outcome.value if isinstance(outcome, holdfast.processes.Completed) else None
                found[process.id] = Shown(process.status, value, self._steps(process.id))
        return found

    def _steps(self, id: str) -> dict[str, Any]:
        events = holdfast.every(self._store.events.after, id, limit=self._store.limits.page)
        payloads: list[Any] = [event.payload for event in events if event.type == "step"]
        return {one["name"]: one["value"] for one in payloads if not one["name"].startswith("~")}

    def judge(self) -> list[str]:
        """Return the problems of the agents."""
        lines = self._path.read_text(encoding="ascii").splitlines() if self._path.exists() else []
        drawn: list[Drawn] = [pickle.loads(bytes.fromhex(line)) for line in lines]  # noqa: S301 - our own file
        return check_agents(self.sent, drawn, self._shown())
