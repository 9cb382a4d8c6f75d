"""Deliveries: an occurrence is reserved for each subscription once, and stays due until its process is registered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import UnknownDelivery, UnknownOccurrence
from holdfast.events import EventType
from holdfast.processes import Engine, External, ProcessIdentity, Provenance, SessionTurn
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.triggers import CHAT, FRAME, MONDAY, MONDAY_PROCESS, OTHER, daily
from holdfast.triggers import EventPayload, Fixed, registration_for


def due(store: BlockingStore, **filters: Any) -> list[tuple[str, str]]:
    """Return the occurrence and the subscription of each delivery that is due."""
    return [(one.occurrence.idempotency_key, one.subscription.handle) for one in store.triggers.undelivered(**filters)]


class DeliveryContract(Contract):
    """`store.triggers`, from an occurrence to a process."""

    # Reserving.

    def test_an_occurrence_reaches_each_enabled_subscription_of_its_source_once(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        for draft in (daily(), daily(FRAME), daily(source_key="hourly"), daily(source_type="mail"), daily(OTHER)):
            store.triggers.subscribe(draft)
        store.triggers.cancel("trigger:5", registrant=OTHER)
        store.triggers.record("cron", "daily", idempotency_key="monday", payload={"n": 1})
        clock.advance(5)
        deliveries = store.triggers.reserve(MONDAY)
        assert [one.subscription.handle for one in deliveries] == ["trigger:1", "trigger:2"]
        first = deliveries[0]
        assert (first.process_id, first.state, first.failure) == (MONDAY_PROCESS, "reserved", None)
        assert (first.reserved_at_ms, first.occurrence.payload) == (clock.now_ms(), {"n": 1})
        assert deliveries[1].process_id != MONDAY_PROCESS
        before = bench.dump()
        assert bench.open().triggers.reserve(MONDAY).items == ()
        assert bench.dump() == before

    def test_an_unknown_occurrence_cannot_be_reserved(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, UnknownOccurrence) as info:
            store.triggers.reserve(MONDAY)
        assert isinstance(info.value, UnknownOccurrence)
        assert info.value.occurrence_id == MONDAY

    def test_a_later_subscription_gets_an_occurrence_only_when_it_is_reserved_again(self, store: BlockingStore) -> None:
        assert store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries == ()
        store.triggers.subscribe(daily())
        assert due(store) == []
        assert [one.process_id for one in store.triggers.reserve(MONDAY)] == [MONDAY_PROCESS]

    def test_emitting_records_and_reserves_at_once_and_repeats_neither(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        store.triggers.subscribe(daily())
        emission = store.triggers.emit("cron", "daily", idempotency_key="monday", payload=1)
        assert (emission.occurrence.occurrence_id, emission.replayed) == (MONDAY, False)
        assert [one.process_id for one in emission.deliveries] == [MONDAY_PROCESS]
        assert due(store) == [("monday", "trigger:1")]
        before = bench.dump()
        again = bench.open().triggers.emit("cron", "daily", idempotency_key="monday", payload=1)
        assert (again.occurrence, again.deliveries, again.replayed) == (emission.occurrence, (), True)
        assert bench.dump() == before

    def test_emitting_what_was_only_recorded_reserves_it(self, store: BlockingStore) -> None:
        store.triggers.subscribe(daily())
        recorded = store.triggers.record("cron", "daily", idempotency_key="monday")
        emission = store.triggers.emit("cron", "daily", idempotency_key="monday")
        assert (emission.occurrence, emission.replayed, len(emission.deliveries)) == (recorded, True, 1)

    def test_many_subscriptions_of_one_source_are_all_reached(self, store: BlockingStore) -> None:
        for _ in range(510):
            store.triggers.subscribe(daily())
        deliveries = store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries
        assert [one.subscription.handle for one in deliveries] == [f"trigger:{number}" for number in range(1, 511)]
        assert len({one.process_id for one in deliveries}) == 510

    def test_a_later_handle_neither_repeats_nor_loses_a_delivery(self, store: BlockingStore, bench: Bench) -> None:
        subscription = store.triggers.subscribe(daily(CHAT, key="k"))
        store.triggers.emit("cron", "daily", idempotency_key="monday")
        reopened = bench.open()
        assert list(reopened.triggers.list(session_id="chat")) == [subscription]
        assert reopened.triggers.emit("cron", "daily", idempotency_key="monday").deliveries == ()
        assert [one.process_id for one in reopened.triggers.undelivered()] == [MONDAY_PROCESS]
        assert len(reopened.triggers.emit("cron", "daily", idempotency_key="tuesday").deliveries) == 1

    # Starting.

    def test_a_delivery_is_due_until_its_process_is_registered(self, store: BlockingStore, bench: Bench) -> None:
        store.triggers.subscribe(daily())
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries
        other = bench.open()
        (found,) = other.triggers.undelivered()
        assert found == delivery
        process = other.processes.register(registration_for(found))
        assert process.id == MONDAY_PROCESS
        assert due(store) == []
        assert store.processes.register(registration_for(delivery)) == process
        assert store.triggers.mark_failed(delivery, "too late").state == "started"

    def test_a_delivery_whose_process_was_there_before_is_not_due(self, store: BlockingStore) -> None:
        store.triggers.subscribe(daily())
        store.processes.register(holdfast.ProcessRegistration(MONDAY_PROCESS, External()))
        store.triggers.emit("cron", "daily", idempotency_key="monday")
        assert due(store) == []

    def test_due_deliveries_are_listed_by_age_and_paged(self, store: BlockingStore, clock: ManualClock) -> None:
        started_ms = clock.now_ms()
        store.triggers.subscribe(daily())
        store.triggers.subscribe(daily())
        for key in ("wednesday", "monday", "tuesday"):
            store.triggers.emit("cron", "daily", idempotency_key=key)
            clock.advance(10)
        assert due(store) == [
            ("wednesday", "trigger:1"), ("wednesday", "trigger:2"), ("monday", "trigger:1"), ("monday", "trigger:2"),
            ("tuesday", "trigger:1"), ("tuesday", "trigger:2"),
        ]  # fmt: skip
        assert due(store, reserved_until_ms=started_ms + 10) == due(store)[:4]
        assert due(store, reserved_until_ms=started_ms - 1) == []
        page = store.triggers.undelivered(limit=3)
        assert due(store, limit=3, after=page.next) == [
            ("monday", "trigger:2"), ("tuesday", "trigger:1"), ("tuesday", "trigger:2"),
        ]  # fmt: skip

    def test_due_deliveries_of_one_session_are_listed_and_paged(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        for draft in (daily(CHAT), daily(OTHER), daily(FRAME), daily()):
            store.triggers.subscribe(draft)
        for key in ("monday", "tuesday"):
            store.triggers.emit("cron", "daily", idempotency_key=key)
            clock.advance(10)
        assert len(due(store)) == 8
        # In any frame of it.
        own = [(key, handle) for key in ("monday", "tuesday") for handle in ("trigger:1", "trigger:3")]
        assert due(store, session_id="chat") == own
        page = store.triggers.undelivered(session_id="chat", limit=1)
        assert due(store, session_id="chat", after=page.next) == own[1:]
        assert due(store, session_id="nobody") == []
        with refused(bench, holdfast.InvalidRequest) as info:
            store.triggers.undelivered(session_id="chat", runs_only=True)
        assert "session_id" in str(info.value)

    def test_a_cancelled_subscription_still_gets_what_was_reserved_for_it(self, store: BlockingStore) -> None:
        store.triggers.subscribe(daily())
        store.triggers.emit("cron", "daily", idempotency_key="monday")
        store.triggers.cancel("trigger:1")
        assert store.triggers.emit("cron", "daily", idempotency_key="tuesday").deliveries == ()
        assert due(store) == [("monday", "trigger:1")]

    def test_a_started_delivery_is_not_due_and_stays_started(self, store: BlockingStore) -> None:
        store.triggers.subscribe(daily())
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries
        started = store.triggers.mark_started(delivery)
        assert started == msgspec.structs.replace(delivery, state="started")
        assert store.triggers.mark_failed(delivery, "late news") == started
        assert due(store) == []

    def test_a_failed_delivery_is_not_due_says_why_and_may_yet_start(self, store: BlockingStore, bench: Bench) -> None:
        store.triggers.subscribe(daily())
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries
        failed = store.triggers.mark_failed(delivery, "no room")
        assert (failed.state, failed.failure, failed.process_id) == ("failed", "no room", MONDAY_PROCESS)
        assert due(store) == []
        assert bench.open().triggers.reserve(MONDAY).items == ()
        store.processes.register(registration_for(delivery))
        again = store.triggers.mark_failed(delivery, "too late")
        assert (again.state, again.failure) == ("started", None)

    def test_a_delivery_that_was_never_reserved_cannot_be_marked(self, store: BlockingStore, bench: Bench) -> None:
        store.triggers.subscribe(daily())
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday").deliveries
        elsewhere = msgspec.structs.replace(
            delivery, subscription=msgspec.structs.replace(delivery.subscription, subscription_id="subscription:9")
        )
        nameless = msgspec.structs.replace(
            delivery, subscription=msgspec.structs.replace(delivery.subscription, subscription_id="trigger:1")
        )
        undelivered_source = msgspec.structs.replace(
            delivery, occurrence=msgspec.structs.replace(delivery.occurrence, occurrence_id="trigger:other")
        )
        for wrong in (elsewhere, nameless, undelivered_source):
            with refused(bench, UnknownDelivery):
                store.triggers.mark_started(wrong)
            with refused(bench, UnknownDelivery):
                store.triggers.mark_failed(wrong, "no")

    # Targets.

    def test_a_delivery_starts_its_target_as_the_subscription_says(self, store: BlockingStore) -> None:
        identity = ProcessIdentity("script", "Morning run", {"flow": "a"})
        store.triggers.subscribe(
            daily(
                FRAME,
                target=Engine("script", {"file": "a", "args": {"old": 1}}),
                target_identity=identity,
                event_types=[EventType("progress")],
                input_template={"event": EventPayload(), "mode": Fixed({"fast": True})},
                env_ref="env-1",
                wake_target=holdfast.Scope("chat", "main"),
                payload_schema={"type": "object", "required": ["n"]},
            )
        )
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday", payload={"n": [1]}).deliveries
        process = store.processes.register(registration_for(delivery))
        assert process.id == MONDAY_PROCESS
        assert process.input == Engine("script", {"file": "a", "args": {"event": {"n": [1]}, "mode": {"fast": True}}})
        assert (process.identity, process.env_ref) == (identity, "env-1")
        assert process.wake_target == holdfast.Scope("chat", "main")
        assert process.provenance == Provenance(FRAME, {"type": "trigger_occurrence", "occurrence_id": MONDAY})
        assert [one.name for one in process.event_types][:1] == ["progress"]
        assert [one.id for one in store.processes.list(started_by="chat", definition={"flow": "a"})] == [process.id]

    @pytest.mark.parametrize(
        "target", [External({"label": "x"}), SessionTurn({"session_id": "s"}, {"text": "go"})],
        ids=["external", "session turn"],
    )  # fmt: skip
    def test_a_target_without_a_template_is_started_as_it_is(
        self, store: BlockingStore, target: External | SessionTurn
    ) -> None:
        store.triggers.subscribe(daily(target=target))
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday", payload={"n": 1}).deliveries
        assert store.processes.register(registration_for(delivery)).input == target

    def test_an_engine_without_a_payload_gets_the_arguments_alone(self, store: BlockingStore) -> None:
        draft = daily(target=Engine("script"), env_ref="env-1", input_template={"event": EventPayload()})
        store.triggers.subscribe(draft)
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday", payload=None).deliveries
        assert registration_for(delivery).input == Engine("script", {"args": {"event": None}})

    def test_a_payload_that_does_not_fit_the_subscription_starts_nothing(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        store.triggers.subscribe(daily(payload_schema={"properties": {"n": {"type": "integer"}}}))
        (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="monday", payload={"n": "one"}).deliveries
        with refused(bench, holdfast.InvalidRequest) as info:
            registration_for(delivery)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "payload/n"
