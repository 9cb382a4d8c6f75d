"""Races at a limit: of many claimers exactly as many succeed as there are slots, in threads and in processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract
from holdfast.testing.contract.jobs import next_of
from holdfast.testing.contract.limits import limit_mail, mail
from holdfast.testing.contract.races_of_processes import each, race
from holdfast.testing.contract.second_process import OPEN, Child

ROUNDS = 8
CALLERS = 6
JOBS = 36
LIMIT = 2

CLAIM_AND_HOLD = """
while True:
    receive()
    claim = store.queue.claim_next(owner_id=me, max_batches=1)
    send(claim is not None)
    receive()
    if claim is not None:
        store.queue.complete(claim)
    send("done")
"""

WORK_OFF = """
receive()
spans = []
while True:
    claim = store.queue.claim_next(owner_id=me, max_batches=1)
    if claim is None:
        if not store.queue.list("left", limit=1).items and not store.maintenance.stats().pending_batches:
            break
        try:
            store.queue.wait_next(timeout_ms=500)
        except holdfast.WaitTimeout:
            pass
        continue
    began = time.monotonic()
    time.sleep(0.002)
    spans.append([began, time.monotonic()])
    store.queue.complete(claim)
send(spans)
"""

HOLD_MAIL = """
claim = store.queue.claim_next(owner_id=me, ttl_ms=700)
send(claim.session_id)
receive()
"""

LIMITS = pytest.mark.parametrize("limit", ["at_once", "per_key"])


def most_at_once(spans: list[list[float]]) -> int:
    """Return the greatest number of spans that overlap."""
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


class LimitRaceContract(Contract):
    """Several handles, threads and processes at one limit."""

    @pytest.fixture
    def stores(self, bench: Bench) -> list[BlockingStore]:
        """Three handles, each used by two of six callers."""
        handles = [bench.open() for _ in range(CALLERS // 2)]
        return [*handles, *handles]

    @LIMITS
    def test_of_several_claims_at_once_as_many_succeed_as_there_are_slots(
        self, stores: list[BlockingStore], limit: str
    ) -> None:
        limit_mail(stores[0], limit, LIMIT)
        for number in range(ROUNDS * LIMIT + CALLERS):
            mail(stores[0], f"s{number}", "ada")
        for _ in range(ROUNDS):
            claims, refusals = each(stores, lambda store, _: store.queue.claim_next(owner_id="w", max_batches=1))
            assert refusals == []
            granted = [claim for claim in claims if claim is not None]
            assert len(granted) == LIMIT
            _, refusals = race(*[lambda claim=claim: stores[1].queue.complete(claim) for claim in granted])
            assert refusals == []

    @LIMITS
    def test_workers_never_exceed_a_limit_and_leave_nothing(self, stores: list[BlockingStore], limit: str) -> None:
        limit_mail(stores[0], limit, LIMIT)
        for number in range(JOBS):
            mail(stores[0], f"s{number % 12}", "ada")
        guard = threading.Lock()
        running = most = done = 0

        def run(store: BlockingStore, _caller: int) -> None:
            nonlocal running, most, done
            claim = store.queue.claim_next(owner_id="w", max_batches=1)
            while done < JOBS:
                if claim is None:
                    with suppress(holdfast.WaitTimeout):
                        store.queue.wait_next(timeout_ms=200)
                    claim = store.queue.claim_next(owner_id="w", max_batches=1)
                    continue
                with guard:
                    running += 1
                    most = max(most, running)
                with guard:
                    running -= 1
                    done += 1
                claim = store.queue.complete_and_claim_next(claim, owner_id="w", max_batches=1)[1]

        _, refusals = each(stores, run)
        assert refusals == []
        assert (done, most <= LIMIT) == (JOBS, True)
        assert stores[0].queue.claim_next(owner_id="w") is None
        assert stores[0].maintenance.verify().findings == ()

    def test_a_declaration_counts_claims_that_are_being_made(self, stores: list[BlockingStore]) -> None:
        store = stores[0]
        for number in range(ROUNDS):
            for place in range(CALLERS):
                mail(store, f"r{number}-{place}")
            calls: list[Callable[[], Any]] = [
                partial(one.queue.claim_next, owner_id="w", max_batches=1) for one in stores[1:]
            ]
            declare: Callable[[], Any] = partial(store.queue.set_limit, "mail", at_once=LIMIT)
            results, refusals = race(declare, *calls)
            assert refusals == []
            claims: list[holdfast.WorkClaim] = [one for one in results if isinstance(one, holdfast.WorkClaim)]
            assert len(claims) >= LIMIT
            assert store.queue.claim_next(owner_id="w") is None
            while len(claims) >= LIMIT:
                assert store.queue.claim_next(owner_id="w") is None
                store.queue.complete(claims.pop())
            claims.append(next_of(store, max_batches=1))
            assert store.queue.claim_next(owner_id="w") is None
            store.queue.remove_limit("mail")
            for claim in claims:
                store.queue.complete(claim)
            while (left := store.queue.claim_next(owner_id="w")) is not None:
                store.queue.complete(left)

    @pytest.mark.parametrize("what", ["kind", "session"])
    def test_no_claim_is_made_once_a_pause_has_returned(self, stores: list[BlockingStore], what: str) -> None:
        store = stores[0]
        session = store.sessions.create("chat")
        for _ in range(ROUNDS):
            for _ in range(CALLERS):
                mail(store, "chat")
            paused = threading.Event()

            def pause(paused: threading.Event = paused) -> None:
                session.pause() if what == "session" else store.queue.pause("mail")
                paused.set()

            late: list[holdfast.WorkClaim] = []
            claims: list[holdfast.WorkClaim] = []

            def claim(
                one: BlockingStore,
                paused: threading.Event = paused,
                in_time: list[holdfast.WorkClaim] = claims,
                too_late: list[holdfast.WorkClaim] = late,
            ) -> None:
                was_paused = paused.is_set()
                made = one.queue.claim_next(owner_id="w", max_batches=1)
                if made is not None:
                    (too_late if was_paused else in_time).append(made)

            _, refusals = race(pause, *[lambda one=one: claim(one) for one in stores[1:]])
            assert (refusals, late) == ([], [])
            assert store.queue.claim_next(owner_id="w") is None
            session.resume() if what == "session" else store.queue.resume("mail")
            claims += [next_of(store, max_batches=1)]
            for one in claims:
                store.queue.complete(one)
            while (rest := store.queue.claim_next(owner_id="w")) is not None:
                store.queue.complete(rest)

    # Processes.

    @pytest.fixture
    def url(self, bench: Bench) -> str:
        """Return the URL that a second process opens."""
        if bench.url is None:
            pytest.skip("a memory store has no second process")
        return bench.url

    @pytest.fixture
    def timely(self, url: str) -> Iterator[BlockingStore]:
        """A handle of this process, with the system's clock."""
        with holdfast.open_blocking(url) as store:
            yield store

    @pytest.fixture
    def start(self, url: str) -> Iterator[Callable[[str, int], list[Child]]]:
        """Return a function that starts processes on a script."""
        with ExitStack() as ends:

            def start(script: str, count: int) -> list[Child]:
                children = [ends.enter_context(Child(OPEN + script, url, f"p{index}")) for index in range(count)]
                assert [child.receive() for child in children] == ["ready"] * count
                return children

            yield start

    @LIMITS
    def test_of_several_processes_as_many_claim_as_there_are_slots(
        self, timely: BlockingStore, start: Callable[[str, int], list[Child]], limit: str
    ) -> None:
        limit_mail(timely, limit, LIMIT)
        for number in range(ROUNDS * LIMIT + CALLERS):
            mail(timely, f"s{number}", "ada")
        children = start(CLAIM_AND_HOLD, 4)
        for _ in range(ROUNDS):
            for child in children:
                child.send("claim")
            assert [child.receive() for child in children].count(True) == LIMIT
            for child in children:
                child.send("complete")
            assert {child.receive() for child in children} == {"done"}

    @LIMITS
    def test_processes_never_exceed_a_limit_and_leave_nothing(
        self, timely: BlockingStore, start: Callable[[str, int], list[Child]], limit: str
    ) -> None:
        limit_mail(timely, limit, LIMIT)
        for number in range(JOBS):
            mail(timely, f"s{number % 12}", "ada")
        children = start(WORK_OFF, 3)
        for child in children:
            child.send("go")
        spans = [span for child in children for span in child.receive()]
        assert len(spans) == JOBS
        assert most_at_once(spans) <= LIMIT

    @LIMITS
    def test_the_slot_of_a_killed_process_is_free_when_its_claim_ends(
        self, timely: BlockingStore, start: Callable[[str, int], list[Child]], limit: str
    ) -> None:
        limit_mail(timely, limit, 1)
        mail(timely, "a", "ada")
        (child,) = start(HOLD_MAIL, 1)
        assert child.receive() == "a"
        mail(timely, "b", "ada")
        assert timely.queue.claim_next(owner_id="w") is None
        child.kill()
        began = time.monotonic()
        timely.queue.wait_next(timeout_ms=int(TIMEOUT_S * 1000))
        assert timely.queue.claim_next(owner_id="w") is not None
        assert time.monotonic() - began < TIMEOUT_S / 2
        assert timely.queue.claim_next(owner_id="w") is None
