"""A check returns exactly its input, or raises `InvalidRequest` that names the field."""

from __future__ import annotations

import array
import enum
import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Scope, Token
from holdfast.records.limits import Limits
from holdfast.rules import checks

LIMITS = Limits(id_bytes=8, text_bytes=8, document_bytes=16, document_depth=3, page=100)


class Name(str, enum.Enum):  # noqa: UP042 (the older spelling is the one whose str() is not its value)
    A = "a"


class Text(str):
    """A `str` subclass, as a caller may have one."""

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


def test_only_an_optional_value_accepts_none() -> None:
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
    assert (checks.DEFAULT_PAGE, Limits().page) == (50, 1_000)
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
def test_anything_but_a_list_or_tuple_is_refused(value: object) -> None:
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
    assert checks.document("field", [[[[]]]], LIMITS, wrapped=1) == b"[[[[]]]]"
    assert "deeper than 4" in refusal(checks.document, [[[[[]]]]], LIMITS, wrapped=1).problem
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
def test_anything_but_bytes_is_refused(value: object) -> None:
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
