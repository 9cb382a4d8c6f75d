"""A diagnosis names what is stuck: sessions, runs and schedules, each with its cause."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import Completed, Run
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Contract
from holdfast.testing.contract.explanations import HOUR_MS, WORKER, enqueued, named, only, report
from holdfast.testing.contract.queue import work
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo


class StuckWorkContract(Contract):
    """`store.maintenance.diagnose`, as far as it names work that no worker does."""

    def test_a_diagnosis_names_what_is_stuck(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store, ttl_ms=1_000)
        enqueued(store)
        store.queue.claim("chat", owner_id="w1", ttl_ms=HOUR_MS)
        store.processes.start("research", id="r1")
        store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        store.queue.enqueue(work("dead", session_id="mail"))
        claim = store.queue.claim("mail", owner_id="w2")
        assert claim is not None
        store.queue.fail(claim, "no answer", retry_in_ms=None)
        assert named(store) == {"dead-letters": ("mail",)}
        store.workers.heartbeat(WorkerInfo("w3", host="here", pid=9), ttl_ms=1)
        store.processes.start("research", id="r2")
        store.queue.enqueue(work("old", session_id="old"))
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research")))
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="1").deliveries
        clock.advance(5 * 60_000 + 1)
        assert named(store) == {
            "undelivered": (delivery.process_id,),
            "old-work": ("old",),
            "dead-workers": ("chat", "r1"),
            "dead-letters": ("mail",),
            "unclaimed-runs": ("r2",),
        }

    def test_a_diagnosis_names_a_session_whose_lease_a_dead_worker_holds(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        report(store, ttl_ms=1_000)
        store.sessions.create("chat")
        store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=HOUR_MS)
        assert named(store) == {}
        clock.advance(2_000)
        assert named(store) == {"dead-workers": ("chat",)}

    def test_a_diagnosis_names_and_explains_expired_leases(self, store: BlockingStore, clock: ManualClock) -> None:
        for id, ttl_ms in (("r1", 1_000), ("r2", 2_000)):
            store.processes.start("research", id=id)
            store.leases.claim(OnProcess(id), owner_id="w1", ttl_ms=ttl_ms)
        store.processes.start("research", id="released")
        store.leases.release(store.leases.claim(OnProcess("released"), owner_id="w1", ttl_ms=1_000))
        clock.advance(60_000)
        assert named(store) == {}
        clock.advance(2_001)
        assert named(store)["expired-leases"] == ("r1", "r2")
        stuck = store.maintenance.diagnose(integrity=False).stuck
        assert stuck is not None
        assert stuck.expired_leases == (("r1", "no-worker"), ("r2", "no-worker"))

    def test_an_expired_lease_on_a_session_holds_nothing_up(self, store: BlockingStore, clock: ManualClock) -> None:
        for id in ("chat", "revoked"):
            store.sessions.create(id)
            store.leases.claim(OnSession(id), owner_id="w1", ttl_ms=HOUR_MS)
        store.leases.revoke(OnSession("revoked"))
        clock.advance(2 * HOUR_MS)
        assert named(store) == {}

    def test_a_diagnosis_names_and_explains_the_work_that_has_waited_longest(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        for number in range(6):
            store.sessions.create(f"chat {number}")
        store.sessions.handle("chat 5").enqueue("hi")
        store.sessions.handle("chat 5").pause()
        clock.advance(1)
        store.sessions.handle("chat 4").enqueue("hi")
        clock.advance(60_000)
        assert named(store) == {"old-work": ("chat 5",)}, "a minute is enough for work that is stuck"
        for number in range(4):
            store.sessions.handle(f"chat {number}").enqueue("hi")
        clock.advance(1)
        assert named(store) == {"old-work": ("chat 5", "chat 4")}, "work that waits for a moment is not named instead"
        stuck = store.maintenance.diagnose(integrity=False).stuck
        assert stuck is not None
        assert stuck.ready_sessions == (("chat 5", "session-paused"), ("chat 4", "no-worker"))

    def test_paused_work_does_not_hide_the_other_work(self, store: BlockingStore, clock: ManualClock) -> None:
        for number in range(6):
            store.sessions.create(f"paused {number}").enqueue("hi")
            store.sessions.handle(f"paused {number}").pause()
            store.sessions.create(f"mail {number}").enqueue("hi", kind="mail")
            clock.advance(1)
        store.queue.pause("mail")
        store.sessions.create("chat").enqueue("hi")
        store.sessions.handle("chat").enqueue("hi", kind="mail")
        clock.advance(60_001)
        assert named(store) == {"old-work": ("paused 0", "mail 0", "paused 1", "mail 1", "chat")}

    def test_work_that_a_live_worker_handles_is_reported_after_five_minutes(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        report(store)
        enqueued(store)
        store.processes.start("research", id="r1")
        clock.advance(300_000)
        assert named(store) == {}, "the worker is busy"
        clock.advance(1)
        assert named(store) == {"old-work": ("chat",), "unclaimed-runs": ("r1",)}

    def test_a_diagnosis_names_the_oldest_due_run_of_each_kind(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store)
        store.processes.start("research", id="r1")
        clock.advance(1)
        store.processes.start("paused", id="r2")
        store.processes.start("paused", id="r3")
        store.queue.pause("paused")
        store.processes.start("unknown", id="r4")
        clock.advance(60_000)
        assert named(store) == {}, "those that are stuck have been due for a minute only"
        clock.advance(1)
        assert named(store) == {"unclaimed-runs": ("r1", "r2", "r4")}
        stuck = store.maintenance.diagnose(integrity=False).stuck
        assert stuck is not None
        assert stuck.due_runs == (("r1", "unclaimed"), ("r2", "kind-paused"), ("r4", "no-worker"))
        for id in ("r2", "r3", "r4"):
            store.processes.complete(id, Completed())
        assert named(store) == {}, "work that a live worker handles has five minutes"

    def test_a_tick_that_no_worker_fires_is_named(self, store: BlockingStore, clock: ManualClock) -> None:
        tick_ms = store.schedules.put("nightly", "0 3 * * *", run=Run("research")).next_tick_ms
        assert tick_ms is not None
        clock.advance(tick_ms - store.now_ms())
        cause = only(store.maintenance.explain_schedule("nightly"))
        assert (cause.name, cause.standing, cause.since_ms) == ("no-worker", "stuck", tick_ms)
        report(store)
        clock.advance(60_000)
        assert only(store.maintenance.explain_schedule("nightly")).name == "next-tick"
        assert named(store) == {}
        clock.advance(1)
        cause = only(store.maintenance.explain_schedule("nightly"))
        assert (cause.name, cause.standing, cause.since_ms) == ("tick-overdue", "stuck", tick_ms)
        assert named(store) == {"overdue-ticks": ("nightly",)}
        assert store.schedules.fire_next() is not None
        assert only(store.maintenance.explain_schedule("nightly")).name == "next-tick"
        assert named(store) == {}

    def test_a_diagnosis_names_handlers_that_are_over_their_time_limit(self, store: BlockingStore) -> None:
        batch_id = enqueued(store)
        store.queue.enqueue(work("in time", session_id="mail"))
        store.processes.start("research", id="r1")
        store.processes.start("research", id="r2")
        for id in ("chat", "mail"):
            store.queue.claim(id, owner_id="w1", ttl_ms=HOUR_MS)
        for _ in range(2):
            store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        store.workers.heartbeat(replace(WORKER, overdue={batch_id: 1_000, "r1": 1_000}), ttl_ms=HOUR_MS)
        assert named(store) == {"over-time-limit": ("chat", "r1")}
        for id in ("chat", "r1"):
            explain = store.maintenance.explain_session if id == "chat" else store.maintenance.explain_process
            assert only(explain(id)).name == "over-its-time-limit"
