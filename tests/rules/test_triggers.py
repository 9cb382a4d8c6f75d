"""One occurrence reaches one subscription once, under ids that can be derived again."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidRequest, OccurrenceConflict, SubscriptionConflict
from holdfast.records.common import Scope
from holdfast.records.events import EventType
from holdfast.records.limits import Limits
from holdfast.records.processes import (
    BySession,
    Engine,
    External,
    Host,
    Originator,
    ProcessIdentity,
    ProcessRegistration,
    Provenance,
)
from holdfast.records.triggers import EventPayload, Fixed, Occurrence, Subscription, SubscriptionDraft, TriggerDelivery
from holdfast.rows import DeliveryRow, OccurrenceRow, SubscriptionRow
from holdfast.rules import processes, triggers

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()


def stable(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Ids.


def test_a_source_without_a_name_is_named_by_what_it_is() -> None:
    expected = "source:timer:sha256:" + stable('["timer",{"a":1,"b":2}]')
    assert triggers.default_source_key("timer", {"b": 2, "a": 1}) == expected
    nothing = "source:timer:sha256:" + stable('["timer",{}]')
    assert triggers.default_source_key("timer", None) == nothing
    assert triggers.default_source_key("timer", {}) == nothing
    assert triggers.default_source_key("mail", None) != nothing


@STEADY
@given(*[st.tuples(st.text(max_size=3), st.text(max_size=3))] * 2)
def test_a_delivery_has_one_process_and_no_two_share_one(left: tuple[str, str], right: tuple[str, str]) -> None:
    first, second = triggers.delivery_process_id(*left), triggers.delivery_process_id(*right)
    assert first.startswith("process:trigger:")
    assert (first == second) is (left == right)


@STEADY
@given(st.integers(1, 10**18 - 1))
def test_a_subscription_is_found_by_the_names_that_it_was_given(sequence: int) -> None:
    name, handle = triggers.subscription_id(sequence), triggers.handle(sequence)
    assert (name, handle) == (f"subscription:{sequence}", f"trigger:{sequence}")
    assert triggers.sequence_of("id", name, "subscription:", LIMITS) == sequence
    assert triggers.sequence_of("handle", handle, "trigger:", LIMITS) == sequence
    assert triggers.sequence_of("handle", name, "trigger:", LIMITS) is None


@pytest.mark.parametrize(
    "name",
    [
        "7",
        "trigger:",
        "trigger: 7",
        "trigger:+7",
        "trigger:-7",
        "trigger:7.0",
        "trigger:²",
        "trigger:007",
        "Trigger:7",
        "xtrigger:7",
        "trigger:trigger:7",
        "subscription:7",
        "trigger:9999999999999999999",
    ],
)
def test_a_name_that_was_never_given_finds_nothing(name: str) -> None:
    assert triggers.sequence_of("handle", name, "trigger:", LIMITS) is None


def test_invalid_names_are_refused() -> None:
    for value in ("", None, 7):
        with pytest.raises(InvalidRequest) as info:
            triggers.sequence_of("handle", value, "trigger:", LIMITS)
        assert info.value.field == "handle"


# Subscriptions.


def draft(**changes: Any) -> SubscriptionDraft:
    plain = SubscriptionDraft(
        source_type="timer",
        target=Engine("python", {"script": "x"}),
        source={"every": 5},
        env_ref="env",
        input_template={"event": EventPayload(), "n": Fixed([1])},
        event_types=[EventType("news")],
    )
    return msgspec.structs.replace(plain, **changes)


def checked(**changes: Any) -> triggers.SubscriptionIntent:
    return triggers.check_subscription(draft(**changes), LIMITS)


def test_a_subscription_is_filled_in_and_stored() -> None:
    scope = Scope("chat", "f")
    intent = checked(registrant=BySession(scope), key="k", name="n", wake_target=Scope("chat", ""))
    filled = draft(
        registrant=BySession(scope),
        key="k",
        name="n",
        wake_target=Scope("chat"),
        target_identity=ProcessIdentity("python"),
    )
    assert (intent.draft, intent.target_hash) == (filled, None)
    assert intent.source_key == "source:timer:sha256:" + stable('["timer",{"every":5}]')
    row = triggers.new_subscription(intent, now_ms=50)
    assert row == SubscriptionRow(
        sequence=0,
        session_id="chat",
        frame_id="f",
        key="k",
        definition_hash=intent.definition_hash,
        name="n",
        source_type="timer",
        source_key=intent.source_key,
        target_hash=None,
        enabled=1,
        created_at_ms=50,
        updated_at_ms=50,
        body=row.body,
    )
    stored = msgspec.structs.replace(row, sequence=7, enabled=0, updated_at_ms=60)
    found = triggers.subscription_of(stored)
    assert msgspec.structs.replace(found, draft=filled) == Subscription(
        "subscription:7", "trigger:7", filled, intent.source_key, False, 50, 60
    )
    assert msgspec.structs.replace(found.draft, event_types=list(found.draft.event_types)) == filled


def test_a_source_key_of_the_caller_s_is_kept() -> None:
    assert checked(source_key="mine").source_key == "mine"


def test_a_definition_makes_a_target_comparable() -> None:
    identity = ProcessIdentity("k", "l", {"d": 1})
    intent = checked(target_identity=identity)
    assert intent.target_hash == stable('{"d":1}')
    assert intent.draft.target_identity == identity


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source_type": ""}, "source_type"),
        ({"source": {1}}, "source"),
        ({"source_key": ""}, "source_key"),
        ({"payload_schema": {"type": "nothing"}}, "payload_schema"),
        ({"target": "engine"}, "target"),
        ({"target": Engine("")}, "target.kind"),
        ({"input_template": [1]}, "input_template"),
        ({"input_template": {"": EventPayload()}}, "input_template"),
        ({"input_template": {"a": "event"}}, "input_template.a"),
        ({"input_template": {"a": Fixed({1})}}, "input_template.a.value"),
        ({"target": Engine("python", [1])}, "input_template"),
        ({"target": External(), "env_ref": None}, "input_template"),
        ({"event_types": [EventType("")]}, "event_types[0].name"),
        ({"target_identity": "name"}, "target_identity"),
        ({"target_identity": ProcessIdentity("")}, "target_identity.kind"),
        ({"target_label": 5}, "target_label"),
        ({"target_identity": ProcessIdentity("k", "l"), "target_label": "m"}, "target_label"),
        ({"registrant": "host"}, "registrant"),
        ({"registrant": BySession(Scope(""))}, "registrant.scope.session_id"),
        ({"key": ""}, "key"),
        ({"name": 5}, "name"),
        ({"env_ref": ""}, "env_ref"),
        ({"env_ref": None}, "env_ref"),
        ({"target": External(), "input_template": {}}, "env_ref"),
        ({"wake_target": "chat"}, "wake_target"),
    ],
)
def test_a_subscription_that_could_not_be_delivered_to_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        checked(**changes)
    assert info.value.field == field


def test_anything_but_a_subscription_is_refused() -> None:
    with pytest.raises(InvalidRequest) as info:
        triggers.check_subscription({"source_type": "timer"}, LIMITS)
    assert info.value.field == "draft"


@pytest.mark.parametrize(
    "changes",
    [
        {"target_label": "l", "target_identity": ProcessIdentity("k", "l")},
        {"target_label": "l", "target_identity": ProcessIdentity("k")},
        {"target": Engine("python")},
        {"target": External(), "env_ref": None, "input_template": {}},
    ],
    ids=["labels agree", "one label", "no payload", "external"],
)
def test_a_subscription_that_can_be_delivered_to_is_accepted(changes: dict[str, Any]) -> None:
    assert checked(**changes).draft.source_type == "timer"


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"source": {"every": 5}}, True),
        ({"target_identity": ProcessIdentity("python")}, True),
        ({"source": {"every": 6}}, False),
        ({"target": Engine("python", {"script": "y"})}, False),
        ({"name": "n"}, False),
        ({"payload_schema": {"type": "object"}}, False),
        ({"input_template": {}}, False),
        ({"wake_target": Scope("chat")}, False),
        ({"event_types": []}, False),
    ],
)
def test_a_key_names_one_subscription(changes: dict[str, Any], same: bool) -> None:
    stored = triggers.new_subscription(checked(key="k"), now_ms=50)
    again = checked(**{"key": "k", **changes})
    if same:
        assert triggers.same_subscription(again, stored) is stored
        return
    with pytest.raises(SubscriptionConflict) as info:
        triggers.same_subscription(again, stored)
    assert info.value.key == "k"


@pytest.mark.parametrize(
    ("owner", "registrant", "may"),
    [
        (Host(), Host(), True),
        (Host(), BySession(Scope("chat")), False),
        (BySession(Scope("chat")), Host(), False),
        (BySession(Scope("chat")), BySession(Scope("chat")), True),
        (BySession(Scope("chat", "f")), BySession(Scope("chat")), True),
        (BySession(Scope("chat", "f")), BySession(Scope("chat", "g")), True),
        (BySession(Scope("chat")), BySession(Scope("other")), False),
    ],
)
def test_a_subscription_is_cancelled_by_its_session_or_the_host_that_made_it(
    owner: Originator, registrant: Originator, may: bool
) -> None:
    row = triggers.new_subscription(checked(registrant=owner), now_ms=50)
    assert triggers.may_cancel(row, registrant) is may
    assert not triggers.may_cancel(msgspec.structs.replace(row, enabled=0), registrant)
    assert not triggers.may_cancel(None, registrant)


def test_a_registrant_other_than_a_frame_has_no_frame() -> None:
    assert triggers.frame_of(Host()) is None
    assert triggers.frame_of(BySession(Scope("chat"))) is None
    assert triggers.frame_of(BySession(Scope("chat", "f"))) == "f"


def test_a_damaged_subscription_is_reported() -> None:
    row = msgspec.structs.replace(triggers.new_subscription(checked(), now_ms=50), sequence=7, body=b"\x01{}")
    with pytest.raises(Corrupt) as info:
        triggers.subscription_of(row)
    assert (info.value.table, info.value.key) == ("subscriptions", "7")


# Occurrences.


def occurrence(**changes: Any) -> triggers.OccurrenceIntent:
    plain = {
        "source_type": "timer",
        "source_key": "k",
        "idempotency_key": "i",
        "payload": {"b": 1, "a": 2},
        "source": None,
    }
    return triggers.check_occurrence(**{**plain, **changes}, limits=LIMITS)


OCCURRENCE = OccurrenceRow(
    "trigger:" + stable('["timer","k","i"]'),
    "timer",
    "k",
    "i",
    stable('["timer","k",{"a":2,"b":1},null]'),
    50,
    b'{"b":1,"a":2}',
    None,
)


def test_an_occurrence_is_named_by_its_source_and_key() -> None:
    assert triggers.new_occurrence(occurrence(), now_ms=50) == OCCURRENCE
    assert triggers.occurrence_of(OCCURRENCE) == Occurrence(
        OCCURRENCE.occurrence_id, "timer", "k", "i", {"b": 1, "a": 2}, None, 50
    )
    with_source = triggers.new_occurrence(occurrence(source={"s": 1}), now_ms=50)
    assert triggers.occurrence_of(with_source).source == {"s": 1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source_type": ""}, "source_type"),
        ({"source_key": None}, "source_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"payload": {1}}, "payload"),
        ({"source": {1}}, "source"),
    ],
)
def test_an_occurrence_that_cannot_be_kept_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        occurrence(**changes)
    assert info.value.field == field


def test_an_idempotency_key_names_one_occurrence_of_its_source() -> None:
    assert triggers.same_occurrence(occurrence(payload={"a": 2, "b": 1}), OCCURRENCE) is OCCURRENCE
    for changes in ({"payload": {"a": 2, "b": True}}, {"source": {}}):
        with pytest.raises(OccurrenceConflict) as info:
            triggers.same_occurrence(occurrence(**changes), OCCURRENCE)
        assert (info.value.source_type, info.value.source_key, info.value.idempotency_key) == ("timer", "k", "i")
    assert occurrence(source_key="l").occurrence_id != OCCURRENCE.occurrence_id
    assert occurrence(source_type="mail").occurrence_id != OCCURRENCE.occurrence_id


@pytest.mark.parametrize("changes", [{"payload": b"{"}, {"source": b"{"}], ids=["payload", "source"])
def test_a_damaged_occurrence_is_reported(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt) as info:
        triggers.occurrence_of(msgspec.structs.replace(OCCURRENCE, **changes))
    assert (info.value.table, info.value.key) == ("occurrences", OCCURRENCE.occurrence_id)


# Deliveries.


def subscription(**changes: Any) -> SubscriptionRow:
    return msgspec.structs.replace(triggers.new_subscription(checked(**changes), now_ms=50), sequence=7)


def test_a_reservation_knows_the_process_that_it_will_start() -> None:
    row = triggers.new_delivery(OCCURRENCE, subscription(), now_ms=60)
    process_id = "process:trigger:" + stable(f'["{OCCURRENCE.occurrence_id}","subscription:7"]')
    assert row == DeliveryRow(OCCURRENCE.occurrence_id, 7, process_id, "reserved", 60, 60)
    found = triggers.delivery_of(row, triggers.occurrence_of(OCCURRENCE), subscription())
    assert (found.process_id, found.state, found.reserved_at_ms, found.failure) == (process_id, "reserved", 60, None)
    assert found.occurrence == Occurrence(OCCURRENCE.occurrence_id, "timer", "k", "i", {"b": 1, "a": 2}, None, 50)
    described = (found.subscription.subscription_id, found.subscription.handle, found.subscription.draft.source)
    assert described == ("subscription:7", "trigger:7", {"every": 5})


RESERVED = DeliveryRow("o", 7, "p", "reserved", 60, 60)


def test_a_delivery_that_started_stays_started() -> None:
    failed = triggers.moved(RESERVED, "failed", failure="no", now_ms=70)
    assert failed == msgspec.structs.replace(RESERVED, state="failed", failure="no", updated_at_ms=70)
    started = triggers.moved(failed, "started", now_ms=80)
    assert started == msgspec.structs.replace(RESERVED, state="started", failure=None, updated_at_ms=80)
    assert triggers.moved(started, "failed", failure="late", now_ms=90) is started


def test_a_damaged_delivery_is_reported() -> None:
    with pytest.raises(Corrupt, match="state is 'lost'") as info:
        triggers.delivery_of(
            msgspec.structs.replace(RESERVED, state="lost"), triggers.occurrence_of(OCCURRENCE), subscription()
        )
    assert (info.value.table, info.value.key) == ("deliveries", "p")


def delivery(**changes: Any) -> TriggerDelivery:
    row = subscription(**changes)
    reserved = triggers.new_delivery(OCCURRENCE, row, now_ms=60)
    return triggers.delivery_of(reserved, triggers.occurrence_of(OCCURRENCE), row)


@pytest.mark.parametrize(
    ("changes", "started"),
    [
        ({}, Engine("python", {"script": "x", "args": {"event": {"b": 1, "a": 2}, "n": [1]}})),
        ({"target": Engine("python")}, Engine("python", {"args": {"event": {"b": 1, "a": 2}, "n": [1]}})),
        (
            {"target": Engine("python", {"args": 1}), "input_template": {"x": Fixed(2)}},
            Engine("python", {"args": {"x": 2}}),
        ),
        ({"input_template": {}}, Engine("python", {"script": "x"})),
        ({"target": External(5), "env_ref": None, "input_template": {}}, External(5)),
    ],
    ids=["filled", "no payload", "replaced", "no template", "external"],
)
def test_a_delivery_starts_the_target_with_its_arguments(changes: dict[str, Any], started: Any) -> None:
    given = delivery(registrant=BySession(Scope("chat")), wake_target=Scope("chat"), **changes)
    found = triggers.registration_for(given)
    identity = ProcessIdentity("external") if isinstance(started, External) else ProcessIdentity("python")
    cause = {"type": "trigger_occurrence", "occurrence_id": OCCURRENCE.occurrence_id}
    assert msgspec.structs.replace(found, event_types=list(found.event_types)) == ProcessRegistration(
        id=given.process_id,
        input=started,
        identity=identity,
        event_types=[EventType("news")],
        provenance=Provenance(BySession(Scope("chat")), cause),
        env_ref=None if isinstance(started, External) else "env",
        wake_target=Scope("chat"),
    )
    processes.check_registration(found, LIMITS)


def test_a_payload_that_does_not_fit_starts_nothing() -> None:
    with pytest.raises(InvalidRequest) as info:
        triggers.registration_for(delivery(payload_schema={"required": ["missing"]}))
    assert info.value.field == "payload"
    assert triggers.registration_for(delivery(payload_schema={"required": ["a"]})).id.startswith("process:trigger:")
