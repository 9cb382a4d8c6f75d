"""A turn starts a run with its commit, and the run's end comes back as a turn: once, whichever worker is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

import holdfast
from holdfast.worker import BlockingRun, Run, Worker

WAIT_S = 60

AGENT = """
import os, sys
import holdfast

worker = holdfast.Worker(sys.argv[1], lease_s=1, concurrency=1)
kill_at = sys.argv[2]

def die_at(place):
    if place == kill_at:
        os.kill(os.getpid(), 9)

@worker.turn(retry=holdfast.Retry(100, backoff_s=0))
def answer(turn):
    if turn.ended is None:
        turn.add(["asked", turn.input])
        turn.start("research", {"question": turn.input})
    else:
        turn.add(["found", turn.ended.outcome.value])
    die_at("in the " + ("first" if turn.ended is None else "second") + " turn")

@worker.process("research", retry=holdfast.Retry(100, backoff_s=0))
def research(run, question):
    die_at("at the start of the run")
    found = run.step("search", str.upper, question)
    die_at("at the end of the run")
    return found

# Every call that writes, before and after it: where a kill can part a turn from its run.
count = 0
def counted(name, call):
    async def counting(*args, **named):
        global count
        count += 1
        die_at(f"before write {count}")
        done = await call(*args, **named)
        die_at(f"after write {count}")
        return done
    return counting

import holdfast.store.session, holdfast.store.processes, holdfast.store.events
for owner, name in (
    (holdfast.store.session.Session, "commit"),
    (holdfast.store.processes.Processes, "complete"),
    (holdfast.store.processes.Processes, "complete_and_claim_next"),
    (holdfast.store.events.Events, "append"),
):
    setattr(owner, name, counted(name, getattr(owner, name)))

worker.run(until_idle=True)
"""

_NAMED = ["in the first turn", "in the second turn", "at the start of the run", "at the end of the run"]
PLACES = _NAMED + [f"{when} write {number}" for number in range(1, 5) for when in ("before", "after")]


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_parts_no_turn_from_its_run(url: str, store: holdfast.BlockingStore, place: str) -> None:
    chat = store.sessions.create("chat")
    chat.enqueue("why?")
    deadline_s = time.monotonic() + WAIT_S
    killed = subprocess.run([sys.executable, "-c", AGENT, url, place], check=False, timeout=WAIT_S)
    assert killed.returncode == -9
    while len(chat.messages()) < 2 and time.monotonic() < deadline_s:
        subprocess.run([sys.executable, "-c", AGENT, url, "nowhere"], check=True, timeout=WAIT_S)
    assert chat.messages() == [["asked", "why?"], ["found", "WHY?"]]
    assert len(store.processes.list(status="any")) == 1
    assert len(store.queue.list("chat")) == 0
    assert store.maintenance.verify().findings == ()


@pytest.mark.parametrize(("way", "kind"), [("async", "turn"), ("thread", "turn"), ("thread", "chat")])
def test_a_turn_starts_a_run_and_answers_its_end(url: str, store: holdfast.BlockingStore, way: str, kind: str) -> None:
    worker = Worker(url)

    async def answer_async(turn: holdfast.Turn) -> None:
        answer(turn)

    def answer(turn: Any) -> None:
        if turn.ended is None:
            turn.start("research", {"question": turn.input})
        else:
            turn.add(turn.ended.outcome.value)

    async def research_async(run: Run, question: str) -> str:
        return question.upper()

    def research(run: BlockingRun, question: str) -> str:
        return question.upper()

    worker.turn(kind=kind)(answer_async if way == "async" else answer)
    worker.process("research")(research_async if way == "async" else research)
    chat = store.sessions.create("chat")
    chat.enqueue("why?", kind=kind)
    worker.run(until_idle=True)
    assert chat.messages() == ["WHY?"]
