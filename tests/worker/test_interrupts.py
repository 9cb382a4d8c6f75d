"""A person stops a turn: its handler is cancelled, its commit refused, and its message not answered again."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from tests.worker.test_worker import Running, got, put

import holdfast
from holdfast.worker import Retry, Worker

WAIT_S = 30
SOON_S = 1.0
"""The promised time from the interrupt to the cancel of the handler."""


class Stage:
    """Reports of handlers: that they began, and when they ended."""

    def __init__(self) -> None:
        self.began: queue.Queue[str] = queue.Queue()
        self.ended: queue.Queue[float] = queue.Queue()

    def wait_begun(self) -> str:
        return self.began.get(timeout=WAIT_S)

    def wait_ended(self) -> float:
        return self.ended.get(timeout=WAIT_S)


@pytest.mark.parametrize("way", ["async", "thread"])
def test_an_interrupted_handler_is_cancelled_within_a_second_and_not_tried_again(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    stage = Stage()
    worker = Worker(url)

    async def answer_async(turn: holdfast.Turn) -> None:
        if turn.input == "next":
            turn.add("next")
            return
        stage.began.put(turn.input)
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            stage.ended.put(time.monotonic())

    def answer(turn: holdfast.blocking.Turn) -> None:
        if turn.input == "next":
            turn.add("next")
            return
        stage.began.put(turn.input)
        while not turn.cancelled:
            time.sleep(0.01)
        stage.ended.put(time.monotonic())
        turn.add("too late")

    worker.turn(answer_async if way == "async" else answer, retry=Retry(5, backoff_s=0))
    stopped, following = put(store, "poem", "next")
    with Running(worker):
        assert stage.wait_begun() == "poem"
        asked_s = time.monotonic()
        [ended] = store.sessions.handle("chat").interrupt(reason="stopped by ada")
        assert stage.wait_ended() - asked_s < SOON_S
        assert store.queue.wait_settled("chat", following, timeout_ms=1000 * WAIT_S).state == "completed"
        assert time.monotonic() - asked_s < 5, "the next turn waited for the reservation to end by itself"
    assert (ended.batch_id, ended.state, ended.last_error) == (stopped, "interrupted", "stopped by ada")
    assert got(store, stopped) == ended
    assert store.sessions.handle("chat").messages() == ["next"]
    assert (worker.tally.interrupted, worker.tally.done, worker.tally.lost) == (1, 1, 0)
    assert stage.began.empty()


@pytest.mark.parametrize("way", ["async", "thread"])
def test_an_interrupted_turn_keeps_what_its_handler_wants_before_the_next_turn_begins(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    stage = Stage()
    worker = Worker(url)

    async def answer_async(turn: holdfast.Turn) -> None:
        if turn.input == "next":
            turn.add(["next", *turn.messages])
            return
        stage.began.put("")
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            turn.add("once upon")
            turn.keep()
            raise

    def answer(turn: holdfast.blocking.Turn) -> None:
        if turn.input == "next":
            turn.add(["next", *turn.messages])
            return
        stage.began.put("")
        while not turn.interrupted:
            time.sleep(0.01)
        turn.add("once upon")
        turn.keep()

    worker.turn(answer_async if way == "async" else answer)
    stopped, following = put(store, "poem", "next")
    session = store.sessions.handle("chat")
    with Running(worker):
        stage.wait_begun()
        session.interrupt()
        assert store.queue.wait_settled("chat", following, timeout_ms=1000 * WAIT_S).state == "completed"
    assert session.messages() == ["once upon", ["next", "once upon"]]
    assert [entry.turn_id for entry in session.history()] == [stopped, following]
    assert got(store, stopped).state == "interrupted"


def test_a_handler_has_ten_seconds_to_keep_its_turn_however_short_its_lease(
    url: str, store: holdfast.BlockingStore
) -> None:
    stage = Stage()
    worker = Worker(url, lease_s=0.5)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        if turn.input == "next":
            turn.add("next")
            return
        stage.began.put("")
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            await asyncio.sleep(2)  # four lifetimes of its claim
            turn.add("once upon")
            turn.keep()
            raise

    _, following = put(store, "poem", "next")
    session = store.sessions.handle("chat")
    with Running(worker):
        stage.wait_begun()
        session.interrupt()
        assert store.queue.wait_settled("chat", following, timeout_ms=1000 * WAIT_S).state == "completed"
    assert session.messages() == ["once upon", "next"]
    assert (worker.tally.interrupted, worker.tally.done, worker.tally.lost) == (1, 1, 0)


def test_a_handler_that_does_not_end_in_that_time_is_cancelled_again(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.interrupting.KEEP_MS", 100)
    stage = Stage()
    worker = Worker(url)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        if turn.input == "poem":
            stage.began.put("")
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                await asyncio.sleep(WAIT_S)
        turn.add(turn.input)

    _, following = put(store, "poem", "next")
    with Running(worker):
        stage.wait_begun()
        store.sessions.handle("chat").interrupt()
        assert store.queue.wait_settled("chat", following, timeout_ms=1000 * WAIT_S).state == "completed"
    assert store.sessions.handle("chat").messages() == ["next"]
    assert (worker.tally.interrupted, worker.tally.done, worker.tally.lost) == (1, 1, 0)


def test_a_handler_that_swallows_the_cancel_commits_nothing(url: str, store: holdfast.BlockingStore) -> None:
    stage = Stage()
    worker = Worker(url)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        stage.began.put("")
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            turn.add("done all the same")

    [batch_id] = put(store, "poem")
    with Running(worker):
        stage.wait_begun()
        store.sessions.handle("chat").interrupt()
    assert store.sessions.handle("chat").messages() == []
    assert got(store, batch_id).state == "interrupted"
    assert worker.tally.interrupted == 1


def test_a_claim_that_is_found_lost_first_counts_as_interrupted(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.interrupting.WATCH_AFTER_S", WAIT_S)
    stage = Stage()
    worker = Worker(url, lease_s=0.5)

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        stage.began.put("")
        await asyncio.sleep(WAIT_S)

    [batch_id] = put(store, "poem")
    with Running(worker):
        stage.wait_begun()
        store.sessions.handle("chat").interrupt()
        deadline_s = time.monotonic() + WAIT_S
        while not worker.tally.interrupted and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert (worker.tally.interrupted, worker.tally.lost) == (1, 0)
    assert got(store, batch_id).state == "interrupted"


def test_a_turn_that_is_interrupted_at_its_end_is_refused(
    url: str, store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.interrupting.WATCH_AFTER_S", WAIT_S)
    worker = Worker(url)

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        if turn.input == "poem":
            store.sessions.handle("chat").interrupt()
        turn.add(turn.input)

    put(store, "poem", "next")
    worker.run(until_idle=True)
    assert store.sessions.handle("chat").messages() == ["next"]
    assert (worker.tally.interrupted, worker.tally.done, worker.tally.lost) == (1, 1, 0)


WORKER = """
import sys, time
import holdfast

worker = holdfast.Worker(sys.argv[1], lease_s=1)

@worker.turn
async def answer(turn):
    import asyncio
    print("began", flush=True)
    await asyncio.sleep(60)

worker.run()
"""


def test_the_message_of_a_killed_worker_is_interrupted_for_good(url: str, store: holdfast.BlockingStore) -> None:
    [stopped, following] = put(store, "poem", "next")
    process = subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"began\n"
    finally:
        process.kill()
        process.communicate()
    assert [batch.batch_id for batch in store.sessions.handle("chat").interrupt()] == [stopped]
    seen: list[Any] = []
    worker = Worker(url)
    is_next = threading.Event()

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        seen.append(turn.input)
        is_next.set()

    with Running(worker):
        assert is_next.wait(WAIT_S)
    assert seen == ["next"]
    assert (got(store, stopped).state, got(store, following).state) == ("interrupted", "completed")
