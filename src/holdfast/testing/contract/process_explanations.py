"""Explanations: each cause for which a process does not continue is named, with its remedy."""

from __future__ import annotations

from functools import partial

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess
from holdfast.processes import (
    Abandoned,
    Completed,
    Engine,
    External,
    Failed,
    ProcessOutcome,
    RunWait,
    SignalWait,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Contract
from holdfast.testing.contract.explanations import HOUR_MS, named, only, report


class ProcessExplanationContract(Contract):
    """`store.maintenance.explain_process`."""

    def test_a_run_of_a_paused_kind_says_so_once_it_is_due(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store, ttl_ms=3 * HOUR_MS)
        store.processes.start("research", id="r1", due_at_ms=clock.now_ms() + 9_000)
        store.queue.pause("research")
        explain = partial(store.maintenance.explain_process, "r1")
        assert only(explain()).name == "sleeping"
        clock.advance(HOUR_MS)
        cause = only(explain())
        assert (cause.name, cause.standing, cause.remedy) == ("kind-paused", "stuck", ("queue", "resume", "research"))
        assert named(store) == {"unclaimed-runs": ("r1",)}
        stuck = store.maintenance.diagnose(integrity=False).stuck
        assert stuck is not None
        assert stuck.due_runs == (("r1", "kind-paused"),)
        store.queue.resume("research")
        assert only(explain()).name == "unclaimed"
        assert named(store)["unclaimed-runs"] == ("r1",)

    def test_a_run_says_what_it_waits_for(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store, ttl_ms=3 * HOUR_MS)
        store.processes.start("research", id="r1")
        explain = partial(store.maintenance.explain_process, "r1")
        assert only(explain()).name == "unclaimed"
        claim = store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        assert claim is not None
        cause = only(explain())
        assert (cause.name, cause.standing, cause.attempt) == ("running", "works", 1)
        store.processes.retry_later(claim.lease, "no answer", retry_in_ms=2_000)
        cause = only(explain())
        assert (cause.name, cause.error, cause.next_at_ms) == ("retrying", "no answer", clock.now_ms() + 2_000)
        clock.advance(2_000)
        claim = store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        assert claim is not None
        store.processes.suspend(claim.lease, seen=0, due_at_ms=clock.now_ms() + 9_000)
        cause = only(explain())
        assert (cause.name, cause.next_at_ms) == ("sleeping", clock.now_ms() + 9_000)
        clock.advance(9_000)
        claim = store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        assert claim is not None
        store.processes.suspend(claim.lease, seen=0, due_at_ms=clock.now_ms() + 9_000, error="step 'plan' is another")
        cause = only(explain())
        assert (cause.name, cause.standing, cause.error) == ("code-changed", "stuck", "step 'plan' is another")
        assert cause.next_at_ms == clock.now_ms() + 9_000
        clock.advance(9_000)
        claim = store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        assert claim is not None
        store.processes.suspend(claim.lease, seen=0, wait=SignalWait("approve", ordinal=1))
        explained = explain()
        cause = only(explained)
        assert (explained.standing, cause.name) == ("waits", "waits-for-a-signal")
        assert cause.remedy == ("processes", "signal", "r1", "approve")
        store.events.signal("r1", "approve")
        assert only(explain()).name == "unclaimed"

    def test_a_run_of_a_dead_worker_can_be_taken_over_after_its_lease_was_revoked(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        report(store, ttl_ms=1_000)
        store.processes.start("research", id="r1")
        store.processes.claim_next(owner_id="w1", ttl_ms=HOUR_MS)
        clock.advance(1_000)
        cause = only(store.maintenance.explain_process("r1"))
        assert (cause.name, cause.standing) == ("lease-of-a-dead-worker", "stuck")
        assert cause.remedy == ("leases", "release", "--process", "r1")
        assert store.leases.revoke(OnProcess("r1")) is not None
        claim = store.processes.claim_next(owner_id="w2")
        assert claim is not None
        assert (claim.process.id, claim.takeover) == ("r1", True)

    def test_ends_are_distinguished(self, store: BlockingStore) -> None:
        names: dict[str, tuple[str, str]] = {}
        ends: tuple[ProcessOutcome, ...] = (Completed(1), Failed("broken"), Abandoned("gone"))
        for number, outcome in enumerate(ends):
            store.processes.start("research", id=f"r{number}")
            store.processes.complete(f"r{number}", outcome)
            explained = store.maintenance.explain_process(f"r{number}")
            names[only(explained).name] = (explained.standing, only(explained).error or "")
        assert names == {
            "completed": ("idle", ""),
            "failed": ("stuck", "broken"),
            "abandoned": ("stuck", "gone"),
        }

    def test_a_run_that_continues_under_another_id_names_it(self, store: BlockingStore) -> None:
        store.processes.start("research", id="r1")
        store.processes.complete("r1", Completed(None, {"continued_as": "r1~2"}))
        cause = only(store.maintenance.explain_process("r1"))
        assert (cause.name, cause.standing, cause.subject_id) == ("continued", "idle", "r1~2")
        assert cause.remedy == ("why", "r1~2")

    def test_a_run_that_waits_for_its_child_says_so(self, store: BlockingStore, clock: ManualClock) -> None:
        store.processes.start("research", id="r1")
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        until_ms = clock.now_ms() + 1_000
        store.processes.suspend(claim.lease, seen=0, due_at_ms=until_ms, wait=SignalWait("holdfast-child", ordinal=1))
        cause = only(store.maintenance.explain_process("r1"))
        assert (cause.name, cause.next_at_ms, cause.remedy) == ("waits-for-a-child", until_ms, ("runs", "show", "r1"))

    def test_a_run_that_waits_for_a_stuck_child_is_stuck_with_it(self, store: BlockingStore) -> None:
        for id, waited_for in (("r1", "c1"), ("c1", "c2")):
            store.processes.start("research", id=id)
            claim = store.processes.claim_next(owner_id="w1", kinds=["research"])
            assert claim is not None
            wait = SignalWait("holdfast-child", ordinal=1)
            store.processes.suspend(claim.lease, seen=0, wait=wait, waits=[RunWait("child", waited_for)])
        store.processes.start("mail", id="c2")
        store.workers.heartbeat(holdfast.workers.WorkerInfo("w1", host="here", pid=7, kinds=("mail",)), ttl_ms=1_000)
        cause = only(store.maintenance.explain_process("r1"))
        assert (cause.name, cause.standing, cause.remedy) == ("waits-for-a-child", "waits", ("why", "c1"))
        store.queue.pause("mail")
        for id, waited_for in (("r1", "c1"), ("c1", "c2")):
            explained = store.maintenance.explain_process(id)
            cause = only(explained)
            assert (explained.standing, cause.name, cause.subject_id) == ("stuck", "waits-for-a-child", waited_for)
            assert cause.remedy == ("queue", "resume", "mail")
            assert "kind 'mail' is paused" in cause.problem
        store.queue.resume("mail")
        assert store.maintenance.explain_process("r1").standing == "waits"
        store.processes.complete("c2", Failed("no answer"))
        assert only(store.maintenance.explain_process("c1")).standing == "waits", "the end of a child wakes its parent"

    def test_a_run_with_several_waits_names_each(self, store: BlockingStore, clock: ManualClock) -> None:
        store.processes.start("research", id="r1")
        claim = store.processes.claim_next(owner_id="w1")
        assert claim is not None
        now_ms = clock.now_ms()
        waits = [
            RunWait("signal", "approve"),
            RunWait("signal", "stop", now_ms + 3_000),
            RunWait("child", "c"),
            RunWait("sleep", None, now_ms + 1_000),
            RunWait("step retry", "call", now_ms + 2_000),
        ]
        store.processes.suspend(claim.lease, seen=0, due_at_ms=now_ms + 1_000, waits=waits)
        explained = store.maintenance.explain_process("r1")
        assert explained.standing == "waits"
        assert [(one.name, one.subject_id, one.next_at_ms, one.remedy) for one in explained.causes] == [
            ("waits-for-a-signal", None, None, ("processes", "signal", "r1", "approve")),
            ("waits-for-a-signal", None, now_ms + 3_000, ("processes", "signal", "r1", "stop")),
            ("waits-for-a-child", "c", None, ("why", "c")),
            ("sleeping", None, now_ms + 1_000, ()),
            ("retrying-a-step", None, now_ms + 2_000, ("runs", "show", "r1")),
        ]
        clock.advance(1_000)
        assert only(store.maintenance.explain_process("r1")).name in ("unclaimed", "no-worker")

    def test_a_process_of_the_host_without_a_holder_waits_for_the_host(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("p1", Engine("lua"), env_ref="env"))
        assert only(store.maintenance.explain_process("p1")).name == "no-holder"
        store.leases.claim(OnProcess("p1"), owner_id="host")
        assert only(store.maintenance.explain_process("p1")).name == "running"
        revoked = store.leases.revoke(OnProcess("p1"))
        assert revoked is not None
        assert revoked.owner_id == "host"

    def test_an_external_process_works_outside(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("build-7", External()))
        cause = only(store.maintenance.explain_process("build-7"))
        assert (cause.name, cause.standing) == ("external", "works")
