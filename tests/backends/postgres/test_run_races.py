"""Workers on separate connections claim every run exactly once, and no signal is lost between a read and a sleep."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends.postgres.test_job_races import WORKERS, Pool

from holdfast.processes import Completed, RunClaim, SignalWait
from holdfast.store import Store
from holdfast.testing.contract.bench import EventLoop

RUNS = 240
ROUNDS = 20
SLEEPERS = 12
SIGNALS = 8
TIMEOUT_MS = 30_000


@pytest.fixture
def pool(postgres_database: Any, clean_postgres_url: str, loop: EventLoop) -> Iterator[Pool]:
    postgres_database.empty()
    made = Pool(clean_postgres_url, loop)
    yield made
    assert made.loop.drive(made.stores[0].maintenance.verify()).findings == ()
    made.close()


@pytest.mark.parametrize("kinds", [None, ["a", ("b", "1"), "c"]], ids=["every kind", "named kinds"])
def test_every_run_is_claimed_once_and_no_worker_leaves_while_one_is_due(pool: Pool, kinds: Any) -> None:
    async def fill() -> None:
        for number in range(RUNS):
            await pool.stores[0].processes.start("abc"[number % 3], id=f"run-{number}")

    pool.loop.drive(fill())
    claimed: Counter[str] = Counter()
    left: list[int] = []

    async def worker(store: Store, number: int) -> None:
        while (claim := await store.processes.claim_next(owner_id=f"w{number}", kinds=kinds)) is not None:
            claimed[claim.process.id] += 1
            assert claim.process.attempt == 1
            await store.processes.complete(claim.process.id, Completed(number), lease=claim.lease)
        # A run that was unclaimed at an empty answer must have been claimed by a concurrent call.
        left.append(RUNS - len(claimed))

    pool.work(worker)
    assert claimed == Counter(f"run-{number}" for number in range(RUNS))
    # Each other worker may hold a claim whose answer is still in transit.
    assert max(left) < WORKERS


def test_every_run_is_ended_once_by_workers_that_end_one_and_claim_the_next(pool: Pool) -> None:
    async def fill() -> None:
        for number in range(RUNS):
            await pool.stores[0].processes.start("abc"[number % 3], id=f"run-{number}")

    pool.loop.drive(fill())
    ended: Counter[str] = Counter()

    async def slot(store: Store, owner_id: str) -> None:
        claim = await store.processes.claim_next(owner_id=owner_id)
        while claim is not None:
            assert claim.process.attempt == 1
            process, claim = await store.processes.complete_and_claim_next(claim.lease, Completed(), owner_id=owner_id)
            ended[process.id] += 1

    async def worker(store: Store, number: int) -> None:
        # Several at once on one store share trips.
        await asyncio.gather(*(slot(store, f"w{number}-{place}") for place in range(4)))

    pool.work(worker)
    assert ended == Counter(f"run-{number}" for number in range(RUNS))


def test_of_workers_that_take_over_a_lost_run_one_wins(pool: Pool) -> None:
    async def race() -> None:
        first = pool.stores[0]
        await first.processes.start("research", id="run")
        fence = 0
        for number in range(ROUNDS):
            answers = await asyncio.gather(
                *(store.processes.claim_next(owner_id=f"w{place}", ttl_ms=1) for place, store in enumerate(pool.stores))
            )
            claims = [claim for claim in answers if claim is not None]
            assert claims, "somebody must get a run whose lease has expired"
            # A claim for 1 ms may expire and be taken over within the same round: then its fence is higher.
            fences = sorted(claim.lease.fence for claim in claims)
            assert fences == list(range(fence + 1, fence + 1 + len(claims)))
            fence = fences[-1]
            assert max(claim.process.attempt for claim in claims) == fence
            assert [claim.takeover for claim in claims].count(False) == (1 if number == 0 else 0)
            await first.processes.wait_next(timeout_ms=TIMEOUT_MS)

    pool.loop.drive(race())


def test_no_signal_is_lost_between_a_read_and_a_sleep(pool: Pool) -> None:
    rng = random.Random(7)
    names = [f"run-{number}" for number in range(SLEEPERS)]
    ended: set[str] = set()

    async def handle(store: Store, claim: RunClaim) -> None:
        """End a run once it has all signals; otherwise suspend it until the next one."""
        page = await store.events.after(claim.process.id, limit=100)
        if sum(event.type == "signal.go" for event in page) == SIGNALS:
            await store.processes.complete(claim.process.id, Completed(), lease=claim.lease)
            ended.add(claim.process.id)
            return
        await asyncio.sleep(rng.random() * 0.01)
        seen = page.items[-1].sequence if page.items else 0
        await store.processes.suspend(claim.lease, seen=seen, wait=SignalWait("go", SIGNALS))

    async def work(store: Store, number: int) -> None:
        while len(ended) < SLEEPERS:
            claim = await store.processes.claim_next(owner_id=f"w{number}")
            if claim is not None:
                await handle(store, claim)
            elif len(ended) < SLEEPERS:
                # A lost signal leaves a run asleep for ever, and ends this wait in an error.
                await asyncio.wait({asyncio.ensure_future(waits(store))}, timeout=TIMEOUT_MS / 1000)

    async def waits(store: Store) -> None:
        waiting = asyncio.ensure_future(store.processes.wait_next(timeout_ms=TIMEOUT_MS))
        while not waiting.done() and len(ended) < SLEEPERS:
            await asyncio.wait({waiting}, timeout=0.05)
        if waiting.done():
            waiting.result()
        else:
            waiting.cancel()

    async def send(store: Store, some: list[str]) -> None:
        for name in some:
            await store.events.signal(name, "go")
            await asyncio.sleep(rng.random() * 0.005)

    async def race() -> None:
        for name in names:
            await pool.stores[0].processes.start("research", id=name)
        sent = names * SIGNALS
        rng.shuffle(sent)
        halves = [sent[::2], sent[1::2]]
        await asyncio.gather(
            *(work(store, number) for number, store in enumerate(pool.stores[2:])),
            *(send(store, half) for store, half in zip(pool.stores, halves, strict=False)),
        )

    pool.loop.drive(race())
    assert ended == set(names)
