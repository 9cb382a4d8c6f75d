"""Limits of kinds of runs: no more are held at once than declared, and the end of a claim makes room."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import Lease, OnProcess
from holdfast.processes import Completed, RunClaim
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background
from holdfast.testing.contract.queue import work
from holdfast.testing.contract.races_of_processes import each, race
from holdfast.testing.contract.run_claims import TTL_MS, claimed_ids, next_run
from holdfast.testing.contract.runs import HOUR_MS, start

WAIT_MS = 60_000
ROUNDS = 6
CALLERS = 6
RUNS = 24
LIMIT = 2

ENDING: dict[str, Callable[[BlockingStore, Lease, int], Any]] = {
    "complete": lambda store, lease, _: store.processes.complete("r1", Completed(), lease=lease),
    "append": lambda store, _, __: store.processes.complete("r1", holdfast.processes.Failed("broke")),
    "suspend": lambda store, lease, now_ms: store.processes.suspend(lease, seen=0, due_at_ms=now_ms + HOUR_MS),
    "retry_later": lambda store, lease, _: store.processes.retry_later(lease, "broke", retry_in_ms=HOUR_MS),
    "revoke": lambda store, _, __: store.leases.revoke(OnProcess("r1")),
    "release of a dead worker": lambda store, _, __: store.workers.release("w1"),
    "a larger limit": lambda store, _, __: store.queue.set_limit("research", at_once=2),
    "no limit": lambda store, _, __: store.queue.remove_limit("research"),
}
"""Changes that make room for another run."""


class RunLimitContract(Contract):
    """`store.queue.set_limit` for `store.processes.claim_next` and `wait_next`."""

    def test_no_more_runs_of_a_kind_are_held_than_its_limit(self, store: BlockingStore) -> None:
        store.queue.set_limit("research", at_once=2)
        for number in range(4):
            start(store, f"r{number}", due_at_ms=number, version=str(number % 2))
        start(store, "other", "write", due_at_ms=9)
        claims = [next_run(store, kinds=["research"]) for _ in range(2)]
        assert [claim.process.id for claim in claims] == ["r0", "r1"]
        assert store.processes.claim_next(owner_id="w2", kinds=[("research", "0")]) is None
        assert claimed_ids(store) == ["other"]
        store.processes.complete("r0", Completed(), lease=claims[0].lease)
        assert claimed_ids(store) == ["r2"]
        assert store.maintenance.verify().findings == ()

    def test_a_run_that_ends_leaves_its_place_to_the_next(self, store: BlockingStore) -> None:
        store.queue.set_limit("a", at_once=1)
        for name in ("run-1", "run-2"):
            store.processes.start("a", id=name)
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        _, following = store.processes.complete_and_claim_next(claim.lease, Completed(), owner_id="w1")
        assert following is not None
        assert following.process.id == "run-2"
        store.processes.start("a", id="run-3")
        assert store.processes.claim_next(owner_id="w1") is None

    def test_the_place_of_a_lost_holder_is_free_when_its_lease_ends(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.queue.set_limit("research", at_once=1)
        start(store, "r1", due_at_ms=0)
        start(store, "r2", due_at_ms=1)
        lease = next_run(store).lease
        clock.advance(TTL_MS - 1)
        store.leases.renew(lease, ttl_ms=TTL_MS)
        clock.advance(TTL_MS - 1)
        assert store.processes.claim_next(owner_id="w2") is None
        clock.advance(1)
        # The lost run is found when its lease ends, after what is due longer.
        assert claimed_ids(store, ttl_ms=TTL_MS) == ["r2"]

    def test_runs_that_are_held_already_count(self, store: BlockingStore) -> None:
        start(store, "r1", due_at_ms=0)
        start(store, "r2", due_at_ms=1)
        claims = [next_run(store), next_run(store)]
        store.queue.set_limit("research", at_once=1)
        start(store, "r3")
        assert claimed_ids(store) == []
        store.processes.complete("r1", Completed(), lease=claims[0].lease)
        assert claimed_ids(store) == []
        store.processes.complete("r2", Completed(), lease=claims[1].lease)
        assert claimed_ids(store) == ["r3"]

    def test_a_sleeping_run_does_not_count_and_needs_a_place_to_continue(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.queue.set_limit("research", at_once=1)
        start(store, "r1")
        store.processes.suspend(next_run(store).lease, seen=0, due_at_ms=clock.now_ms() + 5)
        start(store, "r2")
        second = next_run(store)
        assert second.process.id == "r2"
        clock.advance(5)
        assert claimed_ids(store) == []
        store.leases.release(second.lease)
        assert claimed_ids(store) == ["r2"]

    def test_work_and_runs_of_one_kind_count_apart_and_keys_do_not_count_for_runs(self, store: BlockingStore) -> None:
        store.queue.set_limit("research", at_once=1, per_key=1)
        store.queue.enqueue(work("a", "a", kind="research", key="ada"))
        store.queue.enqueue(work("b", "b", kind="research", key="ada"))
        start(store, "r1", due_at_ms=0)
        start(store, "r2", due_at_ms=1)
        assert store.queue.claim_next(owner_id="w1", max_batches=1) is not None
        assert store.queue.claim_next(owner_id="w1", max_batches=1) is None
        assert claimed_ids(store) == ["r1"]
        store.queue.set_limit("research", per_key=1)
        assert claimed_ids(store) == ["r2"]

    def test_a_run_that_waits_for_a_place_says_so(self, store: BlockingStore) -> None:
        store.queue.set_limit("research", at_once=1)
        start(store, "r1", due_at_ms=0)
        start(store, "r2", due_at_ms=1)
        claim = next_run(store)
        [cause] = store.maintenance.explain_process("r2").causes
        assert (cause.name, cause.standing, cause.remedy) == ("limit-reached", "waits", ("queue", "limit", "research"))
        assert cause.next_at_ms == claim.lease.expires_at_ms
        store.processes.complete("r1", Completed(), lease=claim.lease)
        assert store.maintenance.explain_process("r2").causes[0].name != "limit-reached"

    # Waiting.

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("ending", ENDING)
    def test_the_end_of_a_claim_wakes_waiters_for_a_place(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, ending: str, elsewhere: bool
    ) -> None:
        other = bench.open() if elsewhere else store
        store.queue.set_limit("research", at_once=1)
        start(store, "r1", due_at_ms=0)
        start(store, "r2", due_at_ms=1)
        lease = next_run(store, ttl_ms=HOUR_MS).lease
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS, kinds=["research"]))
        bench.parked()
        ENDING[ending](other, lease, clock.now_ms())
        waiting.result(TIMEOUT_S)
        assert next_run(store, "w2").process.id == "r2"

    def test_a_wait_at_the_limit_ends_in_its_timeout(self, store: BlockingStore) -> None:
        store.queue.set_limit("research", at_once=1)
        start(store, "r1")
        start(store, "r2")
        next_run(store)
        with pytest.raises(holdfast.WaitTimeout):
            store.processes.wait_next(timeout_ms=20)

    def test_a_wait_at_the_limit_notices_other_kinds(self, store: BlockingStore, bench: Bench) -> None:
        store.queue.set_limit("research", at_once=1)
        start(store, "r1")
        start(store, "r2")
        next_run(store)
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        start(store, "other", "write")
        waiting.result(TIMEOUT_S)
        assert claimed_ids(store) == ["other"]

    # Races.

    @pytest.fixture
    def stores(self, bench: Bench) -> list[BlockingStore]:
        """Three handles, each used by two of six callers."""
        handles = [bench.open() for _ in range(CALLERS // 2)]
        return [*handles, *handles]

    def test_of_several_claims_at_once_as_many_succeed_as_there_are_places(self, stores: list[BlockingStore]) -> None:
        stores[0].queue.set_limit("research", at_once=LIMIT)
        for number in range(ROUNDS * LIMIT + CALLERS):
            start(stores[0], f"r{number}", due_at_ms=number)
        for _ in range(ROUNDS):
            claims, refusals = each(stores, lambda store, _: store.processes.claim_next(owner_id="w"))
            assert refusals == []
            granted = [claim for claim in claims if claim is not None]
            assert len(granted) == LIMIT
            _, refusals = race(*[lambda claim=claim: _complete(stores[1], claim) for claim in granted])
            assert refusals == []

    def test_workers_never_exceed_a_limit_and_leave_nothing(self, stores: list[BlockingStore]) -> None:
        stores[0].queue.set_limit("research", at_once=LIMIT)
        for number in range(RUNS):
            start(stores[0], f"r{number}", due_at_ms=number)
        guard = threading.Lock()
        running = most = done = 0

        def run(store: BlockingStore, _caller: int) -> None:
            nonlocal running, most, done
            while done < RUNS:
                claim = store.processes.claim_next(owner_id="w")
                if claim is None:
                    with suppress(holdfast.WaitTimeout):
                        store.processes.wait_next(timeout_ms=200)
                    continue
                with guard:
                    running += 1
                    most = max(most, running)
                time.sleep(0.002)
                with guard:
                    running -= 1
                    done += 1
                _complete(store, claim)

        _, refusals = each(stores, run)
        assert refusals == []
        assert (done, most <= LIMIT) == (RUNS, True)


def _complete(store: BlockingStore, claim: RunClaim) -> None:
    store.processes.complete(claim.process.id, Completed(), lease=claim.lease)
