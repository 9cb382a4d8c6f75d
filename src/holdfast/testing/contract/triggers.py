"""Triggers: each occurrence reaches each subscription of its source once, and no crash in between loses it."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import OccurrenceConflict, SubscriptionConflict
from holdfast.events import EventType
from holdfast.processes import BySession, Engine, External, Host, ProcessIdentity
from holdfast.records.processes import Originator
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.triggers import EventPayload, Fixed, Occurrence, Subscription, SubscriptionDraft

CHAT = BySession(holdfast.Scope("chat"))
FRAME = BySession(holdfast.Scope("chat", "main"))
OTHER = BySession(holdfast.Scope("other"))
HOST = Host()

# Fixed for ever: a later version must not deliver again what an earlier one recorded.
MONDAY = "trigger:ab13f45a86fdfff049e777096ac2e438aded5799fcef1881796e7030cdd51724"
MONDAY_PROCESS = "process:trigger:983659b3ce7978fe110f2140db5110b6150df210aef0e49dacdbf7a05e8a46e7"
SOURCE_AT_SEVEN = "source:cron:sha256:60045eb736f159062f30593d25caf8be523c07210d65cc42ff5ac226428849e2"
SOURCE_WITHOUT_NAME = "source:cron:sha256:0906b0ac2e72684142e7b174666840dc5943474179bdcb3c29a03fab55b304bd"


def daily(registrant: Originator = HOST, **parts: Any) -> SubscriptionDraft:
    """Return a draft of a daily subscription."""
    given: dict[str, Any] = {
        "source_type": "cron", "source_key": "daily", "target": External(), "registrant": registrant, **parts,
    }  # fmt: skip
    return SubscriptionDraft(**given)


def handles(page: holdfast.Page[Subscription]) -> list[str]:
    """Return the handles on a page, in its order."""
    return [one.handle for one in page]


class TriggerContract(Contract):
    """`store.triggers`."""

    def test_the_declared_durability_is_the_backends(self, store: BlockingStore, bench: Bench) -> None:
        assert store.durability == bench.durability

    # Subscriptions.

    def test_a_subscription_is_registered_as_it_was_sent(self, store: BlockingStore, clock: ManualClock) -> None:
        draft = daily(
            FRAME,
            source={"at": "07:00"},
            name="Morning",
            target=Engine("script", {"file": "a"}),
            target_identity=ProcessIdentity("script", "Morning run", {"flow": "a"}),
            target_label="Morning run",
            event_types=[EventType("progress")],
            input_template={"event": EventPayload(), "mode": Fixed("fast")},
            env_ref="env-1",
            wake_target=holdfast.Scope("chat", "main"),
            payload_schema={"type": "object"},
        )
        subscription = store.triggers.subscribe(draft)
        assert (subscription.subscription_id, subscription.handle) == ("subscription:1", "trigger:1")
        assert (subscription.source_key, subscription.enabled) == ("daily", True)
        assert (subscription.created_at_ms, subscription.updated_at_ms) == (clock.now_ms(), clock.now_ms())
        assert subscription.draft.input_template == {
            "event": EventPayload(), "mode": Fixed("fast"),
        }  # fmt: skip
        assert [one.name for one in subscription.draft.event_types] == ["progress"]
        for name in ("registrant", "source", "name", "target", "target_identity", "env_ref", "wake_target"):
            assert getattr(subscription.draft, name) == getattr(draft, name)
        assert list(store.triggers.list()) == [subscription]

    def test_a_source_without_a_name_has_a_stable_key_of_its_own(self, store: BlockingStore, bench: Bench) -> None:
        assert store.triggers.source_key("cron", {"at": "07:00"}) == SOURCE_AT_SEVEN
        assert store.triggers.source_key("cron") == store.triggers.source_key("cron", {}) == SOURCE_WITHOUT_NAME
        assert store.triggers.source_key("mail", {"at": "07:00"}) != SOURCE_AT_SEVEN.replace("cron", "mail")
        draft = SubscriptionDraft(source_type="cron", source={"at": "07:00"}, target=External())
        assert bench.open().triggers.subscribe(draft).source_key == SOURCE_AT_SEVEN
        for source_type, source in (("", {}), ("cron", {"at": float("nan")})):
            with refused(bench, holdfast.InvalidRequest):
                store.triggers.source_key(source_type, source)

    def test_without_a_key_every_subscription_is_a_new_one(self, store: BlockingStore) -> None:
        assert [store.triggers.subscribe(daily()).handle for _ in range(2)] == ["trigger:1", "trigger:2"]

    def test_under_a_key_the_same_definition_is_the_same_subscription(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        first = store.triggers.subscribe(daily(CHAT, key="k", source={"a": 1, "b": 2}))
        clock.advance(50)
        before = bench.dump()
        assert bench.open().triggers.subscribe(daily(CHAT, key="k", source={"b": 2, "a": 1})) == first
        assert bench.dump() == before

    @pytest.mark.parametrize(
        "changed",
        [
            {"source_key": "hourly"},
            {"source": {"at": 1}},
            {"name": "Other"},
            {"target": External({"label": "x"})},
            {"wake_target": holdfast.Scope("chat")},
            {"payload_schema": {"type": "object"}},
            {"event_types": [EventType("progress")]},
        ],
        ids=["source key", "source", "name", "target", "wake target", "schema", "event types"],
    )
    def test_under_a_key_another_definition_conflicts(
        self, store: BlockingStore, bench: Bench, changed: dict[str, Any]
    ) -> None:
        store.triggers.subscribe(daily(CHAT, key="k"))
        with refused(bench, SubscriptionConflict) as info:
            store.triggers.subscribe(daily(CHAT, key="k", **changed))
        assert isinstance(info.value, SubscriptionConflict)
        assert isinstance(info.value, holdfast.Conflict)
        assert info.value.key == "k"

    def test_a_key_is_its_owners(self, store: BlockingStore) -> None:
        frame_like = BySession(holdfast.Scope("chat/frame:main"))
        made = [
            store.triggers.subscribe(daily(owner, key="k", name=name)).handle
            for owner, name in ((CHAT, "a"), (FRAME, "b"), (OTHER, "c"), (HOST, "d"), (frame_like, "e"))
        ]
        assert made == ["trigger:1", "trigger:2", "trigger:3", "trigger:4", "trigger:5"]

    def test_a_cancelled_key_may_be_subscribed_anew(self, store: BlockingStore) -> None:
        store.triggers.subscribe(daily(key="k"))
        assert store.triggers.cancel("trigger:1") is True
        again = store.triggers.subscribe(daily(key="k", name="changed"))
        assert (again.handle, again.enabled) == ("trigger:2", True)
        assert [(one.handle, one.enabled) for one in store.triggers.list()] == [
            ("trigger:1", False), ("trigger:2", True),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("parts", "field"),
        [
            ({"source_type": ""}, "source_type"),
            ({"source_key": " "}, "source_key"),
            ({"key": ""}, "key"),
            ({"payload_schema": {"type": "nonsense"}}, "payload_schema"),
            ({"target": Engine("script")}, "env_ref"),
            ({"env_ref": "env-1"}, "env_ref"),
            ({"input_template": {"a": EventPayload()}}, "input_template"),
            ({"target_identity": ProcessIdentity("x", "a"), "target_label": "b"}, "target_label"),
            ({"wake_target": holdfast.Scope("")}, "wake_target.session_id"),
            ({"event_types": [EventType("")]}, "event_types[0].name"),
            ({"registrant": BySession(holdfast.Scope(""))}, "registrant.scope.session_id"),
            (
                {"target": Engine("s", [1]), "env_ref": "e", "input_template": {"a": Fixed(1)}},
                "input_template",
            ),
        ],
        ids=[
            "source type", "source key", "key", "schema", "engine without environment", "external with one",
            "template without engine", "labels differ", "wake target", "event type", "registrant", "payload no object",
        ],
    )  # fmt: skip
    def test_a_subscription_that_could_never_start_is_refused(
        self, store: BlockingStore, bench: Bench, parts: dict[str, Any], field: str
    ) -> None:
        with refused(bench, holdfast.InvalidRequest) as info:
            store.triggers.subscribe(daily(**parts))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field

    # Listing and cancelling.

    def test_a_listing_fits_every_given_filter_in_the_order_of_registration(self, store: BlockingStore) -> None:
        flow = ProcessIdentity("flow", definition={"flow": "a", "v": 1})
        store.triggers.subscribe(daily(OTHER, name="x", target_identity=flow))
        store.triggers.subscribe(daily(FRAME, source_key="hourly"))
        store.triggers.subscribe(daily(HOST, name="x"))
        store.triggers.subscribe(daily(CHAT, source_type="mail"))
        store.triggers.cancel("trigger:3")
        listing = store.triggers.list
        assert handles(listing()) == ["trigger:1", "trigger:2", "trigger:3", "trigger:4"]
        assert handles(listing(session_id="chat")) == ["trigger:2", "trigger:4"]
        assert handles(listing(session_id="nobody")) == []
        assert handles(listing(host_only=True)) == ["trigger:3"]
        assert handles(listing(handle="trigger:2")) == ["trigger:2"]
        assert handles(listing(handle="trigger:9")) == handles(listing(handle="nonsense")) == []
        assert handles(listing(name="x")) == ["trigger:1", "trigger:3"]
        assert handles(listing(source_type="cron", source_key="daily")) == ["trigger:1", "trigger:3"]
        assert handles(listing(source_type="cron", source_key="daily", enabled=True)) == ["trigger:1"]
        assert handles(listing(enabled=False)) == ["trigger:3"]
        assert handles(listing(target={"v": 1, "flow": "a"})) == ["trigger:1"]
        assert handles(listing(session_id="chat", host_only=True)) == []

    def test_a_filtered_listing_is_paged_without_gap_or_repeat(self, store: BlockingStore, bench: Bench) -> None:
        for number in range(11):
            store.triggers.subscribe(daily(CHAT if number % 2 else HOST))
        first = store.triggers.list(host_only=True, limit=4)
        second = store.triggers.list(host_only=True, limit=4, after=first.next)
        assert (handles(first), handles(second)) == (
            ["trigger:1", "trigger:3", "trigger:5", "trigger:7"], ["trigger:9", "trigger:11"],
        )  # fmt: skip
        assert second.next is None
        wrong: list[dict[str, Any]] = [
            {"limit": 0},
            {"limit": 1_001},
            {"after": "noise"},
            {"enabled": 1},
            {"session_id": ""},
        ]
        for filters in wrong:
            with refused(bench, holdfast.InvalidRequest):
                store.triggers.list(**filters)

    @pytest.mark.parametrize(
        ("owner", "canceller", "cancelled"),
        [
            (CHAT, CHAT, True),
            (FRAME, CHAT, True),
            (CHAT, FRAME, True),
            (HOST, HOST, True),
            (CHAT, OTHER, False),
            (CHAT, HOST, False),
            (HOST, CHAT, False),
            (FRAME, BySession(holdfast.Scope("chat/frame:main")), False),
        ],
        ids=[
            "session by itself", "frame by its session", "session by its frame", "host by itself", "another session",
            "session by host", "host by session", "look-alike",
        ],
    )  # fmt: skip
    def test_a_caller_of_the_registrant_s_session_may_cancel(
        self,
        store: BlockingStore,
        bench: Bench,
        clock: ManualClock,
        owner: Originator,
        canceller: Originator,
        cancelled: bool,
    ) -> None:
        handle = store.triggers.subscribe(daily(owner)).handle
        clock.advance(7)
        assert bench.open().triggers.cancel(handle, registrant=canceller) is cancelled
        (listed,) = store.triggers.list()
        assert listed.enabled is not cancelled
        assert listed.updated_at_ms - listed.created_at_ms == (7 if cancelled else 0)
        assert store.triggers.cancel(handle, registrant=owner) is not cancelled

    @pytest.mark.parametrize("handle", ["trigger:2", "trigger:01", "trigger:", "1", "subscription:1", "trigger:+1"])
    def test_cancelling_what_is_not_there_is_false(self, store: BlockingStore, bench: Bench, handle: str) -> None:
        store.triggers.subscribe(daily())
        before = bench.dump()
        assert store.triggers.cancel(handle) is False
        assert bench.dump() == before

    @pytest.mark.parametrize("registrant", [CHAT, FRAME], ids=["session", "frame"])
    def test_a_deleted_session_subscribes_to_nothing(
        self, store: BlockingStore, bench: Bench, registrant: BySession
    ) -> None:
        store.triggers.subscribe(daily(registrant, key="k"))
        store.sessions.create("chat")
        store.sessions.delete("chat")
        for draft in (daily(registrant), daily(registrant, key="k")):
            with refused(bench, holdfast.SessionDeleted) as info:
                store.triggers.subscribe(draft)
            assert isinstance(info.value, holdfast.SessionDeleted)
            assert info.value.session_id == "chat"
        assert store.triggers.subscribe(daily(OTHER)).draft.registrant == OTHER
        store.sessions.create("chat")
        assert store.triggers.subscribe(daily(registrant, key="k")).draft.registrant == registrant

    def test_forgetting_a_session_takes_the_subscriptions_of_all_its_frames(self, store: BlockingStore) -> None:
        for owner in (CHAT, FRAME, OTHER, HOST):
            store.triggers.subscribe(daily(owner))
        store.triggers.emit("cron", "daily", idempotency_key="monday")
        assert store.triggers.forget_session("chat") == 2
        assert handles(store.triggers.list()) == ["trigger:3", "trigger:4"]
        assert [one.subscription.handle for one in store.triggers.undelivered()] == ["trigger:3", "trigger:4"]
        assert store.triggers.forget_session("chat") == 0

    # Occurrences.

    def test_an_occurrence_is_recorded_once_per_key(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        first = store.triggers.record("cron", "daily", idempotency_key="monday", payload={"a": 1, "b": 2}, source=[1])
        assert first == Occurrence(MONDAY, "cron", "daily", "monday", {"a": 1, "b": 2}, [1], clock.now_ms())
        clock.advance(60)
        before = bench.dump()
        again = bench.open().triggers.record(
            "cron", "daily", idempotency_key="monday", payload={"b": 2, "a": 1}, source=[1]
        )
        assert again == first
        assert bench.dump() == before

    @pytest.mark.parametrize("changed", [{"payload": 2}, {"source": {}}], ids=["payload", "source"])
    def test_another_occurrence_under_the_same_key_conflicts(
        self, store: BlockingStore, bench: Bench, changed: dict[str, Any]
    ) -> None:
        store.triggers.record("cron", "daily", idempotency_key="monday", payload=1)
        for call in (store.triggers.record, store.triggers.emit):
            with refused(bench, OccurrenceConflict) as info:
                call("cron", "daily", idempotency_key="monday", **{"payload": 1, **changed})
            error = info.value
            assert isinstance(error, OccurrenceConflict)
            assert (error.source_type, error.source_key, error.idempotency_key) == ("cron", "daily", "monday")

    def test_an_idempotency_key_is_its_sources(self, store: BlockingStore) -> None:
        made = [
            store.triggers.record(source_type, source_key, idempotency_key="monday", payload=number).occurrence_id
            for number, (source_type, source_key) in enumerate(
                [("cron", "daily"), ("cron", "hourly"), ("mail", "daily"), ("cron:daily", "monday")]
            )
        ]
        assert made[0] == MONDAY
        assert len(set(made)) == 4

    @pytest.mark.parametrize(
        "names", [("", "daily", "k"), ("cron", " ", "k"), ("cron", "daily", ""), ("cron", "daily", "\0")],
        ids=["source type", "source key", "key", "NUL"],
    )  # fmt: skip
    def test_an_occurrence_needs_its_names(
        self, store: BlockingStore, bench: Bench, names: tuple[str, str, str]
    ) -> None:
        for call in (store.triggers.record, store.triggers.emit):
            with refused(bench, holdfast.InvalidRequest):
                call(names[0], names[1], idempotency_key=names[2])
