"""A process is registered once, keeps its definition, ends once, and its record never contradicts itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import AlreadyTerminal, Corrupt, InvalidRequest, RegistrationConflict
from holdfast.records.common import Scope
from holdfast.records.events import EventType, Pointer, TerminalRule
from holdfast.records.limits import Limits
from holdfast.records.processes import (
    Abandoned,
    BySession,
    Cancelled,
    Completed,
    Engine,
    External,
    ExternalRef,
    Failed,
    Host,
    Process,
    ProcessIdentity,
    ProcessRegistration,
    Provenance,
    SessionTurn,
    SignalWait,
    ToolCall,
)
from holdfast.rows import ProcessRow, SessionRow
from holdfast.rules import processes
from holdfast.rules.events import CORE_EVENT_TYPES

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()
TOOL = ToolCall("call", "tool", "grep", {"a": 1})
CORE = [
    "process.cancel_requested",
    "process.waiting",
    "process.resumed",
    "process.completed",
    "process.failed",
    "process.cancelled",
    "process.abandoned",
]


def registration(**changes: Any) -> ProcessRegistration:
    return msgspec.structs.replace(ProcessRegistration("build", External({"label": "nightly"})), **changes)


def checked(**changes: Any) -> processes.Registered:
    return processes.check_registration(registration(**changes), LIMITS)


def row(**changes: Any) -> ProcessRow:
    return msgspec.structs.replace(processes.new_process(checked(), now_ms=50), **changes)


# Registration.


def test_a_registration_is_filled_in() -> None:
    found = checked(wake_target=Scope("chat", ""), provenance=Provenance(BySession(Scope("chat", "f")), {"c": 1}))
    assert found == processes.Registered(
        id="build",
        input=External({"label": "nightly"}),
        identity=ProcessIdentity("external", "nightly"),
        event_types=CORE_EVENT_TYPES,
        provenance=Provenance(BySession(Scope("chat", "f")), {"c": 1}),
        env_ref=None,
        wake_target=Scope("chat"),
        recovery="external",
    )
    assert [one.name for one in found.event_types] == CORE


def test_a_declared_type_comes_first_and_may_stand_for_a_core_one() -> None:
    core = EventType("process.waiting", {"type": "object"})
    found = checked(event_types=[EventType("news"), core])
    assert [one.name for one in found.event_types] == ["news", "process.waiting", *CORE[:1], *CORE[2:]]
    assert found.event_types[1] == core


@pytest.mark.parametrize(
    ("given", "env_ref", "field"),
    [
        (TOOL, None, "env_ref"),
        (Engine("k"), None, "env_ref"),
        (External(), "env", "env_ref"),
        (SessionTurn({}, {}), "env", "env_ref"),
        (TOOL, "", "env_ref"),
    ],
    ids=["tool call", "engine", "external", "session turn", "blank"],
)
def test_an_environment_is_given_exactly_where_one_is_needed(given: Any, env_ref: str | None, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        checked(input=given, env_ref=env_ref)
    assert info.value.field == field


@pytest.mark.parametrize(("given", "env_ref"), [(TOOL, "env"), (Engine("k"), "env"), (SessionTurn({}, {}), None)])
def test_every_kind_of_process_can_be_registered(given: Any, env_ref: str | None) -> None:
    assert checked(input=given, env_ref=env_ref).input == given


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"input": {"type": "external"}}, "input"),
        ({"input": ToolCall("", "t", "n")}, "input.call_id"),
        ({"input": ToolCall("c", "", "n")}, "input.tool_id"),
        ({"input": ToolCall("c", "t", "")}, "input.tool_name"),
        ({"input": ToolCall("c", "t", "n", replay={1})}, "input.replay"),
        ({"input": Engine("")}, "input.kind"),
        ({"input": Engine("k", {1})}, "input.payload"),
        ({"input": SessionTurn({}, (1,))}, "input.turn_input"),
        ({"input": External({1})}, "input.metadata"),
        ({"identity": "name"}, "identity"),
        ({"identity": ProcessIdentity("")}, "identity.kind"),
        ({"identity": ProcessIdentity("k", 5)}, "identity.label"),
        ({"identity": ProcessIdentity("k", definition={1})}, "identity.definition"),
        ({"event_types": EventType("a")}, "event_types"),
        ({"event_types": [EventType("a"), EventType("")]}, "event_types[1].name"),
        ({"event_types": [EventType("a"), EventType("b"), EventType("a")]}, "event_types[2].name"),
        ({"event_types": [EventType("process.completed")]}, "event_types[0].terminal"),
        (
            {"event_types": [EventType("process.waiting", terminal=TerminalRule("completed"))]},
            "event_types[0].terminal",
        ),
        (
            {
                "event_types": [
                    EventType("process.failed", terminal=TerminalRule("completed", Pointer("/await_output")))
                ]
            },
            "event_types[0].terminal",
        ),
        ({"provenance": Host()}, "provenance"),
        ({"provenance": Provenance("host")}, "provenance.originator"),
        ({"provenance": Provenance(BySession(Scope("")))}, "provenance.originator.scope.session_id"),
        ({"provenance": Provenance(Host(), {1})}, "provenance.caused_by"),
        ({"wake_target": "chat"}, "wake_target"),
    ],
)
def test_a_process_that_cannot_be_kept_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        checked(**changes)
    assert info.value.field == field


def test_anything_but_a_registration_is_refused() -> None:
    with pytest.raises(InvalidRequest) as info:
        processes.check_registration({"id": "build"}, LIMITS)
    assert info.value.field == "registration"


@pytest.mark.parametrize(
    ("given", "identity"),
    [
        (TOOL, ProcessIdentity("tool", "grep")),
        (Engine("python"), ProcessIdentity("python")),
        (External(), ProcessIdentity("external")),
        (External("text"), ProcessIdentity("external")),
        (External({"label": "l", "name": "n", "title": "t"}), ProcessIdentity("external", "l")),
        (External({"title": "t", "name": "n"}), ProcessIdentity("external", "n")),
        (External({"title": "t"}), ProcessIdentity("external", "t")),
        (External({"label": 5}), ProcessIdentity("external")),
        (
            SessionTurn({"subagent": {"capability": "c"}, "usage_source": "u", "session_id": "s"}, 0),
            ProcessIdentity("session_turn", "c"),
        ),
        (SessionTurn({"subagent": {}, "usage_source": "u"}, 0), ProcessIdentity("session_turn", "u")),
        (SessionTurn({"subagent": "x", "session_id": "s"}, 0), ProcessIdentity("session_turn", "s")),
        (SessionTurn({"usage_source": 5}, 0), ProcessIdentity("session_turn")),
        (SessionTurn([], 0), ProcessIdentity("session_turn")),
    ],
)
def test_a_process_has_a_name_even_if_none_is_given(given: Any, identity: ProcessIdentity) -> None:
    assert processes.derive_identity(given) == identity


# Sameness.


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"identity": ProcessIdentity("external", "nightly")}, True),
        ({"event_types": list(CORE_EVENT_TYPES)}, True),
        ({"input": External({"label": "nightly", "a": {"x": 1, "y": 2}})}, False),
        ({"identity": ProcessIdentity("external", "daily")}, False),
        ({"event_types": [EventType("news")]}, False),
        ({"provenance": Provenance(Host(), 1)}, False),
        ({"provenance": Provenance(BySession(Scope("chat")))}, False),
        ({"wake_target": Scope("chat")}, False),
        ({"id": "other"}, False),
    ],
)
def test_a_process_is_registered_once_and_never_redefined(changes: dict[str, Any], same: bool) -> None:
    again = checked(**changes)
    if same:
        assert processes.same_registration(again, row()) == row()
        return
    with pytest.raises(RegistrationConflict) as info:
        processes.same_registration(again, row())
    assert info.value.process_id == again.id
    assert info.value.existing_hash == row().registration_hash != info.value.new_hash
    differs = "its fields" if "id" in changes else next(iter(changes))
    assert f"exists with other values of {differs}" in str(info.value)


def test_key_order_does_not_make_another_process() -> None:
    first = checked(input=External({"a": 1, "b": 2}))
    second = checked(input=External({"b": 2, "a": 1}))
    assert processes.registration_hash(first) == processes.registration_hash(second)
    assert processes.registration_hash(checked(input=External({"a": True, "b": 2}))) != processes.registration_hash(
        first
    )


def test_definitions_are_compared_by_content() -> None:
    assert processes.definition_hash(None) is None
    assert processes.definition_hash({"a": 1, "b": 2}) == processes.definition_hash({"b": 2, "a": 1})
    assert processes.definition_hash({"a": 1}) != processes.definition_hash({"a": 2})


# The record.


def test_a_new_process_runs_and_is_found_by_session_target_and_definition() -> None:
    scope = Scope("chat", "f")
    registered = checked(
        provenance=Provenance(BySession(scope)),
        wake_target=Scope("target", "g"),
        identity=ProcessIdentity("k", "l", {"d": 1}),
    )
    found = processes.new_process(registered, now_ms=50)
    assert found == ProcessRow(
        process_id="build",
        registration_hash=processes.registration_hash(registered),
        status="running",
        waiting=0,
        definition_hash=processes.definition_hash({"d": 1}),
        originator_session_id="chat",
        wake_session_id="target",
        wake_frame_id="g",
        event_count=0,
        created_at_ms=50,
        updated_at_ms=50,
        body=found.body,
        recovery="external",
    )
    assert processes.process_of(found) == Process(
        id="build",
        registration_hash=found.registration_hash,
        input=registered.input,
        identity=registered.identity,
        event_types=registered.event_types,
        provenance=registered.provenance,
        env_ref=None,
        wake_target=Scope("target", "g"),
        created_at_ms=50,
        updated_at_ms=50,
        recovery="external",
    )


def test_a_host_s_process_belongs_to_no_session() -> None:
    assert (row().originator_session_id, row().wake_session_id, row().wake_frame_id) == (None, None, None)
    assert processes.process_of(row()).wake_target is None
    assert processes.session_of(Host()) is None
    assert processes.session_of(BySession(Scope("chat", "f"))) == "chat"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (None, "running"),
        (Completed(1), "completed"),
        (Failed("x"), "failed"),
        (Cancelled(), "cancelled"),
        (Abandoned("gone", {"pid": 7}), "abandoned"),
    ],
)
def test_an_event_counts_and_a_terminal_one_ends_the_process_and_its_wait(outcome: Any, status: str) -> None:
    waiting = processes.with_wait(row(event_count=4), SignalWait("go", 1), now_ms=60)
    after = processes.with_event(waiting, outcome, now_ms=70)
    assert after.waiting == (1 if outcome is None else 0)
    found = processes.process_of(after)
    assert (found.status, found.outcome, found.event_count, found.updated_at_ms) == (status, outcome, 5, 70)
    assert found.wait == (SignalWait("go", 1, 60) if outcome is None else None)
    assert found.is_terminal is (outcome is not None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"body": b"\x01{}"}, "does not decode"),
        ({"body": b""}, "record format"),
        ({"status": "lost"}, "status is 'lost'"),
        ({"status": "completed"}, "do not agree"),
        ({"outcome": b'\x01{"type":"success"}'}, "do not agree"),
        ({"status": "failed", "outcome": b'\x01{"type":"success"}'}, "do not agree"),
        ({"status": "failed", "outcome": b"\x01{}"}, "does not decode"),
        ({"external_ref": b"\x01{}"}, "does not decode"),
        ({"wait": b"\x01{}"}, "does not decode"),
    ],
)
def test_a_record_that_contradicts_itself_is_damage(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        processes.process_of(row(**changes))
    assert (info.value.table, info.value.key) == ("processes", "build")


# External refs and waits.


def test_an_external_ref_is_kept() -> None:
    ref = ExternalRef("queue", "job-1", {"a": 1})
    assert processes.check_external_ref(ref, LIMITS) == ref
    found = processes.process_of(processes.with_external_ref(row(), ref, now_ms=60))
    assert (found.external_ref, found.updated_at_ms) == (ref, 60)


@pytest.mark.parametrize(
    ("ref", "field"),
    [
        ("job", "ref"),
        (ExternalRef("", "i"), "ref.backend"),
        (ExternalRef("b", ""), "ref.id"),
        (ExternalRef("b", "i", {1}), "ref.metadata"),
    ],
)
def test_an_external_ref_that_names_nothing_is_refused(ref: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        processes.check_external_ref(ref, LIMITS)
    assert info.value.field == field


@pytest.mark.parametrize(("since_ms", "expected"), [(None, 60), (5, 5), (0, 0)])
def test_a_wait_starts_now_unless_it_says_when(since_ms: int | None, expected: int) -> None:
    waiting = processes.with_wait(row(), SignalWait("go", 2, since_ms), now_ms=60)
    assert (waiting.waiting, waiting.updated_at_ms) == (1, 60)
    assert processes.process_of(waiting).wait == SignalWait("go", 2, expected)
    over = processes.without_wait(waiting, now_ms=70)
    assert (over.waiting, over.wait, over.updated_at_ms) == (0, None, 70)


def test_an_ended_process_cannot_wait() -> None:
    ended = processes.with_event(row(), Cancelled(), now_ms=60)
    with pytest.raises(AlreadyTerminal) as info:
        processes.with_wait(ended, SignalWait("go", 1), now_ms=70)
    assert info.value.status == "cancelled"


@pytest.mark.parametrize(
    ("wait", "field"),
    [
        ("go", "wait"),
        (SignalWait("", 1), "wait.name"),
        (SignalWait("go now", 1), "wait.name"),
        (SignalWait("go\n", 1), "wait.name"),
        (SignalWait("gö", 1), "wait.name"),
        (SignalWait("go", 0), "wait.ordinal"),
        (SignalWait("go", 1, -1), "wait.since_ms"),
    ],
)
def test_a_wait_for_no_signal_is_refused(wait: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        processes.check_wait(wait, LIMITS)
    assert info.value.field == field


@STEADY
@given(st.text(alphabet="abz09AZ-_", min_size=1, max_size=20), st.integers(1, 2**63 - 1))
def test_any_plain_name_and_ordinal_can_be_waited_for(name: str, ordinal: int) -> None:
    wait = SignalWait(name, ordinal)
    assert processes.check_wait(wait, LIMITS) == wait
    assert processes.signal_type("name", name, LIMITS) == f"signal.{name}"


DELETED = SessionRow(7, "chat", 1, 7, 0, 0, 0, b"[]", changed_at_ms=9, deleted_at_ms=9)


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        (None, ("chat", "f")),
        (msgspec.structs.replace(DELETED, deleted_at_ms=None), ("chat", "f")),
        (DELETED, (None, None)),
    ],
    ids=["never made", "alive", "deleted"],
)
def test_a_process_that_is_registered_after_its_target_s_deletion_wakes_no_session(
    target: SessionRow | None, kept: tuple[str | None, str | None]
) -> None:
    registration = ProcessRegistration("p", External(), wake_target=Scope("chat", "f"))
    row = processes.new_process(processes.check_registration(registration, LIMITS), now_ms=5)
    found = processes.without_dead_target(row, target)
    assert (found.wake_session_id, found.wake_frame_id) == kept
    assert msgspec.structs.replace(found, wake_session_id="chat", wake_frame_id="f") == row
