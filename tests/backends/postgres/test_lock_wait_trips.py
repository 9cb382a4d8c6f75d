"""Calls that find work locked wait for it together: one of a process waits in the server, and all share its commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import shared_trips

SLOTS = 4
RUN_S = 30
ASKS: dict[str, Any] = {"kinds": ["turn"], "max_batches": 1}
QUEUE_OF = (
    "SELECT 1 FROM holdfast.ready JOIN holdfast.sessions USING (family, session_key) "
    "WHERE session_id = $1 FOR UPDATE OF ready"
)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
    "AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()"
)


class Stage:
    """A store, and connections of other programs that lock queues."""

    def __init__(self, store: holdfast.Store, others: list[Any]) -> None:
        self.store = store
        self.others = others

    async def fill(self, *session_ids: str) -> None:
        for number, session_id in enumerate(session_ids):
            await self.store.queue.enqueue(holdfast.WorkDraft(session_id=session_id, payloads=[number]))

    async def lock(self, session_id: str, other: int = 0) -> Any:
        """Lock the queue of a session. Return the transaction that holds it."""
        held = self.others[other].transaction()
        await held.start()
        await self.others[other].execute(QUEUE_OF, session_id)
        return held

    def claiming(self, count: int = SLOTS) -> list[asyncio.Future[Any]]:
        ask = self.store.queue.claim_next
        return [asyncio.ensure_future(ask(owner_id=f"worker-{number}", **ASKS)) for number in range(count)]

    def settling(self, claims: list[holdfast.WorkClaim]) -> list[asyncio.Future[Any]]:
        ask = self.store.queue.complete_and_claim_next
        return [asyncio.ensure_future(ask(claim, owner_id=claim.owner_id, **ASKS)) for claim in claims]

    async def waiters(self, function: str) -> int:
        return int(await self.others[-1].fetchval(WAITING, function))

    async def until_waiting(self, function: str) -> None:
        while not await self.waiters(function):
            await asyncio.sleep(0.01)

    async def transactions(self, claims: list[holdfast.WorkClaim]) -> set[Any]:
        """Return the transactions that made these claims."""
        ids = [batch.batch_id for claim in claims for batch in claim.batches]
        rows = await self.others[-1].fetch("SELECT xmin FROM holdfast.batches WHERE batch_id = ANY($1)", ids)
        return {row[0] for row in rows}


def play(url: str, scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        others = [await asyncpg.connect(url) for _ in range(3)]
        try:
            async with await holdfast.open(url) as store:
                await scene(Stage(store, others))
        finally:
            for other in others:
                await other.close()

    asyncio.run(asyncio.wait_for(run(), RUN_S))


def payloads(claims: list[holdfast.WorkClaim]) -> list[Any]:
    return sorted(batch.items[0].payload for claim in claims for batch in claim.batches)


def test_claims_of_a_locked_queue_wait_on_one_connection_and_share_a_commit(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_trips, "LONGEST_WAIT_S", RUN_S)

    async def scene(stage: Stage) -> None:
        await stage.fill(*["chat"] * SLOTS)
        held = await stage.lock("chat")
        calls = stage.claiming()
        await stage.until_waiting("claim_next")
        await stage.store.sessions.handle("other").commit(holdfast.Commit(turn_id="meanwhile"))
        assert await stage.waiters("claim_next") == 1
        await held.rollback()
        claims = await asyncio.gather(*calls)
        assert payloads(claims) == list(range(SLOTS))
        # The first call found no trip under way, and may wait before the others.
        assert len(await stage.transactions(claims)) <= 2

    play(clean_postgres_url, scene)


async def contended(stage: Stage) -> list[holdfast.WorkClaim]:
    """Return claims of a session whose queue was met locked just now."""
    await stage.fill(*["chat"] * (3 * SLOTS))
    claims = await asyncio.gather(*stage.claiming())
    held = await stage.lock("chat")
    calls = stage.settling(claims)
    await stage.until_waiting("claim_next")
    await held.rollback()
    return [following for _, following in await asyncio.gather(*calls)]


def test_settling_in_a_contended_session_shares_a_commit(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_trips, "CONTENDED_S", RUN_S)

    async def scene(stage: Stage) -> None:
        answers = await asyncio.gather(*stage.settling(await contended(stage)))
        assert len({receipt.position for receipt, _ in answers}) == 1
        following = [claim for _, claim in answers]
        assert payloads(following) == list(range(2 * SLOTS, 3 * SLOTS))
        assert len(await stage.transactions(following)) == 1

    play(clean_postgres_url, scene)


def test_work_is_settled_while_the_queue_of_its_contended_session_stays_locked(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_trips, "CONTENDED_S", RUN_S)

    async def scene(stage: Stage) -> None:
        claims = await contended(stage)
        held = await stage.lock("chat")
        calls = stage.settling(claims)
        counted = "SELECT count(*) FROM holdfast.batches WHERE settled_state = 'completed'"
        while await stage.others[-1].fetchval(counted) < 2 * SLOTS:
            await asyncio.sleep(0.02)
        assert not any(call.done() for call in calls), "the next work is locked"
        await held.rollback()
        assert payloads([claim for _, claim in await asyncio.gather(*calls)]) == list(range(2 * SLOTS, 3 * SLOTS))

    play(clean_postgres_url, scene)


def test_a_claim_behind_one_that_took_the_only_work_waits_for_other_locked_work(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.fill("first", "second")
        locks = [await stage.lock("first"), await stage.lock("second", other=1)]
        calls = stage.claiming(2)
        await stage.until_waiting("claim_next")
        for held in locks:
            await held.rollback()
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        claims = await asyncio.gather(*calls)
        assert payloads(claims) == [0, 1]
        assert await asyncio.gather(*stage.claiming(2)) == [None, None]

    play(clean_postgres_url, scene)


def test_cancelled_claims_stop_waiting_for_a_lock(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.fill(*["chat"] * SLOTS)
        held = await stage.lock("chat")
        calls = stage.claiming()
        await stage.until_waiting("claim_next")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        while await stage.waiters("claim_next"):
            await asyncio.sleep(0.01)
        await held.rollback()
        assert payloads(await asyncio.gather(*stage.claiming())) == list(range(SLOTS))

    play(clean_postgres_url, scene)


def test_a_claim_for_a_cancelled_caller_of_a_lock_wait_trip_is_given_back(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_trips, "CONTENDED_S", RUN_S)

    async def scene(stage: Stage) -> None:
        claims = await contended(stage)
        held = await stage.lock("chat")
        calls = stage.settling(claims)
        await stage.until_waiting("settle_and_claim")
        calls[0].cancel()
        calls[2].cancel()
        await held.rollback()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        following = [answer[1] for answer in answers if isinstance(answer, tuple)]
        assert len(following) == SLOTS - 2
        following += await asyncio.gather(*stage.claiming(2))
        assert payloads(following) == list(range(2 * SLOTS, 3 * SLOTS))

    play(clean_postgres_url, scene)
