"""Moves: data of another store arrives once and unchanged (times, logs, numbers, states), without leases and wakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import (
    OccurrenceConflict,
    RegistrationConflict,
    ReplayConflict,
    SubscriptionConflict,
    UnknownDelivery,
    UnknownOccurrence,
)
from holdfast.events import EventType, Pointer, ProcessEvent, WakeRule
from holdfast.leases import OnProcess
from holdfast.processes import (
    BySession,
    Cancelled,
    Completed,
    Engine,
    External,
    ExternalRef,
    Failed,
    Process,
    ProcessIdentity,
    ProcessOutcome,
    Provenance,
    Run,
    SignalWait,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract
from holdfast.triggers import EventPayload, Fixed, Subscription, SubscriptionDraft, registration_for

T = TypeVar("T")


class MoveContract(Contract):
    """`restore` of processes, subscriptions and occurrences, and the listings that a move reads."""

    @pytest.fixture
    def there(self) -> Iterator[BlockingStore]:
        """Yield the source store, with an older clock."""
        with holdfast.open_blocking("memory:", clock=ManualClock(1_000_000)) as other:
            yield other

    def started(self, there: BlockingStore, process_id: str = "build") -> None:
        """Register a process whose log has every kind of entry."""
        kinds = [
            EventType("progress"),
            EventType("news", wake=WakeRule(input=Pointer("/text"))),
            EventType("signal.go"),
        ]
        there.processes.register(
            holdfast.ProcessRegistration(
                process_id,
                Engine("runner", {"a": [1, 2.5, None]}),
                identity=ProcessIdentity("build", "nightly", {"version": 1}),
                event_types=kinds,
                provenance=Provenance(BySession(holdfast.Scope("chat")), {"why": "asked"}),
                env_ref="env",
                wake_target=holdfast.Scope("chat"),
            )
        )
        there.events.append(process_id, "progress", {"percent": 10}, replay_key="ten")
        there.events.append(process_id, "news", {"text": "half way"})
        there.events.append(process_id, "news", {"text": "nearly"})
        there.events.ack_wake(process_id, 2)
        there.events.signal(process_id, "go", {"by": "ada"})
        there.events.request_cancel(process_id, reason="too slow")
        there.processes.set_external_ref(process_id, ExternalRef("ci", "run-1", {"n": 1}))
        there.processes.set_wait(process_id, SignalWait("go", ordinal=2))

    def read(self, there: BlockingStore, process_id: str) -> tuple[Process, list[ProcessEvent]]:
        process = there.processes.get(process_id)
        assert process is not None
        return process, list(there.events.after(process_id))

    # Processes.

    def test_a_running_process_arrives_as_it_stands_and_without_an_owner(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        self.started(there)
        there.leases.claim(OnProcess("build"), owner_id="old worker")
        process, log = self.read(there, "build")
        assert store.processes.restore(process, log).replayed is False
        assert self.read(bench.open(), "build") == (process, log)
        assert [event.sequence for event in store.events.wakes("build")] == [3]
        assert store.leases.holder(OnProcess("build")) is None
        lease = store.leases.claim(OnProcess("build"), owner_id="new worker")
        ended = store.processes.complete("build", Completed(42), lease=lease)
        assert (ended.status, ended.event_count) == ("completed", 6)
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize(
        "outcome",
        [
            Completed({"deep": [[[]]]}, control="stop"),
            Failed("broken", code="E1", raw={"x": 1}),
            Cancelled("as asked"),
        ],
        ids=lambda outcome: type(outcome).__name__,
    )
    def test_an_ended_process_arrives_ended(
        self, store: BlockingStore, there: BlockingStore, outcome: ProcessOutcome
    ) -> None:
        self.started(there)
        there.processes.complete("build", outcome)
        process, log = self.read(there, "build")
        store.processes.restore(process, log)
        assert self.read(store, "build") == (process, log)
        assert store.processes.wait("build", timeout_ms=0) == outcome
        with pytest.raises(holdfast.AlreadyTerminal):
            store.leases.claim(OnProcess("build"), owner_id="w")
        assert store.processes.complete("build", outcome).outcome == outcome
        assert store.maintenance.verify().findings == ()

    def test_a_restored_process_delivers_no_wake_again(self, store: BlockingStore, there: BlockingStore) -> None:
        store.sessions.create("chat")
        self.started(there)
        store.processes.restore(*self.read(there, "build"))
        assert store.queue.list("chat").items == ()
        store.events.append("build", "news", {"text": "new here"})
        assert len(store.queue.list("chat")) == 1

    def test_turns_that_were_replayable_there_are_replayable_here(
        self, store: BlockingStore, there: BlockingStore
    ) -> None:
        self.started(there)
        store.processes.restore(*self.read(there, "build"))
        again = store.events.append("build", "progress", {"percent": 10}, replay_key="ten")
        assert (again.replayed, again.event.sequence, again.event.occurred_at_ms) == (True, 1, 1_000_000)
        with pytest.raises(ReplayConflict):
            store.events.append("build", "progress", {"percent": 11}, replay_key="ten")
        assert store.events.request_cancel("build", reason="too slow").replayed

    def test_the_same_process_again_is_a_replay_even_after_it_continued_here(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        self.started(there)
        moved = self.read(there, "build")
        store.processes.restore(*moved)
        store.events.append("build", "progress", {"percent": 90})
        before = bench.dump()
        assert store.processes.restore(*moved).replayed is True
        assert bench.dump() == before

    def test_a_process_that_continued_there_is_not_overwritten(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        self.started(there)
        store.processes.restore(*self.read(there, "build"))
        there.events.append("build", "progress", {"percent": 90})
        before = bench.dump()
        with pytest.raises(holdfast.Conflict):
            store.processes.restore(*self.read(there, "build"))
        assert bench.dump() == before

    def test_a_process_that_was_registered_here_is_not_overwritten(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        for one in (there, store):
            one.processes.register(holdfast.ProcessRegistration("build", External()))
        store.processes.register(holdfast.ProcessRegistration("other", External({"here": 1})))
        there.processes.register(holdfast.ProcessRegistration("other", External({"there": 1})))
        before = bench.dump()
        with pytest.raises(holdfast.Conflict):
            store.processes.restore(*self.read(there, "build"))
        with pytest.raises(RegistrationConflict):
            store.processes.restore(*self.read(there, "other"))
        assert bench.dump() == before

    def test_a_log_that_the_rules_would_not_have_written_is_refused(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        self.started(there)
        process, log = self.read(there, "build")
        replace = msgspec.structs.replace
        wrong: list[tuple[Process, list[ProcessEvent]]] = [
            (process, log[:-1]),
            (process, [log[1], log[0], *log[2:]]),
            (process, [replace(log[0], acknowledged=True), *log[1:]]),
            (process, [log[0], replace(log[1], wake=None), *log[2:]]),
            (process, [replace(log[0], terminal_state="failed"), *log[1:]]),
            (process, [replace(log[0], type="undeclared"), *log[1:]]),
            (process, [replace(log[0], process_id="another"), *log[1:]]),
            (replace(process, status="completed"), log),
            (replace(process, outcome=Completed()), log),
            (replace(process, event_count=4), log),
        ]
        before = bench.dump()
        for one, events in wrong:
            with pytest.raises(holdfast.InvalidRequest):
                store.processes.restore(one, events)
        assert bench.dump() == before

    def test_a_process_whose_wake_target_is_deleted_here_arrives_without_it(
        self, store: BlockingStore, there: BlockingStore
    ) -> None:
        store.sessions.create("chat")
        store.sessions.delete("chat")
        self.started(there)
        process, log = self.read(there, "build")
        store.processes.restore(process, log)
        assert self.read(store, "build") == (msgspec.structs.replace(process, wake_target=None), log)
        assert store.maintenance.verify().findings == ()

    def test_a_process_whose_wake_target_was_deleted_there_arrives_as_it_stands(
        self, store: BlockingStore, there: BlockingStore
    ) -> None:
        there.sessions.create("chat")
        self.started(there)
        there.sessions.delete("chat")
        process, log = self.read(there, "build")
        assert store.processes.restore(process, log).replayed is False
        assert store.processes.restore(process, log).replayed is True
        here, events = self.read(store, "build")
        assert events == log
        assert here == msgspec.structs.replace(process, registration_hash=here.registration_hash)
        assert store.maintenance.verify().findings == ()

    # Triggers.

    def subscribed(self, there: BlockingStore) -> list[Subscription]:
        """Make three subscriptions, of which the first is gone and the second cancelled."""
        first = SubscriptionDraft(
            source_type="cron",
            source_key="daily",
            target=External(),
            registrant=BySession(holdfast.Scope("gone")),
        )
        second = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        third = SubscriptionDraft(
            source_type="cron",
            source_key="daily",
            target=Engine("k", {}),
            env_ref="env",
            key="third",
            name="morning",
            input_template={"a": EventPayload(), "b": Fixed([1])},
        )
        for draft in (first, second, third):
            there.triggers.subscribe(draft)
        there.triggers.forget_session("gone")
        there.triggers.cancel("trigger:2")
        return list(there.triggers.list())

    def test_a_subscription_keeps_its_number_its_times_and_whether_it_is_enabled(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        moved = self.subscribed(there)
        assert [store.triggers.restore(one).replayed for one in moved] == [False, False]
        assert list(bench.open().triggers.list()) == moved
        assert [(one.handle, one.enabled) for one in moved] == [("trigger:2", False), ("trigger:3", True)]
        assert [store.triggers.restore(one).replayed for one in moved] == [True, True]
        assert store.triggers.subscribe(moved[1].draft) == moved[1]
        assert store.maintenance.verify().findings == ()

    def test_a_number_that_was_restored_is_never_given_again(self, store: BlockingStore, there: BlockingStore) -> None:
        moved = self.subscribed(there)
        store.triggers.restore(moved[1])
        draft = SubscriptionDraft(source_type="new", target=External())
        numbers = [int(store.triggers.subscribe(draft).handle.removeprefix("trigger:")) for _ in range(3)]
        assert numbers == sorted(set(numbers))
        assert min(numbers) > 3

    def test_another_subscription_of_the_same_number_or_key_is_in_the_way(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        moved = self.subscribed(there)
        draft = SubscriptionDraft(source_type="mine", target=External(), key="third")
        for _ in range(2):
            store.triggers.subscribe(msgspec.structs.replace(draft, key=None))
        before = bench.dump()
        with pytest.raises(holdfast.Conflict):
            store.triggers.restore(moved[0])
        assert bench.dump() == before
        other = msgspec.structs.replace(moved[1], subscription_id="subscription:9", handle="trigger:9")
        store.triggers.restore(other)
        with pytest.raises(SubscriptionConflict):
            store.triggers.restore(moved[1])

    def test_a_deleted_session_registers_nothing(self, store: BlockingStore, there: BlockingStore) -> None:
        store.sessions.create("chat")
        store.sessions.delete("chat")
        registrant = BySession(holdfast.Scope("chat"))
        draft = SubscriptionDraft(source_type="cron", target=External(), registrant=registrant)
        with pytest.raises(holdfast.SessionDeleted):
            store.triggers.restore(there.triggers.subscribe(draft))

    def test_a_delivery_that_starts_a_run_arrives_for_the_router(
        self, store: BlockingStore, there: BlockingStore
    ) -> None:
        target = Run("research")
        there.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=target))
        emission = there.triggers.emit("cron", "daily", idempotency_key="1")
        for one in there.triggers.list():
            store.triggers.restore(one)
        store.triggers.restore_occurrence(emission.occurrence, emission.deliveries)
        store.triggers.wait_undelivered(timeout_ms=0)
        assert list(store.triggers.undelivered(runs_only=True)) == list(emission.deliveries)

    def test_an_occurrence_arrives_with_its_deliveries_in_their_states(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        for _ in range(3):
            there.triggers.subscribe(draft)
        emission = there.triggers.emit("cron", "daily", idempotency_key="1", payload={"n": 1}, source=[2])
        started, failed, reserved = emission.deliveries
        there.processes.register(registration_for(started))
        there.triggers.mark_failed(failed, "does not fit")
        occurrence = emission.occurrence
        moved = list(there.triggers.deliveries(occurrence.occurrence_id))
        assert [one.state for one in moved] == ["started", "failed", "reserved"]
        for one in there.triggers.list():
            store.triggers.restore(one)
        assert store.triggers.restore_occurrence(occurrence, moved).replayed is False
        store.processes.restore(*self.read(there, started.process_id))
        again = bench.open()
        assert list(again.triggers.occurrences()) == [occurrence]
        assert list(again.triggers.deliveries(occurrence.occurrence_id)) == moved
        assert list(again.triggers.undelivered()) == [reserved]
        assert store.triggers.restore_occurrence(occurrence, moved).replayed is True
        emitted = store.triggers.emit("cron", "daily", idempotency_key="1", payload={"n": 1}, source=[2])
        assert (emitted.replayed, emitted.deliveries) == (True, ())
        assert store.maintenance.verify().findings == ()

    def test_an_occurrence_is_refused_where_its_subscription_or_its_content_does_not_fit(
        self, store: BlockingStore, bench: Bench, there: BlockingStore
    ) -> None:
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        there.triggers.subscribe(draft)
        (delivery,) = there.triggers.emit("cron", "daily", idempotency_key="1").deliveries
        before = bench.dump()
        with pytest.raises(UnknownDelivery):
            store.triggers.restore_occurrence(delivery.occurrence, [delivery])
        for wrong in (
            msgspec.structs.replace(delivery, process_id="another"),
            msgspec.structs.replace(delivery, failure="but why"),
        ):
            with pytest.raises(holdfast.InvalidRequest):
                store.triggers.restore_occurrence(delivery.occurrence, [wrong])
        moved = msgspec.structs.replace(delivery.occurrence, occurrence_id="trigger:0")
        with pytest.raises(holdfast.InvalidRequest):
            store.triggers.restore_occurrence(moved)
        assert bench.dump() == before
        store.triggers.record("cron", "daily", idempotency_key="1", payload="another")
        with pytest.raises(OccurrenceConflict):
            store.triggers.restore_occurrence(delivery.occurrence)

    # Listings.

    def test_occurrences_deliveries_and_artifacts_are_listed_in_pages_each_once(self, store: BlockingStore) -> None:
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        for _ in range(5):
            store.triggers.subscribe(draft)
        ids = {
            store.triggers.emit("cron", "daily", idempotency_key=str(number)).occurrence.occurrence_id
            for number in range(5)
        }
        for number in range(5):
            store.artifacts.put("a" if number % 2 else "b", str(number), b"x" * number)
        occurrences = self.every(store.triggers.occurrences)
        assert [one.occurrence_id for one in occurrences] == sorted(ids)
        one = occurrences[0].occurrence_id
        deliveries = self.every(partial(store.triggers.deliveries, one))
        assert [delivery.subscription.handle for delivery in deliveries] == [f"trigger:{n}" for n in range(1, 6)]
        artifacts = self.every(store.artifacts.list)
        assert [(each.kind, each.ref, each.size_bytes) for each in artifacts] == [
            ("a", "1", 1), ("a", "3", 3), ("b", "0", 0), ("b", "2", 2), ("b", "4", 4),
        ]  # fmt: skip
        with pytest.raises(UnknownOccurrence):
            store.triggers.deliveries("nothing")

    def every(self, listing: Callable[..., holdfast.Page[T]]) -> list[T]:
        """Return all of a listing, read two at a time."""
        found: list[T] = []
        after: str | None = None
        while True:
            page = listing(after=after, limit=2)
            assert len(page) <= 2
            found.extend(page)
            after = page.next
            if after is None:
                return found
