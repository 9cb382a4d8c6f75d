"""Workers that are killed at any moment: every piece of work is settled once, and each session keeps its order."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast

WAIT_S = 60
SESSIONS, MESSAGES, JOBS = 4, 24, 80
WORKER = """
import sys, time
import holdfast

worker = holdfast.Worker(sys.argv[1], concurrency=4, lease_s=1)

@worker.turn(retry=holdfast.Retry(100, backoff_s=0))
async def answer(turn):
    turn.add(turn.input)
    turn.state["turns"] = turn.state.get("turns", 0) + 1

@worker.job("mail", retry=holdfast.Retry(100, backoff_s=0))
def send(job):
    time.sleep(0.01)

worker.run()
"""


@contextmanager
def workers(url: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [begun(url) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait(WAIT_S)


def begun(url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, url])


def test_killed_workers_lose_and_double_nothing(url: str, store: holdfast.BlockingStore) -> None:
    chance = random.Random(7)
    for number in range(MESSAGES):
        for session in range(SESSIONS):
            store.queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{session}", payloads=[number]))
    for number in range(JOBS):
        store.queue.enqueue(holdfast.WorkDraft(session_id="post", payloads=[number], kind="mail"))
    deadline_s = time.monotonic() + WAIT_S
    kills = 0
    with workers(url, 3) as running:
        while (left := list(store.queue.sessions()) or any_unsettled(store)) and time.monotonic() < deadline_s:
            if kills < 6:
                victim = chance.randrange(len(running))
                running[victim].kill()
                running[victim].wait(WAIT_S)
                running[victim] = begun(url)
                kills += 1
            time.sleep(0.1)  # between kills; nothing waits for it
    assert left is False, "not everything was settled"
    assert kills >= 3
    for session in range(SESSIONS):
        handle = store.sessions.handle(f"chat-{session}")
        view = handle.load()
        assert view is not None
        assert [node.payload for node in view.graph.nodes] == list(range(MESSAGES))
        assert view.revision == MESSAGES
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"turns": MESSAGES})
    assert store.maintenance.verify().findings == ()


def any_unsettled(store: holdfast.BlockingStore) -> bool:
    names = ["post", *(f"chat-{session}" for session in range(SESSIONS))]
    return any(len(store.queue.list(name)) for name in names)
