"""A selector follows the JSON Pointer standard, and a template is filled in one pass."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest
from holdfast.records.events import Const, Payload, Pointer, Present, Template
from holdfast.rules import selectors

STEADY = settings(derandomize=True, deadline=None)


DOCUMENT = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
    "~1": 9,
    "0": "zero",
    "none": None,
    "deep": [{"x": [10, [20]]}],
}
"""The example of RFC 6901, and some more."""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/foo/1", "baz"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/~01", 9),
        ("/0", "zero"),
        ("/none", None),
        ("/deep/0/x/1/0", 20),
    ],
)
def test_a_pointer_finds_what_the_standard_says(path: str, value: Any) -> None:
    assert selectors.select("payload", Pointer(path), DOCUMENT) == value
    assert selectors.select("payload", Present(path), DOCUMENT) is True


@pytest.mark.parametrize(
    "path",
    [
        "/missing",
        "/foo/2",
        "/foo/-",
        "/foo/-1",
        "/foo/00",
        "/foo/01",
        "/foo/+1",
        "/foo/1.0",
        "/foo/²",
        "/foo/\u0660",
        "/foo/",
        "/foo/1000000000000",
        "/foo/0/0",
        "/none/x",
        "//x",
        "/foo/bar",
    ],
)
def test_a_pointer_that_leads_nowhere_finds_nothing(path: str) -> None:
    assert selectors.select("payload", Present(path), DOCUMENT) is False
    with pytest.raises(InvalidRequest, match="did not match") as info:
        selectors.select("payload", Pointer(path), DOCUMENT)
    assert info.value.field == "payload"


KEYS = st.text(alphabet="a/~0", max_size=3)
TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@STEADY
@given(TREES)
def test_every_value_of_a_payload_is_found_by_its_pointer(payload: Any) -> None:
    def walk(value: Any, path: str) -> None:
        assert selectors.select("payload", Pointer(path), payload) == value
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}/{key.replace('~', '~0').replace('/', '~1')}")
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, f"{path}/{index}")

    walk(payload, "")


def test_a_selector_takes_the_payload_a_constant_or_a_filled_template() -> None:
    payload = {"name": "build", "n": 3, "ok": True}
    fields = {"name": Pointer("/name"), "n": Pointer("/n"), "all": Payload(), "has": Present("/x"), "t": Template("T")}
    template = Template("{name} {n} {has} {t} {unknown} {{n}} {} { {all}", fields)
    assert selectors.select("payload", Payload(), payload) is payload
    assert selectors.select("payload", Const([1]), payload) == [1]
    assert selectors.select("payload", template, payload) == (
        'build 3 false T {unknown} {3} {} { {"name":"build","n":3,"ok":true}'
    )


def test_a_template_does_not_expand_its_values() -> None:
    template = Template("{a}{b}", {"a": Pointer("/a"), "b": Pointer("/b")})
    assert selectors.select("payload", template, {"a": "{b}", "b": "{a}"}) == "{b}{a}"


NAMES = st.text(alphabet="ab ", min_size=1, max_size=2)


@settings(STEADY, max_examples=300)
@given(
    st.text(alphabet="ab{} ", max_size=20), st.dictionaries(NAMES, st.text(alphabet="ab{} ", max_size=5), max_size=4)
)
def test_a_template_is_filled_in_one_pass(text: str, values: dict[str, str]) -> None:
    template = Template(text, {name: Const(value) for name, value in values.items()})
    pieces = re.split(r"(\{[ab ]*\})", text)
    expected = "".join(values.get(piece[1:-1], piece) if number % 2 else piece for number, piece in enumerate(pieces))
    assert selectors.select("payload", template, None) == expected


def test_a_template_never_grows_beyond_the_longest_text() -> None:
    payload = {"a": "x" * (1 << 20)}
    fits = Template("{a}" * 15, {"a": Pointer("/a")})
    bomb = Template("{a}" * 20_000, {"a": Pointer("/a")})
    assert len(selectors.select("payload", fits, payload)) == 15 << 20
    with pytest.raises(InvalidRequest) as info:
        selectors.select("payload", bomb, payload)
    assert info.value.limit == 16 << 20


def test_templates_inside_templates_share_one_bound_in_memory_too() -> None:
    inner = Template("{a}" * 100, {"a": Payload()})
    bomb = Template("{b}" * 100, {"b": inner, "unused": inner})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            selectors.select("payload", bomb, ["x" * 20_000])  # would be 200 million characters
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * selectors.LONGEST_TEXT


def test_a_field_that_is_not_named_is_not_filled() -> None:
    assert selectors.select("payload", Template("{a}{c}", {"a": Payload(), "b": Pointer("/b")}), 1) == "1{c}"
    with pytest.raises(InvalidRequest, match="did not match"):
        selectors.select("payload", Template("{b}", {"b": Pointer("/b")}), 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ("", ""),
        (1, "1"),
        (None, "null"),
        (True, "true"),
        ({"b": 1, "a": [2]}, '{"b":1,"a":[2]}'),
        ("é", "é"),
    ],
)
def test_text_is_itself_and_anything_else_is_json(value: Any, text: str) -> None:
    assert selectors.as_text(value) == text
