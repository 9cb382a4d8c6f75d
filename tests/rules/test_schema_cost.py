"""The work of a validation is never underestimated, and a schema whose work is unbounded is refused."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.loop_budget import BudgetExceeded, LoopBudget
from holdfast.records.events import EventType
from holdfast.records.limits import Limits
from holdfast.rules import processes, schema_cost, schema_keywords, schema_validation, schemas

STEADY = settings(derandomize=True, deadline=None, max_examples=100)
LIMITS = Limits()
GENEROUS = {"most": 10**9, "most_steps": 10**6}
TWICE = 40
"""Doubled so many times, a visit takes hours."""


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def parts(twice: Any, *, place: str = "$defs", leaf: Any = True, name: str = "#/{place}/{number}") -> dict[str, Any]:
    """Return a schema each part of which consists of two references to the part before."""
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
    "large choices": ({"items": {"enum": [[0] * 200 + [n] for n in range(1_000)]}}, [[0] * 200 + [1_000]] * 200),
    "a large constant": ({"items": {"const": [0] * 20_000}}, [[0] * 20_000] * 200),
    "decimal choices": ({"items": {"enum": [n + 0.5 for n in range(1_000)]}}, [1_000.5] * 10_000),
    "uniqueness, many times": (
        {"allOf": [{"uniqueItems": True, "maxItems": 10**9 + n} for n in range(100)]},
        list(range(100_000)),
    ),
    "what a hash does not tell apart": (
        {"uniqueItems": True},
        [[[1] if number >> bit & 1 else 1 for bit in range(14)] for number in range(2**14)],
    ),
    "numbers that a hash does not tell apart": (
        {"uniqueItems": True},
        [2**63 + 4096 * group + n for group in range(10) for n in range(2_000)],
    ),
    "multiples of a decimal": ({"items": {"multipleOf": 1e-100}}, [1.5e100] * 5_000),
    "bounds of far numbers": ({"items": {"minimum": 1e-200}}, [1e-200] * 5_000),
    "possessive patterns": ({"items": {"not": {"pattern": "(a+)++b"}}}, ["a" * 20_000] * 50),
    "patterns of many states": ({"pattern": "(?:0|1)*1(?:0|1){3000}[^01]{2}"}, "0110101" * 10_000),
    "old patterns of properties": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": {"pattern": r"\p{L}{20}b"}},
        ["a" * 1_000] * 1_000,
    ),
    "an unknown keyword": ({"items": {"sorted": True}}, [1] * 100_000),
    "formats": (
        {"$schema": "http://json-schema.org/draft-07/schema#"}
        | {"allOf": [{"format": "idn-hostname", "maxLength": 10**9 + n} for n in range(100)]},
        "a" * 1_000_000,
    ),
    "members that no schema names": (
        {"allOf": [{"properties": {f"a{n}": True}} for n in range(1_000)]},
        {f"b{n}": 1 for n in range(100_000)},
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_is_refused_at_once(kind: str) -> None:
    schema, payload = HOSTILE[kind]
    schemas.check_schema("schema", schema, LIMITS)
    began_s = time.process_time()
    with pytest.raises(InvalidRequest) as info:
        schemas.require_valid("payload", encoded(payload), schema)
    assert info.value.limit is not None
    assert time.process_time() - began_s < 5  # of CPU time: it takes milliseconds


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
    "schemas a hundred levels deep": (
        {"$defs": {str(n): {"items": {"$ref": f"#/$defs/{n + 1}"}} for n in range(100)} | {"100": {"enum": [1, 2, 3]}}}
        | {"$ref": "#/$defs/0"},
        [[[]]] * 1_000,
    ),
    "very many values without a schema": ({"allOf": [{"maxItems": 10**9 + n} for n in range(300)]}, [0] * 1_000_000),
    "very many numbers that differ": ({"uniqueItems": True, "items": {"type": "integer"}}, list(range(500_000))),
    "very many texts that differ": ({"uniqueItems": True}, [f"text {number}" for number in range(200_000)]),
    "objects that differ": (
        {"uniqueItems": True, "items": {"type": "object"}},
        [{"id": number, "name": f"n{number}", "tags": ["a", "b"]} for number in range(10_000)],
    ),
    "a vector": ({"items": {"type": "number", "minimum": -1, "maximum": 1}}, [n * 1e-07 for n in range(20_000)]),
    "prices": ({"items": {"multipleOf": 0.01}}, [19.99] * 20_000),
    "an encoded file": (
        {"properties": {"data": {"type": "string", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}}},
        {"data": "QUJD" * 1_000_000},
    ),
    "identifiers": (
        {"items": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}},
        ["123e4567-e89b-12d3-a456-426614174000"] * 200_000,
    ),
    "timestamps": (
        {"items": {"format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"}},
        ["2024-02-29T12:34:56.789Z"] * 20_000,
    ),
    "addresses": (
        {"items": {"pattern": "^[^@]+@[^@]+\\.[^@]+$", "format": "email"}},
        ["somebody@example.com"] * 50_000,
    ),
    "countries": ({"items": {"enum": [f"{a}{b}" for a in "ABCDEFGHIJ" for b in "KLMNOPQRST"]}}, ["AK"] * 500_000),
    "a log": (
        {
            "type": "array",
            "maxItems": 100_000,
            "items": {
                "type": "object",
                "required": ["at", "level", "text"],
                "additionalProperties": False,
                "properties": {
                    "at": {"type": "integer", "minimum": 0},
                    "level": {"enum": ["debug", "info", "warning", "error", None]},
                    "text": {"type": "string", "maxLength": 4_096},
                    "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z-]+$"}, "uniqueItems": True},
                    "x-note": {"type": "string"},
                },
            },
        },
        [{"at": n, "level": "info", "text": "something happened", "tags": ["a", "b-c"]} for n in range(10_000)],
    ),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_schema_is_applied(kind: str) -> None:
    schema, payload = HONEST[kind]
    schemas.check_schema("schema", schema, LIMITS)
    began_s = time.process_time()
    schemas.require_valid("payload", encoded(payload), schema)
    assert time.process_time() - began_s < 5  # of CPU time


BITS = "0110100110010110"
EDGES: dict[str, Any] = {
    "numbers": lambda n: ({"items": {"minimum": 0.5, "maximum": 9.5}}, [1.5] * n),
    "far numbers": lambda n: ({"items": {"minimum": 1e-200}}, [1e-200] * n),
    "multiples": lambda n: ({"items": {"multipleOf": 0.01}}, [19.99] * n),
    "far multiples": lambda n: ({"items": {"multipleOf": 1e-200}}, [1e200] * n),
    "lists to choose from": lambda n: ({"items": {"enum": [[0] * n + [k] for k in range(n)]}}, [[0] * n + [n]] * n),
    "decimals to choose from": lambda n: ({"items": {"enum": [k + 0.5 for k in range(n)]}}, [n + 0.5] * n),
    "objects to choose from": lambda n: (
        {"items": {"enum": [{str(k): 0 for k in range(n)} | {"z": k} for k in range(n)]}},
        [{str(k): 0 for k in range(n)} | {"z": n}] * n,
    ),
    "unique numbers": lambda n: ({"uniqueItems": True}, list(range(n))),
    "unique decimals": lambda n: ({"uniqueItems": True}, [k + 0.5 for k in range(n)]),
    "unique objects": lambda n: ({"uniqueItems": True}, [{"a": k, "b": [k]} for k in range(n)]),
    "unique arrangements": lambda n: (
        {"uniqueItems": True},
        [[[1] if k >> bit & 1 else 1 for bit in range(20)] for k in range(n)],
    ),
    "few unique lists": lambda n: ({"uniqueItems": True}, [[0] * n + [k] for k in range(15)]),
    "a pattern": lambda n: ({"pattern": "^[a-z]+$"}, "a" * n),
    "a pattern of ten places": lambda n: ({"pattern": "[01]*1[01]{6}[^01]"}, BITS * n),
    "a pattern of many states": lambda n: ({"pattern": "(?:0|1)*1(?:0|1){30}[^01]{2}"}, BITS * n),
    "a pattern of very many states": lambda n: ({"pattern": "(?:0|1)*1(?:0|1){3000}[^01]{2}"}, BITS * n),
    "a long pattern that leads to one place": lambda n: ({"items": {"pattern": "^.{1,2000}$"}}, ["ä" * 2_000] * n),
    "a pattern of properties": lambda n: ({"pattern": r"\pL{20}\d"}, "aä" * n),
    "a pattern that goes back": lambda n: ({"items": {"pattern": r"^(a|aa)+\1$"}}, ["a" * 40 + "b"] * n),
    "a pattern that looks ahead": lambda n: ({"pattern": "(?:(?=.*b)a)+c"}, "a" * n + "b"),
    "a possessive pattern": lambda n: ({"pattern": "(a+)++b"}, "a" * n),
    "patterns of names": lambda n: ({"patternProperties": {"[01]*1[01]{20}x": True}}, {f"{k:b}": 1 for k in range(n)}),
    "a format": lambda n: (
        {"$schema": "http://json-schema.org/draft-07/schema#", "format": "idn-hostname"},
        "\u0627\u0628\u067e" * n,
    ),
    "a document in a text": lambda n: (
        {"$schema": "http://json-schema.org/draft-07/schema#", "contentMediaType": "application/json"},
        "[" + "[]," * n + "[]]",
    ),
    "required names": lambda n: (
        {"items": {"required": [str(k) for k in range(n)]}},
        [dict.fromkeys(map(str, range(n)))] * n,
    ),
}
"""Families of payloads that grow, each of which makes another keyword work."""


def is_accepted(schema: Any, payload: Any) -> bool:
    data = encoded(payload)
    if len(data) > LIMITS.document_bytes or len(encoded(schema)) > schemas.SCHEMA_BYTES:
        return False
    cost = schema_cost.cost_of(schema)
    most = max(schema_validation.VISITS, schema_validation.VISITS_A_VALUE * schema_cost.values_in(data))
    even = cost.most_work(data)
    steps = schema_validation.COUNTING_STEPS
    if even > most:
        return schema_cost.is_within(cost, payload, most=most, most_steps=steps)
    return schema_cost.is_within(cost, payload, most=most - even, most_steps=steps, only_uneven=True)


@pytest.mark.parametrize("family", EDGES)
def test_the_largest_payload_that_is_accepted_ends_in_time(family: str) -> None:
    size = 1
    while size < 2**22 and is_accepted(*EDGES[family](2 * size)):
        size *= 2
    schema, payload = EDGES[family](size)
    data = encoded(payload)
    schema_validation._compiled(encoded(schema))
    began_s = time.process_time()
    with contextlib.suppress(InvalidRequest):
        schemas.require_valid("payload", data, schema)
    # About one second on an idle machine, and up to four on shared cores.
    assert time.process_time() - began_s < 15, f"{family} of {size}"


def test_a_failure_that_is_too_costly_to_find_is_reported_without_its_place() -> None:
    schema, payload = HONEST["tagged"]
    with pytest.raises(InvalidRequest, match="finding the place would take too much work") as info:
        schemas.require_valid("payload", encoded(payload | {"tag": "none"}), schema)
    assert (info.value.field, info.value.limit) == ("payload", None)


def test_one_failure_of_very_many_is_found_at_once() -> None:
    began_s = time.process_time()
    with pytest.raises(InvalidRequest, match="integer") as info:
        schemas.require_valid("payload", encoded([1] + ["x"] * 200_000), {"items": {"type": "integer"}})
    assert info.value.field == "payload/1"
    assert time.process_time() - began_s < 2  # listing all of them takes longer


COMPILED: dict[str, tuple[Any, str]] = {
    "patterns of Unicode": (
        {"allOf": [{"pattern": f"\\pL{{{200 + n}}}"} for n in range(200)]},
        "more than 100000 states",
    ),
    "a count of counts": ({"pattern": "(?:(?:a{100}){100}){100}"}, "more than 100000 states"),
    "a count that goes back": ({"pattern": "(?=(?:a{100}){100}){100}"}, "more than 100000 states"),
    "names": ({"patternProperties": {f"\\pL{{{20 + n}}}": True for n in range(200)}}, "more than 100000 states"),
    "long patterns": ({"pattern": "[" + "a" * 70_000 + "]"}, "more than 65536 characters"),
    "options that are hard to tell apart": (
        {"$schema": "http://json-schema.org/draft-07/schema#"}
        | {"enum": [[[1] if n >> bit & 1 else 1 for bit in range(12)] for n in range(2**12)]},
        "too much work to compare",
    ),
}


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
        *COMPILED.values(),
    ],
    ids=["itself", "below not", "pointer", "anchor", "index", "too many", "a long chain", *COMPILED],
)
def test_a_schema_of_unknown_cost_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        schemas.check_schema("schema", schema, LIMITS)


def test_a_schema_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest) as info:
        schemas.check_schema("schema", {"description": "x" * schemas.SCHEMA_BYTES}, LIMITS)
    assert info.value.limit == schemas.SCHEMA_BYTES


def test_a_value_of_another_type_is_visited_once() -> None:
    doubling = {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(30)} | {"30": True}
    cost = schema_cost.cost_of({"$defs": doubling, "items": {"type": "string", "$ref": "#/$defs/0"}})
    assert schema_cost.is_within(cost, [1] * 100, most=1_000, most_steps=1_000)
    assert not schema_cost.is_within(cost, [1] * 100, most=1_000, most_steps=1_000, ends_early=False)
    assert not schema_cost.is_within(cost, ["text"], most=10**6, most_steps=1_000)


def test_a_pattern_that_comes_again_counts_once() -> None:
    size = schemas.check_schema("schema", {"allOf": [{"pattern": "^[a-z]{1000}$"} for _ in range(200)]}, LIMITS)
    assert 1_000 < size.states < 2_000


def test_a_schema_has_a_thousand_patterns_at_the_most() -> None:
    most = {"properties": {f"p{number}": {"pattern": f"^{number}"} for number in range(schemas.PATTERNS)}}
    assert schemas.check_schema("schema", most, LIMITS).states > schemas.PATTERNS
    with pytest.raises(InvalidRequest, match="more than 1000 patterns: describe some"):
        schemas.check_schema("schema", {**most, "pattern": "^one more"}, LIMITS)


@pytest.mark.parametrize("stretch", range(1, 24))
def test_numbers_are_found_wherever_a_stretch_of_the_search_ends(monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    cost = schema_cost.cost_of({"items": {"minimum": 1}})
    monkeypatch.setattr(schema_cost, "STRETCH", stretch)
    assert cost.most_work(b"[1,1234567890123456]") > 10 * cost.most_work(b"[1,123456789012345]")
    assert cost.most_work(b"[1,100000000000,1e5]") > 10 * cost.most_work(b"[1,100000000000,1.5]")


PARTED: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"enum": ["x"]}]}}


@pytest.mark.parametrize("visits", [1, 10, 30, 100, 10**9])
@pytest.mark.parametrize("wrong", [0, 1, 7, 19, None])
def test_a_long_list_is_validated_in_parts_as_it_is_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, visits: int, wrong: int | None
) -> None:
    monkeypatch.setattr(schema_validation, "VISITS_AT_ONCE", visits)
    payload: list[Any] = [1, "x"] * 10
    schemas.require_valid("payload", b"[]", PARTED)
    if wrong is None:
        schemas.require_valid("payload", encoded(payload), PARTED)
        return
    payload[wrong] = "y"
    with pytest.raises(InvalidRequest) as info:
        schemas.require_valid("payload", encoded(payload), PARTED)
    assert info.value.field == f"payload/{wrong}"


@pytest.mark.parametrize(
    "schema", [{"minItems": 20}, {"uniqueItems": True}, {"contains": {"const": 19}}, {"prefixItems": [{"const": 0}]}]
)
def test_a_list_that_its_schema_judges_as_a_whole_is_not_parted(monkeypatch: pytest.MonkeyPatch, schema: Any) -> None:
    monkeypatch.setattr(schema_validation, "VISITS_AT_ONCE", 1)
    schemas.require_valid("payload", encoded(list(range(20))), schema)
    with pytest.raises(InvalidRequest):
        schemas.require_valid("payload", encoded([1, 1]), schema)


def test_items_of_an_older_draft_may_be_a_list_of_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_validation, "VISITS_AT_ONCE", 1)
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}, {"const": 2}]}
    schemas.require_valid("payload", b"[1,2,3]", schema)
    with pytest.raises(InvalidRequest):
        schemas.require_valid("payload", b"[2,1]", schema)


def test_only_a_little_of_compiling_and_validating_is_done_on_an_event_loop() -> None:
    small = {"type": "array", "items": {"type": "integer"}, "title": "on a loop"}
    large = {"properties": {f"q{number}": {"pattern": f"^{number}"} for number in range(500)}}
    uneven = {"uniqueItems": True, "title": "on a loop"}
    with LoopBudget():
        schemas.check_schema("schema", small, LIMITS)
        schemas.require_valid("payload", b"[1,2,3]", small)
    with LoopBudget(), pytest.raises(BudgetExceeded):
        schemas.check_schema("schema", large, LIMITS)
    with LoopBudget(), pytest.raises(BudgetExceeded):
        schemas.require_valid("payload", encoded([1] * 100_000), small)
    with LoopBudget(), pytest.raises(BudgetExceeded):
        schemas.require_valid("payload", b"[1,2,3]", uneven)


def test_the_patterns_of_one_registration_are_bounded_together() -> None:
    wide = {"allOf": [{"pattern": f"[a-z]{{20000}}{n}"} for n in range(3)]}
    with pytest.raises(InvalidRequest) as info:
        processes.check_event_types("types", [EventType(name, schema=wide) for name in ("first", "second")], LIMITS)
    assert (info.value.field, info.value.limit) == ("types[1].schema", schemas.PATTERN_STATES)


def test_the_schemas_of_one_registration_are_bounded_together() -> None:
    wide = {"properties": {str(number): {"type": "string"} for number in range(3_000)}}
    with pytest.raises(InvalidRequest) as info:
        processes.check_event_types("types", [EventType(name, schema=wide) for name in ("first", "second")], LIMITS)
    assert (info.value.field, info.value.limit) == ("types[1].schema", schemas.SUBSCHEMAS)


def test_a_schema_is_compiled_once_and_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_validation, "_kept", {})
    first = encoded({"pattern": "^a+$"})
    compiled = schema_validation._compiled(first)
    assert schema_validation._compiled(first) is compiled
    assert compiled.kept_bytes > schema_validation.MATCHER_BYTES  # a matcher's cache belongs to it
    monkeypatch.setattr(schema_validation, "KEPT_BYTES", 3 * compiled.kept_bytes)
    for number in range(3):
        schema_validation._compiled(encoded({"pattern": f"^{number}+$"}))
    assert schema_validation._compiled(first) is not compiled


# The validator itself reports the number of its visits.

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
    """Counts the visits of a validator to schemas that it does not leave early."""

    visits = 0

    def __init__(self, *_: object) -> None: ...

    def validate(self, _: object) -> None:
        Counting.visits += 1


def counted(schema: Any) -> Any:
    """Return the schema with a counter in each of its subschemas, always as the last keyword."""
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


def test_weighing_unique_items_is_given_up_after_so_many_steps() -> None:
    items = [{str(number): [number] * 100} for number in range(20)]
    work, steps = schema_keywords.work_of_unique(items, 10**6)
    assert 0 < work < schema_keywords.ENDLESS
    assert schema_keywords.work_of_unique(items, steps // 2)[0] == schema_keywords.ENDLESS


def test_a_schema_with_too_large_a_table_is_counted_for_each_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cost, "PATHS", 1)
    assert schema_cost.cost_of({"type": "string"}).worst == schema_cost.ENDLESS
