"""Calls that wait at the same time share trips and transactions, and each keeps its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import shared_trips
from holdfast.errors import PoolTimeout
from holdfast.events import EventType
from holdfast.processes import External
from holdfast.queue import Group

AT_ONCE = 8
RUN_S = 30

SLOW = """
CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON holdfast.revisions
FOR EACH ROW WHEN (NEW.turn_id LIKE 'slow%') EXECUTE FUNCTION public.slow();
"""
SLOW_CLAIMS = """
CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE UPDATE ON holdfast.batches
FOR EACH ROW WHEN (NEW.claim_token_hash IS NOT NULL AND OLD.claim_token_hash IS NULL) EXECUTE FUNCTION public.slow();
"""
FAULTY = """
CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE division_by_zero; END $$;
CREATE TRIGGER fail BEFORE INSERT ON holdfast.revisions
FOR EACH ROW WHEN (NEW.turn_id = 'faulty') EXECUTE FUNCTION public.fail();
"""


class Stage:
    """A store with sessions of one turn each, and a connection of another program."""

    def __init__(self, store: Any, other: Any) -> None:
        self.store = store
        self.other = other

    @property
    def sessions(self) -> list[Any]:
        return [self.store.sessions.handle(f"chat-{number}") for number in range(AT_ONCE)]

    async def revision(self, number: int) -> int:
        view = await self.sessions[number].load()
        assert view is not None
        return int(view.revision)

    async def waits(self, backends: int, function: str = "commit_turn") -> None:
        """Wait until this many backends of the store call a function."""
        asked = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
            "AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()"
        )
        while await self.other.fetchval(asked, function) < backends:
            await asyncio.sleep(0.01)


def turn(turn_id: str | None, **more: Any) -> holdfast.Commit:
    return holdfast.Commit(turn_id=turn_id, config={"of": turn_id}, **more)


def play(url: str, scene: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        other = await asyncpg.connect(url)
        try:
            async with await holdfast.open(url, options=holdfast.PostgresOptions(**options)) as store:
                stage = Stage(store, other)
                for session in stage.sessions:
                    await session.commit(turn("first"))
                await scene(stage)
        finally:
            await other.execute("DROP FUNCTION IF EXISTS public.slow, public.fail CASCADE")
            await other.close()

    asyncio.run(asyncio.wait_for(run(), RUN_S))


async def outcomes(calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_turns_of_several_sessions_share_transactions(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        receipts = await asyncio.gather(*(session.commit(turn("second")) for session in stage.sessions))
        assert [receipt.revision for receipt in receipts] == [2] * AT_ONCE
        assert [receipt.session_id for receipt in receipts] == [f"chat-{number}" for number in range(AT_ONCE)]
        # A position names the transaction. The first call found no trip under way.
        assert len({receipt.position for receipt in receipts}) == 2

    play(clean_postgres_url, scene)


def test_events_of_several_processes_share_transactions(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        names = [f"process-{number}" for number in range(AT_ONCE)]
        kinds = [EventType("progress")]
        for name in names:
            process = holdfast.ProcessRegistration(name, External(), event_types=kinds)
            await stage.store.processes.register(process)
        receipts = await asyncio.gather(*(stage.store.events.append(name, "progress", {"of": name}) for name in names))
        assert [receipt.event.payload for receipt in receipts] == [{"of": name} for name in names]
        assert [receipt.event.sequence for receipt in receipts] == [1] * AT_ONCE
        assert len({receipt.position for receipt in receipts}) == 2

    play(clean_postgres_url, scene)


async def with_work(stage: Stage, sessions: int) -> None:
    for number in range(AT_ONCE):
        await stage.store.queue.enqueue(
            holdfast.WorkDraft(session_id=f"chat-{number % sessions}", payloads=[number], merge_key=Group("any"))
        )


def claiming(stage: Stage, workers: int = AT_ONCE) -> list[Any]:
    asks = {"kinds": ["turn"], "max_batches": 1}
    return [stage.store.queue.claim_next(owner_id=f"worker-{number}", **asks) for number in range(workers)]


@pytest.mark.parametrize("sessions", [1, AT_ONCE])
def test_claims_and_completions_of_several_workers_share_transactions(clean_postgres_url: str, sessions: int) -> None:
    async def scene(stage: Stage) -> None:
        await with_work(stage, sessions)
        claims = await asyncio.gather(*claiming(stage))
        assert sorted(claim.batches[0].items[0].payload for claim in claims) == list(range(AT_ONCE))
        receipts = await asyncio.gather(*map(stage.store.queue.complete, claims))
        assert len({receipt.position for receipt in receipts}) <= 3
        assert await asyncio.gather(*claiming(stage)) == [None] * AT_ONCE

    play(clean_postgres_url, scene)


def test_settling_and_claiming_the_next_shares_transactions(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await with_work(stage, 1)
        held = await asyncio.gather(*claiming(stage, 4))
        for number in range(4, AT_ONCE):
            await stage.store.queue.enqueue(holdfast.WorkDraft(session_id="chat-1", payloads=[number]))
        asks = {"kinds": ["turn"], "max_batches": 1}
        settled = await asyncio.gather(
            *(stage.store.queue.complete_and_claim_next(one, owner_id=one.owner_id, **asks) for one in held)
        )
        tokens = {claim.token for _, claim in settled if claim is not None}
        assert len(tokens) == 4, "each has a claim of its own"
        assert len({receipt.position for receipt, _ in settled}) < 4

    play(clean_postgres_url, scene)


def test_a_claim_for_a_cancelled_worker_is_given_back(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await with_work(stage, AT_ONCE)
        await stage.other.execute(SLOW_CLAIMS)
        calls = [asyncio.ensure_future(one) for one in claiming(stage)]
        await calls[0]
        await stage.waits(1, "claim_next")
        for call in calls[1:]:
            call.cancel()
        await outcomes(calls)
        await stage.other.execute("DROP FUNCTION public.slow CASCADE")
        claims = await asyncio.gather(*claiming(stage))
        assert sum(claim is not None for claim in claims) == AT_ONCE - 1

    play(clean_postgres_url, scene)


def test_a_refused_turn_takes_no_other_with_it(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        elsewhere = await holdfast.open(clean_postgres_url)
        await elsewhere.sessions.handle("chat-3").commit(turn("elsewhere"))
        await elsewhere.close()
        calls = [session.commit(turn("second", expected_revision=1)) for session in stage.sessions]
        found = await outcomes(calls)
        assert isinstance(found.pop(3), holdfast.HeadConflict)
        assert [receipt.revision for receipt in found] == [2] * (AT_ONCE - 1)

    play(clean_postgres_url, scene)


def test_an_error_of_the_server_fails_only_the_turn_that_caused_it(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.other.execute(FAULTY)
        names = ["faulty" if number == 3 else "second" for number in range(AT_ONCE)]
        calls = [session.commit(turn(name)) for session, name in zip(stage.sessions, names, strict=True)]
        found = await outcomes(calls)
        assert isinstance(found.pop(3), holdfast.HoldfastError)
        assert [receipt.revision for receipt in found] == [2] * (AT_ONCE - 1)
        assert await stage.revision(3) == 1

    play(clean_postgres_url, scene)


def test_a_session_that_another_transaction_holds_delays_only_its_own_turn(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        async with stage.other.transaction():
            await stage.other.execute("SELECT 1 FROM holdfast.sessions WHERE session_id = 'chat-3' FOR UPDATE")
            calls = [asyncio.ensure_future(session.commit(turn("second"))) for session in stage.sessions]
            held = calls.pop(3)
            assert [receipt.revision for receipt in await asyncio.gather(*calls)] == [2] * (AT_ONCE - 1)
            assert not held.done()
        assert (await held).revision == 2

    # Without a limit of the server, which would end a wait of all.
    play(clean_postgres_url, scene, lock_timeout_ms=None, statement_timeout_ms=None)


def test_a_cancelled_caller_cancels_no_other_turn(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.other.execute(SLOW)
        calls = [asyncio.ensure_future(session.commit(turn("slow"))) for session in stage.sessions]
        await stage.waits(2)
        calls[3].cancel()
        found = await outcomes(calls)
        assert isinstance(found.pop(3), asyncio.CancelledError)
        assert [receipt.revision for receipt in found] == [2] * (AT_ONCE - 1)

    play(clean_postgres_url, scene)


def test_a_store_that_closes_waits_for_the_trip_of_cancelled_callers(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.other.execute(SLOW)
        calls = [asyncio.ensure_future(session.commit(turn("slow"))) for session in stage.sessions[:2]]
        await stage.waits(2)
        for call in calls:
            call.cancel()
        await outcomes(calls)
        await stage.store.close()
        stored = "SELECT revision FROM holdfast.sessions WHERE session_id = 'chat-1'"
        assert await stage.other.fetchval(stored) == 2

    play(clean_postgres_url, scene)


def test_after_a_lost_trip_each_call_is_retried_or_unknown_as_if_alone(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.other.execute(SLOW)
        repeatable = [session.commit(turn(f"slow-{number}")) for number, session in enumerate(stage.sessions[:5])]
        single = [session.commit(turn(None)) for session in stage.sessions[5:]]
        calls = asyncio.ensure_future(outcomes([*repeatable, *single]))
        await stage.waits(2)
        await stage.other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'active' AND query LIKE '%commit_turn%' AND pid <> pg_backend_pid()"
        )
        found = await calls
        assert [receipt.revision for receipt in found[:5]] == [2] * 5
        for number, error in enumerate(found[5:], 5):
            assert isinstance(error, holdfast.Unavailable)
            assert error.outcome == "unknown"
            assert await stage.revision(number) == 1

    play(clean_postgres_url, scene)


def test_calls_without_a_connection_are_not_applied_and_say_so_in_time(clean_postgres_url: str) -> None:
    async def scene(stage: Stage) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with stage.store.transaction():
                begun.set()
                await ended.wait()

        holding = asyncio.create_task(hold())
        await begun.wait()
        found = await outcomes([session.commit(turn("second")) for session in stage.sessions])
        ended.set()
        await holding
        assert all(isinstance(error, PoolTimeout) for error in found)
        assert [await stage.revision(number) for number in range(AT_ONCE)] == [1] * AT_ONCE

    play(clean_postgres_url, scene, max_connections=1, acquire_timeout_ms=200)


def test_a_trip_carries_no_more_calls_than_its_limit(clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared_trips.MOST_CALLS, "commit_turn", 2)
    monkeypatch.setattr(shared_trips, "TRIPS", 1)

    async def scene(stage: Stage) -> None:
        receipts = await asyncio.gather(*(session.commit(turn("second")) for session in stage.sessions))
        sharing = [receipt.position for receipt in receipts]
        assert max(map(sharing.count, sharing)) == 2
        assert len(set(sharing)) == 1 + (AT_ONCE - 1 + 1) // 2

    play(clean_postgres_url, scene)


def test_slow_trips_take_along_every_call_that_is_ready(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_trips, "SLOW_S", -1.0)
    monkeypatch.setattr(shared_trips, "PLANNING_S", 0.0)

    async def scene(stage: Stage) -> None:
        receipts = await asyncio.gather(*(session.commit(turn("second")) for session in stage.sessions))
        assert len({receipt.position for receipt in receipts}) == 1

    play(clean_postgres_url, scene)
