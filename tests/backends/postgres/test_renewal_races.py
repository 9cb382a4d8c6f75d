"""A renewal that commits while a claim waits for its rows is seen by that claim, also past the end that was renewed.

A slow turn, in a transaction of a caller's, holds the session's row. A claimer of another owner waits for it. Meanwhile
the holder renews, the old end passes, and the turn lets go of the row. The claimer began before the renewal, and goes
by it all the same.

The other way around, a heartbeat in a caller's transaction renews what it holds and is then rolled back. A call that
waited for the row until the end had passed is refused: it is judged by the time after the wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

ROUNDS = int(os.environ.get("HOLDFAST_RENEWAL_ROUNDS", "1"))
SHORT_MS, LONG_MS = 1_500, 3_600_000
PATIENCE_S = 20
ON_CHAT = holdfast.OnSession("chat")
NOW_MS = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
WAITERS = """
    SELECT count(DISTINCT lock.pid)
    FROM pg_locks AS lock JOIN pg_stat_activity AS one ON one.pid = lock.pid
    WHERE NOT lock.granted AND one.datname = current_database()
"""


class Ground:
    """A holder and a claimer with a store each, a caller's connection that holds rows, and one that looks on."""

    def __init__(self, url: str, loop: EventLoop) -> None:
        self.loop = loop
        self.backends = [loop.drive(PostgresBackend.open(url, PostgresOptions(), None)) for _ in range(2)]
        self.holder, self.claimer = (Store(Context(backend, holdfast.Limits())) for backend in self.backends)
        self._caller: Any = loop.drive(asyncpg.connect(url))
        self._waiter: Any = loop.drive(asyncpg.connect(url))
        self._onlooker: Any = loop.drive(asyncpg.connect(url))

    def close(self) -> None:
        for one in (*self.backends, self._caller, self._waiter, self._onlooker):
            self.loop.drive(one.close())

    async def across(
        self, ends_at_ms: int, waiting: Callable[[], Awaitable[Any]], renewing: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Let a call wait behind a slow turn while the holder renews and the old end passes; return its result."""
        turn = self._caller.transaction()
        await turn.start()
        await self.holder.within(self._caller).sessions.handle("chat").commit(holdfast.Commit())
        claim = asyncio.ensure_future(waiting())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the turn")
        await renewing()
        await self._until(lambda: self._passed(ends_at_ms), "the clock stands still")
        await turn.commit()
        return await claim

    async def behind(self, held: holdfast.Lease | holdfast.WorkClaim, waiting: Callable[[], Awaitable[Any]]) -> Any:
        """Let a call wait for a renewal that is taken back after the end has passed; return its result."""
        heartbeat = self._caller.transaction()
        await heartbeat.start()
        inside = self.holder.within(self._caller)
        if isinstance(held, holdfast.Lease):
            await inside.leases.renew(held, ttl_ms=LONG_MS)
        else:
            await inside.queue.renew(held, ttl_ms=LONG_MS)
        call = asyncio.ensure_future(waiting())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the renewal")
        await self._until(lambda: self._passed(held.expires_at_ms), "the clock stands still")
        await heartbeat.rollback()
        return await call

    async def inside(self, call: Callable[[Store, Any], Awaitable[Any]], held: Any) -> Any:
        """Run a call in a transaction of a caller's."""
        async with self._waiter.transaction():
            return await call(self.claimer.within(self._waiter), held)

    async def _passed(self, ends_at_ms: int) -> bool:
        return int(await self._onlooker.fetchval(NOW_MS)) > ends_at_ms

    async def _until(self, look: Callable[[], Awaitable[Any]], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await look():
            assert time.monotonic() < deadline, otherwise


@pytest.fixture
def ground(clean_postgres_url: str, loop: EventLoop) -> Iterator[Ground]:
    made = Ground(clean_postgres_url, loop)
    yield made
    made.close()


async def two_batches(store: Store) -> None:
    await store.sessions.create("chat")
    for number in (1, 2):
        await store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number]))


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_work_is_not_claimed_past_a_session_lease_that_was_renewed(ground: Ground, round_number: int) -> None:
    async def race() -> None:
        await two_batches(ground.holder)
        lease = await ground.holder.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=SHORT_MS)
        claim = await ground.across(
            lease.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2"),
            lambda: ground.holder.leases.renew(lease, ttl_ms=LONG_MS),
        )
        assert claim is None

    ground.loop.drive(race())


@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.parametrize("asked", [{}, {"exclusive": True}], ids=["shared", "exclusive"])
def test_work_is_not_claimed_past_an_exclusive_claim_that_was_renewed(
    ground: Ground, asked: dict[str, Any], round_number: int
) -> None:
    async def race() -> None:
        await two_batches(ground.holder)
        held = await ground.holder.queue.claim("chat", owner_id="w1", ttl_ms=SHORT_MS, exclusive=True)
        assert held is not None
        claim = await ground.across(
            held.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2", **asked),
            lambda: ground.holder.queue.renew(held, ttl_ms=LONG_MS),
        )
        assert claim is None

    ground.loop.drive(race())


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_batch_whose_claim_was_renewed_is_passed_over(ground: Ground, round_number: int) -> None:
    async def race() -> None:
        await two_batches(ground.holder)
        held = await ground.holder.queue.claim("chat", owner_id="w1", ttl_ms=SHORT_MS)
        assert held is not None
        claim = await ground.across(
            held.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2"),
            lambda: ground.holder.queue.renew(held, ttl_ms=LONG_MS),
        )
        assert [batch.items[0].payload for batch in claim.batches] == [2]

    ground.loop.drive(race())


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_turn_under_a_lease_that_expired_behind_the_slow_turn_is_refused(ground: Ground, round_number: int) -> None:
    async def nothing() -> None: ...

    async def race() -> None:
        await two_batches(ground.holder)
        lease = await ground.holder.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=SHORT_MS)
        session = ground.claimer.sessions.handle("chat")
        with pytest.raises(holdfast.LeaseLost):
            await ground.across(lease.expires_at_ms, lambda: session.commit(holdfast.Commit(lease=lease)), nothing)

    ground.loop.drive(race())


# Judged behind the lock.

Held = Any
Late = Callable[[Store, Held], Awaitable[Any]]
NEW_SESSION = holdfast.WorkDraft(session_id="fresh", payloads=[1])


def turn(**given: Any) -> Callable[[Store, dict[str, Any]], Awaitable[Any]]:
    return lambda store, proof: store.sessions.handle("chat").commit(holdfast.Commit(**given, **proof))


def under_lease(**given: Any) -> Late:
    return lambda store, lease: turn(**given)(store, {"lease": lease})


def under_claim(**given: Any) -> Late:
    return lambda store, claim: turn(**given)(store, {"completes": [claim]})


async def released(store: Store, lease: Held) -> None:
    """Release a lease, which answers False instead of an error where it is not held any more."""
    if not await store.leases.release(lease):
        raise holdfast.LeaseLost("let go of nothing")


async def session_lease(store: Store) -> Held:
    return await store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=SHORT_MS)


async def process_lease(store: Store) -> Held:
    await store.processes.register(holdfast.ProcessRegistration("job", holdfast.External()))
    return await store.leases.claim(holdfast.OnProcess("job"), owner_id="w1", ttl_ms=SHORT_MS)


async def claim(store: Store) -> Held:
    return await store.queue.claim("chat", owner_id="w1", ttl_ms=SHORT_MS)


LATE: dict[str, tuple[Callable[[Store], Awaitable[Held]], Late]] = {
    "a turn": (session_lease, under_lease()),
    "a turn with a stored leaf": (session_lease, under_lease(graph=holdfast.Unchanged(leaf="n0"))),
    "a turn with work for a new session": (session_lease, under_lease(enqueues=[NEW_SESSION])),
    "a turn that completes": (claim, under_claim()),
    "a turn that completes and has a stored leaf": (claim, under_claim(graph=holdfast.Unchanged(leaf="n0"))),
    "a turn that completes with work for a new session": (claim, under_claim(enqueues=[NEW_SESSION])),
    "the end of a process": (
        process_lease,
        lambda store, lease: store.processes.complete("job", holdfast.Completed(1), lease=lease),
    ),
    "a claim under a lease": (
        session_lease,
        lambda store, lease: store.queue.claim("chat", owner_id="w1", lease=lease),
    ),
    "a wider claim": (claim, lambda store, held: store.queue.claim("chat", owner_id="w1", holding=held)),
    "a renewed claim": (claim, lambda store, held: store.queue.renew(held)),
    "a renewed lease": (session_lease, lambda store, lease: store.leases.renew(lease)),
    "a released lease": (session_lease, released),
}


@pytest.mark.parametrize("where", ["the same store", "another store", "a caller's transaction"])
@pytest.mark.parametrize("call", LATE)
def test_what_expired_while_a_call_waited_for_it_is_refused(ground: Ground, call: str, where: str) -> None:
    check_that_what_expired_is_refused(ground, call, where)


def check_that_what_expired_is_refused(ground: Ground, call: str, where: str) -> None:
    hold, late = LATE[call]

    async def race() -> None:
        await two_batches(ground.holder)
        nodes = holdfast.Append([holdfast.Node("n0"), holdfast.Node("n1")])
        await ground.holder.sessions.handle("chat").commit(holdfast.Commit(graph=nodes))
        held = await hold(ground.holder)
        store = ground.holder if where == "the same store" else ground.claimer

        async def waiting() -> Any:
            try:
                inside = where == "a caller's transaction"
                return await (ground.inside(late, held) if inside else late(store, held))
            except (holdfast.LeaseLost, holdfast.ClaimLost) as refusal:
                return refusal

        assert isinstance(await ground.behind(held, waiting), holdfast.HoldfastError)

    ground.loop.drive(race())
