"""Waits for a claimable run end by a change or by time, without polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.run_claims import GIVING_BACK, next_run
from holdfast.testing.contract.runs import HOUR_MS, start

WAIT_MS = 60_000


class RunWaitContract(Contract):
    """`store.processes.wait_next`."""

    def test_a_wait_for_a_run_ends_at_once_or_in_its_timeout(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.WaitTimeout):
            store.processes.wait_next(timeout_ms=1)
        start(store)
        store.processes.wait_next(timeout_ms=0)
        store.processes.wait_next(timeout_ms=0, kinds=["write", ("research", "1")])
        for kinds in (["write"], [("research", "2")]):
            with pytest.raises(holdfast.WaitTimeout):
                store.processes.wait_next(timeout_ms=1, kinds=kinds)
        next_run(store)
        with pytest.raises(holdfast.WaitTimeout):
            store.processes.wait_next(timeout_ms=1)

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("cause", ["start", "register", "signal", "cancel", *GIVING_BACK])
    def test_a_wait_for_a_run_is_ended_by(
        self, store: BlockingStore, bench: Bench, elsewhere: bool, cause: str
    ) -> None:
        other = bench.open() if elsewhere else store
        acts: dict[str, Callable[[], Any]] = {
            "start": lambda: start(other),
            "register": lambda: other.processes.register(
                holdfast.ProcessRegistration("run-1", holdfast.processes.Run("research"))
            ),
            "signal": lambda: other.events.signal("run-1", "go"),
            "cancel": lambda: other.events.request_cancel("run-1"),
        }
        if cause not in ("start", "register"):
            start(store)
            lease = next_run(store, ttl_ms=HOUR_MS).lease
            if cause in GIVING_BACK:
                acts[cause] = lambda: GIVING_BACK[cause](other, lease)
            else:
                store.processes.suspend(lease, seen=0, wait=holdfast.processes.SignalWait("go", 1))
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        acts[cause]()
        assert waiting.result(TIMEOUT_S) is None
        assert next_run(store).process.id == "run-1"

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    def test_an_eager_wait_ends_at_a_change_and_at_once_if_there_is_a_run(
        self, store: BlockingStore, bench: Bench, elsewhere: bool
    ) -> None:
        with refused(bench, holdfast.WaitTimeout):
            store.processes.wait_next(timeout_ms=1, eager=True)
        kinds = ["research" if elsewhere else "write"]
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS, kinds=kinds, eager=True))
        bench.parked()
        start(bench.open() if elsewhere else store)
        assert waiting.result(TIMEOUT_S) is None
        store.processes.wait_next(timeout_ms=0, kinds=["research"], eager=True)
        assert next_run(store).process.id == "run-1"

    @pytest.mark.parametrize("cause", ["due", "asleep", "back-off", "claim", "lease"])
    def test_a_wait_for_a_run_ends_by_time_alone(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, cause: str
    ) -> None:
        start(store, due_at_ms=clock.now_ms() + HOUR_MS if cause == "due" else None)
        if cause == "lease":
            store.leases.claim(holdfast.leases.OnProcess("run-1"), owner_id="w1", ttl_ms=HOUR_MS)
        elif cause != "due":
            lease = next_run(store, ttl_ms=HOUR_MS).lease
            if cause == "asleep":
                store.processes.suspend(lease, seen=0, due_at_ms=clock.now_ms() + HOUR_MS)
            elif cause == "back-off":
                store.processes.retry_later(lease, "broke", retry_in_ms=HOUR_MS)
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        clock.advance(HOUR_MS)
        assert waiting.result(TIMEOUT_S) is None
        assert next_run(store).process.id == "run-1"

    def test_a_wait_continues_while_a_lease_is_renewed(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        start(store)
        lease = next_run(store, ttl_ms=HOUR_MS).lease
        clock.advance(10)
        store.leases.renew(lease, ttl_ms=HOUR_MS)
        clock.advance(HOUR_MS - 10)
        with pytest.raises(holdfast.WaitTimeout):
            store.processes.wait_next(timeout_ms=1)
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        clock.advance(10)
        assert waiting.result(TIMEOUT_S) is None
