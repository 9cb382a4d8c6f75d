"""Labels: which are allowed, what a change writes, and the place of a session in each order."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from holdfast.errors import InvalidRequest
from holdfast.label_rows import LabelRow, SessionFilter, Start
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.records.maintenance import Finding
from holdfast.rows import SessionRow
from holdfast.rules import labels, verification

LIMITS = Limits(labels=2)


def session(session_key: int = 7, session_id: str = "chat", changed_at_ms: int = 120_000) -> SessionRow:
    return SessionRow(session_key, session_id, 1, 3, 0, 0, 0, b"[]", changed_at_ms, created_at_ms=0)


def row(key: str, value: str = "", session_key: int = 7) -> LabelRow:
    return LabelRow(3, session_key, key, value)


def test_any_mapping_is_copied() -> None:
    given = {"a": "1"}
    checked = labels.check("labels", MappingProxyType(given), LIMITS)
    given["a"] = "2"
    assert checked == {"a": "1"}
    assert labels.check_changes("labels", {"a": None, "b": ""}, LIMITS) == {"a": None, "b": ""}


def test_a_change_may_not_exceed_the_limit_but_may_stay_above_a_lower_one() -> None:
    known = {"a": "1", "b": "2", "c": "3"}
    assert labels.changed(known, {"a": None, "d": "4"}, LIMITS) == {"b": "2", "c": "3", "d": "4"}
    with pytest.raises(InvalidRequest, match="would be 4, the limit is 2"):
        labels.changed(known, {"d": "4"}, LIMITS)


def test_only_differences_are_written() -> None:
    written = labels.writes(session(), {"a": "1", "b": "2", "c": "3"}, {"b": "two", "c": "3", "d": "4"})
    assert written == ([row("b", "two"), row("d", "4")], ["a"])


def test_a_retry_compares_what_the_change_names() -> None:
    assert labels.touched({"a": "1", "b": "2"}, {"b": None, "c": "3"}) == {"b": "2"}
    assert labels.touched({"a": "1"}, {"b": "2"}) is None


def test_labels_are_in_the_order_of_their_keys() -> None:
    assert list(labels.labels_of([row("b"), row("a")])) == ["a", "b"]
    assert labels.by_session([row("a"), row("b", session_key=8), row("c")]) == {
        7: [row("a"), row("c")],
        8: [row("b", session_key=8)],
    }


@pytest.mark.parametrize(
    ("by_prefix", "since_ms", "newest_first", "order"),
    [
        (False, None, False, "made"),
        (True, None, False, "id"),
        (True, 0, False, "changed"),
        (True, 0, True, "newest"),
        (False, None, True, "newest"),
    ],
)
def test_the_order_follows_from_the_arguments(
    by_prefix: bool, since_ms: int | None, newest_first: bool, order: str
) -> None:
    assert labels.order_of(by_prefix=by_prefix, since_ms=since_ms, newest_first=newest_first) == order


@pytest.mark.parametrize(
    ("filter", "place", "start", "follows"),
    [
        (SessionFilter(1, after=(6,)), (7,), Start(0, 6, ""), True),
        (SessionFilter(1), (7,), Start(0, 0, ""), True),
        (SessionFilter(1, order="id", first_id="c", after=("chat",)), ("chat",), Start(0, 0, "chat\x01"), False),
        (SessionFilter(1, order="id", first_id="c"), ("chat",), Start(0, 0, "c"), True),
        (SessionFilter(1, order="changed", changed_since_ms=90_000), (2, 7), Start(1, 0, ""), True),
        (SessionFilter(1, order="changed", changed_since_ms=90_000, after=(2, 7)), (2, 7), Start(2, 7, ""), False),
        (SessionFilter(1, order="newest", after=(2, 8)), (2, 7), Start(2, 8, ""), True),
        (SessionFilter(1, order="newest"), (2, 7), Start(LARGEST_INTEGER, LARGEST_INTEGER, ""), True),
    ],
    ids=str,
)
def test_a_page_begins_behind_the_place_where_the_one_before_ended(
    filter: SessionFilter, place: tuple[int | str, ...], start: Start, follows: bool
) -> None:
    assert (filter.place(session()), filter.start(), filter.follows(session())) == (place, start, follows)


def test_a_label_belongs_to_a_living_session_of_its_family_with_metadata() -> None:
    key = "3/7/a"
    assert list(verification.label(row("a"), session())) == []
    assert list(verification.label(row("a"), None)) == []
    other = SessionRow(7, "chat", 1, 4, 0, 0, 0, b"[]", 0)
    assert list(verification.label(row("a"), other)) == [
        Finding("session_labels", key, "its session is of family 4"),
        Finding("session_labels", key, "its session was never created"),
    ]
    deleted = SessionRow(7, "chat", 1, 3, 0, 0, 0, b"[]", 0, deleted_at_ms=1)
    assert list(verification.label(row("a"), deleted)) == [Finding("session_labels", key, "its session is deleted")]
