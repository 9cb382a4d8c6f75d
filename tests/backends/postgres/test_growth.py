"""A hot path reads as many blocks at turn 2,500 as at turn 300, with any planner statistics."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.backends.postgres.growth import DAY_MS, Call, Ground, claim_run, mail, turn

import holdfast
from holdfast.backends.postgres.notifier import Notifier
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, SignalWait
from holdfast.sessions import ActivePath
from holdfast.store import Store
from holdfast.testing.contract.bench import EventLoop
from holdfast.workers import WorkerInfo

Ends = tuple[int, int]

SHORT, LONG = 300, 2_500
SERVERS = ("newest", "oldest")
MOST_GROWTH, ONE_LEVEL = 1.2, 1
"""A statement may read a fifth more, and one block more: an index may have gained a level."""
KNOWLEDGE = ("none", "stale", "skewed", "one family", "tiny families")
"""Tables that were never analysed; analysed with one short session; with 800 short sessions and the long one, at each
size; the same in one family; and with 2,000 families of one turn, of which one has grown since."""
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
FEW_WAITING, MANY_WAITING = 2_000, 10_000
ME = WorkerInfo("w1", host="here", pid=7, kinds=("turn",))
ON_PROCESS = OnProcess("job")


def commit(store: Store, number: int) -> Awaitable[Any]:
    return store.sessions.handle("long").commit(turn(number))


async def settle(store: Store, number: int) -> None:
    """Enqueue, claim and renew work, and complete it by a turn that leaves more work."""
    await store.queue.enqueue(holdfast.WorkDraft(session_id="long", payloads=[1], source_key=f"work{number}"))
    claim = await store.queue.claim("long", owner_id="w1")
    assert claim is not None
    await store.queue.renew(claim)
    await store.sessions.handle("long").commit(holdfast.Commit(completes=[claim]))


async def work_off(store: Store, number: int) -> None:
    """Claim jobs from any session; settle, settle and claim the next, fail, and cancel."""
    for name in "abc":
        await store.queue.enqueue(holdfast.WorkDraft(session_id="long", payloads=[1], source_key=f"{name}{number}"))
    claim = await store.queue.claim_next(owner_id="w1", kinds=("turn",))
    assert claim is not None
    _, following = await store.queue.complete_and_claim_next(claim, owner_id="w1", kinds=("turn",))
    assert following is not None
    await store.queue.complete(following)
    last = await store.queue.claim_next(owner_id="w1", kinds=("turn",))
    assert last is not None
    [failed] = await store.queue.fail(last, "no", retry_in_ms=0)
    await store.queue.cancel("long", failed.batch_id)


async def take_from_backlog(store: Store, number: int) -> None:
    """Claim and complete the first of many batches that wait in one session."""
    for name in "ab":
        claim = await store.queue.claim_next(owner_id=name, kinds=["backlog"], max_batches=1)
        assert claim is not None
        await store.queue.complete(claim)
    claim = await store.queue.claim("busy", owner_id="c", max_batches=1)
    assert claim is not None
    await store.queue.complete(claim)


async def lead(store: Store, number: int) -> None:
    """Commit a turn under a lease."""
    lease = await store.leases.claim(OnSession("long"), owner_id="w1")
    await store.sessions.handle("long").commit(holdfast.Commit(lease=lease))
    await store.leases.release(lease)


async def follow_up(store: Store, number: int) -> None:
    """Commit a turn that leaves work, and cancel that work."""
    draft = holdfast.WorkDraft(payloads=[1], source_key=f"next{number}")
    receipt = await store.sessions.handle("long").commit(holdfast.Commit(enqueues=[draft]))
    await store.queue.cancel("long", receipt.enqueued[0])


async def wake(store: Store, number: int) -> None:
    """Append an event that wakes the long session, and cancel the batch."""
    receipt = await store.events.append("job", "news", number)
    assert receipt.batch_id is not None
    await store.queue.cancel("long", receipt.batch_id)


async def run(store: Store, number: int) -> None:
    """Start a run, let it sleep, wake it, fail it, give it back, and end it."""
    name = f"run{number}"
    await store.processes.start("a", id=name)
    claim = await claim_run(store, ["a"])
    await store.events.append(name, "step", lease=claim.lease)
    await store.processes.suspend(claim.lease, seen=1, wait=SignalWait("go", 1))
    await store.events.signal(name, "go")
    await store.processes.retry_later((await claim_run(store)).lease, "no", retry_in_ms=0)
    await store.leases.release((await claim_run(store, ["a", "b"])).lease)
    lease = (await claim_run(store)).lease
    await store.processes.complete_and_claim_next(lease, Completed(), owner_id="w1", kinds=["a"])


async def obey_limits(store: Store, number: int) -> None:
    """Claim work of a limited kind, be refused for the same key, wait, and get the slot that is freed."""
    for name in "ab":
        await store.queue.enqueue(mail(f"limited-{name}", f"user{number}"))
    first = await store.queue.claim_next(owner_id="w1", kinds=["mail"])
    assert first is not None
    assert await store.queue.claim_next(owner_id="w2", kinds=["mail"]) is None
    assert await store.queue.claim_next(owner_id="w2") is None
    with suppress(holdfast.WaitTimeout):
        await store.queue.wait_next(timeout_ms=0)
    await store.queue.renew(first)
    await store.queue.complete(first)
    second = await store.queue.claim_next(owner_id="w2", kinds=["mail"])
    assert second is not None
    await store.queue.complete(second)


async def beat(store: Store, number: int) -> None:
    """Renew a claim and two leases, and report the worker."""
    await store.queue.enqueue(holdfast.WorkDraft(session_id="beaten", payloads=[number]))
    claim = await store.queue.claim("beaten", owner_id="w1")
    assert claim is not None
    leases = [await store.leases.claim(on, owner_id="w1") for on in (OnSession("beaten"), ON_PROCESS)]
    answer = await store.workers.heartbeat(ME, ttl_ms=60_000, claims=[claim], leases=leases)
    assert None not in (*answer.claims, *answer.leases)
    for lease in leases:
        await store.leases.release(lease)
    await store.queue.complete(claim)


async def tick(store: Store, number: int) -> None:
    """Look for a schedule that is due, and fire one by hand."""
    assert await store.schedules.fire_next() is None
    with suppress(holdfast.WaitTimeout):
        await store.schedules.wait_next(timeout_ms=0)
    await store.schedules.run_now("nightly", idempotency_key=str(number))


CALLS: dict[str, Call] = {
    "commit": commit,
    "replay of a turn": lambda store, number: store.sessions.handle("long").commit(turn(0)),
    "commit that completes work": settle,
    "jobs": work_off,
    "jobs of a backlog": take_from_backlog,
    "commit under a lease": lead,
    "commit that enqueues": follow_up,
    "append": lambda store, number: store.events.append("job", "progress", 1, replay_key=f"new{number}"),
    "replay of an event": lambda store, number: store.events.append("job", "progress", 1, replay_key="k0"),
    "append that wakes": wake,
    "load of the last nodes": lambda store, number: store.sessions.handle("long").load(ActivePath(last=20)),
    "load of a node": lambda store, number: store.sessions.handle("long").load_node("m0"),
    "page of a log": lambda store, number: store.events.after("job", after=20, limit=20),
    "page of a log of one type": lambda store, number: store.events.after("job", after=20, limit=20, type="progress"),
    "page of a log of a rare type": lambda store, number: store.events.after("job", type="rare"),
    "page of wakes": lambda store, number: store.events.wakes("job", after=LONG * 9),
}


def is_growth(counts: tuple[float, ...]) -> bool:
    return max(counts) > MOST_GROWTH * counts[0] + ONE_LEVEL


@pytest.fixture(params=SERVERS)
def ground(request: pytest.FixtureRequest, loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    database = request.getfixturevalue("postgres_database" if request.param == "newest" else "second_database")

    async def nothing(notifier: Notifier, payload: str) -> None: ...

    monkeypatch.setattr(Notifier, "_try_to_send", nothing)
    made = Ground(database, loop)
    yield made
    made.close()
    database.empty()


@pytest.mark.parametrize(
    ("ground", "knowledge"),
    [
        (server, knowledge)
        for server in SERVERS
        for knowledge in KNOWLEDGE
        if WHOLE or knowledge == "skewed" or (server == "newest" and knowledge in ("none", "stale"))
    ],
    indirect=["ground"],
)
def test_a_hot_path_reads_no_more_of_a_long_session_than_of_a_short_one(ground: Ground, knowledge: str) -> None:
    if knowledge in ("skewed", "one family"):
        ground.surround(800, one_family=knowledge == "one family")
    if knowledge == "tiny families":
        ground.surround(2_000, one_family=False)
    if knowledge in ("stale", "tiny families"):
        ground.analyze()
    ground.grow(SHORT)
    if knowledge in ("skewed", "one family"):
        ground.analyze()
    short = ground.blocks(SHORT, CALLS)
    ground.grow(LONG)
    kept = ground.blocks(LONG, CALLS)
    if knowledge in ("skewed", "one family"):
        ground.analyze()
    ground.reopen()
    anew = ground.blocks(LONG + 1, CALLS)
    found = {place: (short[place], kept.get(place, 0), anew.get(place, 0)) for place in short}
    grown = {place: counts for place, counts in found.items() if is_growth(counts)}
    assert grown == {}, found


STATISTICS = pytest.mark.parametrize("knowledge", ["none", "stale", "skewed"] if WHOLE else ["stale", "skewed"])


def compared(ground: Ground, knowledge: str, calls: dict[str, Call], grow: Callable[[range], None], ends: Ends) -> None:
    """Assert that calls read as many blocks after the growth as before, with new plans, too."""
    few, many = ends
    if knowledge == "stale":
        ground.analyze()
    grow(range(few))
    if knowledge == "skewed":
        ground.analyze()
    short = ground.blocks(SHORT, calls)
    grow(range(few, many))
    kept = ground.blocks(LONG, calls)
    if knowledge == "skewed":
        ground.analyze()
    ground.reopen()
    anew = ground.blocks(LONG + 1, calls)
    found = {place: (count, kept.get(place, 0), anew.get(place, 0)) for place, count in short.items()}
    assert {place: counts for place, counts in found.items() if is_growth(counts)} == {}, found


@STATISTICS
def test_a_claim_of_a_run_reads_no_more_among_many_that_cannot_be_claimed(ground: Ground, knowledge: str) -> None:
    ground.lay_to_sleep()
    compared(ground, knowledge, {"run": run}, ground.add_sleepers, (SHORT, LONG))


@STATISTICS
def test_a_limited_claim_reads_no_more_while_ten_thousand_sessions_wait(ground: Ground, knowledge: str) -> None:
    ground.limit_work()
    compared(ground, knowledge, {"limits": obey_limits}, ground.add_waiting, (FEW_WAITING, MANY_WAITING))


@STATISTICS
def test_a_heartbeat_and_a_tick_read_no_more_among_many_workers_and_schedules(ground: Ground, knowledge: str) -> None:
    ground.do(lambda store: store.workers.heartbeat(ME, ttl_ms=DAY_MS))
    ground.do(lambda store: store.schedules.put("nightly", "0 3 1 1 *"))
    compared(ground, knowledge, {"heartbeat": beat, "tick": tick}, ground.add_idle, (FEW_WAITING, LONG))
