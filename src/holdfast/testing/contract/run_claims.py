"""Claims on runs: the one due longest first, never under a live lease, and taken over when a holder dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import Lease, OnProcess
from holdfast.processes import Abandoned, Cancelled, Completed, External, Process, RunClaim, RunWait, SignalWait
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.runs import HOUR_MS, start

TTL_MS = 30_000


def next_run(store: BlockingStore, owner_id: str = "w1", **options: Any) -> RunClaim:
    """Claim a run. It must succeed."""
    given: dict[str, Any] = {"ttl_ms": TTL_MS, **options}
    claim = store.processes.claim_next(owner_id=owner_id, **given)
    assert claim is not None, "there was nothing to claim"
    return claim


def claimed_ids(store: BlockingStore, **options: Any) -> list[str]:
    """Claim every run, and return their ids in the order of the claims."""
    found: list[str] = []
    while (claim := store.processes.claim_next(owner_id="w1", **options)) is not None:
        found.append(claim.process.id)
    return found


def is_free(store: BlockingStore) -> bool:
    """Return whether a run can be claimed; if so, it is."""
    return store.processes.claim_next(owner_id="probe") is not None


def hand_over(store: BlockingStore, lease: Lease, value: Any = None, **options: Any) -> tuple[Process, RunClaim | None]:
    """End the run of a lease, and claim the next one."""
    return store.processes.complete_and_claim_next(lease, Completed(value), owner_id="w1", ttl_ms=TTL_MS, **options)


GIVING_BACK: dict[str, Callable[[BlockingStore, Lease], Any]] = {
    "release": lambda store, lease: store.leases.release(lease),
    "suspend": lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=0),
    "retry_later": lambda store, lease: store.processes.retry_later(lease, "broke", retry_in_ms=0),
}
"""Calls by which a holder gives a run back, so that it is due at once."""


HOLDING: dict[str, Callable[[BlockingStore, Lease], Any]] = {
    **GIVING_BACK,
    "append": lambda store, lease: store.events.append("run-1", "step", lease=lease),
    "complete": lambda store, lease: store.processes.complete("run-1", Completed(), lease=lease),
    "complete_and_claim_next": hand_over,
}
"""Calls that only the holder of a run may make."""


MISTAKES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("owner_id", lambda store, _: store.processes.claim_next(owner_id="")),
    ("kinds", lambda store, _: store.processes.claim_next(owner_id="w", kinds=[])),
    ("kinds", lambda store, _: store.processes.claim_next(owner_id="w", kinds="research")),
    ("kinds[0]", lambda store, _: store.processes.claim_next(owner_id="w", kinds=[("a",)])),
    ("kinds[0]", lambda store, _: store.processes.claim_next(owner_id="w", kinds=[("a", "1", "2")])),
    ("kinds[1][1]", lambda store, _: store.processes.claim_next(owner_id="w", kinds=["a", ("a", "")])),
    ("ttl_ms", lambda store, _: store.processes.claim_next(owner_id="w", ttl_ms=0)),
    ("timeout_ms", lambda store, _: store.processes.wait_next(timeout_ms=-1)),
    ("lease", lambda store, _: store.processes.suspend("lease", seen=0, due_at_ms=0)),
    ("seen", lambda store, lease: store.processes.suspend(lease, seen=-1, due_at_ms=0)),
    ("seen", lambda store, lease: store.processes.suspend(lease, seen=1, due_at_ms=0)),
    ("due_at_ms", lambda store, lease: store.processes.suspend(lease, seen=0)),
    ("due_at_ms", lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=-1)),
    ("wait", lambda store, lease: store.processes.suspend(lease, seen=0, wait="approve")),
    ("waits", lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=0, waits=7)),
    ("waits[0]", lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=0, waits=["sleep"])),
    (
        "waits[1].kind",
        lambda store, lease: store.processes.suspend(
            lease, seen=0, due_at_ms=0, waits=[RunWait("sleep"), RunWait("worker")]
        ),
    ),
    (
        "waits[0].name",
        lambda store, lease: store.processes.suspend(
            lease, seen=0, due_at_ms=0, waits=[RunWait("signal", cast("Any", 7))]
        ),
    ),
    (
        "waits[0].until_ms",
        lambda store, lease: store.processes.suspend(lease, seen=0, due_at_ms=0, waits=[RunWait("sleep", None, -1)]),
    ),
    ("error", lambda store, lease: store.processes.retry_later(lease, 7, retry_in_ms=0)),
    ("retry_in_ms", lambda store, lease: store.processes.retry_later(lease, "e", retry_in_ms=-1)),
]
"""The field that a call gets wrong, and the call."""


class RunClaimContract(Contract):
    """`store.processes.claim_next`, `suspend` and `retry_later`, and `leases.release` of a run."""

    # Choosing.

    def test_a_due_run_is_claimed_with_its_lease_and_none_means_none(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        assert store.processes.claim_next(owner_id="w1") is None
        start(store, args=[1])
        clock.advance(5)
        claim = next_run(store)
        assert (claim.process.id, claim.process.input.args) == ("run-1", [1])  # type: ignore[union-attr]
        assert (claim.process.attempt, claim.takeover, claim.must_abandon) == (1, False, False)
        assert claim.process == store.processes.get("run-1")
        assert (claim.lease.owner_id, claim.lease.expires_at_ms) == ("w1", clock.now_ms() + TTL_MS)
        holder = store.leases.holder(OnProcess("run-1"))
        assert holder is not None
        assert (holder.owner_id, holder.fence) == ("w1", claim.lease.fence)
        assert store.processes.claim_next(owner_id="w1") is None
        assert store.processes.complete("run-1", Completed(), lease=claim.lease).status == "completed"
        assert store.processes.claim_next(owner_id="w1") is None
        assert store.maintenance.verify().findings == ()

    def test_the_run_that_has_been_due_longest_comes_first(self, store: BlockingStore, clock: ManualClock) -> None:
        now_ms = clock.now_ms()
        for process_id, due_at_ms in (("c", 3), ("a", 2), ("b", 1), ("d", 1)):
            start(store, process_id, due_at_ms=now_ms + due_at_ms)
        assert claimed_ids(store) == []
        clock.advance(2)
        assert claimed_ids(store) == ["b", "d", "a"]
        clock.advance(1)
        assert claimed_ids(store) == ["c"]

    def test_only_runs_of_the_wanted_kinds_and_versions_are_claimed(self, store: BlockingStore) -> None:
        for number, (kind, version) in enumerate([("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("c", "1")]):
            start(store, f"{kind}{version}", kind, version=version, due_at_ms=100 - number)
        assert claimed_ids(store, kinds=["none", ("a", "3")]) == []
        assert claimed_ids(store, kinds=[("b", "1"), ("a", "2")]) == ["b1", "a2"]
        assert claimed_ids(store, kinds=["c", "a", ("a", "1")]) == ["c1", "a1"]
        assert claimed_ids(store) == ["b2"]

    def test_other_processes_and_external_runs_are_never_claimed(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        start(store, recovery="external")
        assert claimed_ids(store) == []
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w1", ttl_ms=TTL_MS)
        assert store.leases.release(lease)
        store.events.request_cancel("run-1")
        assert claimed_ids(store) == []
        assert store.maintenance.verify().findings == ()

    # Leases.

    def test_a_run_under_a_live_lease_is_passed_however_it_was_taken(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store)
        start(store, "run-2")
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w1", ttl_ms=TTL_MS)
        assert claimed_ids(store, ttl_ms=HOUR_MS) == ["run-2"]
        store.leases.renew(lease, ttl_ms=2 * TTL_MS)
        clock.advance(TTL_MS)
        assert claimed_ids(store) == []
        clock.advance(TTL_MS)
        assert claimed_ids(store) == ["run-1"]

    def test_a_renewed_claim_is_not_taken_over(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store)
        claim = next_run(store)
        clock.advance(TTL_MS - 1)
        store.leases.renew(claim.lease, ttl_ms=TTL_MS)
        clock.advance(TTL_MS - 1)
        assert store.processes.claim_next(owner_id="w2") is None
        clock.advance(1)
        taken = next_run(store, "w2")
        assert (taken.takeover, taken.must_abandon, taken.process.lost_owner_id) == (True, False, "w1")
        assert (taken.process.attempt, taken.lease.fence > claim.lease.fence) == (2, True)

    @pytest.mark.parametrize("call", HOLDING)
    def test_a_holder_whose_run_was_taken_over_is_refused(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, call: str
    ) -> None:
        start(store)
        lease = next_run(store).lease
        clock.advance(TTL_MS)
        next_run(store, "w2")
        if call == "release":
            assert not store.leases.release(lease)
            return
        with refused(bench, holdfast.LeaseLost):
            HOLDING[call](store, lease)

    @pytest.mark.parametrize("call", GIVING_BACK)
    def test_a_run_that_was_given_back_can_be_claimed_at_once_without_a_takeover(
        self, store: BlockingStore, call: str
    ) -> None:
        start(store)
        claim = next_run(store, ttl_ms=HOUR_MS)
        GIVING_BACK[call](store, claim.lease)
        assert store.leases.holder(OnProcess("run-1")) is None
        again = next_run(store, "w2")
        assert (again.takeover, again.lease.fence) == (False, claim.lease.fence + 1)
        assert store.maintenance.verify().findings == ()

    # Attempts.

    def test_a_claim_counts_as_an_attempt_unless_it_is_released(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store)
        start(store, "run-2")
        store.leases.release(next_run(store).lease)
        released = store.processes.get("run-1")
        assert released is not None
        assert (released.attempt, released.due_at_ms) == (0, clock.now_ms())
        assert next_run(store).process.id == "run-1", "it kept its place"
        clock.advance(TTL_MS)
        assert next_run(store).process.id == "run-2"
        taken = next_run(store)
        assert (taken.process.id, taken.process.attempt) == ("run-1", 2)
        store.leases.release(taken.lease)
        assert next_run(store).process.attempt == 2

    def test_releasing_a_lease_that_no_claim_took_changes_no_attempt(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store)
        next_run(store)
        clock.advance(TTL_MS)
        lease = store.leases.claim(OnProcess("run-1"), owner_id="w2", ttl_ms=TTL_MS)
        store.leases.release(lease)
        assert next_run(store).process.attempt == 2

    def test_a_failed_attempt_keeps_its_error_and_waits(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store)
        run = store.processes.retry_later(next_run(store).lease, "no answer", retry_in_ms=100)
        assert (run.attempt, run.last_error, run.due_at_ms) == (1, "no answer", clock.now_ms() + 100)
        assert run == store.processes.get("run-1")
        store.events.signal("run-1", "go")
        clock.advance(99)
        assert claimed_ids(store) == [], "a signal does not shorten a back-off"
        clock.advance(1)
        again = next_run(store)
        assert (again.process.attempt, again.process.last_error) == (2, "no answer")

    # Sleeping.

    def test_a_suspended_run_sleeps_until_it_is_due(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store)
        claim = next_run(store)
        store.processes.retry_later(claim.lease, "no answer", retry_in_ms=0)
        due_at_ms = clock.now_ms() + HOUR_MS
        run = store.processes.suspend(next_run(store).lease, seen=0, due_at_ms=due_at_ms)
        assert (run.suspended, run.due_at_ms, run.attempt, run.last_error) == (True, due_at_ms, 0, None)
        assert (run.status, run.wait) == ("running", None)
        clock.advance(HOUR_MS - 1)
        assert claimed_ids(store) == []
        clock.advance(1)
        woken = next_run(store)
        assert (woken.process.suspended, woken.process.attempt) == (False, 1)

    def test_a_held_run_keeps_its_error_and_its_attempts_until_it_is_due(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store)
        store.processes.retry_later(next_run(store).lease, "no answer", retry_in_ms=0)
        for _ in range(2):
            claim = next_run(store)
            assert claim.process.attempt == 2
            due_at_ms = clock.now_ms() + HOUR_MS
            run = store.processes.suspend(claim.lease, seen=0, due_at_ms=due_at_ms, error="its code has changed")
            assert (run.is_held, run.attempt, run.last_error) == (True, 1, "its code has changed")
            assert run == store.processes.get("run-1")
            assert store.maintenance.verify().findings == ()
            assert claimed_ids(store) == []
            clock.advance(HOUR_MS)
        claim = next_run(store)
        assert (claim.process.is_held, claim.process.last_error) == (False, "its code has changed")
        run = store.processes.suspend(claim.lease, seen=0, due_at_ms=clock.now_ms() + HOUR_MS)
        assert (run.is_held, run.attempt, run.last_error) == (False, 0, None)
        store.events.signal("run-1", "go")
        claim = next_run(store)
        later_ms = clock.now_ms() + HOUR_MS
        store.processes.suspend(claim.lease, seen=1, due_at_ms=later_ms, error="its code has changed")
        store.events.signal("run-1", "go")
        assert claimed_ids(store) == ["run-1"], "a signal wakes a held run"

    @pytest.mark.parametrize("call", ["signal", "append", "cancel"])
    def test_a_signal_or_a_request_to_cancel_wakes_a_suspended_run(
        self, store: BlockingStore, clock: ManualClock, call: str
    ) -> None:
        start(store)
        wait = SignalWait("approve", 1)
        run = store.processes.suspend(next_run(store).lease, seen=0, wait=wait)
        assert (run.due_at_ms, run.suspended) == (None, True)
        assert run.wait == msgspec.structs.replace(wait, since_ms=clock.now_ms())
        assert [one.id for one in store.processes.list(waiting=True)] == ["run-1"]
        store.events.append("run-1", "progress", 1)
        assert claimed_ids(store) == [], "only a signal wakes"
        clock.advance(7)
        calls: dict[str, Callable[[], Any]] = {
            "signal": lambda: store.events.signal("run-1", "other"),
            "append": lambda: store.events.append("run-1", "signal.approve"),
            "cancel": lambda: store.events.request_cancel("run-1"),
        }
        calls[call]()
        woken = store.processes.get("run-1")
        assert woken is not None
        assert woken.due_at_ms == clock.now_ms()
        claim = next_run(store)
        assert (claim.process.wait, claim.process.event_count) == (None, 2)
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize("wait", [None, SignalWait("approve", 1)], ids=["time", "signal"])
    def test_a_suspended_run_lists_its_waits_until_it_is_claimed(
        self, store: BlockingStore, clock: ManualClock, wait: SignalWait | None
    ) -> None:
        start(store)
        due_at_ms = clock.now_ms() + HOUR_MS
        waits = [RunWait("sleep", None, due_at_ms), RunWait("child", "run-1/child:1"), RunWait("step retry", "call", 9)]
        lease = next_run(store).lease
        run = store.processes.suspend(lease, seen=0, due_at_ms=due_at_ms, wait=wait, waits=waits)
        assert run == store.processes.get("run-1")
        assert (run.waits, run.due_at_ms) == (tuple(waits), due_at_ms)
        assert run.wait == (None if wait is None else msgspec.structs.replace(wait, since_ms=clock.now_ms()))
        assert [one.id for one in store.processes.list(waiting=True)] == ([] if wait is None else ["run-1"])
        assert store.maintenance.verify().findings == ()
        clock.advance(HOUR_MS)
        claimed = next_run(store).process
        assert (claimed.waits, claimed.wait) == ((), None)

    def test_a_signal_that_came_before_the_sleep_is_not_missed(self, store: BlockingStore, clock: ManualClock) -> None:
        start(store)
        lease = next_run(store).lease
        store.events.append("run-1", "step", lease=lease)
        store.events.signal("run-1", "approve")
        run = store.processes.suspend(lease, seen=1, due_at_ms=clock.now_ms() + HOUR_MS)
        assert (run.due_at_ms, run.suspended) == (clock.now_ms(), True)
        lease = next_run(store).lease
        assert store.processes.suspend(lease, seen=2, wait=SignalWait("x", 1)).due_at_ms is None

    def test_a_run_that_is_not_due_yet_starts_on_a_request_to_cancel_only(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store, due_at_ms=clock.now_ms() + HOUR_MS)
        store.events.signal("run-1", "go")
        assert claimed_ids(store) == []
        store.events.request_cancel("run-1")
        assert claimed_ids(store) == ["run-1"]

    def test_a_signal_to_a_claimed_run_leaves_it_to_its_holder(self, store: BlockingStore) -> None:
        start(store)
        next_run(store)
        store.events.signal("run-1", "go")
        store.events.request_cancel("run-1")
        assert claimed_ids(store) == []

    # Recovery.

    def test_an_owner_bound_run_of_a_lost_holder_is_only_handed_out_to_be_abandoned(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store, recovery="owner_bound")
        store.leases.release(next_run(store).lease)
        assert not next_run(store, "w1").must_abandon, "its holder gave it back"
        clock.advance(TTL_MS)
        for owner_id in ("w2", "w3"):
            claim = next_run(store, owner_id)
            assert (claim.takeover, claim.must_abandon) == (True, True)
            assert (claim.process.lost_owner_id, claim.process.attempt) == ("w1", 1)
            store.leases.release(claim.lease)
        claim = next_run(store, "w4")
        outcome = Abandoned("its worker died", {"owner": claim.process.lost_owner_id})
        ended = store.processes.complete("run-1", outcome, lease=claim.lease)
        assert (ended.status, ended.outcome, ended.lost_owner_id) == ("abandoned", outcome, "w1")
        assert store.maintenance.verify().findings == ()

    # Mistakes.

    @pytest.mark.parametrize("number", range(len(MISTAKES)))
    def test_a_wrong_call_is_refused_and_the_field_is_named(
        self, store: BlockingStore, bench: Bench, number: int
    ) -> None:
        field, call = MISTAKES[number]
        start(store)
        lease = next_run(store).lease
        with refused(bench, holdfast.InvalidRequest) as info:
            call(store, lease)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    def test_only_a_run_sleeps(self, store: BlockingStore, bench: Bench) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        lease = store.leases.claim(OnProcess("build"), owner_id="w1", ttl_ms=TTL_MS)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.suspend(lease, seen=0, due_at_ms=0)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "lease.resource"

    @pytest.mark.parametrize("call", ["suspend", "retry_later"])
    def test_a_run_that_ended_sleeps_no_more(self, store: BlockingStore, bench: Bench, call: str) -> None:
        start(store)
        lease = next_run(store).lease
        store.processes.complete("run-1", Cancelled())
        with refused(bench, holdfast.AlreadyTerminal):
            GIVING_BACK[call](store, lease)

    def test_the_end_of_a_run_comes_with_the_claim_of_the_next(self, store: BlockingStore) -> None:
        for number, (name, kind) in enumerate([("run-1", "a"), ("run-3", "b"), ("run-2", "a"), ("run-4", "b")]):
            store.processes.start(kind, id=name, due_at_ms=number)
        first = next_run(store)
        ended, second = hand_over(store, first.lease, 42, kinds=["a"])
        assert ended == store.processes.get("run-1")
        assert ended.outcome == Completed(42)
        assert second is not None
        assert (second.process, second.process.attempt) == (store.processes.get("run-2"), 1)
        assert store.leases.renew(second.lease, ttl_ms=TTL_MS).fence == second.lease.fence
        assert not store.leases.release(first.lease)
        large = "x" * 300_000  # judged before the transaction, and not in it
        ended, third = hand_over(store, second.lease, large)
        assert ended.outcome == Completed(large)
        assert third is not None
        assert third.process.id == "run-3"
        assert hand_over(store, third.lease, kinds=["a"])[1] is None
        assert claimed_ids(store) == ["run-4"]

    def test_a_repeated_end_counts_once_and_a_refused_one_claims_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        for name in ("run-1", "run-2", "run-3"):
            start(store, name)
        lease = next_run(store).lease
        first, second = [hand_over(store, lease, 1) for _ in range(2)]
        assert first[0] == second[0]
        assert [None if each is None else each.process.id for _, each in (first, second)] == ["run-2", "run-3"]
        with refused(bench, holdfast.errors.ReplayConflict):
            hand_over(store, lease, 2)
        assert second[1] is not None
        start(store, "run-4")
        clock.advance(TTL_MS)
        lost = second[1].lease
        assert claimed_ids(store) == ["run-4", "run-2", "run-3"]
        start(store, "run-5")
        with refused(bench, holdfast.LeaseLost):
            hand_over(store, lost)
        assert claimed_ids(store) == ["run-5"]

    @pytest.mark.parametrize("attempt", [10**9 + 1, 2**62, 2**63 - 1])
    def test_a_run_whose_attempts_cannot_be_counted_up_is_not_restored(
        self, store: BlockingStore, bench: Bench, attempt: int
    ) -> None:
        run = msgspec.structs.replace(start(store), id="run-2", attempt=attempt)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.processes.restore(run, [])
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "process.attempt"

    def test_a_restored_run_continues_where_it_was(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        start(store)
        store.processes.retry_later(next_run(store).lease, "no answer", retry_in_ms=100)
        clock.advance(100)
        claimed = next_run(store).process
        due_at_ms = clock.now_ms() + HOUR_MS
        start(store, "run-2")
        waits = [RunWait("sleep", None, due_at_ms), RunWait("child", "c")]
        asleep = store.processes.suspend(next_run(store).lease, seen=0, due_at_ms=due_at_ms, waits=waits)
        with holdfast.open_blocking("memory:", clock=clock) as other:
            for process in (claimed, asleep):
                assert not other.processes.restore(process).replayed
                assert other.processes.restore(process).replayed
            assert other.processes.get("run-2") == asleep
            again = next_run(other)
            assert (again.process.id, again.process.attempt, again.process.last_error) == ("run-1", 3, "no answer")
            assert claimed_ids(other) == []
            clock.advance(HOUR_MS)
            assert "run-2" in claimed_ids(other)
            assert other.maintenance.verify().findings == ()
        broken: list[dict[str, Any]] = [
            {"due_at_ms": None, "suspended": False},
            {"suspended": False},
            {"waits": [RunWait("claim")]},
        ]
        for fields in broken:
            with refused(bench, holdfast.InvalidRequest):
                store.processes.restore(msgspec.structs.replace(asleep, id="run-3", **fields))
