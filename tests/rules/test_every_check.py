"""A check accepts any value in any place, or raises a Holdfast error."""

from __future__ import annotations

import contextlib
import copy
import enum
import math
import types
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import codec
from holdfast.errors import HoldfastError
from holdfast.events import Const, EventType, Payload, Pointer, Present, Template, TerminalRule, WakeRule
from holdfast.grants import HandleDescriptor
from holdfast.leases import Lease, OnSession
from holdfast.processes import (
    BySession,
    Engine,
    ExternalRef,
    Failed,
    Host,
    ProcessIdentity,
    Provenance,
    Run,
    RunWait,
    SignalWait,
    ToolCall,
)
from holdfast.queue import Group
from holdfast.records.common import Scope, Token
from holdfast.records.limits import Limits
from holdfast.rules import (
    artifacts,
    attachments,
    checks,
    claims,
    commits,
    events,
    grants,
    graph,
    leases,
    maintenance,
    processes,
    queue,
    schedules,
    schemas,
    sessions,
    triggers,
)
from holdfast.sessions import AgentFrame, Child, Graph, Ref, ReplaceGraph, SessionMeta
from holdfast.triggers import EventPayload, Fixed, SubscriptionDraft

STEADY = settings(derandomize=True, deadline=None)


class Name(str, enum.Enum):  # noqa: UP042 (the older spelling is the one whose str() is not its value)
    A = "a"


class Text(str):
    """A `str` subclass, as a caller may have one."""

    __slots__ = ()


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**64,
    1.5,
    math.nan,
    "",
    " ",
    "\0",
    "\ud800",
    "x" * 600,
    b"",
    bytearray(b"x"),
    memoryview(b"x"),
    [],
    ["a", "a"],
    [None],
    [[[[1]]]],
    [math.nan],
    (1,),
    {},
    {"a": 1},
    {"\ud800": 1},
    {1: 2},
    {Text("x"): 1},
    {"turn_state": 1},
    {"a": {"b": object()}},
    types.MappingProxyType({"a": 1}),
    frozenset({1}),
    object(),
    Name.A,
    Text("x"),
    Token("x"),
    msgspec.UNSET,
    msgspec.Raw(b"{"),
    Scope("s"),
    Host(),
    Ref("json-sha256:" + "0" * 64),
    Ref("nonsense"),
    int,
]
ANYTHING = st.sampled_from(ODD) | st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=4) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


class Arguments(tuple[Any, ...]):
    """The separate arguments of a check: each may be anything, but all are present."""

    __slots__ = ()


def places(value: Any) -> list[tuple[Any, ...]]:
    """Yield the path to every part of a value, itself included."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, msgspec.Struct):
        inner = [(name, getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, list | tuple):
        inner = list(enumerate(value))
    elif isinstance(value, dict):
        inner = list(value.items())
    own: list[tuple[Any, ...]] = [] if isinstance(value, Arguments) else [()]
    return own + [(key, *rest) for key, part in inner for rest in places(part)]


def with_part(value: Any, way: tuple[Any, ...], part: Any) -> Any:
    """Return the value with another part at the end of a path; unchanged if the path does not exist (any more)."""
    if not way:
        return part
    key, *rest = way
    if isinstance(value, msgspec.Struct) and key in value.__struct_fields__:
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return type(value)(**{**fields, key: with_part(fields[key], tuple(rest), part)})
    if isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
        return type(value)(with_part(one, tuple(rest), part) if i == key else one for i, one in enumerate(value))
    if isinstance(value, dict) and key in value:
        return {**value, key: with_part(value[key], tuple(rest), part)}
    return value


SCOPE = Scope("s", "f")
WAKES = WakeRule(
    input=Template("{a} {b}", {"a": Pointer("/a"), "b": Template("b")}),
    when=Present("/a"),
    dedupe=Const(1),
)
EVENT_TYPE = EventType("news", schema={"type": "object"}, terminal=TerminalRule("failed", Payload()), wake=WAKES)
REGISTRATION = holdfast.ProcessRegistration(
    "p",
    ToolCall("c", "t", "n", {"a": 1}),
    ProcessIdentity("k", "l", {"d": 1}),
    [EVENT_TYPE],
    Provenance(BySession(SCOPE), {"c": 1}),
    "env",
    SCOPE,
)
SUBSCRIPTION = SubscriptionDraft(
    source_type="t",
    target=Engine("k", {"a": 1}),
    source={"s": 1},
    registrant=BySession(SCOPE),
    key="k",
    payload_schema={"type": "object"},
    event_types=[EVENT_TYPE],
    input_template={"a": EventPayload(), "b": Fixed(1)},
    env_ref="env",
    wake_target=SCOPE,
)
DRAFT = holdfast.WorkDraft(session_id="s", payloads=[{"a": 1}], source_key="k", merge_key=Group("g"))
BATCH = holdfast.WorkBatch("b", "s", 1, None, "earliest_safe_boundary", "join", "never", 0, 0, ())
CLAIM = holdfast.WorkClaim("s", "c", "o", Token("t"), 1, 0, 10, (BATCH,))
LEASE = Lease(OnSession("s"), "o", Token("t"), 1, 0, 10)
NODE = holdfast.Node("n", "p", "event", {"a": 1}, "f", {"c": 1}, 5)
COMMIT = holdfast.Commit(
    turn_id="t",
    expected_revision=0,
    graph=holdfast.Append([NODE], leaf="n"),
    checkpoint=holdfast.Checkpoint(
        turn_state={"a": 1}, execution_state=b"x", others={"m": Ref("json-sha256:" + "0" * 64)}
    ),
    config={"c": 1},
    frames=[AgentFrame("f", execution_state=b"x", assignment={"a": 1})],
    current_frame_id="f",
    usage=[holdfast.Usage("s", "m", 1)],
    completes=[CLAIM],
    attachments=["a"],
    enqueues=[DRAFT],
    lease=LEASE,
)
ROOT = holdfast.Node("n", None, "event", {"a": 1}, "f", {"c": 1}, 5)
REPLACE = holdfast.Commit(turn_id="t", graph=ReplaceGraph(Graph([ROOT], leaf="n")))

EVERY_CHECK: dict[str, tuple[Callable[[Any], object], Any]] = {
    "artifact": (lambda v: artifacts.check_artifact(v[0], v[1], v[2], Limits()), Arguments(("k", "r", b"x"))),
    "attachment": (
        lambda v: attachments.check_put(v[0], v[1], width=v[2], height=v[3], label=v[4], limits=Limits()),
        Arguments((b"x", "text/plain", 1, 2, "l")),
    ),
    "schedule": (
        lambda v: schedules.check_schedule(v[0], v[1], v[2], v[3], None, Limits()),
        Arguments(("n", "0 3 * * *", "UTC", holdfast.WorkDraft(session_id="s", payloads=[{"a": 1}]))),
    ),
    "scheduled run": (
        lambda v: schedules.check_schedule("n", "0 3 * * *", "UTC", None, v, Limits()),
        Run("r", "1", {"a": 1}),
    ),
    "commit": (lambda v: commits.check_commit(v, "s", Limits(), seed="seed"), COMMIT),
    "replacing commit": (lambda v: commits.check_commit(v, "s", Limits(), seed="seed"), REPLACE),
    "event": (
        lambda v: events.check_event("p", v[0], v[1], replay_key=v[2], wake_target=v[3], limits=Limits()),
        Arguments(("news", {"a": 1}, "k", SCOPE)),
    ),
    "outcome": (
        lambda v: events.completion_event("p", v, Limits()),
        Failed("m", raw={"a": 1}, control={"a": 1}),
    ),
    "descriptor": (
        lambda v: grants.row_of(SCOPE, "p", grants.check_descriptor(v, Limits())),
        HandleDescriptor("k", "l"),
    ),
    "nodes": (lambda v: graph.check_nodes("nodes", v, Limits()), [NODE]),
    "lease": (lambda v: leases.check_session_lease("lease", v, "s", Limits()), LEASE),
    "policy": (maintenance.check_policy, holdfast.RetentionPolicy(keep_revisions=1, settled_batches_older_than_ms=5)),
    "registration": (
        lambda v: processes.new_process(processes.check_registration(v, Limits()), now_ms=1),
        REGISTRATION,
    ),
    "external ref": (
        lambda v: codec.encode_record(processes.check_external_ref(v, Limits())),
        ExternalRef("b", "i", {"a": 1}),
    ),
    "wait": (lambda v: codec.encode_record(processes.check_wait(v, Limits())), SignalWait("go", 1, 5)),
    "waits": (lambda v: processes.check_waits("waits", v, Limits()), [RunWait("signal", "go", 5)]),
    "schema": (lambda v: schemas.check_schema("schema", v, Limits()), {"properties": {"a": {"type": "string"}}}),
    "payload": (
        lambda v: schemas.require_valid(
            "payload", checks.document("payload", v, Limits()), {"maxProperties": 1, "maxItems": 3}
        ),
        {"a": [1, "b", None]},
    ),
    "meta": (
        lambda v: sessions.check_meta(v, Limits()),
        SessionMeta("s", "n", 5, "m", "o", "c", Child("p", {"c": 1})),
    ),
    "subscription": (
        lambda v: triggers.new_subscription(triggers.check_subscription(v, Limits()), now_ms=1),
        SUBSCRIPTION,
    ),
    "occurrence": (
        lambda v: triggers.check_occurrence(v[0], v[1], v[2], v[3], v[4], Limits()),
        Arguments(("t", "k", "i", {"a": 1}, {"s": 1})),
    ),
    "handle": (lambda v: triggers.sequence_of("handle", v, "trigger:", Limits()), "trigger:1"),
    "draft": (lambda v: queue.check_draft("draft", v, Limits()), DRAFT),
    "claim": (lambda v: claims.check_claim("claim", v, Limits()), CLAIM),
    "batch ids": (lambda v: queue.check_batch_ids(v, Limits()), ["a", "b"]),
}


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_every_check_accepts_what_is_right(name: str) -> None:
    check, good = EVERY_CHECK[name]
    check(good)


def spoil(value: Any) -> None:
    """Change every list and dict of the caller's, at any depth."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            spoil(getattr(value, name))
    elif isinstance(value, list | tuple):
        for one in value:
            spoil(one)
    elif isinstance(value, dict):
        for one in value.values():
            spoil(one)
        value["spoiled"] = 1
    if isinstance(value, list):
        value.append("spoiled")


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_checked_values_do_not_change_with_the_objects_that_were_sent(name: str) -> None:
    check, good = EVERY_CHECK[name]
    sent = copy.deepcopy(good)
    found = check(sent)
    spoil(sent)
    assert found == check(copy.deepcopy(good))


def accepts_or_refuses(check: Callable[[Any], object], value: Any) -> None:
    with contextlib.suppress(HoldfastError):
        check(value)


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_every_check_refuses_an_odd_value_in_any_place_with_a_holdfast_error(name: str) -> None:
    check, good = EVERY_CHECK[name]
    for way in places(good):
        for odd in ODD:
            accepts_or_refuses(check, with_part(good, way, odd))


@pytest.mark.parametrize("name", EVERY_CHECK)
@settings(STEADY, max_examples=50)
@given(data=st.data())
def test_every_check_refuses_anything_in_several_places_with_a_holdfast_error(name: str, data: st.DataObject) -> None:
    check, value = EVERY_CHECK[name]
    for way in data.draw(st.lists(st.sampled_from(places(value)), min_size=1, max_size=3)):
        value = with_part(value, way, data.draw(ANYTHING))
    accepts_or_refuses(check, value)
