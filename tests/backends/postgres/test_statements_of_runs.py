"""A server function claims the run that the rule would claim, and leaves the same rows.

`HOLDFAST_SEED` replays a run, `HOLDFAST_SITUATIONS` makes it longer.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.backends.postgres.twins import SITUATIONS, Twins

from holdfast.leases import Lease, OnProcess
from holdfast.processes import Completed, Recovery, SignalWait, StartReceipt
from holdfast.store import Store

TTL_MS = 10_000
KINDS = ("a", "b")
VERSIONS = ("1", "2")
RECOVERIES: tuple[Recovery, ...] = ("rerunnable", "rerunnable", "owner_bound", "external")
STATES = (
    "due",
    "due",
    "later",
    "claimed",
    "lost",
    "released",
    "failed",
    "asleep",
    "waiting",
    "woken",
    "leased",
    "ended",
)


def draw_run(twins: Twins, rng: random.Random, name: str) -> str:
    """Start a run and bring it into some state. Return that state in words."""
    do, clock = twins.do, twins.clock
    state, recovery = rng.choice(STATES), rng.choice(RECOVERIES)
    kind, version = rng.choice(KINDS), rng.choice(VERSIONS)
    due_at_ms = clock.now_ms() + (rng.randint(1, 50) if state == "later" else -rng.randint(0, 50))

    async def start(store: Store) -> StartReceipt | None:
        run = await store.processes.start(
            kind, id=name, version=version, due_at_ms=max(due_at_ms, 0), recovery=recovery
        )
        return run.receipt

    do(start)
    answer = f"{name}: {state} {kind}{version} {recovery}"
    on = OnProcess(name)
    if state in ("due", "later"):
        return answer
    lease = do(lambda store: store.leases.claim(on, owner_id="w0", ttl_ms=TTL_MS))
    match state:
        case "lost":
            clock.advance(TTL_MS)
        case "claimed":
            # The lease of a claim by `claim_next`, if this run is the next one.
            do(lambda store: store.leases.release(lease))
            do(lambda store: store.processes.claim_next(owner_id="w9", kinds=[(kind, version)], ttl_ms=TTL_MS))
        case "released":
            do(lambda store: store.leases.release(lease))
        case "failed":
            delay = rng.choice((0, 20))
            do(lambda store: store.processes.retry_later(lease, "broke", retry_in_ms=delay))
        case "asleep":
            at_ms = clock.now_ms() + rng.choice((0, 20))
            do(lambda store: store.processes.suspend(lease, seen=0, due_at_ms=at_ms))
        case "waiting" | "woken":
            do(lambda store: store.processes.suspend(lease, seen=0, wait=SignalWait("go", 1)))
        case "ended":
            do(lambda store: store.processes.complete(name, Completed(), lease=lease))
        case _:
            pass
    if state == "woken":
        call = rng.choice(("signal", "cancel"))
        do(lambda store: store.events.signal(name, "go") if call == "signal" else store.events.request_cancel(name))
    return answer


@pytest.mark.timeout(120 + SITUATIONS)
def test_the_end_of_a_run_and_the_next_claim_say_and_store_what_the_rules_do(twins: Twins) -> None:
    rng = twins.generator("ends of runs")
    answers: Counter[str] = Counter()
    answer: list[str] = []
    held: list[Lease] = []
    for number in range(twins.situations):
        answer.append(draw_run(twins, rng, f"r{number}"))
        if rng.random() < 0.2:
            twins.clock.advance(rng.choice((1, 10, TTL_MS)))
        while not held:
            name = f"h{number}-{rng.random()}"
            twins.do(lambda store, name=name: started(store, name))
            on = OnProcess(name)
            held.append(twins.do(lambda store, on=on: store.leases.claim(on, owner_id="w1", ttl_ms=TTL_MS)))
        # Also a lease that has ended it before, or that is lost.
        lease = rng.choice(held)
        if rng.random() < 0.8:
            held.remove(lease)
        kinds: Any = rng.choice((None, ["a"], [("a", "1")], ["b", ("a", "2")], ["none"], ["a", "b"]))
        outcome, acted = twins.both(
            lambda store, lease=lease, kinds=kinds: store.processes.complete_and_claim_next(
                lease, Completed(1), owner_id="w1", kinds=kinds, ttl_ms=TTL_MS
            ),
            (lease.resource, kinds, answer[-5:]),
        )
        assert acted, "one call is enough"
        if outcome.error is not None:
            answers[type(outcome.error).__name__] += 1
        else:
            claim = outcome.value[1]
            answers["none" if claim is None else "takeover" if claim.takeover else "claimed"] += 1
            if claim is not None:
                held.append(claim.lease)
        if number % 25 == 24:
            twins.compare_rows(lambda: "\n".join(answer[-25:]))
    twins.check_drawn(answers, {"none", "takeover", "claimed", "LeaseLost"})
    for store in twins.stores:
        assert twins.loop.drive(store.maintenance.verify()).findings == ()


async def started(store: Store, name: str) -> StartReceipt | None:
    return (await store.processes.start("held", id=name)).receipt


@pytest.mark.timeout(120 + SITUATIONS)
def test_claim_run_says_and_stores_what_the_rule_does(twins: Twins) -> None:
    # By the test's clock: which of two runs is due first would depend on how fast each twin is.
    rng = twins.generator("runs")
    answers: Counter[str] = Counter()
    answer: list[str] = []
    for number in range(twins.situations):
        answer.append(draw_run(twins, rng, f"r{number}"))
        if rng.random() < 0.2:
            twins.clock.advance(rng.choice((1, 10, TTL_MS)))
        kinds: Any = rng.choice((None, ["a"], [("a", "1")], ["b", ("a", "2")], ["none"], ["a", "b"]))
        outcome, acted = twins.both(
            lambda store, kinds=kinds: store.processes.claim_next(owner_id="w1", kinds=kinds, ttl_ms=TTL_MS),
            (kinds, answer[-5:]),
        )
        assert acted, "one call is enough"
        claim = outcome.value
        answers["none" if claim is None else "takeover" if claim.takeover else "claimed"] += 1
        if claim is not None:
            answers["must abandon"] += claim.must_abandon
            if rng.random() < 0.3:
                lease = claim.lease
                twins.do(lambda store, lease=lease: store.leases.release(lease))
        if number % 25 == 24:
            twins.compare_rows(lambda: "\n".join(answer[-25:]))
    # A counter has a key for a kind that was counted as nothing.
    twins.check_drawn(+answers, {"none", "takeover", "claimed", "must abandon"})
    for store in twins.stores:
        assert twins.loop.drive(store.maintenance.verify()).findings == ()
