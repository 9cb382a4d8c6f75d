"""A check gives back exactly what it was given, or refuses it with `InvalidRequest` and names the field."""

from __future__ import annotations

import array
import contextlib
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
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.records.common import Scope, Token
from holdfast.records.limits import Limits
from holdfast.rules import (
    artifacts,
    attachments,
    checks,
    commits,
    events,
    grants,
    graph,
    leases,
    maintenance,
    processes,
    schemas,
    sessions,
    triggers,
    work,
)

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits(id_bytes=8, text_bytes=8, document_bytes=16, document_depth=3, page=100)


class Name(str, enum.Enum):  # noqa: UP042 (the older spelling is the one whose str() is not its value)
    A = "a"


class Text(str):
    """A subclass as a caller may have one."""

    __slots__ = ()


def refusal(check: Callable[..., Any], *args: Any, **kwargs: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as info:
        check("field", *args, **kwargs)
    assert info.value.field == "field"
    return info.value


# Text.


@pytest.mark.parametrize("value", ["a", " a ", "12345678", "éééé", "\n.", "a\x01", "😀😀"])
@pytest.mark.parametrize("check", [checks.identifier, checks.optional_identifier, checks.text, checks.optional_text])
def test_text_within_the_limit_comes_back_as_it_is(check: Callable[..., str], value: str) -> None:
    assert check("field", value, LIMITS) == value


@pytest.mark.parametrize(
    ("value", "problem", "limit"),
    [
        (5, "must be text, not int", None),
        (b"a", "must be text, not bytes", None),
        ("a\0", "must not contain NUL", None),
        ("\ud800", "lone surrogate", None),
        ("123456789", "is 9 bytes long, the limit is 8", 8),
        ("ééééé", "is 10 bytes long, the limit is 8", 8),
    ],
)
@pytest.mark.parametrize("check", [checks.identifier, checks.optional_identifier, checks.text, checks.optional_text])
def test_text_that_no_backend_would_keep_alike_is_refused(
    check: Callable[..., str], value: object, problem: str, limit: int | None
) -> None:
    error = refusal(check, value, LIMITS)
    assert problem in error.problem
    assert error.limit == limit


@pytest.mark.parametrize("value", ["", " ", "\t\n", "\u2003"])
def test_a_blank_id_is_refused_but_blank_text_is_text(value: str) -> None:
    assert refusal(checks.identifier, value, LIMITS).problem == "must not be blank"
    assert checks.text("field", value, LIMITS) == value


@pytest.mark.parametrize("value", [Name.A, Text("a"), Token("a")], ids=["enum", "subclass", "token"])
@pytest.mark.parametrize("check", [checks.identifier, checks.text])
def test_a_kind_of_text_comes_back_as_the_plain_text_that_it_is(check: Callable[..., str], value: str) -> None:
    found = check("field", value, LIMITS)
    assert found == "a"
    assert type(found) is str


def test_only_an_optional_value_may_be_none() -> None:
    assert checks.optional_identifier("field", None, LIMITS) is None
    assert checks.optional_text("field", None, LIMITS) is None
    assert checks.optional_whole("field", None) is None
    assert checks.optional_document("field", None, LIMITS) is None
    assert refusal(checks.identifier, None, LIMITS).problem == "must be text, not NoneType"
    assert refusal(checks.text, None, LIMITS).problem == "must be text, not NoneType"
    assert refusal(checks.whole, None).problem == "must be a whole number, not NoneType"
    assert checks.document("field", None, LIMITS) == b"null"


# Numbers, flags and words.


@pytest.mark.parametrize(
    ("value", "bounds", "problem", "limit"),
    [
        (-1, {}, "must be at least 0", 0),
        (2**63, {}, "must be at most 9223372036854775807", 2**63 - 1),
        (0, {"least": 1}, "must be at least 1", 1),
        (11, {"most": 10}, "must be at most 10", 10),
        (True, {}, "must be a whole number, not bool", None),
        (1.0, {}, "must be a whole number, not float", None),
        ("1", {}, "must be a whole number, not str", None),
    ],
)
@pytest.mark.parametrize("check", [checks.whole, checks.optional_whole])
def test_a_number_outside_its_bounds_is_refused_and_never_wrapped(
    check: Callable[..., int], value: object, bounds: dict[str, int], problem: str, limit: int | None
) -> None:
    error = refusal(check, value, **bounds)
    assert (error.problem, error.limit) == (problem, limit)


@pytest.mark.parametrize(
    ("value", "bounds"), [(0, {}), (2**63 - 1, {}), (1, {"least": 1}), (10, {"most": 10}), (-5, {"least": -5})]
)
def test_a_number_at_its_bound_is_accepted(value: int, bounds: dict[str, int]) -> None:
    assert checks.whole("field", value, **bounds) == value
    assert checks.optional_whole("field", value, **bounds) == value


def test_a_wait_may_take_a_year_and_no_longer() -> None:
    assert checks.timeout("field", 31_536_000_000) == 31_536_000_000
    assert refusal(checks.timeout, 31_536_000_001).limit == 31_536_000_000


def test_a_page_has_between_one_item_and_the_limit() -> None:
    assert [checks.page_size(size, LIMITS) for size in (1, 50, 100)] == [1, 50, 100]
    for size in (0, 101, True, None):
        with pytest.raises(InvalidRequest) as info:
            checks.page_size(size, LIMITS)
        assert info.value.field == "limit"


def test_a_flag_is_true_or_false() -> None:
    assert checks.flag("field", True) is True
    assert checks.flag("field", False) is False
    assert refusal(checks.flag, 1).problem == "must be True or False, not int"


@pytest.mark.parametrize("value", ["", "Join", "joi", None, 5, ["join"]])
def test_a_word_outside_the_set_is_refused(value: object) -> None:
    assert refusal(checks.one_of, value, ("join", "exclusive")).problem == "must be one of join, exclusive"
    assert checks.one_of("field", "join", ("join", "exclusive")) == "join"


# Values, sequences and mappings.


def test_a_value_of_another_type_is_refused() -> None:
    scope = Scope("s")
    assert checks.instance("field", scope, Scope) is scope
    assert checks.instance("field", scope, (Limits, Scope)) is scope
    assert refusal(checks.instance, 5, Scope).problem == "must be Scope, not int"
    assert refusal(checks.instance, "s", (Limits, Scope)).problem == "must be Limits or Scope, not str"


@pytest.mark.parametrize("value", [[], [1, 2], (), (1, 2)])
def test_a_list_or_tuple_within_the_limit_is_accepted(value: object) -> None:
    assert checks.sequence("field", value, most=2) is value


@pytest.mark.parametrize("value", ["ab", b"cd", {"a"}, {"a": 1}, iter(()), None, range(2)])
def test_what_is_no_list_or_tuple_is_refused(value: object) -> None:
    assert "must be a list or tuple" in refusal(checks.sequence, value, most=2).problem


def test_too_many_items_are_refused() -> None:
    error = refusal(checks.sequence, [1, 2, 3], most=2)
    assert (error.problem, error.limit) == ("has 3 items, the limit is 2", 2)
    error = refusal(checks.mapping, {"a": 1, "b": 2}, most=1)
    assert (error.problem, error.limit) == ("has 2 items, the limit is 1", 1)


def test_a_mapping_within_the_limit_is_accepted() -> None:
    assert checks.mapping("field", {"a": 1}, most=1) == {"a": 1}
    assert refusal(checks.mapping, [("a", 1)], most=1).problem == "must be a dict, not list"


# Documents and bytes.


def test_a_document_is_bounded_in_bytes_and_depth() -> None:
    assert checks.document("field", "a" * 14, LIMITS) == b'"aaaaaaaaaaaaaa"'
    error = refusal(checks.document, "a" * 15, LIMITS)
    assert (error.problem, error.limit) == ("is 17 bytes long, the limit is 16", 16)
    assert checks.document("field", "a" * 15, LIMITS, most=17) == b'"aaaaaaaaaaaaaaa"'
    assert checks.document("field", [[[]]], LIMITS) == b"[[[]]]"
    assert "deeper than 3" in refusal(checks.document, [[[[]]]], LIMITS).problem
    assert "NaN" in refusal(checks.document, [math.nan], LIMITS).problem
    assert checks.optional_document("field", {"b": 1, "a": 2}, LIMITS) == b'{"b":1,"a":2}'


@pytest.mark.parametrize("value", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), memoryview(b"aXbXcXdX")[::2]])
def test_bytes_of_any_kind_come_back_as_bytes(value: object) -> None:
    found = checks.content("field", value, most=4)
    assert found == b"abcd"
    assert type(found) is bytes


@pytest.mark.parametrize("value", [b"abcde", bytearray(5), memoryview(array.array("Q", [0, 0]))])
def test_bytes_are_counted_as_bytes(value: Any) -> None:
    assert refusal(checks.content, value, most=4).limit == 4


@pytest.mark.parametrize("value", ["abcd", None, [1, 2], 4])
def test_what_is_no_bytes_is_refused(value: object) -> None:
    assert "must be bytes" in refusal(checks.content, value, most=4).problem


# Tokens, scopes and cursors.


def test_a_token_is_short_ascii_text() -> None:
    assert checks.token("field", "a" * 128) == "a" * 128
    for value in ("", "a" * 129, "é", None, 5, b"a"):
        assert "is not a token" in refusal(checks.token, value).problem


def test_a_checked_token_does_not_show_itself() -> None:
    assert "secret" not in repr(checks.token("field", "secret"))


def test_a_scope_is_a_session_with_or_without_a_frame() -> None:
    assert checks.scope("field", Scope("s"), LIMITS) == Scope("s", None)
    assert checks.scope("field", Scope("s", "f"), LIMITS) == Scope("s", "f")
    assert checks.scope("field", Scope("s", ""), LIMITS) == Scope("s", None)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("s", "field"),
        (Scope(""), "field.session_id"),
        (Scope("s", " "), "field.frame_id"),
        (Scope("s", 5), "field.frame_id"),  # type: ignore[arg-type]
    ],
)
def test_a_scope_that_names_nothing_is_refused(value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        checks.scope("field", value, LIMITS)
    assert info.value.field == field


def test_a_listing_starts_at_its_start_or_at_its_own_cursor() -> None:
    cursor = codec.encode_cursor("work", (7, "a"))
    assert checks.cursor("work", None, (int, str)) is None
    assert checks.cursor("work", cursor, (int, str)) == (7, "a")
    for listing, kinds in (("events", (int, str)), ("work", (int,)), ("work", (str, int))):
        with pytest.raises(InvalidRequest) as info:
            checks.cursor(listing, cursor, kinds)
        assert info.value.field == "after"


# Every check of every module, on values that are wrong in any place.


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
    holdfast.Host(),
    holdfast.Ref("json-sha256:" + "0" * 64),
    holdfast.Ref("nonsense"),
    int,
]
ANYTHING = st.sampled_from(ODD) | st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=4) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


class Arguments(tuple[Any, ...]):
    """What a check takes one by one: each may be anything, but all are there."""

    __slots__ = ()


def places(value: Any) -> list[tuple[Any, ...]]:
    """The way to every part of a value, itself included."""
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
    """The value with another part at the end of a way; as it is if the way does not exist (any more)."""
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
WAKES = holdfast.WakeRule(
    input=holdfast.Template("{a} {b}", {"a": holdfast.Pointer("/a"), "b": holdfast.Template("b")}),
    when=holdfast.Present("/a"),
    dedupe=holdfast.Const(1),
)
EVENT_TYPE = holdfast.EventType(
    "news", schema={"type": "object"}, terminal=holdfast.TerminalRule("failed", holdfast.Payload()), wake=WAKES
)
REGISTRATION = holdfast.ProcessRegistration(
    "p",
    holdfast.ToolCall("c", "t", "n", {"a": 1}),
    holdfast.ProcessIdentity("k", "l", {"d": 1}),
    [EVENT_TYPE],
    holdfast.Provenance(holdfast.BySession(SCOPE), {"c": 1}),
    "env",
    SCOPE,
)
SUBSCRIPTION = holdfast.SubscriptionDraft(
    source_type="t",
    target=holdfast.Engine("k", {"a": 1}),
    source={"s": 1},
    registrant=holdfast.BySession(SCOPE),
    key="k",
    payload_schema={"type": "object"},
    event_types=[EVENT_TYPE],
    input_template={"a": holdfast.EventPayload(), "b": holdfast.Fixed(1)},
    env_ref="env",
    wake_target=SCOPE,
)
DRAFT = holdfast.WorkDraft(session_id="s", payloads=[{"a": 1}], source_key="k", merge_key=holdfast.Group("g"))
BATCH = holdfast.WorkBatch("b", "s", 1, None, "earliest_safe_boundary", "join", "never", 0, 0, ())
CLAIM = holdfast.WorkClaim("s", "c", "o", Token("t"), 1, 0, 10, (BATCH,))
LEASE = holdfast.Lease(holdfast.OnSession("s"), "o", Token("t"), 1, 0, 10)
NODE = holdfast.Node("n", "p", "event", {"a": 1}, "f", {"c": 1}, 5)
COMMIT = holdfast.Commit(
    turn_id="t",
    expected_revision=0,
    graph=holdfast.Append([NODE], leaf="n"),
    checkpoint=holdfast.Checkpoint(
        turn_state={"a": 1}, execution_state=b"x", others={"m": holdfast.Ref("json-sha256:" + "0" * 64)}
    ),
    config={"c": 1},
    frames=[holdfast.AgentFrame("f", execution_state=b"x", assignment={"a": 1})],
    current_frame_id="f",
    usage=[holdfast.Usage("s", "m", 1)],
    completes=[CLAIM],
    attachments=["a"],
    enqueues=[DRAFT],
    lease=LEASE,
)
REPLACE = holdfast.Commit(turn_id="t", graph=holdfast.ReplaceGraph(holdfast.Graph([NODE], leaf="n")))

EVERY_CHECK: dict[str, tuple[Callable[[Any], object], Any]] = {
    "artifact": (lambda v: artifacts.check_artifact(v[0], v[1], v[2], Limits()), Arguments(("k", "r", b"x"))),
    "attachment": (
        lambda v: attachments.check_put(v[0], v[1], width=v[2], height=v[3], label=v[4], limits=Limits()),
        Arguments((b"x", "text/plain", 1, 2, "l")),
    ),
    "commit": (lambda v: commits.check_commit(v, "s", Limits()), COMMIT),
    "replacing commit": (lambda v: commits.check_commit(v, "s", Limits()), REPLACE),
    "event": (
        lambda v: events.check_event("p", v[0], v[1], replay_key=v[2], wake_target=v[3], limits=Limits()),
        Arguments(("news", {"a": 1}, "k", SCOPE)),
    ),
    "outcome": (
        lambda v: events.completion_event("p", v, Limits()),
        holdfast.Failed("m", raw={"a": 1}, control={"a": 1}),
    ),
    "descriptor": (
        lambda v: grants.row_of(SCOPE, "p", grants.check_descriptor(v, Limits())),
        holdfast.HandleDescriptor("k", "l"),
    ),
    "nodes": (lambda v: graph.check_nodes("nodes", v, Limits()), [NODE]),
    "lease": (lambda v: leases.check_session_lease("lease", v, "s", Limits()), LEASE),
    "policy": (maintenance.check_policy, holdfast.RetentionPolicy(keep_revisions=1, settled_work_older_than_ms=5)),
    "registration": (
        lambda v: processes.new_process(processes.check_registration(v, Limits()), now_ms=1),
        REGISTRATION,
    ),
    "external ref": (
        lambda v: codec.encode_record(processes.check_external_ref(v, Limits())),
        holdfast.ExternalRef("b", "i", {"a": 1}),
    ),
    "wait": (lambda v: codec.encode_record(processes.check_wait(v, Limits())), holdfast.SignalWait("go", 1, 5)),
    "schema": (lambda v: schemas.check_schema("schema", v, Limits()), {"properties": {"a": {"type": "string"}}}),
    "payload": (
        lambda v: schemas.require_valid(
            "payload", checks.document("payload", v, Limits()), {"maxProperties": 1, "maxItems": 3}
        ),
        {"a": [1, "b", None]},
    ),
    "meta": (
        lambda v: sessions.check_meta(v, Limits()),
        holdfast.SessionMeta("s", "n", 5, "m", "o", "c", holdfast.Child("p", {"c": 1})),
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
    "draft": (lambda v: work.check_draft("draft", v, Limits()), DRAFT),
    "claim": (lambda v: work.check_claim("claim", v, Limits()), CLAIM),
    "batch ids": (lambda v: work.check_batch_ids(v, Limits()), ["a", "b"]),
}


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_every_check_accepts_what_is_right(name: str) -> None:
    check, good = EVERY_CHECK[name]
    check(good)


def accepts_or_refuses(check: Callable[[Any], object], value: Any) -> None:
    with contextlib.suppress(HoldfastError):
        check(value)


@pytest.mark.parametrize("name", EVERY_CHECK)
def test_every_check_meets_an_odd_value_in_any_place_with_an_error_of_ours(name: str) -> None:
    check, good = EVERY_CHECK[name]
    for way in places(good):
        for odd in ODD:
            accepts_or_refuses(check, with_part(good, way, odd))


@pytest.mark.parametrize("name", EVERY_CHECK)
@settings(STEADY, max_examples=50)
@given(data=st.data())
def test_every_check_meets_anything_in_several_places_with_an_error_of_ours(name: str, data: st.DataObject) -> None:
    check, value = EVERY_CHECK[name]
    for way in data.draw(st.lists(st.sampled_from(places(value)), min_size=1, max_size=3)):
        value = with_part(value, way, data.draw(ANYTHING))
    accepts_or_refuses(check, value)
