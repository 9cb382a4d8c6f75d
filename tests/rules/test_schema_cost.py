"""The work of a validation is never underestimated, and a schema whose work cannot be told is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.records.events import EventType
from holdfast.records.limits import Limits
from holdfast.rules import processes, schema_cost, schema_graph, schemas

STEADY = settings(derandomize=True, deadline=None, max_examples=100)
LIMITS = Limits()
GENEROUS = {"most": 10**9, "most_steps": 10**6}
TWICE = 40
"""Doubled so many times, a visit takes hours."""


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def parts(twice: Any, *, place: str = "$defs", leaf: Any = True, name: str = "#/{place}/{number}") -> dict[str, Any]:
    """A schema each part of which is made of two references to the part before."""
    made: dict[str, Any] = {"0": leaf}
    for number in range(1, TWICE + 1):
        made[str(number)] = twice({"$ref": name.format(place=place, number=number - 1)}, number)
    return {place: made, "$ref": name.format(place=place, number=TWICE)}


def nested(levels: int, wrap: Any = lambda inner: {"x": inner}) -> Any:
    inner: Any = {}
    for _ in range(levels):
        inner = wrap(inner)
    return inner


AGAIN = {"$ref": "#"}
HOSTILE: dict[str, tuple[Any, Any]] = {
    "all of": (parts(lambda ref, _: {"allOf": [ref, ref]}), {}),
    "not": (parts(lambda ref, _: {"allOf": [{"not": ref}, {"not": ref}]}), {}),
    "if": (parts(lambda ref, _: {"if": ref, "then": ref, "else": ref}), {}),
    "dependent": (parts(lambda ref, _: {"dependentSchemas": {"x": ref, "y": ref}}), {"x": 1, "y": 1}),
    "dependencies": (
        parts(lambda ref, _: {"dependencies": {"x": ref, "y": ref, "z": ["x"]}}, place="definitions")
        | {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"x": 1, "y": 1},
    ),
    "alternatives that fail": (parts(lambda ref, _: {"anyOf": [ref, ref]}, leaf={"type": "string"}), 1),
    "unknown keyword": (parts(lambda ref, _: {"allOf": [ref, ref]}, place="x-library"), {}),
    "list": (
        {
            "x-list": [True, *({"allOf": [{"$ref": f"#/x-list/{n}"}] * 2} for n in range(TWICE))],
            "$ref": f"#/x-list/{TWICE}",
        },
        {},
    ),
    "anchors": (
        parts(lambda ref, n: {"$anchor": f"a{n}", "allOf": [ref, ref]}, leaf={"$anchor": "a0"}, name="#a{number}"),
        {},
    ),
    "ids": (
        {"$id": "http://example.com/"}
        | parts(lambda ref, n: {"$id": f"s{n}", "allOf": [ref, ref]}, leaf={"$id": "s0"}, name="s{number}"),
        {},
    ),
    "old ids": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/"}
        | {"definitions": {"0": {"id": "#n0"}}}
        | {
            "definitions": {"0": {"id": "#n0"}}
            | {str(n): {"id": f"#n{n}", "allOf": [{"$ref": f"#n{n - 1}"}] * 2} for n in range(1, TWICE)}
        }
        | {"allOf": [{"$ref": f"#n{TWICE - 1}"}]},
        {},
    ),
    "dynamic": (
        parts(
            lambda ref, n: {"$dynamicAnchor": f"a{n}", "allOf": [{"$dynamicRef": ref["$ref"]}] * 2},
            leaf={"$dynamicAnchor": "a0"},
            name="#a{number}",
        ),
        {},
    ),
    "recursive": (
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True}
        | {"properties": {"x": {"allOf": [{"$recursiveRef": "#"}] * 2}}},
        nested(TWICE),
    ),
    "unevaluated": (
        parts(lambda ref, _: {"allOf": [ref], "unevaluatedProperties": False}, leaf={"properties": {"x": True}}),
        {"x": 1},
    ),
    "depth": ({"properties": {"x": {"allOf": [AGAIN, AGAIN]}}}, nested(TWICE)),
    "other members": ({"additionalProperties": {"allOf": [AGAIN, AGAIN]}}, nested(TWICE)),
    "patterns": ({"patternProperties": {"": AGAIN, "x": AGAIN}}, nested(TWICE)),
    "items": ({"items": {"allOf": [AGAIN, AGAIN]}}, nested(TWICE, lambda inner: [inner])),
    "first items": ({"prefixItems": [{"allOf": [AGAIN, AGAIN]}]}, nested(TWICE, lambda inner: [inner])),
    "old items": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "items": [True],
            "additionalItems": {"allOf": [AGAIN] * 2},
        },
        nested(TWICE, lambda inner: [0, inner]),
    ),
    "contains": ({"items": AGAIN, "contains": AGAIN}, nested(TWICE, lambda inner: [inner])),
    "endless patterns": ({"items": {"pattern": r"^(a|aa)+\1$"}}, ["a" * 40 + "b"] * 10_000),
    "patterns of values": ({"items": {"format": "regex"}}, ["a"] * 10_000),
    "names": ({"patternProperties": {r"^(a|aa)+\1$": True}}, {f"{number}": 1 for number in range(10_000)}),
    "rules for names": ({"propertyNames": {"pattern": r"^(a|aa)+\1$"}}, {f"{number}": 1 for number in range(10_000)}),
    "choices": ({"items": {"enum": list(range(10_000))}}, [5] * 100_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_is_refused_at_once(kind: str) -> None:
    schema, payload = HOSTILE[kind]
    schemas.check_schema("schema", schema, LIMITS)
    began_s = time.process_time()
    with pytest.raises(InvalidRequest) as info:
        schemas.require_valid("payload", encoded(payload), schema)
    assert info.value.limit is not None
    assert time.process_time() - began_s < 5  # of the machine's own time: it takes milliseconds


TAGS = [f"t{number}" for number in range(20)]
EXPRESSION: Any = {
    "oneOf": [
        {"type": "object", "required": ["tag"], "properties": {"left": AGAIN, "right": AGAIN, "tag": {"const": tag}}}
        for tag in TAGS
    ]
}
HONEST: dict[str, tuple[Any, Any]] = {
    "tree": (
        {"properties": {"name": {"type": "string"}, "children": {"items": AGAIN}}, "required": ["name"]},
        nested(30, lambda inner: {"name": "n", "children": [{"name": "leaf"}, inner | {"name": "n"}]}) | {"name": "n"},
    ),
    "tagged": (
        {"$defs": {"e": EXPRESSION}, **EXPRESSION},
        nested(20, lambda inner: {"left": inner | {"tag": "t3"}, "right": {"tag": "t1"}, "tag": "t19"}) | {"tag": "t2"},
    ),
    "a base and an extension": (
        {"$defs": {"base": {"properties": {"kids": {"items": AGAIN}}}}}
        | {"allOf": [{"$ref": "#/$defs/base"}], "properties": {"more": {"items": AGAIN}}},
        nested(30, lambda inner: {"kids": [inner], "more": [{}]}),
    ),
    "a dynamic tree": (
        {"$id": "http://example.com/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": False}
        | {
            "$defs": {
                "tree": {
                    "$id": "tree",
                    "$dynamicAnchor": "node",
                    "properties": {"children": {"items": {"$dynamicRef": "#node"}}},
                }
            }
        },
        nested(8, lambda inner: {"children": [inner]}),
    ),
    "very many numbers": ({"items": {"type": "integer", "minimum": 0}}, [1] * 200_000),
    "a schema of schemas": ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"properties": {"a": {}}}),
    "a few hard patterns": ({"items": {"pattern": "^(?=.*[a-z]).*$"}}, ["abc"] * 100),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_schema_is_applied(kind: str) -> None:
    schema, payload = HONEST[kind]
    schemas.check_schema("schema", schema, LIMITS)
    schemas.require_valid("payload", encoded(payload), schema)


def test_a_failure_that_is_too_costly_to_find_is_told_without_its_place() -> None:
    schema, payload = HONEST["tagged"]
    with pytest.raises(InvalidRequest, match="too much work to say where") as info:
        schemas.require_valid("payload", encoded(payload | {"tag": "none"}), schema)
    assert (info.value.field, info.value.limit) == ("payload", None)


def test_one_failure_of_very_many_is_told_at_once() -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidRequest, match="integer") as info:
        schemas.require_valid("payload", encoded([1] + ["x"] * 200_000), {"items": {"type": "integer"}})
    assert info.value.field == "payload/1"
    assert time.process_time() - began_s < 2  # listing all of them takes longer


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (AGAIN, "refers to itself"),
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "refers to itself"),
        ({"$ref": "#/$defs/missing"}, "is not in the schema"),
        ({"$ref": "#missing"}, "is not in the schema"),
        ({"x": [1], "$ref": "#/x/1"}, "is not in the schema"),
        ({"properties": {str(number): {"type": "string"} for number in range(4_097)}}, "more than 4096 schemas"),
        (
            {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(300)} | {"300": True}, "$ref": "#/$defs/0"},
            "more than 256 schemas",
        ),
    ],
    ids=["itself", "below not", "pointer", "anchor", "index", "too many", "a long chain"],
)
def test_a_schema_whose_work_cannot_be_told_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        schemas.check_schema("schema", schema, LIMITS)


def test_a_schema_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest) as info:
        schemas.check_schema("schema", {"description": "x" * schemas.SCHEMA_BYTES}, LIMITS)
    assert info.value.limit == schemas.SCHEMA_BYTES


def test_the_schemas_of_one_registration_are_bounded_together() -> None:
    wide = {"properties": {str(number): {"type": "string"} for number in range(3_000)}}
    with pytest.raises(InvalidRequest) as info:
        processes.check_event_types("types", [EventType(name, schema=wide) for name in ("first", "second")], LIMITS)
    assert (info.value.field, info.value.limit) == ("types[1].schema", schema_graph.SUBSCHEMAS)


def test_a_schema_is_compiled_once_and_few_long_ones_are_kept() -> None:
    short, long = encoded({"title": "kept"}), encoded({"title": "x" * schemas.SHORT_BYTES})
    assert schemas._compiled(short) is schemas._compiled(short)
    assert schemas._compiled(long) is schemas._compiled(long)
    compiled = schemas._compiled(long)
    for number in range(schemas.LONG_KEPT):
        schemas._compiled(encoded({"title": f"{number}" * schemas.SHORT_BYTES}))
    assert schemas._compiled(long) is not compiled


# The validator itself is asked how often it visits.

SCALARS = st.sampled_from([0, 1, "a", "b", None, True])
PAYLOADS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
)
LEAVES = st.sampled_from([
    {}, {"type": "object"}, {"type": ["array", "string"]}, {"const": "a"}, {"enum": ["a", "b"]}, {"required": ["x"]},
])  # fmt: skip
REFERENCES = st.sampled_from([{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    deeper = inner | REFERENCES
    return st.fixed_dictionaries(
        {},
        optional={
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "properties": st.dictionaries(st.sampled_from("xyz"), deeper, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["x", "."]), deeper, max_size=2),
            "additionalProperties": deeper,
            "propertyNames": inner,
            "prefixItems": st.lists(deeper, min_size=1, max_size=2),
            "items": deeper,
            "contains": deeper,
            "unevaluatedProperties": deeper,
            "type": st.sampled_from(["object", "array"]),
            "required": st.just(["y"]),
        },
    )


SCHEMAS = st.recursive(LEAVES, _schemas, max_leaves=8)


class Counting:
    """Counts the visits of a validator to schemas that it does not leave before the end."""

    visits = 0

    def __init__(self, *_: object) -> None: ...

    def validate(self, _: object) -> None:
        Counting.visits += 1


def counted(schema: Any) -> Any:
    """The schema with a counter in each schema that it consists of. The counter comes last in each of them."""
    if not isinstance(schema, dict):
        return schema
    inner = {
        keyword: [counted(one) for one in value]
        if keyword in ("allOf", "anyOf", "oneOf", "prefixItems")
        else {name: counted(one) for name, one in value.items()}
        if keyword in ("properties", "patternProperties", "$defs")
        else value
        if keyword in ("type", "const", "enum", "required", "$ref")
        else counted(value)
        for keyword, value in schema.items()
    }
    return inner if "$ref" in inner else inner | {"x-count": 1}


@STEADY
@given(SCHEMAS, SCHEMAS, SCHEMAS, PAYLOADS)
def test_the_validator_never_visits_more_often_than_was_counted(root: Any, p: Any, q: Any, payload: Any) -> None:
    schema = {**root, "$defs": {"p": p, "q": q}}
    payload = schema_cost.scalars_first(payload)
    cost = schema_cost.cost_of(schema)
    Counting.visits = 0
    jsonschema_rs.validator_for(counted(schema), keywords={"x-count": Counting}).is_valid(payload)
    visits = Counting.visits
    assert not schema_cost.is_within(cost, payload, most=visits - 1, most_steps=10**6)
    values = 1 + encoded(payload).count(b",") + encoded(payload).count(b"[") + encoded(payload).count(b"{")
    assert visits <= cost.worst * values


@STEADY
@given(PAYLOADS)
def test_a_payload_with_its_scalars_first_is_the_same_payload(payload: Any) -> None:
    ordered = schema_cost.scalars_first(payload)
    assert ordered == payload

    def check(value: Any) -> None:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        if isinstance(value, dict):
            deep = [isinstance(one, dict | list) for one in inner]
            assert deep == sorted(deep)
        for one in inner:
            check(one)

    check(ordered)


def test_counting_is_given_up_after_so_many_steps() -> None:
    cost = schema_cost.cost_of({"items": {"type": "integer"}})
    assert schema_cost.is_within(cost, [1] * 100, most=10**9, most_steps=10**6)
    assert not schema_cost.is_within(cost, [1] * 100, most=10**9, most_steps=50)


def test_a_schema_with_too_large_a_table_is_counted_for_each_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cost, "PATHS", 1)
    assert schema_cost.cost_of({"type": "string"}).worst == schema_cost.ENDLESS
