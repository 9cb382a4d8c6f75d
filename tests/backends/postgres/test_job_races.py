"""Workers on separate connections claim every job exactly once, in order where order is asked for."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

WORKERS = 8
JOBS = 240 if os.environ.get("HOLDFAST_WHOLE") else 96


class Pool:
    """Workers with one store each."""

    def __init__(self, url: str, loop: EventLoop) -> None:
        self.loop = loop
        options = PostgresOptions(max_connections=2)
        self.backends = [loop.drive(PostgresBackend.open(url, options, None)) for _ in range(WORKERS)]
        self.stores = [Store(Context(backend, holdfast.Limits())) for backend in self.backends]

    def close(self) -> None:
        for backend in self.backends:
            self.loop.drive(backend.close())

    def fill(self, sessions: int) -> None:
        async def fill() -> None:
            for number in range(JOBS):
                draft = holdfast.WorkDraft(session_id=f"s{number % sessions}", payloads=[number])
                await self.stores[0].queue.enqueue(draft)

        self.loop.drive(fill())

    def work(self, worker: Callable[[Store, int], Awaitable[Any]]) -> None:
        async def work() -> None:
            await asyncio.gather(*(worker(store, number) for number, store in enumerate(self.stores)))

        self.loop.drive(work())


@pytest.fixture
def pool(postgres_database: Any, clean_postgres_url: str, loop: EventLoop) -> Iterator[Pool]:
    postgres_database.empty()
    made = Pool(clean_postgres_url, loop)
    yield made
    made.close()


def payloads(claim: holdfast.WorkClaim) -> list[int]:
    return [item.payload for batch in claim.batches for item in batch.items]


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "in one"])
@pytest.mark.parametrize("sessions", [1, 50])
def test_every_job_is_claimed_once_and_no_worker_leaves_while_work_is_ready(
    pool: Pool, sessions: int, fused: bool
) -> None:
    pool.fill(sessions)
    done: Counter[int] = Counter()
    held: set[int] = set()
    empty: list[int] = []

    async def worker(store: Store, number: int) -> None:
        asked: dict[str, Any] = {"owner_id": f"w{number}", "max_batches": 1}
        claim = await store.queue.claim_next(**asked)
        while claim is not None:
            done.update(payloads(claim))
            held.update(payloads(claim))
            if fused:
                _, claim = await store.queue.complete_and_claim_next(claim, **asked)
            else:
                await store.queue.complete(claim)
                claim = await store.queue.claim_next(**asked)
        # A job that was unclaimed at an empty answer must have been claimed by a concurrent call.
        empty.append(JOBS - len(held))

    pool.work(worker)
    assert done == Counter(range(JOBS))
    # Each other worker may hold a claim whose answer is still in transit.
    assert max(empty) < WORKERS
    stats = pool.loop.drive(pool.stores[0].maintenance.stats())
    assert (stats.settled_batches, stats.pending_batches, stats.claimed_batches) == (JOBS, 0, 0)
    assert pool.loop.drive(pool.stores[0].maintenance.verify()).findings == ()


@pytest.mark.parametrize("sessions", [1, 10])
def test_exclusive_claims_keep_the_order_of_each_session_though_some_fail(pool: Pool, sessions: int) -> None:
    pool.fill(sessions)
    order: dict[str, list[int]] = defaultdict(list)
    working: Counter[str] = Counter()

    async def worker(store: Store, number: int) -> None:
        while True:
            claim = await store.queue.claim_next(owner_id=f"w{number}", max_batches=1, exclusive=True)
            if claim is None:
                if not (await store.maintenance.stats()).pending_batches:
                    return
                await store.queue.wait_next(timeout_ms=20_000, exclusive=True)
                continue
            working[claim.session_id] += 1
            assert working[claim.session_id] == 1, "two exclusive claims live in one session"
            [batch] = claim.batches
            if batch.attempts == 1 and payloads(claim)[0] % 7 == 0:
                working[claim.session_id] -= 1
                await store.queue.fail(claim, "once", retry_in_ms=20)
                continue
            order[claim.session_id] += payloads(claim)
            working[claim.session_id] -= 1
            await store.queue.complete(claim)

    async def patient(store: Store, number: int) -> None:
        try:
            await worker(store, number)
        except holdfast.WaitTimeout:
            assert not (await store.maintenance.stats()).pending_batches

    pool.work(patient)
    assert {name: found == sorted(found) for name, found in order.items()} == dict.fromkeys(order, True)
    assert sorted(number for found in order.values() for number in found) == list(range(JOBS))


def test_jobs_that_are_enqueued_while_workers_take_them_are_all_found(pool: Pool) -> None:
    done: Counter[int] = Counter()
    produced = asyncio.Event()

    async def worker(store: Store, number: int) -> None:
        if number < 2:
            for place in range(JOBS // 2):
                draft = holdfast.WorkDraft(session_id=f"s{place % 3}", payloads=[number * JOBS // 2 + place])
                await store.queue.enqueue(draft)
            if number == 1:
                produced.set()
            return
        while sum(done.values()) < JOBS:
            claim = await store.queue.claim_next(owner_id=f"w{number}", max_batches=1)
            if claim is None:
                try:
                    await store.queue.wait_next(timeout_ms=1_000)
                except holdfast.WaitTimeout:
                    assert not produced.is_set() or sum(done.values()) == JOBS, "work was not offered"
                continue
            await store.queue.complete(claim)
            done.update(payloads(claim))

    pool.work(worker)
    assert done == Counter(range(JOBS))
