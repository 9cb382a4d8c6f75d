"""The codec returns accepted values as they were sent, refuses those that it could not return, and reports damage."""

from __future__ import annotations

import base64
import enum
import hashlib
import json
import math
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from benchmarks import work
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import codec, value_size
from holdfast.errors import Corrupt, InvalidRequest

STEADY = settings(derandomize=True, deadline=None)
DEPTH = 64

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NOT_JSON = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        (),
        (1,),
        b"",
        b"x",
        set(),
        frozenset({1}),
        object(),
        1j,
        2**64,
        -(2**63) - 1,
        10**5000,
        "\ud800",
    ]
)


def checked(value: Any, *, depth: int = DEPTH, size: int = 1 << 20, canonical: bool = False) -> bytes | codec.Unfit:
    return codec.checked_document(value, depth=depth, size=size, canonical=canonical)


def nested(levels: int, inner: Any = 1) -> Any:
    """Return a value of exactly so many levels, objects and arrays in turn."""
    value = inner
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def doubled(value: Any) -> Any:
    """Return a value of few objects that encodes to 2 ** 60 copies."""
    for level in range(60):
        value = [value, value] if level % 2 else {"a": value, "b": value}
    return value


def many_tuples() -> Any:
    value: Any = ()
    for _ in range(40):
        value = (value, value, value)
    return value


def alike(left: Any, right: Any) -> bool:
    """Report whether two values are equal and of the same types all the way down: True is not 1, and 1 is not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(alike(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(alike, left, right))
    return repr(left) == repr(right)


# Documents.


@STEADY
@given(DOCUMENTS)
def test_a_document_comes_back_as_it_was_sent(value: Any) -> None:
    data = checked(value)
    assert isinstance(data, bytes)
    assert alike(codec.decode_document(data, table="t", key="k"), value)
    assert alike(json.loads(data), value)
    assert codec.encode_document(value) == data


@STEADY
@given(DOCUMENTS)
def test_the_canonical_form_of_a_document_has_its_keys_in_order(value: Any) -> None:
    data = checked(value, canonical=True)
    assert isinstance(data, bytes)
    assert json.dumps(json.loads(data)) == json.dumps(value, sort_keys=True)
    assert codec.encode_canonical(value) == data


@STEADY
@given(DOCUMENTS, NOT_JSON, st.sampled_from(["list", "value", "deep"]))
def test_one_bad_part_anywhere_spoils_a_document(good: Any, bad: Any, place: str) -> None:
    value = {"list": [good, bad], "value": {"a": good, "b": bad}, "deep": [{"a": [bad]}, good]}[place]
    assert isinstance(checked(value), codec.Unfit)
    assert isinstance(checked(bad), codec.Unfit)


@pytest.mark.parametrize(
    "key",
    [1, 1.5, b"a", ("a",), "\ud800", True, None],
    ids=["int", "float", "bytes", "tuple", "surrogate", "bool", "none"],
)
def test_a_key_that_is_not_text_is_refused(key: Any) -> None:
    assert isinstance(checked({key: 1}), codec.Unfit)
    assert isinstance(checked([{"a": {key: 1}}]), codec.Unfit)


def test_keys_that_would_become_one_are_refused() -> None:
    assert isinstance(checked({1: "a", "1": "a"}), codec.Unfit)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": 2}, b'{"b":1,"a":2}'),
        ("a\0b", b'"a\\u0000b"'),
        ("é😀", '"é😀"'.encode()),
        (2**63 - 1, b"9223372036854775807"),
        (2**64 - 1, b"18446744073709551615"),
        (-(2**63), b"-9223372036854775808"),
        (True, b"true"),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        ([], b"[]"),
        ({}, b"{}"),
        (None, b"null"),
    ],
    ids=str,
)
def test_a_document_is_stored_as_plain_json_in_its_own_order(value: Any, data: bytes) -> None:
    assert checked(value) == data
    assert alike(codec.decode_document(data, table="t", key="k"), value)


@pytest.mark.parametrize(
    ("value", "problem", "limit"),
    [
        ([math.nan], "NaN", None),
        ((1, 2), "tuple", None),
        ("\udfff", "lone surrogate", None),
        ({"\ud800": 1}, "lone surrogate", None),
        (object(), "is not a JSON value: it is of type object; convert it to JSON values first", None),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, "value at /at is of type datetime; convert it to text", None),
        ([{"a": 1}, {"b": [0, (1,)]}], "value at /1/b/1 is of type tuple; use a list", None),
        ({"a": {"my secret": {1}}}, "value at /a/… is of type set; use a list", None),
        ({"a": {1: 2}}, "value at /a has a key of type int; keys must be text", None),
        ({"a": b"x"}, "value at /a is of type bytes; encode it as text", None),
        ([0] * 100_001 + [()], "it does not survive its own encoding", None),
        ([2**64], "whole number of more than 64 bits", None),
        ({"a": [-(2**63) - 1]}, "whole number of more than 64 bits", None),
        ("x" * (1 << 20), "is 1048578 bytes long, the limit is 1048576", 1 << 20),
        (["x" * (1 << 20)], "is longer than the limit of 1048576 bytes", 1 << 20),
        ([["x" * 1024] * 32] * 33, "is longer than the limit of 1048576 bytes", 1 << 20),
        ([{"x" * 1024: 0}] * 1025, "is longer than the limit of 1048576 bytes", 1 << 20),
        (doubled([0]), "is longer than the limit of 1048576 bytes", 1 << 20),
        (doubled({"a": 0}), "is longer than the limit of 1048576 bytes", 1 << 20),
        ([(), doubled([0])], "value at /0 is of type tuple", None),
        (many_tuples(), "it is of type tuple; use a list", None),
        (nested(DEPTH + 1), "nested deeper than 64 levels", 64),
        (nested(50_000), "nested deeper than 64 levels", 64),
    ],
    ids=[
        "nan",
        "tuple",
        "surrogate",
        "surrogate key",
        "object",
        "datetime",
        "nested tuple",
        "set",
        "key",
        "bytes",
        "far away",
        "large",
        "small",
        "long",
        "long text inside",
        "text that is shared",
        "keys that are shared",
        "lists that double",
        "objects that double",
        "lists that double behind a tuple",
        "tuples that triple",
        "too deep",
        "far too deep",
    ],
)
def test_a_refusal_says_what_is_wrong_and_which_limit_it_broke(value: Any, problem: str, limit: int | None) -> None:
    found = checked(value)
    assert isinstance(found, codec.Unfit)
    assert problem in found.problem
    assert found.limit == limit


@pytest.mark.parametrize("light_bytes", [0, 1 << 20], ids=["weighed", "light"])
@given(value=DOCUMENTS, shares=st.integers(1, 4))
@STEADY
def test_a_document_of_exactly_the_limit_is_accepted_and_one_byte_less_is_not(
    light_bytes: int, value: Any, shares: int
) -> None:
    """Also one whose parts occur in several places, by either way of weighing it."""
    document = [value] * shares
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_size, "LIGHT_BYTES", light_bytes)
        kept = checked(document)
        assert isinstance(kept, bytes)
        size = len(kept)
        assert checked(document, size=size) == kept
        assert isinstance(checked(document, size=size - 1), codec.Unfit)


@pytest.mark.parametrize("light_bytes", [0, 1 << 20], ids=["weighed", "light"])
def test_a_value_that_shares_its_parts_takes_little_memory_to_refuse(
    light_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_size, "LIGHT_BYTES", light_bytes)
    thousands = [[[0] * 1000] * 1000] * 1000
    tracemalloc.start()
    try:
        for value in (thousands, doubled([0]), [thousands, {1, 2}], {"a": thousands, "b": b"x"}):
            assert isinstance(checked(value, size=16 << 20), codec.Unfit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("depth", [1, 2, 3, 64, 200])
def test_the_deepest_document_is_exactly_at_the_limit(depth: int) -> None:
    assert isinstance(checked(nested(depth), depth=depth), bytes)
    assert isinstance(checked(nested(depth + 1), depth=depth), codec.Unfit)
    assert isinstance(checked(nested(depth - 1, inner=[]), depth=depth), bytes)
    assert isinstance(checked(nested(depth, inner={}), depth=depth), codec.Unfit)


def test_width_and_brackets_in_text_are_not_depth() -> None:
    assert isinstance(checked([[] for _ in range(500)], depth=2), bytes)
    assert isinstance(checked({str(i): {"a": 1} for i in range(500)}, depth=2), bytes)
    assert isinstance(checked("[{" * 500, depth=2), bytes)


def test_a_limit_of_no_levels_leaves_the_scalars() -> None:
    assert checked("[{[{", depth=0) == b'"[{[{"'
    assert isinstance(checked([], depth=0), codec.Unfit)


@pytest.mark.parametrize(("size", "fits"), [(5, False), (6, True), (7, True)])
def test_a_document_may_be_as_long_as_its_limit(size: int, fits: bool) -> None:
    assert isinstance(checked("é12", size=size), bytes) is fits


def test_digits_in_text_are_not_a_number() -> None:
    digits = {"1" * 40: ["9" * 40, 1.5e300, 2**64 - 1]}
    assert checked(digits) == json.dumps(digits, separators=(",", ":")).encode().replace(b"e+300", b"e300")


def test_a_document_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert isinstance(checked(loop), codec.Unfit)


@pytest.mark.parametrize(
    "raw",
    [b"{", b"1", b"", b"[1,", b'"\xff"', b"[" * 100_000],
    ids=["open", "number", "empty", "cut", "bytes", "deep"],
)
def test_ready_made_json_is_not_a_document(raw: bytes) -> None:
    assert isinstance(checked(msgspec.Raw(raw)), codec.Unfit)
    assert isinstance(checked({"a": msgspec.Raw(raw)}), codec.Unfit)


def test_a_kind_of_text_is_the_text() -> None:
    class Colour(str, enum.Enum):  # noqa: UP042 (the older spelling is the one to be tested)
        RED = "red"

    class Text(str):
        __slots__ = ()

    assert checked({"c": Colour.RED}) == b'{"c":"red"}'
    assert checked({Text("c"): Text("red")}) == b'{"c":"red"}'
    assert codec.document_of(Pair(Text("red"))) == {"left": "red", "right": 0}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b'"\xff"',
        b"[1,]",
        b"nope",
        b"1e999",
        b"[" * 100_000,
        b"1" * 5_000,
        b'{"a":1}x',
        b'"\\ud800"',
    ],
    ids=["empty", "open", "byte", "bytes", "comma", "word", "huge", "deep", "long", "rest", "surrogate"],
)
def test_a_stored_document_that_is_not_json_is_damage(data: bytes) -> None:
    with pytest.raises(Corrupt) as info:
        codec.decode_document(data, table="nodes", key=7)
    assert (info.value.table, info.value.key) == ("nodes", "7")


# Records.


class Pair(msgspec.Struct, frozen=True):
    left: str
    right: int = 0


def test_a_record_carries_its_format_in_the_first_byte() -> None:
    assert codec.encode_record(Pair("a", 1)) == b'\x01{"left":"a","right":1}'
    assert codec.decode_record(Pair, b'\x01{"left":"a","right":1}', table="t", key="k") == Pair("a", 1)


def test_an_own_copy_is_equal_and_shares_nothing() -> None:
    class Box(msgspec.Struct, frozen=True):
        inside: Any

    given = Box({"a": [1]})
    copy = codec.own_copy(Box, given)
    assert copy == given
    given.inside["a"].append(2)
    assert copy == Box({"a": [1]})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "record format none is not 1"),
        (b"\x02{}", "record format 2 is not 1"),
        (b'{"left":"a"}', "record format 123 is not 1"),
        (b"\x01", "does not decode"),
        (b"\x01{}", "does not decode"),
        (b'\x01{"left":1}', "does not decode"),
        (b'\x01{"left":"\xff"}', "does not decode"),
        (b"\x01" + b"[" * 100_000, "does not decode"),
    ],
    ids=["empty", "newer", "no format", "nothing", "field missing", "wrong type", "not text", "deep"],
)
def test_a_record_that_is_not_what_was_stored_is_damage(data: bytes, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        codec.decode_record(Pair, data, table="sessions", key=5)
    assert (info.value.table, info.value.key) == ("sessions", "5")


# Names of content.


@STEADY
@given(st.binary(max_size=64))
def test_a_digest_is_sha256_in_lowercase_hex(data: bytes) -> None:
    expected = hashlib.sha256(data).hexdigest()
    assert codec.digest(data) == expected
    assert codec.content_ref("json", data) == f"json-sha256:{expected}"
    assert codec.split_ref(f"json-sha256:{expected}") == ("json", expected)
    assert codec.split_ref(codec.content_ref("bytes", data)) == ("bytes", expected)


@STEADY
@given(DOCUMENTS, DOCUMENTS)
def test_a_stable_hash_depends_on_the_content_and_not_on_the_order_of_keys(left: Any, right: Any) -> None:
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (codec.stable_hash(left) == codec.stable_hash(right)) is same
    assert codec.stable_hash({"a": left, "b": right}) == codec.stable_hash({"b": right, "a": left})


def test_a_stable_hash_is_that_of_compact_sorted_json() -> None:
    expected = hashlib.sha256(b'{"a":[1,2.5,"\xc3\xa9"],"b":null}').hexdigest()
    assert codec.stable_hash({"b": None, "a": [1, 2.5, "é"]}) == expected


HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "ref",
    [
        "",
        HASH,
        f"json:{HASH}",
        f"text-sha256:{HASH}",
        f"-sha256:{HASH}",
        f"json-sha256:{HASH[:-1]}",
        f"json-sha256:{HASH}0",
        f"json-sha256:{HASH.upper()}",
        f"json-sha256:{HASH[:-1]}g",
        f"json-sha256:{HASH[:-1]}\n",
        f" json-sha256:{HASH}",
    ],
)
def test_a_ref_that_was_never_minted_yields_none(ref: str) -> None:
    assert codec.split_ref(ref) is None


# Contents.


@STEADY
@given(st.binary(max_size=600) | st.builds(bytes.__mul__, st.binary(max_size=8), st.integers(0, 400)))
def test_packed_content_comes_back_and_is_never_larger(data: bytes) -> None:
    encoding, body = codec.pack(data)
    assert len(body) <= len(data)
    assert (encoding == "raw") is (body == data)
    hash = hashlib.sha256(data).hexdigest()
    assert codec.unpack(encoding, body, size=len(data), hash=hash, table="t", key="k") == data


@pytest.mark.parametrize(
    ("data", "encoding"),
    [(b"a" * 255, "raw"), (b"a" * 256, "zstd"), (hashlib.shake_128(b"noise").digest(1_000), "raw"), (b"", "raw")],
    ids=["small", "large", "incompressible", "empty"],
)
def test_content_is_compressed_where_that_saves_space(data: bytes, encoding: str) -> None:
    assert codec.pack(data)[0] == encoding


@pytest.mark.parametrize("size", [1_000, 4_000, codec.SMALL_BYTES])
def test_small_contents_are_stored_in_no_more_bytes_than_at_the_default_level(size: int) -> None:
    contents = [work.text(f"small-{number}", size).encode() for number in range(20)]
    stored = sum(len(codec.pack(data)[1]) for data in contents)
    assert stored <= sum(len(codec.zstd.compress(data)) for data in contents)


def test_contents_packed_one_after_another_and_by_several_threads_are_each_a_frame_of_their_own() -> None:
    contents = [hashlib.sha256(b"%d" % number).hexdigest().encode() * (4 + 3 * number) for number in range(200)]
    levels = [1 if len(data) <= codec.SMALL_BYTES else 3 for data in contents]
    assert set(levels) == {1, 3}
    alone = [(codec.zstd.compress(data, level=level), len(data)) for data, level in zip(contents, levels, strict=True)]
    with ThreadPoolExecutor(4) as threads:
        packed = list(threads.map(codec.pack, contents))
    assert packed == [("zstd", frame) for frame, _ in alone]
    assert [codec.zstd.get_frame_info(frame).decompressed_size for _, frame in packed] == [size for _, size in alone]


PLAIN = b"holdfast " * 100
PACKED = codec.pack(PLAIN)[1]


@pytest.mark.parametrize(
    ("encoding", "body", "size", "hash_of", "reason"),
    [
        ("raw", PLAIN, 901, PLAIN, "does not match its hash"),
        ("raw", PLAIN, 900, b"other", "does not match its hash"),
        ("raw", PLAIN[:-1] + b"?", 900, PLAIN, "does not match its hash"),
        ("zstd", PACKED, 901, PLAIN, "size does not match"),
        ("zstd", PACKED, 900, b"other", "does not match its hash"),
        ("zstd", PACKED[:-4], 900, PLAIN, "does not decompress"),
        ("zstd", PACKED + b"rest", 900, PLAIN, "does not decompress"),
        ("zstd", b"", 0, b"", "does not decompress"),
        ("zstd", PLAIN, 900, PLAIN, "does not decompress"),
        ("gzip", PLAIN, 900, PLAIN, "unknown encoding 'gzip'"),
        ("", PLAIN, 900, PLAIN, "unknown encoding ''"),
    ],
)
def test_content_that_is_not_what_was_stored_is_damage(
    encoding: str, body: bytes, size: int, hash_of: bytes, reason: str
) -> None:
    hash = hashlib.sha256(hash_of).hexdigest()
    for read in (codec.unpack, codec.prove):
        with pytest.raises(Corrupt, match=reason) as info:
            read(encoding, body, size=size, hash=hash, table="blobs", key="k")
        assert (info.value.table, info.value.key) == ("blobs", "k")


LARGE = b"abcdefgh" * (1 << 20)
LARGE_PACKED = codec.zstd.compress(LARGE)


@pytest.mark.parametrize(
    ("encoding", "body", "size", "hash_of", "base", "reason"),
    [
        ("zstd", LARGE_PACKED, len(LARGE) + 1, LARGE, None, "does not match its hash"),
        ("zstd", LARGE_PACKED, len(LARGE) - 1, LARGE, None, "does not match its hash"),
        ("zstd", codec.zstd.compress(LARGE * 2), len(LARGE), LARGE, None, "does not match its hash"),
        ("zstd", LARGE_PACKED, len(LARGE), b"other", None, "does not match its hash"),
        ("zstd", LARGE_PACKED[:-4], len(LARGE), LARGE, None, "does not decompress"),
        ("zstd", LARGE_PACKED + b"rest", len(LARGE), LARGE, None, "does not decompress"),
        ("zstd", LARGE[:100], len(LARGE), LARGE, None, "does not decompress"),
        ("delta", LARGE_PACKED, len(LARGE), LARGE, None, "unknown encoding 'delta'"),
        ("zstd", LARGE_PACKED, len(LARGE), LARGE, LARGE, "unknown encoding 'zstd'"),
    ],
)
def test_large_content_that_is_not_what_was_stored_is_not_proven(
    encoding: str, body: bytes, size: int, hash_of: bytes, base: bytes | None, reason: str
) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        codec.prove(encoding, body, size=size, hash=codec.digest(hash_of), table="blobs", key="k", base=base)
    assert (info.value.table, info.value.key) == ("blobs", "k")


def test_large_content_is_proven_in_little_memory() -> None:
    data = bytes(1 << 26)
    packed, hash = codec.zstd.compress(data), codec.digest(data)
    delta = codec.pack_delta(LARGE + b"!", LARGE)
    del data
    tracemalloc.start()
    try:
        codec.prove("zstd", packed, size=1 << 26, hash=hash, table="blobs", key="k")
        codec.prove(
            "delta", delta, size=len(LARGE) + 1, hash=codec.digest(LARGE + b"!"), table="blobs", key="k", base=LARGE
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [codec.unpack, codec.prove])
@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_a_content_that_claims_more_than_any_has_is_not_opened(read: Any, encoding: str) -> None:
    with pytest.raises(Corrupt, match="claims to have 6442450944 bytes"):
        read(encoding, b"", size=6 << 30, hash="", table="blobs", key="k")


def test_a_frame_that_promises_too_much_is_refused_before_it_is_opened() -> None:
    bomb = codec.zstd.compress(bytes(1 << 24))
    with pytest.raises(Corrupt, match="size does not match"):
        codec.unpack("zstd", bomb, size=10, hash=hashlib.sha256(b"").hexdigest(), table="blobs", key="k")


def test_a_frame_that_holds_more_than_it_promises_is_not_opened_beyond_that() -> None:
    bomb = bytearray(codec.zstd.compress(bytes(1 << 26)))
    at = bytes(bomb).index((1 << 26).to_bytes(4, "little"))
    bomb[at : at + 4] = (100).to_bytes(4, "little")
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=r"size does not match|does not decompress"):
            codec.unpack("zstd", bytes(bomb), size=100, hash=codec.digest(bytes(100)), table="blobs", key="k")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@STEADY
@given(st.data())
def test_a_flipped_bit_in_stored_content_is_always_noticed(data: st.DataObject) -> None:
    body = bytearray(PACKED)
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    hash = hashlib.sha256(PLAIN).hexdigest()
    try:
        found = codec.unpack("zstd", bytes(body), size=900, hash=hash, table="blobs", key="k")
    except Corrupt:
        return
    assert found == PLAIN  # a bit that the format does not use


# Bytes in place of a document.


@STEADY
@given(st.binary(max_size=400) | st.binary(max_size=8).map(lambda part: part * 200))
def test_bytes_in_the_place_of_a_document_come_back(data: bytes) -> None:
    stored = codec.encode_bytes(data)
    assert len(stored) <= len(data) + 1 + codec.CHECKSUM_BYTES
    assert len(data) <= len(stored) * codec.LARGEST_RATIO
    assert codec.decode_value(stored, table="nodes", key="k") == data


def marked(mark: bytes, body: bytes) -> bytes:
    """Return a body that passes for stored bytes."""
    return mark + zlib.crc32(body).to_bytes(codec.CHECKSUM_BYTES, "big") + body


@pytest.mark.parametrize("data", [b"some bytes", b"many " * 100], ids=["as they are", "packed"])
def test_bytes_with_any_bit_flipped_are_damage(data: bytes) -> None:
    stored = codec.encode_bytes(data)
    for place in range(8, 8 * len(stored)):  # the bits of the mark tell documents from bytes
        flipped = bytearray(stored)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(Corrupt):
            codec.decode_value(bytes(flipped), table="nodes", key="k")


@pytest.mark.parametrize("data", [b"\x00", b"\x00abc", b"\x01", b"\x00\x00\x00\x00\x01"])
def test_bytes_without_their_checksum_are_damage(data: bytes) -> None:
    with pytest.raises(Corrupt, match="checksum"):
        codec.decode_value(data, table="nodes", key="k")


@pytest.mark.parametrize(
    "body",
    [b"", b"abc", codec.zstd.compress(b"abc")[:-1], codec.zstd.compress(bytes(1 << 24)), b"\x28\xb5\x2f\xfd"],
    ids=["nothing", "no-frame", "cut", "bomb", "no-size"],
)
def test_a_frame_that_was_not_stored_here_is_damage(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            codec.decode_value(marked(codec.PACKED, body), table="nodes", key="k")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# Cursors.


PLACES = st.lists(st.integers(0, 2**63 - 1) | st.text(), max_size=4)


@STEADY
@given(st.text(), PLACES)
def test_a_cursor_gives_its_place_back_to_its_own_listing(listing: str, place: list[int | str]) -> None:
    kinds = [type(part) for part in place]
    cursor = codec.encode_cursor(listing, place)
    assert cursor.isascii()
    assert "=" not in cursor
    assert codec.decode_cursor(listing, cursor, kinds) == tuple(place)
    with pytest.raises(InvalidRequest):
        codec.decode_cursor(listing + "s", cursor, kinds)
    with pytest.raises(InvalidRequest):
        codec.decode_cursor(listing, cursor, [*kinds, int])


def raw_cursor(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "\ud800",
        5,
        None,
        b"WyJhIiwxXQ",
        raw_cursor(b"not json"),
        raw_cursor(b'"work"'),
        raw_cursor(b"{}"),
        raw_cursor(b"[]"),
        raw_cursor(b'["work"]'),
        raw_cursor(b'["work",1,2]'),
        raw_cursor(b'["queue",1]'),
        raw_cursor(b'["work","1"]'),
        raw_cursor(b'["work",1.0]'),
        raw_cursor(b'["work",true]'),
        raw_cursor(b'["work",null]'),
        raw_cursor(b'["work",-1]'),
        raw_cursor(b'["work",9223372036854775808]'),
        raw_cursor(b'["work","\\ud800"]'),
        raw_cursor(b'["work",\xff]'),
        raw_cursor(b"[" * 100_000),
    ],
)
def test_a_cursor_that_this_listing_did_not_make_is_refused(cursor: object) -> None:
    with pytest.raises(InvalidRequest) as info:
        codec.decode_cursor("work", cursor, [int])
    assert info.value.field == "after"


@STEADY
@given(st.text(st.characters(exclude_categories=())))
def test_text_that_is_not_a_cursor_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(InvalidRequest):
        codec.decode_cursor("work", text, [int])
