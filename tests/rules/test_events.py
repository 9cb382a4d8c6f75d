"""Selection from events, their acceptance, the end of a process, and the wakes that events send."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import AlreadyTerminal, Corrupt, InvalidRequest, ReplayConflict
from holdfast.records.common import Scope
from holdfast.records.events import (
    Const,
    EventType,
    Payload,
    Pointer,
    Present,
    ProcessEvent,
    Template,
    TerminalRule,
    Wake,
    WakeRule,
    WakeSignal,
)
from holdfast.records.limits import Limits
from holdfast.records.processes import Cancelled, Completed, External, Failed, Process, ProcessIdentity, Provenance
from holdfast.records.queue import WorkDraft
from holdfast.rows import EventRow
from holdfast.rules import events

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()


def stable(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Declarations.


@pytest.mark.parametrize(
    "declared",
    [
        EventType("news"),
        EventType("news", {"type": "object"}, after_terminal=True),
        EventType("done", terminal=TerminalRule("completed")),
        EventType("done", terminal=TerminalRule("failed", Pointer(""))),
        EventType("wake", wake=WakeRule(Payload(), Present("/a"), Const([1]))),
        EventType("wake", wake=WakeRule(Template("{a}{b}", {"a": Template("x"), "b": Pointer("/b")}))),
    ],
    ids=["plain", "schema", "end", "failure", "wake", "template"],
)
def test_a_well_formed_declaration_is_kept(declared: EventType) -> None:
    assert events.check_event_type("type", declared, LIMITS) == declared


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ("news", "type"),
        (EventType(""), "type.name"),
        (EventType("news", after_terminal=1), "type.after_terminal"),  # type: ignore[arg-type]
        (EventType("news", {"type": "nothing"}), "type.schema"),
        (EventType("news", terminal="failed"), "type.terminal"),  # type: ignore[arg-type]
        (EventType("news", terminal=TerminalRule("lost")), "type.terminal.state"),  # type: ignore[arg-type]
        (EventType("news", terminal=TerminalRule("failed")), "type.terminal.outcome"),
        (EventType("news", terminal=TerminalRule("cancelled")), "type.terminal.outcome"),
        (EventType("news", terminal=TerminalRule("completed", "/a")), "type.terminal.outcome"),  # type: ignore[arg-type]
        (EventType("news", terminal=TerminalRule("completed", Pointer("a"))), "type.terminal.outcome.path"),
        (EventType("news", wake=Payload()), "type.wake"),  # type: ignore[arg-type]
        (EventType("news", wake=WakeRule(None)), "type.wake.input"),  # type: ignore[arg-type]
        (EventType("news", wake=WakeRule(Payload(), when=5)), "type.wake.when"),  # type: ignore[arg-type]
        (EventType("news", wake=WakeRule(Payload(), when=Present("a"))), "type.wake.when.path"),
        (EventType("news", wake=WakeRule(Payload(), dedupe=Const({1}))), "type.wake.dedupe.value"),
        (EventType("news", wake=WakeRule(Template(5))), "type.wake.input.template"),  # type: ignore[arg-type]
        (EventType("news", wake=WakeRule(Template("", [Payload()]))), "type.wake.input.fields"),  # type: ignore[arg-type]
        (EventType("news", wake=WakeRule(Template("", {"": Payload()}))), "type.wake.input.fields"),
        (EventType("news", wake=WakeRule(Template("", {"a{": Payload()}))), "type.wake.input.fields"),
        (EventType("news", wake=WakeRule(Template("", {"a}": Payload()}))), "type.wake.input.fields"),
        (EventType("news", wake=WakeRule(Template("", {"a": Pointer("x")}))), "type.wake.input.fields.a.path"),
    ],
)
def test_a_declaration_that_could_not_be_carried_out_is_refused(declared: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        events.check_event_type("type", declared, LIMITS)
    assert info.value.field == field


def test_a_declaration_has_so_many_selectors_and_no_more() -> None:
    def declared(fields: int) -> EventType:
        return EventType("w", wake=WakeRule(Template("", {str(number): Payload() for number in range(fields)})))

    assert events.check_event_type("type", declared(999), LIMITS).wake is not None
    shared = Template("{a}{b}", {"a": Payload(), "b": Payload()})
    for _ in range(40):
        shared = Template("{a}{b}", {"a": shared, "b": shared})
    for odd in (declared(1_000), EventType("w", wake=WakeRule(shared))):
        with pytest.raises(InvalidRequest, match="more than 1000 selectors"):
            events.check_event_type("type", odd, LIMITS)


def test_declarations_are_bounded_together() -> None:
    declared = events.Declared()
    small = Limits(document_bytes=200)
    large = EventType("w", {"title": "x" * 100}, wake=WakeRule(Const("x" * 50), Pointer("/" + "x" * 10)))
    events.check_event_type("type", large, small, declared)
    events.check_sum("type", declared, small)
    events.check_event_type("type", large, small, declared)
    with pytest.raises(InvalidRequest) as info:
        events.check_sum("type", declared, small)
    assert (info.value.field, info.value.limit) == ("type", 200)


def test_templates_nest_as_deep_as_documents_and_no_deeper() -> None:
    def nested(levels: int) -> EventType:
        template = Template("x")
        for _ in range(levels):
            template = Template("{a}", {"a": template})
        return EventType("news", wake=WakeRule(template))

    limits = Limits(document_depth=3)
    events.check_event_type("type", nested(3), limits)
    with pytest.raises(InvalidRequest, match="nested deeper than 3") as info:
        events.check_event_type("type", nested(4), limits)
    assert info.value.limit == 3


# Appending.


TYPES = (
    EventType("news"),
    EventType("strict", {"type": "object", "required": ["a"]}),
    EventType("done", terminal=TerminalRule("completed")),
    EventType("late", after_terminal=True),
    EventType("last words", terminal=TerminalRule("completed"), after_terminal=True),
    EventType("wake", wake=WakeRule(Pointer("/text"))),
    *events.CORE_EVENT_TYPES,
)


def process(*extra: EventType, **changes: Any) -> Process:
    plain = Process(
        id="build",
        registration_hash="hash",
        input=External(),
        identity=ProcessIdentity("external"),
        event_types=(*extra, *TYPES),
        provenance=Provenance(),
        env_ref=None,
        wake_target=None,
        created_at_ms=0,
        updated_at_ms=0,
        event_count=4,
    )
    return msgspec.structs.replace(plain, **changes)


def intent(type: Any = "news", payload: Any = None, replay_key: Any = None, wake_target: Any = None) -> Any:
    return events.check_event("build", type, payload, replay_key=replay_key, wake_target=wake_target, limits=LIMITS)


def test_an_event_is_checked_and_encoded() -> None:
    found = intent("news", {"b": 1, "a": 2}, "key", Scope("chat", ""))
    assert found == events.EventIntent(
        "build",
        "news",
        {"b": 1, "a": 2},
        b'{"b":1,"a":2}',
        stable('["news",{"a":2,"b":1}]'),
        "key",
        Scope("chat"),
        LIMITS.text_bytes,
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"type": ""}, "type"),
        ({"payload": {1}}, "payload"),
        ({"replay_key": ""}, "replay_key"),
        ({"wake_target": "chat"}, "wake_target"),
        ({"wake_target": Scope("")}, "wake_target.session_id"),
    ],
)
def test_an_event_that_cannot_be_kept_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        intent(**given)
    assert info.value.field == field


def test_an_accepted_event_is_the_next_in_its_process() -> None:
    plan = events.plan(intent("news", [1], "key"), process(), now_ms=50)
    row = EventRow("build", 5, "news", stable('["news",[1]]'), "key", None, None, 0, 50, b"[1]")
    assert plan == events.EventPlan(row, None, None)
    assert events.event_of(row) == ProcessEvent("build", 5, "news", [1], 50, "key")


@pytest.mark.parametrize(
    ("type", "payload", "key", "field"),
    [
        ("unknown", None, None, "type"),
        ("done", None, None, "replay_key"),
        ("process.completed", {"await_output": 1}, None, "replay_key"),
        ("process.cancel_requested", None, None, "replay_key"),
        ("strict", {}, None, "payload"),
        ("wake", {}, None, "payload"),
        ("process.failed", {}, "key", "payload"),
    ],
)
def test_an_event_that_its_declaration_does_not_allow_is_refused(
    type: str, payload: Any, key: str | None, field: str
) -> None:
    with pytest.raises(InvalidRequest) as info:
        events.plan(intent(type, payload, key), process(), now_ms=50)
    assert info.value.field == field


def test_after_the_end_only_what_is_declared_for_it_comes() -> None:
    ended = process(status="failed", outcome=Failed("x"))
    assert events.plan(intent("late"), ended, now_ms=50).row.sequence == 5
    for type, key in (("news", None), ("done", "key"), ("last words", "key"), ("process.cancel_requested", "key")):
        with pytest.raises(AlreadyTerminal) as info:
            events.plan(intent(type, None, key), ended, now_ms=50)
        assert (info.value.process_id, info.value.status) == ("build", "failed")


@pytest.mark.parametrize(
    ("declared", "payload", "is_light"),
    [
        (EventType("w"), 1, True),
        (EventType("w", True), 1, True),
        (EventType("w", {"type": "integer"}), 1, False),
        (EventType("w"), "x" * events.LIGHT_BYTES, False),
        (EventType("w", wake=WakeRule(Payload(), Present("/a"), Pointer("/b"))), {"b": 1}, True),
        (EventType("w", wake=WakeRule(Const("large"))), 1, False),
        (EventType("w", wake=WakeRule(Payload(), dedupe=Template("a"))), 1, False),
        (EventType("w", terminal=TerminalRule("completed", Template("a"))), 1, False),
        (EventType("another"), 1, True),
    ],
)
def test_slow_schemas_are_not_judged_inside_of_a_transaction(declared: EventType, payload: Any, is_light: bool) -> None:
    assert events.is_light(intent("w", payload), process(event_types=(declared,))) is is_light


def test_a_judgement_holds_for_one_registration_and_is_used_as_it_is() -> None:
    declared = process(EventType("w", {"type": "integer"}, wake=WakeRule(Payload(), dedupe=Const(""))))
    judged = events.judge(intent("w", 5), declared)
    assert (judged.registration_hash, judged.refusal) == (declared.registration_hash, None)
    plan = events.plan(intent("w", 5), declared, now_ms=50, judgement=judged)
    assert plan.wake == WakeSignal("5", "")
    refusal = events.judge(intent("w", "five"), declared)
    with pytest.raises(InvalidRequest, match="integer"):
        events.plan(intent("w", "five"), declared, now_ms=50, judgement=refusal)


def test_a_replay_key_names_one_event() -> None:
    row = events.plan(intent("news", {"a": 1, "b": 2}, "key"), process(), now_ms=50).row
    assert events.replayed(intent("news", {"b": 2, "a": 1}, "key"), row) is row
    assert events.replayed(intent("news", None, "key"), None) is None
    for type, payload in (("news", {"a": True, "b": 2}), ("late", {"a": 1, "b": 2}), ("news", None)):
        with pytest.raises(ReplayConflict) as info:
            events.replayed(intent(type, payload, "key"), row)
        assert (info.value.process_id, info.value.replay_key) == ("build", "key")


# Ends.


OUT = Pointer("/out")


@pytest.mark.parametrize(
    ("rule", "payload", "outcome"),
    [
        (TerminalRule("completed"), {"type": "success", "value": 1}, Completed({"type": "success", "value": 1})),
        (TerminalRule("completed"), [1], Completed([1])),
        (TerminalRule("completed", OUT), {"out": 5}, Completed(5)),
        (TerminalRule("completed", OUT), {"out": {"type": "success", "value": 1, "control": 2}}, Completed(1, 2)),
        (
            TerminalRule("completed", OUT),
            {"out": {"type": "failure", "message": "m"}},
            Completed({"type": "failure", "message": "m"}),
        ),
        (TerminalRule("failed", OUT), {"out": "broke"}, Failed("broke", raw="broke")),
        (TerminalRule("failed", OUT), {"out": {"code": 5}}, Failed('{"code":5}', raw={"code": 5})),
        (
            TerminalRule("failed", OUT),
            {"out": {"type": "failure", "message": "m", "code": "c", "class": "timeout", "raw": 1}},
            Failed("m", "c", "timeout", 1),
        ),
        (
            TerminalRule("failed", OUT),
            {"out": {"type": "failure", "message": 5}},
            Failed('{"type":"failure","message":5}', raw={"type": "failure", "message": 5}),
        ),
        (TerminalRule("cancelled", OUT), {"out": None}, Cancelled("null", raw=None)),
        (TerminalRule("cancelled", OUT), {"out": {"type": "cancelled", "message": "stop"}}, Cancelled("stop")),
        (TerminalRule("cancelled", Const("stop")), None, Cancelled("stop", raw="stop")),
    ],
)
def test_an_end_is_the_selected_outcome_or_the_selected_value_as_one(
    rule: TerminalRule, payload: Any, outcome: Any
) -> None:
    plan = events.plan(intent("end", payload, "key"), process(EventType("end", terminal=rule)), now_ms=50)
    assert plan.outcome == outcome
    assert plan.row.terminal_state == rule.state


@pytest.mark.parametrize(
    ("outcome", "type"),
    [
        (Completed({"a": 1}, control=[2]), "process.completed"),
        (Failed("m", "c", "timeout", {"r": 1}), "process.failed"),
        (Cancelled("stop"), "process.cancelled"),
    ],
)
def test_a_completion_is_an_event_that_gives_its_outcome_back(outcome: Any, type: str) -> None:
    found = events.completion_event("build", outcome, LIMITS)
    assert (found.type, found.replay_key) == (type, f"process:build:terminal:{type}")
    assert events.terminal_key("build", type) == found.replay_key
    assert events.plan(found, process(), now_ms=50).outcome == outcome
    assert events.completion_event("build", outcome, LIMITS) == found


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        ("done", "outcome"),
        (Completed({1}), "outcome.value"),
        (Completed(1, control={1}), "outcome.control"),
        (Failed(5), "outcome.message"),  # type: ignore[arg-type]
        (Failed({1}), "outcome.message"),  # type: ignore[arg-type]
        (Failed("m", code=""), "outcome.code"),
        (Failed("m", failure_class="lost"), "outcome.failure_class"),  # type: ignore[arg-type]
        (Failed("m", raw={1}), "outcome.raw"),
        (Cancelled(None), "outcome.message"),  # type: ignore[arg-type]
        (Cancelled("m", control={1}), "outcome.control"),
    ],
)
def test_an_outcome_that_cannot_be_kept_is_refused(outcome: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        events.completion_event("build", outcome, LIMITS)
    assert info.value.field == field


def test_an_outcome_may_be_as_deep_as_any_document() -> None:
    limits = Limits(document_depth=2)
    assert events.completion_event("build", Completed([[]]), limits).encoded.endswith(b'"value":[[]],"control":null}}')
    with pytest.raises(InvalidRequest) as info:
        events.completion_event("build", Completed([[[]]]), limits)
    assert (info.value.field, info.value.limit) == ("outcome.value", 2)


def keyed(type: str, key: object) -> str | None:
    return events.check_event("build", type, None, replay_key=key, wake_target=None, limits=LIMITS).replay_key


def test_the_key_of_an_end_or_a_cancellation_belongs_to_that_event_alone() -> None:
    assert keyed("note", None) is None
    for key in ("mine", "process:other:terminal:process.completed", "process:build:step:1"):
        assert keyed("note", key) == key
    end = events.terminal_key("build", "process.completed")
    cancel = events.cancel_key("build", None)
    assert keyed("process.completed", end) == end
    assert keyed("process.cancel_requested", cancel) == cancel
    for type, key in (("note", end), ("note", cancel), ("process.failed", end), ("note", "process:build:")):
        with pytest.raises(InvalidRequest) as info:
            keyed(type, key)
        assert info.value.field == "replay_key"


def test_a_process_with_the_longest_id_can_end_and_be_cancelled() -> None:
    name = "p" * LIMITS.id_bytes
    assert (
        events.completion_event(name, Completed(1), LIMITS).replay_key == f"process:{name}:terminal:process.completed"
    )
    key = events.cancel_key(name, None)
    type = "process.cancel_requested"
    assert events.check_event(name, type, 1, replay_key=key, wake_target=None, limits=LIMITS).replay_key == key


def test_the_same_reason_to_cancel_is_the_same_request() -> None:
    assert events.cancel_key("p", {"a": 1, "b": 2}) == events.cancel_key("p", {"b": 2, "a": 1})
    assert events.cancel_key("p", {"a": 1}) != events.cancel_key("p", {"a": True})


# Wakes.


@pytest.mark.parametrize(
    ("rule", "payload", "signal"),
    [
        (WakeRule(Payload()), "hi", WakeSignal("hi", "build:5")),
        (WakeRule(Payload()), {"a": 1}, WakeSignal('{"a":1}', "build:5")),
        (WakeRule(Const("go"), dedupe=Const("once")), None, WakeSignal("go", "once")),
        (WakeRule(Const(1), dedupe=Pointer("/id")), {"id": 7}, WakeSignal("1", "7")),
        (WakeRule(Template("{n}!", {"n": Pointer("/n")})), {"n": 3}, WakeSignal("3!", "build:5")),
    ],
)
def test_a_wake_says_what_its_rule_selects(rule: WakeRule, payload: Any, signal: WakeSignal) -> None:
    plan = events.plan(intent("w", payload), process(EventType("w", wake=rule)), now_ms=50)
    assert plan.wake == signal
    assert events.wake_signal_of(plan.row) == signal
    assert events.event_of(plan.row).wake == signal


@pytest.mark.parametrize("value", [True, 1, -1, 0.5, "a", "0", [0], {"a": 0}])
@pytest.mark.parametrize("falsy", [False, 0, 0.0, "", [], {}, None])
def test_a_condition_is_true_or_false_as_in_python(value: Any, falsy: Any) -> None:
    woken = process(EventType("w", wake=WakeRule(Const("x"), when=Pointer("/when"))))
    assert events.plan(intent("w", {"when": value}), woken, now_ms=50).wake == WakeSignal("x", "build:5")
    assert events.plan(intent("w", {"when": falsy}), woken, now_ms=50).wake is None


def wake_row(**changes: Any) -> EventRow:
    plain = EventRow("build", 5, "wake", "hash", None, None, b'\x01{"input":"hi","dedupe_key":"k"}', 0, 50, b"null")
    return msgspec.structs.replace(plain, **changes)


def test_a_wake_needs_a_signal_and_a_target() -> None:
    signal, target = WakeSignal("hi", "k"), Scope("chat", "f")
    assert events.wake_of(wake_row(), None, target, None) is None
    assert events.wake_of(wake_row(), signal, None, None) is None
    assert events.wake_of(wake_row(), signal, target, [1]) == Wake(
        "wake:" + stable('["chat","f","k"]'), target, "build", 5, "wake", "k", "hi", 50, [1]
    )


@STEADY
@given(*[st.tuples(st.sampled_from("ab"), st.sampled_from([None, "f", "g"]), st.sampled_from("kl"))] * 2)
def test_wakes_share_an_id_exactly_if_target_and_dedupe_key_are_the_same(left: Any, right: Any) -> None:
    first, second = (
        events.wake_of(wake_row(sequence=number), WakeSignal("hi", key), Scope(session, frame), None)
        for number, (session, frame, key) in enumerate((left, right))
    )
    assert first is not None
    assert second is not None
    assert (first.wake_id == second.wake_id) is (left == right)


def test_a_wake_is_delivered_as_work_that_is_done_once_and_alone() -> None:
    wake = Wake("wake:1", Scope("chat", "f"), "build", 5, "wake", "k", "hi", 50, {"c": 1})
    draft = events.wake_draft(wake)
    assert msgspec.structs.replace(draft, payloads=()) == WorkDraft(
        payloads=(), session_id="chat", source_key="wake:1", slot="exclusive"
    )
    assert json.loads(json.dumps(draft.payloads)) == [
        {
            "type": "process_wake",
            "wake": {
                "wake_id": "wake:1",
                "target": {"session_id": "chat", "frame_id": "f"},
                "process_id": "build",
                "sequence": 5,
                "event_type": "wake",
                "dedupe_key": "k",
                "input": "hi",
                "caused_by": {"c": 1},
            },
        }
    ]


def test_a_stored_event_says_how_it_stands() -> None:
    found = events.event_of(wake_row(acked=1, terminal_state="failed", replay_key="r"))
    assert (found.acknowledged, found.terminal_state, found.replay_key) == (True, "failed", "r")
    plain = events.event_of(wake_row(wake=None))
    assert (plain.acknowledged, plain.terminal_state, plain.wake) == (False, None, None)


@pytest.mark.parametrize(
    "changes", [{"wake": b"\x01{}"}, {"payload": b"{"}, {"terminal_state": "lost"}], ids=["wake", "payload", "state"]
)
def test_a_damaged_event_is_reported(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt) as info:
        events.event_of(wake_row(**changes))
    assert (info.value.table, info.value.key) == ("events", "build/5")
