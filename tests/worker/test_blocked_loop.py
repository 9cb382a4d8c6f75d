"""A handler that blocks the event loop past its lease costs neither its own work nor that of its neighbours."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import holdfast
from holdfast.worker.claim_renewal import ClaimRenewer, Held

LEASE_S = 1.0
BLOCKED_S = 2.5
ONCE = holdfast.Retry(1)


def test_a_message_claimed_while_the_loop_is_blocked_keeps_its_attempt(url: str, store: holdfast.BlockingStore) -> None:
    worker = holdfast.Worker(url, lease_s=LEASE_S, concurrency=8)
    called: list[str] = []

    @worker.turn(retry=ONCE)
    async def answer(turn: Any) -> None:
        called.append(turn.input)
        if turn.input == "blocks":
            time.sleep(BLOCKED_S)
        turn.add({"role": "assistant", "content": turn.input})

    names = ["blocks", *(f"waits {number}" for number in range(5))]
    for name in names:
        store.sessions.handle(name).enqueue(name)
    worker.run(until_idle=True)
    assert sorted(called) == sorted(names)
    assert [(one, [batch.attempts for batch in store.queue.list(one)]) for one in names] == [(one, []) for one in names]
    assert list(store.queue.dead_letters()) == []
    assert (worker.tally.done, worker.tally.lost, worker.tally.dead) == (len(names), 0, 0)


def test_runs_that_must_not_be_rerun_survive_a_blocked_loop(url: str, store: holdfast.BlockingStore) -> None:
    worker = holdfast.Worker(url, lease_s=LEASE_S, concurrency=4)
    called: list[int] = []

    @worker.process("research", recovery="owner_bound")
    async def research(run: Any, number: int) -> int:
        called.append(number)
        time.sleep(LEASE_S)
        return number

    for number in range(5):
        store.processes.start("research", {"number": number}, id=f"r{number}")
    worker.run(until_idle=True)
    assert sorted(called) == [0, 1, 2, 3, 4]
    ended = [store.processes.get(f"r{number}") for number in range(5)]
    assert [one and one.outcome for one in ended] == [holdfast.processes.Completed(number) for number in range(5)]
    assert (worker.tally.done, worker.tally.lost) == (5, 0)


def test_the_answer_of_a_settlement_decides_and_not_the_clock(store: holdfast.BlockingStore, url: str) -> None:
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
    claim = store.queue.claim_next(owner_id="w1", ttl_ms=60_000)
    assert claim is not None
    renewer = ClaimRenewer(holdfast.open_blocking(url), "w1", ["job"], 60_000)
    lost = threading.Event()
    settling, working = (Held(claim, 60_000, 0.0, lost.set) for _ in range(2))
    settling.is_settling = True
    store.queue.complete(claim)
    renewer.hold(settling)
    renewer._renew([settling])
    renewer.give_up_overdue()
    assert not lost.is_set()
    renewer.hold(working)
    renewer.give_up_overdue()
    assert lost.is_set()
    renewer.close()


def test_an_answer_that_takes_nothing_leaves_nothing_to_renew(url: str, store: holdfast.BlockingStore) -> None:
    worker = holdfast.Worker(url, lease_s=LEASE_S)
    asks: list[Any] = []
    begin = ClaimRenewer.ask

    def ask(renewer: ClaimRenewer, ttl_ms: int) -> Any:
        asks.append((renewer, begin(renewer, ttl_ms)))
        return asks[-1][1]

    @worker.job("fails", retry=ONCE)
    async def fail(job: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClaimRenewer, "ask", ask)
        store.sessions.handle("mail").enqueue("a", kind="fails")
        worker.run(until_idle=True)
    assert len(asks) > 1
    assert [one for renewer, one in asks if one in renewer._asks] == []
