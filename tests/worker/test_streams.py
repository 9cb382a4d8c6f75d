"""A follower of a session sees what a worker's turn emits, also after it reconnects and after the worker is killed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Any

import pytest
from tests.worker.test_worker import Running, put

import holdfast
from holdfast.worker import Retry, Worker

WAIT_S = 30
WAIT_MS = 1000 * WAIT_S
WORDS = [f"word {number} " for number in range(40)]


@pytest.mark.parametrize("way", ["async", "thread"])
def test_a_follower_that_reconnects_again_and_again_sees_each_word_once(
    url: str, store: holdfast.BlockingStore, way: str
) -> None:
    worker = Worker(url)

    async def answer_async(turn: holdfast.Turn) -> None:
        for word in WORDS:
            turn.emit(word)
            await asyncio.sleep(0.01)
        turn.add("".join(WORDS))

    def answer(turn: holdfast.blocking.Turn) -> None:
        for word in WORDS:
            turn.emit(word)
            time.sleep(0.01)
        turn.add("".join(WORDS))

    worker.turn(answer_async if way == "async" else answer)
    session = store.sessions.handle("chat")
    seen: list[Any] = []
    cursor: str | int = 0
    with Running(worker):
        [batch_id] = put(store, "tell me")
        while not seen or isinstance(seen[-1], holdfast.sessions.StreamDelta):
            for item in session.follow(cursor, timeout_ms=WAIT_MS):
                seen.append(item)
                cursor = item.cursor
                if len(seen) % 3 == 0 or isinstance(item, holdfast.sessions.StreamCommit):
                    break  # the connection is cut
    *deltas, committed = seen
    # The last words may be replaced by the committed turn before they were ever written.
    assert [delta.value for delta in deltas] == WORDS[: len(deltas)]
    assert len(deltas) > 3, "it reconnected at least once in the middle of the answer"
    assert (committed.turn_id, committed.messages) == (batch_id, ("".join(WORDS),))
    assert list(session.follow(cursor, timeout_ms=0)) == []


def test_a_word_is_seen_soon_although_the_next_one_takes_long(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    is_seen = threading.Event()

    @worker.turn
    def answer(turn: holdfast.blocking.Turn) -> None:
        turn.emit("first")
        turn.emit("second")
        assert is_seen.wait(WAIT_S)

    with Running(worker):
        put(store, "tell me")
        items = store.sessions.handle("chat").follow(timeout_ms=WAIT_MS)
        values = [item.value for item in (next(items), next(items)) if isinstance(item, holdfast.sessions.StreamDelta)]
        is_seen.set()
    assert values == ["first", "second"]


def test_a_word_that_is_emitted_in_the_block_of_a_transaction_is_seen(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url)
    is_seen = threading.Event()

    @worker.turn
    async def answer(turn: holdfast.Turn) -> None:
        assert isinstance(turn.store, holdfast.Store)
        async with turn.store.transaction() as tx:
            await tx.sessions.handle("log").append("asked")
            turn.emit("first")
            for _ in range(10):  # steps of the loop, in which the word is written, or begins to wait for the end
                await asyncio.sleep(0)
        assert await asyncio.to_thread(is_seen.wait, WAIT_S)

    with Running(worker):
        put(store, "tell me")
        items = store.sessions.handle("chat").follow(timeout_ms=WAIT_MS)
        assert isinstance(next(items), holdfast.sessions.StreamDelta)
        is_seen.set()


def test_the_values_of_turns_that_fail_at_once_are_gone(url: str, store: holdfast.BlockingStore) -> None:
    worker = Worker(url, concurrency=20)

    @worker.turn(retry=Retry(1))
    async def answer(turn: holdfast.Turn) -> None:
        turn.emit("half an answer")
        await asyncio.sleep(0.001 * (turn.input % 5))  # the first write is under way, or not yet
        raise OSError("the model is away")

    for number in range(60):
        put(store, number, session_id=f"chat-{number}")
    asyncio.run(worker.serve(until_idle=True))
    for number in range(60):
        assert list(store.sessions.handle(f"chat-{number}").follow(0, timeout_ms=0)) == []
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as database:
            assert database.execute("SELECT count(*) FROM stream_blocks").fetchone() == (0,)


WORKER = """
import asyncio, sys
import holdfast

worker = holdfast.Worker(sys.argv[1], lease_s=1)

@worker.turn(retry=holdfast.Retry(5, backoff_s=0))
async def answer(turn):
    turn.emit(sys.argv[2])
    if sys.argv[2] == "doomed":
        await asyncio.sleep(60)
    await asyncio.sleep(0.3)
    turn.add(sys.argv[2])

worker.run()
"""


def test_the_words_of_a_killed_worker_are_void_once_another_takes_over(url: str, store: holdfast.BlockingStore) -> None:
    put(store, "tell me")
    items = store.sessions.handle("chat").follow(0, timeout_ms=WAIT_MS)
    doomed = subprocess.Popen([sys.executable, "-c", WORKER, url, "doomed"])
    try:
        first = next(items)
    finally:
        doomed.kill()
        doomed.wait()
    second = subprocess.Popen([sys.executable, "-c", WORKER, url, "second"])
    try:
        rest = [next(items) for _ in range(3)]
    finally:
        second.terminate()
        second.wait(WAIT_S)
    assert isinstance(first, holdfast.sessions.StreamDelta)
    assert first.value == "doomed"
    void, delta, committed = rest
    assert isinstance(void, holdfast.sessions.StreamVoid)
    assert (void.turn_id, void.reason) == (first.turn_id, "restarted")
    assert isinstance(delta, holdfast.sessions.StreamDelta)
    assert delta.value == "second"
    assert isinstance(committed, holdfast.sessions.StreamCommit)
    assert committed.messages == ("second",)


def test_a_failed_attempt_is_void_and_an_interrupted_turn_ends_with_what_it_keeps(
    url: str, store: holdfast.BlockingStore
) -> None:
    worker = Worker(url)
    attempts: list[int] = []

    @worker.turn(retry=Retry(2, backoff_s=0))
    async def answer(turn: holdfast.Turn) -> None:
        attempts.append(1)
        turn.emit(len(attempts))
        await turn.flush()
        if len(attempts) == 1:
            raise ValueError("the model is away")
        turn.keep()
        turn.add("kept")
        await asyncio.sleep(WAIT_S)

    session = store.sessions.handle("chat")
    with Running(worker):
        put(store, "tell me")
        seen: list[Any] = []
        for item in session.follow(0, timeout_ms=WAIT_MS):
            seen.append(item)
            if isinstance(item, holdfast.sessions.StreamDelta) and item.value == 2:
                session.interrupt()
            if isinstance(item, holdfast.sessions.StreamCommit):
                break
    # The first attempt may fail before a follower sees it.
    assert [type(item).__name__ for item in seen][-2:] == ["StreamDelta", "StreamCommit"]
    assert seen[-1].messages == ("kept",)
