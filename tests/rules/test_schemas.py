"""A payload fits its schema or is refused with the place where it does not; a schema fetches nothing and terminates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.records.limits import Limits
from holdfast.rules import schemas

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        False,
        {"type": "object", "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"},
        {"format": "made-up"},
        {"x-ours": 1},
        {"pattern": "^(a+)+$"},
    ],
)
def test_a_standard_schema_is_usable(schema: Any) -> None:
    schemas.check_schema("schema", schema, LIMITS)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "string",
        1,
        {"type": "nothing"},
        {"type": 5},
        {"minimum": "a"},
        {"pattern": "("},
        {"allOf": []},
        {"$ref": "#/missing"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "https://example.com/unknown"},
        {"a": {1, 2}},
    ],
)
def test_a_schema_that_no_validator_can_be_made_of_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest) as info:
        schemas.check_schema("schema", schema, LIMITS)
    assert info.value.field == "schema"
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("schema", [None, [], "string", 1, 0])
def test_a_schema_is_an_object_or_a_truth_value(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON Schema: an object, True or False"):
        schemas.check_schema("schema", schema, LIMITS)


@pytest.mark.parametrize(
    ("payload", "schema"),
    [
        (None, {}),
        ({"any": ["thing"]}, True),
        ({"a": 1}, {"type": "object", "required": ["a"]}),
        ("aaaa", {"pattern": "^a+$"}),
        (2**70, {"type": "integer"}),
        (1.5, {"exclusiveMinimum": 1}),
        ("\0", {"minLength": 1}),
        ({"a": {"a": {}}}, {"properties": {"a": {"$ref": "#"}}}),
    ],
)
def test_a_payload_that_fits_is_accepted(payload: Any, schema: Any) -> None:
    schemas.require_valid("payload", encoded(payload), schema)


@pytest.mark.parametrize(
    ("payload", "schema", "field"),
    [
        (None, False, "payload"),
        ({}, {"required": ["a"]}, "payload"),
        ({"a": "x"}, {"properties": {"a": {"type": "integer"}}}, "payload/a"),
        ({"a": [1, {"b": 2}]}, {"properties": {"a": {"items": {"type": "integer"}}}}, "payload/a/1"),
        (True, {"type": "integer"}, "payload"),
        ("a" * 40 + "b", {"pattern": r"^(a|aa)+\1$"}, "payload"),
    ],
    ids=["nothing fits", "required", "type", "deep", "true is not a number", "endless pattern"],
)
def test_a_payload_that_does_not_fit_is_refused_where_it_does_not(payload: Any, schema: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        schemas.require_valid("payload", encoded(payload), schema)
    assert info.value.field == field


@STEADY
@given(st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers(), max_size=3))
def test_a_payload_has_exactly_one_of_the_json_types(payload: Any) -> None:
    names = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array"}
    for kind, name in names.items():
        fits = type(payload) is kind
        try:
            schemas.require_valid("payload", encoded(payload), {"type": name})
        except InvalidRequest:
            assert not fits
        else:
            assert fits
