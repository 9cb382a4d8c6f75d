"""Checking and decoding in pieces gives the result of one call, and heavy work exceeds a budget."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import codec, json_chunks, loop_budget
from holdfast.errors import Corrupt

ENCODERS = {
    False: msgspec.json.Encoder().encode,
    True: msgspec.json.Encoder(order="sorted").encode,
}
DECODE = msgspec.json.Decoder().decode
STEADY = settings(derandomize=True, deadline=None, max_examples=100)

TEXTS = st.text(max_size=60) | st.text('\\"\n\x01é漢😀', max_size=120)
DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inside: st.lists(inside, max_size=12) | st.dictionaries(TEXTS, inside, max_size=12),
    max_leaves=60,
)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Any:
    """Set pieces so small that a test's documents have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_budget, "BUDGET_BYTES", 200)
        patch.setattr(codec, "BUDGET_BYTES", 200)
        patch.setattr(json_chunks, "TEXT_PIECE", 200)
        patch.setattr(json_chunks, "DECODED_AT_ONCE", 40)
        yield


def whole(call: Any) -> Any:
    """Return the result of a call, or the type of the error that it raises."""
    try:
        return call()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return type(error)


@pytest.mark.parametrize("ordered", ENCODERS)
@given(value=DOCUMENTS)
@STEADY
def test_pieces_together_are_the_encoding_of_the_whole(ordered: bool, value: Any) -> None:
    encode = ENCODERS[ordered]
    parts = json_chunks.encoded(value, encode, ordered=ordered)
    assert b"".join(data for _, data in parts) == encode(value)


@given(value=DOCUMENTS)
@STEADY
def test_a_document_that_is_decoded_in_pieces_is_the_same(value: Any) -> None:
    data = ENCODERS[False](value)
    assert json_chunks.decoded(data, DECODE) == DECODE(data) == value


@given(value=DOCUMENTS, place=st.integers(0), other=st.binary(max_size=2))
@example(value=["x" * 60, [1]], place=62, other=b",,")
@example(value=[[1, 2], ["x" * 60]], place=4, other=b",")
@STEADY
def test_damaged_json_raises_as_in_one_call(value: Any, place: int, other: bytes) -> None:
    data = ENCODERS[False](value)
    cut = place % (len(data) + 1)
    damaged = data[:cut] + other + data[cut + 1 :]
    assert whole(lambda: json_chunks.decoded(damaged, DECODE)) == whole(lambda: DECODE(damaged))


@pytest.mark.parametrize(
    "text", [b'["%s", 1, 2]' % (b"x" * 50), b'{ "a":"%s" }' % (b"x" * 50), b'"%s"' % (b"\\ud83d\\ude00" * 9)]
)
def test_json_of_other_encoders_is_read_as_well(text: bytes) -> None:
    assert json_chunks.decoded(text, DECODE) == DECODE(text)


def test_containers_are_read_in_pieces_only_so_deep() -> None:
    deep = b"[" * 200 + b'"%s"' % (b"x" * 100_000) + b"]" * 200
    assert json_chunks.decoded(deep, DECODE) == DECODE(deep)


def test_text_that_is_nested_deeper_than_any_document_is_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[int] = []
    cut = json_chunks.Reader._cut

    def counted(reader: json_chunks.Reader, start: int) -> tuple[int, bool]:
        scans.append(start)
        return cut(reader, start)

    monkeypatch.setattr(json_chunks, "DECODED_AT_ONCE", 64 * 1024)
    monkeypatch.setattr(json_chunks.Reader, "_cut", counted)
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(Corrupt, match="not JSON"):
        codec.decode_document(deep, table="nodes", key=1)
    assert len(scans) == 1


class Inner(msgspec.Struct, frozen=True, tag="inner"):
    value: Any


class Outer(msgspec.Struct, frozen=True, omit_defaults=True):
    first: Inner
    second: Any = None
    third: tuple[Any, ...] = ()


@given(value=DOCUMENTS, other=DOCUMENTS)
@STEADY
def test_a_record_with_large_documents_comes_back_equal(value: Any, other: Any) -> None:
    record = Outer(Inner(value), {"other": other}, (value, 1))
    data = codec.encode_record(record)
    assert data[1:] == ENCODERS[False](record)
    assert codec.decode_record(Outer, data, table="t", key=1) == record
    assert codec.own_copy(Outer, record) == record
    assert codec.document_of(record.first) == msgspec.to_builtins(record.first)
    assert codec.stable_hash(record) == codec.digest(ENCODERS[True](record))


def check(value: Any, *, size: int = 10_000_000, depth: int = 20, canonical: bool = False) -> bytes | codec.Unfit:
    return codec.checked_document(value, depth=depth, size=size, canonical=canonical)


@pytest.mark.parametrize("canonical", [False, True])
@given(value=DOCUMENTS)
@STEADY
def test_a_large_document_is_checked_as_a_small_one_is(canonical: bool, value: Any) -> None:
    large = {"text": "x" * 300, "value": value, "again": [value]}
    assert check(large, canonical=canonical) == ENCODERS[canonical](large)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "value at /2/v is NaN"),
        ((1, 2), "value at /2/v is of type tuple"),
        (b"x", "value at /2/v is of type bytes"),
        ({1: 2}, "value at /2/v has a key of type int"),
        ("\ud800", "value at /2/v contains a lone surrogate"),
        ("\ud800" * 300, "value at /2/v contains a lone surrogate"),
        (2**64, "value at /2/v is a whole number of more than 64 bits"),
        (tuple("x" * 300), "value at /2/v is of type tuple"),
    ],
)
def test_a_large_document_that_json_cannot_hold_is_refused(value: Any, problem: str) -> None:
    found = check(["x" * 300, 1, {"v": value}])
    assert isinstance(found, codec.Unfit)
    assert problem in found.problem


@pytest.mark.parametrize("depth", [3, 4])
def test_the_depth_of_a_large_document_counts_from_its_top(depth: int) -> None:
    large = ["x" * 300, [["y" * 300, [1]]]]
    assert isinstance(check(large, depth=depth), codec.Unfit) == (depth < 4)


def test_a_document_that_is_too_large_is_refused_with_the_limit() -> None:
    found = check(["x" * 300] * 3, size=100)
    assert isinstance(found, codec.Unfit)
    assert found.limit == 100


@pytest.mark.parametrize(
    "value", [["x" * 300], {"k": ["y"] * 100}, {"k" * 300: 1}, [[]] * 50, "x" * 300, Inner(["x" * 300])]
)
def test_a_large_value_weighs_more_than_the_budget(value: Any) -> None:
    assert loop_budget.is_large(value)


@pytest.mark.parametrize("value", [None, 1, "x", ["x"], {"k": "v"}, {1: 2}, Inner(None), b"bytes", object()])
def test_a_small_value_weighs_less(value: Any) -> None:
    assert not loop_budget.is_large(value)


@pytest.mark.parametrize(
    "work",
    [
        lambda: check("x" * 300),
        lambda: codec.encode_document(["x" * 300]),
        lambda: codec.stable_hash("x" * 300),
        lambda: codec.decode_document(b'"%s"' % (b"x" * 300), table="t", key=1),
        lambda: codec.digest(b"x" * 300),
        lambda: codec.pack(b"x" * 300),
        lambda: codec.pack_delta(b"x" * 300, b"x" * 300),
        lambda: codec.unpack("raw", b"", size=300, hash="", table="t", key=1),
        lambda: codec.prove("raw", b"", size=300, hash="", table="t", key=1),
    ],
    ids=["check", "encode", "stable_hash", "decode", "digest", "pack", "pack_delta", "unpack", "prove"],
)
def test_large_work_exceeds_the_budget(work: Any) -> None:
    with pytest.raises(loop_budget.BudgetExceeded), loop_budget.LoopBudget():
        work()


def test_many_small_documents_exceed_the_budget_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_budget, "BUDGET_BYTES", 10 * loop_budget.CALL_WEIGHT)
    with loop_budget.LoopBudget():
        for _ in range(9):
            codec.encode_document({})
        with pytest.raises(loop_budget.BudgetExceeded):
            codec.encode_document({})
    codec.encode_document({})
