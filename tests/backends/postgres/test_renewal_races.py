"""A claim that waits for rows sees a renewal that commits meanwhile, also after the old expiry has passed.

A slow transaction of another client locks the session and its queue. A claimer with another owner id waits for it.
Meanwhile the holder renews, the old expiry passes, and the transaction ends. The claimer began before the renewal and
must still respect it.

In the reverse case, a heartbeat in a caller's transaction renews a claim and is then rolled back. A call that waited
for the row past the expiry is refused: it is judged by the time after the wait.
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
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.sessions import Unchanged
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop

ROUNDS = int(os.environ.get("HOLDFAST_RENEWAL_ROUNDS", "1"))
SHORT_MS = (500, 2_000, 8_000, 30_000)
"""Durations of the holder's claim. A race that a loaded machine begins too late is repeated with the next one."""
LONG_MS = 3_600_000
TIMEOUT_S = 20
ON_CHAT = OnSession("chat")
NOW_MS = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
WAITERS = """
    SELECT count(DISTINCT lock.pid)
    FROM pg_locks AS lock JOIN pg_stat_activity AS one ON one.pid = lock.pid
    WHERE NOT lock.granted AND one.datname = current_database()
"""


class TooSlow(Exception):
    """The holder's claim ended before its race began."""


class Ground:
    """A holder and a claimer with a store each, a caller's connection that locks rows, and one that observes."""

    def __init__(self, database: Any, loop: EventLoop) -> None:
        self.loop = loop
        self.short_ms = SHORT_MS[0]
        self._database = database
        self._open()

    def _open(self) -> None:
        loop, url = self.loop, self._database.url
        self._database.clean()
        self.backends = [loop.drive(PostgresBackend.open(url, PostgresOptions(), None)) for _ in range(2)]
        self.holder, self.claimer = (Store(Context(backend, holdfast.Limits())) for backend in self.backends)
        self._caller: Any = loop.drive(asyncpg.connect(url))
        self._waiter: Any = loop.drive(asyncpg.connect(url))
        self._onlooker: Any = loop.drive(asyncpg.connect(url))

    def close(self) -> None:
        for one in (*self.backends, self._caller, self._waiter, self._onlooker):
            self.loop.drive(one.close())

    def race(self, race: Callable[[], Awaitable[None]]) -> None:
        """Run a race. Run it anew with a longer claim if this machine was too slow to begin it in time."""
        for short_ms in SHORT_MS:
            self.short_ms = short_ms
            try:
                return self.loop.drive(race())
            except TooSlow:
                self.close()
                self._open()
        raise AssertionError(f"this machine begins no race within {SHORT_MS[-1]} ms")

    async def across(
        self, ends_at_ms: int, waiting: Callable[[], Awaitable[Any]], renewing: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Let a call wait behind a slow turn while the holder renews and the old expiry passes; return its result."""
        turn = self._caller.transaction()
        await turn.start()
        await self.holder.within(self._caller).sessions.handle("chat").commit(holdfast.Commit())
        await self._caller.execute("SELECT 1 FROM holdfast.ready FOR UPDATE")
        claim = asyncio.ensure_future(waiting())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the turn")
        try:
            await renewing()
        except (holdfast.LeaseLost, holdfast.ClaimLost) as lost:
            await turn.rollback()
            await asyncio.gather(claim, return_exceptions=True)
            raise TooSlow from lost
        await self._until(lambda: self._passed(ends_at_ms), "the clock stands still")
        await turn.commit()
        return await claim

    async def upgrading(self, held: holdfast.WorkClaim, settling: Callable[[], Awaitable[Any]]) -> Any:
        """Let a call that settles a claim wait for one that makes it exclusive; return its result."""
        upgrade = self._caller.transaction()
        await upgrade.start()
        inside = self.holder.within(self._caller)
        alone = await inside.queue.claim("chat", owner_id=held.owner_id, holding=held, exclusive=True)
        assert alone is not None
        call = asyncio.ensure_future(settling())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the upgrade")
        await upgrade.commit()
        with pytest.raises(holdfast.ClaimLost) as lost:
            await call
        assert lost.value.widened
        return alone

    async def behind(self, held: Lease | holdfast.WorkClaim, waiting: Callable[[], Awaitable[Any]]) -> Any:
        """Let a call wait for a renewal that is rolled back after the expiry; return its result."""
        heartbeat = self._caller.transaction()
        await heartbeat.start()
        inside = self.holder.within(self._caller)
        try:
            if isinstance(held, Lease):
                await inside.leases.renew(held, ttl_ms=LONG_MS)
            else:
                await inside.queue.renew(held, ttl_ms=LONG_MS)
        except (holdfast.LeaseLost, holdfast.ClaimLost) as lost:
            await heartbeat.rollback()
            raise TooSlow from lost
        call = asyncio.ensure_future(waiting())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the renewal")
        await self._until(lambda: self._passed(held.expires_at_ms), "the clock stands still")
        await heartbeat.rollback()
        return await call

    async def behind_widening(self, held: holdfast.WorkClaim, waiting: Callable[[], Awaitable[Any]]) -> Any:
        """Let a call wait for a transaction in which the claim is widened by the next batch; return both results."""
        turn = self._caller.transaction()
        await turn.start()
        wider = await self.holder.within(self._caller).queue.claim("chat", owner_id="w1", holding=held)
        call = asyncio.ensure_future(waiting())
        await self._until(lambda: self._onlooker.fetchval(WAITERS), "nothing waits for the wider claim")
        await turn.commit()
        return wider, await call

    async def inside(self, call: Callable[[Store, Any], Awaitable[Any]], held: Any) -> Any:
        """Run a call in a caller's transaction."""
        async with self._waiter.transaction():
            return await call(self.claimer.within(self._waiter), held)

    async def _passed(self, ends_at_ms: int) -> bool:
        return int(await self._onlooker.fetchval(NOW_MS)) > ends_at_ms

    async def _until(self, look: Callable[[], Awaitable[Any]], otherwise: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not await look():
            assert time.monotonic() < deadline, otherwise


@pytest.fixture
def ground(postgres_database: Any, loop: EventLoop) -> Iterator[Ground]:
    made = Ground(postgres_database, loop)
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
        lease = await ground.holder.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=ground.short_ms)
        claim = await ground.across(
            lease.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2"),
            lambda: ground.holder.leases.renew(lease, ttl_ms=LONG_MS),
        )
        assert claim is None

    ground.race(race)


@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.parametrize("asked", [{}, {"exclusive": True}], ids=["shared", "exclusive"])
def test_work_is_not_claimed_past_an_exclusive_claim_that_was_renewed(
    ground: Ground, asked: dict[str, Any], round_number: int
) -> None:
    async def race() -> None:
        await two_batches(ground.holder)
        held = await ground.holder.queue.claim("chat", owner_id="w1", ttl_ms=ground.short_ms, exclusive=True)
        assert held is not None
        claim = await ground.across(
            held.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2", **asked),
            lambda: ground.holder.queue.renew(held, ttl_ms=LONG_MS),
        )
        assert claim is None

    ground.race(race)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_batch_whose_claim_was_renewed_is_passed_over(ground: Ground, round_number: int) -> None:
    async def race() -> None:
        await two_batches(ground.holder)
        held = await ground.holder.queue.claim("chat", owner_id="w1", ttl_ms=ground.short_ms)
        assert held is not None
        claim = await ground.across(
            held.expires_at_ms,
            lambda: ground.claimer.queue.claim("chat", owner_id="w2"),
            lambda: ground.holder.queue.renew(held, ttl_ms=LONG_MS),
        )
        assert [batch.items[0].payload for batch in claim.batches] == [2]

    ground.race(race)


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_a_turn_under_a_lease_that_expired_behind_the_slow_turn_is_refused(ground: Ground, round_number: int) -> None:
    async def nothing() -> None: ...

    async def race() -> None:
        await two_batches(ground.holder)
        lease = await ground.holder.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=ground.short_ms)
        session = ground.claimer.sessions.handle("chat")
        with pytest.raises(holdfast.LeaseLost):
            await ground.across(lease.expires_at_ms, lambda: session.commit(holdfast.Commit(lease=lease)), nothing)

    ground.race(race)


# Judged after the lock is taken.

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
    """Release a lease; raise where `release` returns False because it is no longer held."""
    if not await store.leases.release(lease):
        raise holdfast.LeaseLost("let go of nothing")


async def session_lease(store: Store, ttl_ms: int) -> Held:
    return await store.leases.claim(ON_CHAT, owner_id="w1", ttl_ms=ttl_ms)


async def process_lease(store: Store, ttl_ms: int) -> Held:
    await store.processes.register(holdfast.ProcessRegistration("job", External()))
    return await store.leases.claim(OnProcess("job"), owner_id="w1", ttl_ms=ttl_ms)


async def claim(store: Store, ttl_ms: int) -> Held:
    return await store.queue.claim("chat", owner_id="w1", ttl_ms=ttl_ms)


LATE: dict[str, tuple[Callable[[Store, int], Awaitable[Held]], Late]] = {
    "a turn": (session_lease, under_lease()),
    "a turn with a stored leaf": (session_lease, under_lease(graph=Unchanged(leaf="n0"))),
    "a turn with work for a new session": (session_lease, under_lease(enqueues=[NEW_SESSION])),
    "a turn that completes": (claim, under_claim()),
    "a turn that completes and has a stored leaf": (claim, under_claim(graph=Unchanged(leaf="n0"))),
    "a turn that completes with work for a new session": (claim, under_claim(enqueues=[NEW_SESSION])),
    "the end of a process": (
        process_lease,
        lambda store, lease: store.processes.complete("job", Completed(1), lease=lease),
    ),
    "a claim under a lease": (
        session_lease,
        lambda store, lease: store.queue.claim("chat", owner_id="w1", lease=lease),
    ),
    "a wider claim": (claim, lambda store, held: store.queue.claim("chat", owner_id="w1", holding=held)),
    "a renewed claim": (claim, lambda store, held: store.queue.renew(held)),
    "a completion": (claim, lambda store, held: store.queue.complete(held)),
    "a completion with the next claim": (
        claim,
        lambda store, held: store.queue.complete_and_claim_next(held, owner_id="w1"),
    ),
    "a failure": (claim, lambda store, held: store.queue.fail(held, "late")),
    "a renewed lease": (session_lease, lambda store, lease: store.leases.renew(lease)),
    "a released lease": (session_lease, released),
}


@pytest.mark.parametrize("where", ["the same store", "another store", "a caller's transaction"])
@pytest.mark.parametrize("call", LATE)
def test_a_claim_that_expired_while_a_call_waited_for_it_is_refused(ground: Ground, call: str, where: str) -> None:
    check_that_what_expired_is_refused(ground, call, where)


def check_that_what_expired_is_refused(ground: Ground, call: str, where: str) -> None:
    hold, late = LATE[call]

    async def race() -> None:
        await two_batches(ground.holder)
        nodes = holdfast.Append([holdfast.Node("n0"), holdfast.Node("n1")])
        await ground.holder.sessions.handle("chat").commit(holdfast.Commit(graph=nodes))
        held = await hold(ground.holder, ground.short_ms)
        store = ground.holder if where == "the same store" else ground.claimer

        async def waiting() -> Any:
            try:
                inside = where == "a caller's transaction"
                return await (ground.inside(late, held) if inside else late(store, held))
            except (holdfast.LeaseLost, holdfast.ClaimLost) as refusal:
                return refusal

        assert isinstance(await ground.behind(held, waiting), holdfast.HoldfastError)

    ground.race(race)


# A claim that was widened meanwhile.

NARROW = [name for name, (hold, _) in LATE.items() if hold is claim and name != "a renewed claim"]


@pytest.mark.parametrize("where", ["the same store", "another store", "a caller's transaction"])
@pytest.mark.parametrize("call", NARROW)
def test_the_proof_of_a_claim_that_was_widened_while_a_call_waited_is_refused(
    ground: Ground, call: str, where: str
) -> None:
    _, late = LATE[call]

    async def race() -> None:
        await two_batches(ground.holder)
        await ground.holder.sessions.handle("chat").commit(
            holdfast.Commit(graph=holdfast.Append([holdfast.Node("n0")]))
        )
        held = await ground.holder.queue.claim("chat", owner_id="w1", max_batches=1)
        assert held is not None
        store = ground.holder if where == "the same store" else ground.claimer

        async def waiting() -> Any:
            try:
                inside = where == "a caller's transaction"
                return await (ground.inside(late, held) if inside else late(store, held))
            except holdfast.ClaimLost as refusal:
                return refusal

        wider, refusal = await ground.behind_widening(held, waiting)
        assert isinstance(refusal, holdfast.ClaimLost)
        assert (wider.fence, len(wider.batches)) == (held.fence + 1, 2)
        assert refusal.widened
        renewed = await ground.holder.queue.renew(wider)
        assert [batch.state for batch in await ground.holder.queue.list("chat")] == ["claimed", "claimed"]
        assert {batch.claim_expires_at_ms for batch in await ground.holder.queue.list("chat")} == {
            renewed.expires_at_ms
        }

    ground.race(race)


@pytest.mark.parametrize("where", ["the same store", "another store", "a caller's transaction"])
def test_a_renewal_that_waits_for_a_widening_renews_what_joined(ground: Ground, where: str) -> None:
    async def renew(store: Store, held: Held) -> Held:
        return await store.queue.renew(held, ttl_ms=LONG_MS)

    async def race() -> None:
        await two_batches(ground.holder)
        held = await ground.holder.queue.claim("chat", owner_id="w1", max_batches=1)
        assert held is not None
        store = ground.holder if where == "the same store" else ground.claimer
        inside = where == "a caller's transaction"
        wider, renewed = await ground.behind_widening(
            held, lambda: ground.inside(renew, held) if inside else renew(store, held)
        )
        assert (len(wider.batches), len(renewed.batches)) == (2, 1)
        ends = [batch.claim_expires_at_ms for batch in await ground.holder.queue.list("chat")]
        assert ends == [renewed.expires_at_ms] * 2
        assert renewed.expires_at_ms > wider.expires_at_ms

    ground.race(race)


SETTLING: dict[str, Callable[[Store, holdfast.WorkClaim], Awaitable[Any]]] = {
    "complete": lambda store, claim: store.queue.complete(claim),
    "complete and claim next": lambda store, claim: store.queue.complete_and_claim_next(claim, owner_id="w2"),
    "commit": lambda store, claim: store.sessions.handle("chat").commit(holdfast.Commit(completes=[claim])),
    "fail": lambda store, claim: store.queue.fail(claim, "no", retry_in_ms=None),
}


@pytest.mark.parametrize("how", SETTLING)
def test_a_claim_that_becomes_exclusive_while_it_is_settled_keeps_no_work_back(ground: Ground, how: str) -> None:
    async def case() -> None:
        await ground.holder.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        await ground.holder.queue.enqueue(holdfast.WorkDraft.command("chat", "refresh", idempotency_key="k"))
        held = await ground.holder.queue.claim("chat", owner_id="w1")
        assert held is not None
        alone = await ground.upgrading(held, lambda: SETTLING[how](ground.claimer, held))
        assert await ground.claimer.queue.claim_next(owner_id="w2") is None
        await SETTLING["complete"](ground.claimer, alone)
        await ground.claimer.queue.wait_next(timeout_ms=TIMEOUT_S * 1000)
        assert await ground.claimer.queue.claim_next(owner_id="w2") is not None

    ground.race(case)
