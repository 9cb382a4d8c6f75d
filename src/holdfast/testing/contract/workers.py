"""Workers: one call renews everything that a worker holds, the live ones are listed, and a dead one can be replaced."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.queue import Group
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.queue import work
from holdfast.workers import Heartbeat, WorkerInfo, WorkerRelease

DAY_MS = 24 * 3_600_000
ME = WorkerInfo(
    "w1", host="here", pid=7, kinds=("turn",), running=("b1",), boot_id="b", pid_namespace="n", process_start="1"
)


def claimed(store: BlockingStore, session_id: str, *, ttl_ms: int = 1_000, owner_id: str = "w1") -> holdfast.WorkClaim:
    """Claim new work of a session."""
    store.queue.enqueue(work(session_id, session_id=session_id))
    claim = store.queue.claim(session_id, owner_id=owner_id, ttl_ms=ttl_ms)
    assert claim is not None
    return claim


def leased(store: BlockingStore, run_id: str, *, ttl_ms: int = 1_000, owner_id: str = "w1") -> Lease:
    """Claim a new run."""
    store.processes.start("research", id=run_id)
    claim = store.processes.claim_next(owner_id=owner_id, ttl_ms=ttl_ms)
    assert claim is not None
    return claim.lease


class WorkerContract(Contract):
    """`store.workers`."""

    def test_a_heartbeat_renews_all_claims_and_leases_at_once(self, store: BlockingStore, clock: ManualClock) -> None:
        claims = [claimed(store, name) for name in ("a", "b")]
        session = store.leases.claim(OnSession("c"), owner_id="w1", ttl_ms=1_000)
        leases = [leased(store, "r1"), session]
        clock.advance(999)
        answer = store.workers.heartbeat(ttl_ms=5_000, claims=claims, leases=leases)
        ends = [one.expires_at_ms for one in (*answer.claims, *answer.leases) if one is not None]
        assert ends == [clock.now_ms() + 5_000] * 4
        assert [one and one.claim_id for one in answer.claims] == [one.claim_id for one in claims]
        clock.advance(4_999)
        for claim in answer.claims:
            assert claim is not None
            store.queue.complete(claim)
        store.processes.complete("r1", Completed(), lease=leases[0])
        holder = store.leases.holder(OnSession("c"))
        assert holder is not None
        assert list(store.workers.list()) == [], "a heartbeat without a worker lists none"

    def test_everything_that_a_worker_holds_is_renewed_by_its_id(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        lost = claimed(store, "lost")
        clock.advance(1_000)
        for text in ("1", "2"):
            store.queue.enqueue(work(text, session_id="a", merge_key=Group("g")))
        both = store.queue.claim("a", owner_id="w1", ttl_ms=1_000, max_batches=2)
        assert both is not None
        assert len(both.batches) == 2
        own, lease = claimed(store, "b"), leased(store, "r1")
        other, long = claimed(store, "c", owner_id="w2"), claimed(store, "d", ttl_ms=DAY_MS)
        clock.advance(999)
        assert store.workers.renew("w1", ttl_ms=5_000) == 4
        assert store.workers.renew("w3", ttl_ms=5_000) == 0
        clock.advance(4_999)
        for claim in (both, own, long):
            store.queue.complete(claim)
        store.processes.complete("r1", Completed(), lease=lease)
        for claim in (lost, other):
            with pytest.raises(holdfast.ClaimLost):
                store.queue.complete(claim)

    def test_a_lost_claim_does_not_keep_the_others_from_being_renewed(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        gone, kept, deleted = (claimed(store, name) for name in ("gone", "kept", "deleted"))
        ended, held = leased(store, "r1"), leased(store, "r2")
        store.queue.complete(gone)
        store.sessions.delete("deleted")
        store.processes.complete("r1", Completed())
        answer = store.workers.heartbeat(ME, ttl_ms=5_000, claims=[gone, kept, deleted], leases=[ended, held])
        assert [one is not None for one in answer.claims] == [False, True, False]
        assert [one is not None for one in answer.leases] == [False, True]
        clock.advance(5_000)
        again = store.workers.heartbeat(ME, ttl_ms=5_000, claims=[kept], leases=[held])
        assert again == Heartbeat((None,), (None,)), "an expired one cannot be renewed"

    def test_a_renewal_by_heartbeat_never_shortens_and_follows_a_wider_claim(self, store: BlockingStore) -> None:
        claim = claimed(store, "chat", ttl_ms=DAY_MS)
        store.queue.enqueue(work("more", session_id="chat"))
        wider = store.queue.claim("chat", owner_id="w1", holding=claim, ttl_ms=DAY_MS)
        assert wider is not None
        [renewed] = store.workers.heartbeat(ttl_ms=1, claims=[claim]).claims
        assert renewed is not None
        assert renewed.expires_at_ms == wider.expires_at_ms
        assert len(store.queue.complete(wider).batch_ids) == 2

    def test_live_workers_are_listed_until_they_leave_or_expire(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        began_ms = clock.now_ms()
        for number in range(3):
            store.workers.heartbeat(WorkerInfo(f"w{number}", host="here", pid=number), ttl_ms=1_000)
        clock.advance(900)
        store.workers.heartbeat(ME, ttl_ms=1_000)
        assert [one.id for one in bench.open().workers.list()] == ["w0", "w1", "w2"]
        first = store.workers.list(limit=2)
        assert [one.id for one in store.workers.list(after=first.next)] == ["w2"]
        clock.advance(100)
        [left] = store.workers.list()
        assert (left.started_at_ms, left.heartbeat_at_ms) == (began_ms, began_ms + 900)
        assert left.expires_at_ms == began_ms + 1_900
        assert (left.host, left.pid, left.kinds, left.running) == ("here", 7, ("turn",), ("b1",))
        assert (left.boot_id, left.pid_namespace, left.process_start) == ("b", "n", "1")
        assert (store.workers.leave("w1"), store.workers.leave("w1")) == (True, False)
        assert list(store.workers.list()) == []
        assert store.maintenance.verify().findings == ()

    def test_workers_that_did_not_leave_are_forgotten_when_others_start(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        store.workers.heartbeat(ME, ttl_ms=1_000)
        clock.advance(1_000 + DAY_MS - 1)
        store.workers.heartbeat(WorkerInfo("w2", host="here", pid=8), ttl_ms=1_000)
        assert len(bench.dump()["workers"]) == 2
        clock.advance(1)
        store.workers.heartbeat(WorkerInfo("w3", host="here", pid=9), ttl_ms=1_000)
        assert [row[0] for row in bench.dump()["workers"]] == ["w2", "w3"]

    def test_work_of_a_dead_worker_can_be_claimed_at_once(self, store: BlockingStore, bench: Bench) -> None:
        held = claimed(store, "chat", ttl_ms=DAY_MS)
        other = claimed(store, "other", ttl_ms=DAY_MS, owner_id="w2")
        lease = leased(store, "r1", ttl_ms=DAY_MS)
        waiting = in_background(lambda: bench.open().queue.wait_next(timeout_ms=TIMEOUT_S * 1_000))
        bench.parked()
        assert store.workers.release("w1") == WorkerRelease(batches=1, runs=1)
        waiting.result(TIMEOUT_S)
        assert store.workers.release("w1") == WorkerRelease(batches=0, runs=0)
        taken = store.queue.claim_next(owner_id="w2", exclusive=True)
        assert taken is not None
        assert (taken.session_id, taken.batches[0].attempts) == ("chat", 2)
        run = store.processes.claim_next(owner_id="w2")
        assert run is not None
        assert (run.takeover, run.process.lost_owner_id, run.process.attempt) == (True, "w1", 2)
        with refused(bench, holdfast.ClaimLost):
            store.queue.complete(held)
        with refused(bench, holdfast.LeaseLost):
            store.processes.complete("r1", Completed(), lease=lease)
        store.queue.complete(other)
        assert store.maintenance.verify().findings == ()

    def test_a_lease_on_a_process_that_no_worker_runs_ends_with_its_worker(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        store.leases.claim(OnProcess("build"), owner_id="w1", ttl_ms=DAY_MS)
        assert store.workers.release("w1") == WorkerRelease(batches=0, runs=1)
        assert store.leases.holder(OnProcess("build")) is None

    def test_the_lease_of_a_dead_worker_on_a_session_ends_with_it(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat")
        lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=DAY_MS)
        store.sessions.create("other")
        store.leases.claim(OnSession("other"), owner_id="w2", ttl_ms=DAY_MS)
        store.queue.enqueue(work("hi"))
        assert store.queue.claim_next(owner_id="w2") is None
        waiting = in_background(lambda: bench.open().queue.wait_next(timeout_ms=TIMEOUT_S * 1_000))
        bench.parked()
        assert store.workers.release("w1") == WorkerRelease(batches=0, runs=0, sessions=1)
        waiting.result(TIMEOUT_S)
        assert store.workers.release("w1") == WorkerRelease(batches=0, runs=0)
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(lease, ttl_ms=1)
        assert store.leases.holder(OnSession("other")) is not None
        assert store.queue.claim_next(owner_id="w2") is not None

    def test_a_session_is_not_reserved_for_a_dead_worker_whose_turn_was_interrupted(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("poem"))
        store.queue.enqueue(work("next"))
        assert store.queue.claim_next(owner_id="w1", exclusive=True, max_batches=1) is not None
        assert len(store.sessions.handle("chat").interrupt()) == 1
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        assert store.workers.release("w1").sessions == 1
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is not None

    def test_the_sessions_that_dead_workers_hold_are_listed(self, store: BlockingStore, clock: ManualClock) -> None:
        for name in ("b", "a", "c"):
            claimed(store, name, ttl_ms=DAY_MS)
        store.leases.claim(OnSession("a"), owner_id="w1", ttl_ms=DAY_MS)
        store.sessions.create("leased")
        store.leases.claim(OnSession("leased"), owner_id="w2", ttl_ms=DAY_MS)
        claimed(store, "worked on", ttl_ms=DAY_MS, owner_id="w3")
        for id, ttl_ms in (("w0", 1), ("w1", 1), ("w2", 1), ("w3", DAY_MS)):
            store.workers.heartbeat(WorkerInfo(id, host="here", pid=7), ttl_ms=ttl_ms)
        assert list(store.workers.held_sessions()) == []
        clock.advance(2)
        assert list(store.workers.held_sessions()) == ["a", "b", "c", "leased"]
        assert [*holdfast.every(store.workers.held_sessions, limit=1)] == ["a", "b", "c", "leased"]
        assert store.workers.held_sessions(limit=4).next is None

    def test_a_claim_or_a_lease_is_named_once(self, store: BlockingStore, bench: Bench) -> None:
        claim, lease = claimed(store, "chat"), leased(store, "r1")
        with refused(bench, holdfast.InvalidRequest) as info:
            store.workers.heartbeat(ttl_ms=1, claims=[claim, claim])
        assert "claims[1]" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.workers.heartbeat(ttl_ms=1, leases=[lease, lease])
        assert "leases[1]" in str(info.value)
