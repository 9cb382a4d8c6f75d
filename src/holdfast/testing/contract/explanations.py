"""Explanations: each cause for which a session, a process or a schedule does not continue is named, with its remedy."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess, OnSession
from holdfast.maintenance import Cause, Explanation
from holdfast.processes import (
    BySession,
    Completed,
    Provenance,
    Run,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.queue import work
from holdfast.triggers import SubscriptionDraft
from holdfast.workers import WorkerInfo

HOUR_MS = 3_600_000
WORKER = WorkerInfo("w1", host="here", pid=7, kinds=("turn", "research"))


def of_session(store: BlockingStore, session_id: str = "chat") -> Explanation:
    """Explain a session."""
    return store.maintenance.explain_session(session_id)


def only(explanation: Explanation) -> Cause:
    """Return the only cause."""
    (cause,) = explanation.causes
    return cause


def report(store: BlockingStore, *, ttl_ms: int = HOUR_MS) -> None:
    """Let the worker w1 be alive for that long."""
    store.workers.heartbeat(WORKER, ttl_ms=ttl_ms)


def enqueued(store: BlockingStore, name: str = "1", **draft: Any) -> str:
    """Enqueue work in the session "chat" and return the id of the batch."""
    return store.queue.enqueue(work(name, session_id="chat", **draft)).batch_id


def named(store: BlockingStore) -> dict[str, tuple[str, ...]]:
    """Return the concerns that name ids, without those about the settings of the test's own server."""
    return {one.name: one.ids for one in store.maintenance.diagnose(integrity=False).concerns if one.ids}


class ExplanationContract(Contract):
    """`store.maintenance.explain_*`, `store.queue.release`, `store.leases.revoke`, `store.triggers.redeliver`."""

    # Sessions.

    def test_a_session_without_work_is_idle(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("chat")
        before = bench.dump()
        explained = of_session(store)
        assert (explained.subject, explained.id, explained.standing, explained.ok) == ("session", "chat", "idle", True)
        assert only(explained).name == "no-work"
        assert bench.dump() == before, "an explanation changes nothing"

    def test_work_without_a_worker_for_its_kind_is_stuck_until_one_reports(self, store: BlockingStore) -> None:
        batch_id = enqueued(store)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.subject_id) == ("no-worker", "stuck", batch_id)
        assert "no worker is alive" in cause.problem
        store.workers.heartbeat(WorkerInfo("w2", host="here", pid=8, kinds=("mail",)), ttl_ms=HOUR_MS)
        assert "the live ones handle mail" in only(of_session(store)).problem
        report(store)
        assert only(of_session(store)).name == "unclaimed"
        assert of_session(store).ok

    def test_the_holder_of_a_claim_is_named_and_a_dead_one_is_distinguished(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        report(store, ttl_ms=1_000)
        batch_id = enqueued(store)
        began_ms = clock.now_ms()
        claim = store.queue.claim("chat", owner_id="w1", ttl_ms=HOUR_MS)
        assert claim is not None
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.remedy) == ("claimed", "works", ())
        assert (cause.since_ms, cause.attempt, cause.next_at_ms) == (began_ms, 1, began_ms + HOUR_MS)
        holder = cause.holder
        assert holder is not None
        assert (holder.owner_id, holder.host, holder.pid, holder.is_alive) == ("w1", "here", 7, True)
        clock.advance(1_000)
        explained = of_session(store)
        cause = only(explained)
        assert (cause.name, explained.standing) == ("claim-of-a-dead-worker", "stuck")
        assert cause.remedy == ("queue", "release", "chat", batch_id)
        assert cause.holder is not None
        assert (cause.holder.is_alive, cause.holder.heartbeat_at_ms) == (False, began_ms)
        assert [one.batch_id for one in store.queue.release("chat", batch_id)] == [batch_id]
        assert only(of_session(store)).name == "no-worker"
        with refused(bench, holdfast.ClaimLost):
            store.queue.complete(claim)
        retaken = store.queue.claim("chat", owner_id="w2")
        assert retaken is not None
        assert retaken.batches[0].attempts == 2, "the attempt of the lost claim counts"

    def test_a_claim_of_a_dead_worker_that_ends_soon_only_waits(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store, ttl_ms=1_000)
        enqueued(store)
        store.queue.claim("chat", owner_id="w1", ttl_ms=30_000)
        clock.advance(1_000)
        assert of_session(store).standing == "waits"

    def test_an_owner_that_never_reported_may_be_released(self, store: BlockingStore) -> None:
        batch_id = enqueued(store)
        store.queue.claim("chat", owner_id="my-own-loop")
        cause = only(of_session(store))
        assert (cause.name, cause.remedy) == ("claimed", ("queue", "release", "chat", batch_id))
        assert cause.holder is not None
        assert cause.holder.is_alive is None

    def test_work_behind_an_exclusive_claim_names_it(self, store: BlockingStore) -> None:
        report(store)
        first = enqueued(store)
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        assert claim is not None
        enqueued(store, "2")
        enqueued(store, "3")
        explained = of_session(store)
        assert [one.name for one in explained.causes] == ["claimed", "behind-an-exclusive-claim"]
        assert explained.causes[1].problem == f"2 batches wait behind the exclusive claim on {first!r}"
        assert explained.causes[1].next_at_ms == claim.expires_at_ms

    def test_work_behind_an_earlier_batch_names_it(self, store: BlockingStore) -> None:
        report(store)
        first = enqueued(store)
        enqueued(store, "2")
        explained = of_session(store)
        assert [one.name for one in explained.causes] == ["unclaimed", "behind-an-earlier-batch"]
        assert explained.causes[1].problem == f"1 batch waits behind batch {first!r}"

    def test_work_that_is_not_available_yet_says_when(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store)
        enqueued(store, available_at_ms=clock.now_ms() + 5_000)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.next_at_ms) == ("not-available-yet", "waits", clock.now_ms() + 5_000)
        clock.advance(5_000)
        assert only(of_session(store)).name == "unclaimed"

    def test_work_in_back_off_shows_the_error_and_the_next_attempt(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        report(store)
        batch_id = enqueued(store)
        claim = store.queue.claim("chat", owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, "no answer", retry_in_ms=5_000)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.attempt, cause.error) == ("retrying", "waits", 1, "no answer")
        assert (cause.subject_id, cause.next_at_ms) == (batch_id, clock.now_ms() + 5_000)

    def test_work_that_shared_claims_may_take_before_the_first_is_named(self, store: BlockingStore) -> None:
        report(store)
        enqueued(store)
        claim = store.queue.claim("chat", owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, "no answer", retry_in_ms=5_000)
        second = enqueued(store, "2")
        explained = of_session(store)
        assert [one.name for one in explained.causes] == ["retrying", "behind-an-earlier-batch", "unclaimed"]
        assert explained.causes[2].subject_id == second

    def test_a_limit_of_one_kind_says_nothing_of_another(self, store: BlockingStore) -> None:
        report(store)
        store.queue.set_limit("mail", at_once=1)
        enqueued(store)
        enqueued(store, "2", kind="mail")
        assert [one.name for one in of_session(store).causes] == ["unclaimed", "behind-an-earlier-batch"]

    def test_a_dead_letter_is_retried_with_its_remedy(self, store: BlockingStore) -> None:
        report(store)
        batch_id = enqueued(store)
        claim = store.queue.claim("chat", owner_id="w1")
        assert claim is not None
        store.queue.fail(claim, "no answer", retry_in_ms=None)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.error) == ("dead-letter", "stuck", "no answer")
        assert cause.remedy == ("queue", "retry", "chat", batch_id)
        store.queue.retry("chat", batch_id)
        assert only(of_session(store)).name == "unclaimed"

    def test_a_lease_on_the_session_names_its_holder_and_can_be_revoked(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        report(store)
        enqueued(store)
        lease = store.leases.claim(OnSession("chat"), owner_id="me", ttl_ms=HOUR_MS)
        cause = only(of_session(store))
        assert (cause.name, cause.standing) == ("session-lease-held", "works")
        assert cause.problem.endswith("keeps every other owner out: 1 batch waits"), "no free worker may claim it"
        assert cause.remedy == ("leases", "release", "--session", "chat")
        assert cause.holder is not None
        assert (cause.holder.owner_id, cause.next_at_ms) == ("me", clock.now_ms() + HOUR_MS)
        revoked = store.leases.revoke(OnSession("chat"))
        assert revoked is not None
        assert revoked.owner_id == "me"
        assert store.leases.revoke(OnSession("chat")) is None
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(lease)
        assert only(of_session(store)).name == "unclaimed"
        assert store.queue.claim_next(owner_id="w1") is not None, "claims of any session's work see it, too"

    def test_the_lease_of_an_owner_that_works_is_named_if_other_work_waits_behind_it(
        self, store: BlockingStore
    ) -> None:
        report(store)
        enqueued(store)
        store.leases.claim(OnSession("chat"), owner_id="me", ttl_ms=HOUR_MS)
        assert store.queue.claim("chat", owner_id="me") is not None
        assert only(of_session(store)).name == "claimed"
        enqueued(store, "2")
        assert [one.name for one in of_session(store).causes] == ["claimed", "session-lease-held"]
        assert store.queue.claim_next(owner_id="w1") is None

    def test_pauses_of_a_session_and_of_a_kind_are_distinguished(self, store: BlockingStore) -> None:
        report(store)
        enqueued(store)
        store.sessions.handle("chat").pause()
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.remedy) == (
            "session-paused",
            "stuck",
            ("sessions", "resume", "chat"),
        )
        store.sessions.handle("chat").resume()
        store.queue.pause("turn")
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.remedy) == ("kind-paused", "stuck", ("queue", "resume", "turn"))

    def test_a_full_limit_says_when_a_slot_is_free_and_a_released_claim_frees_it(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        report(store)
        store.queue.set_limit("turn", at_once=1)
        other = store.queue.enqueue(work("other", session_id="other"))
        store.queue.claim("other", owner_id="w1", ttl_ms=HOUR_MS)
        enqueued(store)
        cause = only(of_session(store))
        assert (cause.name, cause.standing) == ("limit-reached", "waits")
        assert cause.next_at_ms == clock.now_ms() + HOUR_MS
        assert cause.holder is not None
        assert (cause.holder.owner_id, cause.holder.host, cause.holder.is_alive) == ("w1", "here", True)
        assert f"batch {other.batch_id!r} of session 'other'" in cause.problem
        assert cause.remedy == ("queue", "limit", "turn")
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.release("other", other.batch_id)
        assert store.queue.claim("chat", owner_id="w2") is not None, "the slot of the released claim is free"

    def test_a_limit_that_a_dead_worker_keeps_full_is_stuck(self, store: BlockingStore, clock: ManualClock) -> None:
        report(store, ttl_ms=1_000)
        store.workers.heartbeat(replace(WORKER, id="w2"), ttl_ms=3 * HOUR_MS)
        store.queue.set_limit("turn", per_key=1)
        for id, key, owner_id, ttl_ms in (("other", "u2", "w2", HOUR_MS - 1), ("held", "u1", "w1", HOUR_MS)):
            store.queue.enqueue(work(id, session_id=id, key=key))
            store.queue.claim(id, owner_id=owner_id, ttl_ms=ttl_ms)
        batch_id = enqueued(store, key="u1")
        assert only(of_session(store)).standing == "waits"
        clock.advance(1_001)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.subject_id) == ("limit-reached", "stuck", batch_id)
        assert cause.holder is not None
        assert (cause.holder.owner_id, cause.holder.is_alive) == ("w1", False)
        assert cause.remedy[:3] == ("queue", "release", "held")
        clock.advance(HOUR_MS - 61_001)
        assert only(of_session(store)).standing == "waits", "it ends within a minute"
        store.queue.release(*cause.remedy[2:])
        assert only(of_session(store)).name == "unclaimed", "the remedy heals"

    def test_the_slots_of_a_dead_worker_are_free_once_it_is_released(self, store: BlockingStore) -> None:
        store.queue.set_limit("turn", at_once=1)
        enqueued(store)
        assert store.queue.claim_next(owner_id="w1", ttl_ms=HOUR_MS) is not None
        store.workers.release("w1")
        assert store.queue.claim_next(owner_id="w2") is not None

    def test_an_undelivered_trigger_of_a_session_is_found_and_redelivered(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.sessions.create("chat")
        registrant = BySession(holdfast.Scope("chat"))
        for who in (registrant, holdfast.processes.Host()):
            store.triggers.subscribe(
                SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research"), registrant=who)
            )
        fired = store.triggers.emit("cron", "daily", idempotency_key="1")
        [own] = [one for one in fired.deliveries if one.subscription.draft.registrant == registrant]
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.subject_id) == ("undelivered", "stuck", own.process_id)
        assert (cause.since_ms, cause.remedy) == (clock.now_ms(), ("triggers", "redeliver", own.process_id))
        assert only(store.maintenance.explain_process(own.process_id)).name == "undelivered"
        assert store.triggers.redeliver(own.process_id).status == "running"
        assert store.triggers.redeliver(own.process_id).status == "running", "idempotent"
        assert only(of_session(store)).name == "process-no-worker", "the process that it started waits for a worker"
        assert only(store.maintenance.explain_process(own.process_id)).name == "no-worker"

    def test_a_delivery_that_failed_is_named_with_its_error(self, store: BlockingStore) -> None:
        store.sessions.create("chat")
        for who in (BySession(holdfast.Scope("chat")), holdfast.processes.Host()):
            store.triggers.subscribe(
                SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research"), registrant=who)
            )
        own, other = store.triggers.emit("cron", "daily", idempotency_key="1").deliveries
        for one in (own, other):
            store.triggers.mark_failed(one, "the payload does not fit")
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.subject_id) == ("delivery-failed", "stuck", own.process_id)
        assert (cause.error, cause.next) == ("the payload does not fit", None), "no worker tries it again"
        assert cause.remedy == ("triggers", "redeliver", own.process_id)
        assert set(named(store)["failed-deliveries"]) == {own.process_id, other.process_id}
        first = store.triggers.failed(limit=1)
        (second,) = store.triggers.failed(after=first.next)
        assert {first[0].process_id, second.process_id} == {own.process_id, other.process_id}
        assert (second.state, second.failure) == ("failed", "the payload does not fit")
        assert [one.process_id for one in store.triggers.failed(session_id="chat")] == [own.process_id]
        store.triggers.redeliver(own.process_id)
        assert only(of_session(store)).name == "process-no-worker"
        assert named(store)["failed-deliveries"] == (other.process_id,)

    def test_a_delivered_process_that_was_pruned_is_not_offered_again(
        self, store: BlockingStore, clock: ManualClock, bench: Bench
    ) -> None:
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research")))
        (fired,) = store.triggers.emit("cron", "daily", idempotency_key="1").deliveries
        store.triggers.redeliver(fired.process_id)
        store.processes.complete(fired.process_id, Completed(42))
        clock.advance(10_000)
        store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=1))
        assert store.processes.get(fired.process_id) is None
        with refused(bench, holdfast.UnknownProcess):
            store.maintenance.explain_process(fired.process_id)
        with refused(bench, holdfast.UnknownProcess):
            store.triggers.redeliver(fired.process_id)

    def test_the_deliveries_of_a_session_are_found_among_many(self, store: BlockingStore) -> None:
        store.sessions.create("chat")
        registrant = BySession(holdfast.Scope("chat"))
        for number in range(36):
            who = registrant if number >= 24 else holdfast.processes.Host()
            store.triggers.subscribe(
                SubscriptionDraft(source_type="cron", source_key="daily", target=Run("research"), registrant=who)
            )
        store.triggers.emit("cron", "daily", idempotency_key="1")
        causes = of_session(store).causes
        assert [one.name for one in causes] == ["undelivered"] * 10, "the first ten of twelve are named"

    def test_processes_that_a_session_started_are_named(self, store: BlockingStore) -> None:
        store.sessions.create("chat")
        provenance = Provenance(BySession(holdfast.Scope("chat")))
        store.processes.start("research", id="r1", provenance=provenance)
        cause = only(of_session(store))
        assert (cause.name, cause.standing, cause.subject_id) == ("process-no-worker", "stuck", "r1")

    # Schedules.

    def test_a_schedule_says_that_it_is_paused_or_when_it_fires(self, store: BlockingStore, clock: ManualClock) -> None:
        made = store.schedules.put("nightly", "0 3 * * *", run=Run("research"))
        explain = partial(store.maintenance.explain_schedule, "nightly")
        cause = only(explain())
        assert (cause.name, cause.next_at_ms) == ("next-tick", made.next_tick_ms)
        store.schedules.pause("nightly")
        cause = only(explain())
        assert (cause.name, cause.standing) == ("schedule-paused", "stuck")
        assert cause.remedy == ("schedules", "resume", "nightly")
        store.schedules.resume("nightly")
        clock.advance(25 * HOUR_MS)
        assert only(explain()).name == "no-worker", "a tick is due, and no worker is alive"

    def test_a_tick_that_started_nothing_shows_its_error(self, store: BlockingStore, clock: ManualClock) -> None:
        with holdfast.open_blocking("memory:", clock=clock) as other:
            made = other.schedules.put("nightly", "0 3 * * *", run=Run("research"))
        store.schedules.restore(replace(made, failure="no such session"))
        explained = store.maintenance.explain_schedule("nightly")
        assert [(one.name, one.error) for one in explained.causes] == [
            ("tick-failed", "no such session"),
            ("next-tick", None),
        ]
        assert explained.causes[0].remedy == ("schedules", "run", "nightly")
        assert named(store) == {"failed-ticks": ("nightly",)}
        store.schedules.run_now("nightly")
        assert only(store.maintenance.explain_schedule("nightly")).name == "next-tick", "the remedy heals"
        assert named(store) == {}

    # Bad input.

    def test_names_of_what_does_not_exist_are_refused(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownSession):
            store.maintenance.explain_session("nobody")
        with refused(bench, holdfast.UnknownProcess):
            store.maintenance.explain_process("nobody")
        with refused(bench, holdfast.errors.UnknownSchedule):
            store.maintenance.explain_schedule("nobody")
        with refused(bench, holdfast.UnknownProcess):
            store.triggers.redeliver("nobody")
        assert store.queue.release("nobody", "b1") == ()
        assert store.leases.revoke(OnSession("nobody")) is None
        assert store.leases.revoke(OnProcess("nobody")) is None
