"""Concurrent calls on one session of a store reach the server one at a time, in FIFO order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions, session_queue
from holdfast.backends.postgres.notifier import Notifier
from holdfast.backends.postgres.session_queue import SessionQueue
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

AT_ONCE = 8


async def stand(queue: SessionQueue, name: str, went: list[int], number: int) -> None:
    assert await queue.enter(name)
    went.append(number)
    await asyncio.sleep(0)
    assert went[-1] == number, "nobody else went meanwhile"
    queue.leave(name)


def test_one_goes_at_a_time_in_the_order_of_asking(loop: EventLoop) -> None:
    async def run() -> None:
        queue, went = SessionQueue(), list[int]()
        await asyncio.gather(*(stand(queue, "chat", went, number) for number in range(AT_ONCE)))
        assert went == list(range(AT_ONCE))
        assert queue._waiting == {}, "nothing is kept of a line in which nobody stands"

    loop.drive(run())


def test_a_caller_waits_only_in_the_queue_of_its_own_session(loop: EventLoop) -> None:
    async def run() -> None:
        queue = SessionQueue()
        assert await queue.enter("chat")
        assert await queue.enter("other")
        queue.leave("chat")
        queue.leave("other")

    loop.drive(run())


@pytest.mark.parametrize("served", [False, True], ids=["before its turn", "in the moment of its turn"])
def test_a_caller_that_gives_up_does_not_hold_up_those_behind(loop: EventLoop, served: bool) -> None:
    async def run() -> None:
        queue, went = SessionQueue(), list[int]()
        assert await queue.enter("chat")
        impatient = asyncio.ensure_future(queue.enter("chat"))
        behind = asyncio.ensure_future(stand(queue, "chat", went, 1))
        await asyncio.sleep(0)
        if served:
            queue.leave("chat")
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        if not served:
            queue.leave("chat")
        await behind
        assert went == [1]
        assert queue._waiting == {}

    loop.drive(run())


def test_a_caller_that_has_waited_for_long_goes_without_its_turn(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_queue, "LONGEST_WAIT_S", 0.001)

    async def run() -> None:
        queue = SessionQueue()
        assert await queue.enter("chat")
        assert not await queue.enter("chat")
        queue.leave("chat")
        assert queue._waiting == {}

    loop.drive(run())


@pytest.fixture
def backend(clean_postgres_url: str, loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    async def nothing(notifier: Notifier, payload: str) -> None: ...

    # A notification is a statement as well.
    monkeypatch.setattr(Notifier, "_try_to_send", nothing)
    made = loop.drive(PostgresBackend.open(clean_postgres_url, PostgresOptions(max_connections=AT_ONCE), None))
    yield made
    loop.drive(made.close())


def test_workers_of_one_session_take_one_statement_for_each_claim_and_each_completion(
    backend: PostgresBackend, loop: EventLoop
) -> None:
    store = Store(Context(backend, holdfast.Limits()))

    async def claim(worker: int) -> Any:
        return await store.queue.claim("chat", owner_id=f"w{worker}", max_batches=1)

    async def settle(claimed: Any) -> Any:
        return await store.sessions.handle("chat").commit(holdfast.Commit(completes=[claimed]))

    async def run() -> None:
        for number in range(AT_ONCE):
            await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number]))
        # A head that this process has not seen costs one read.
        await store.sessions.handle("chat").commit(holdfast.Commit())
        before = backend.statements_run
        claims = await asyncio.gather(*map(claim, range(AT_ONCE)))
        assert [one.batches[0].items[0].payload for one in claims] == list(range(AT_ONCE))
        assert backend.statements_run - before == AT_ONCE
        before = backend.statements_run
        receipts = await asyncio.gather(*map(settle, claims))
        assert [one.revision for one in receipts] == list(range(2, AT_ONCE + 2))
        assert backend.statements_run - before == AT_ONCE

    loop.drive(run())


def test_claims_of_several_processes_are_asked_again_and_need_no_transaction(
    backend: PostgresBackend, clean_postgres_url: str, loop: EventLoop
) -> None:
    other = loop.drive(PostgresBackend.open(clean_postgres_url, PostgresOptions(max_connections=1), None))
    stores = [Store(Context(one, holdfast.Limits())) for one in (backend, other)]

    async def run() -> None:
        for number in range(40):
            await stores[0].queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number]))
        before = backend.statements_run + other.statements_run
        taken: list[Any] = []
        for _ in range(20):
            # Two at once: at most one of them loses to the other, and then asks once more.
            taken += await asyncio.gather(*(one.queue.claim("chat", owner_id="w", max_batches=1) for one in stores))
        assert sorted(one.batches[0].items[0].payload for one in taken) == list(range(40))
        assert backend.statements_run + other.statements_run - before <= 60

    try:
        loop.drive(run())
    finally:
        loop.drive(other.close())
