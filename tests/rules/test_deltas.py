"""A delta rests on a key frame, never on a delta, only while that is cheaper, and is restored or reported as damage."""

from __future__ import annotations

import hashlib
import random
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.rows import BlobRow, Run
from holdfast.rules import deltas

STEADY = settings(derandomize=True, deadline=None)
SIZE = 65_536


def noise(seed: str, size: int = SIZE) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def ref_of(data: bytes) -> str:
    return f"bytes-sha256:{hashlib.sha256(data).hexdigest()}"


def edited(data: bytes, at: int, inserted: bytes) -> bytes:
    return data[:at] + inserted + data[at + len(inserted) :]


BASE = noise("base")
WHOLE = deltas.stored(ref_of(BASE), BASE, None)
RUN = Run(WHOLE.hash, BASE, len(WHOLE.body))
NEXT = edited(BASE, 30_000, b"another hundred bytes" * 5)
DELTA = deltas.stored(ref_of(NEXT), NEXT, RUN)


# Encoding.


def test_without_a_predecessor_a_content_is_stored_whole() -> None:
    assert (WHOLE.encoding, WHOLE.base_hash, WHOLE.body) == ("raw", None, BASE)
    text = b"text " * 20_000
    assert deltas.stored(ref_of(text), text, None).encoding == "zstd"


def test_a_content_that_differs_a_little_is_stored_as_its_difference() -> None:
    assert (DELTA.encoding, DELTA.base_hash, DELTA.size) == ("delta", WHOLE.hash, SIZE)
    assert len(DELTA.body) < 200


@pytest.mark.parametrize("size", [4_095, 0])
def test_a_content_below_the_bound_is_stored_whole_and_nothing_is_stored_on_one(size: int) -> None:
    small = BASE[:size]
    row = deltas.stored(ref_of(small), small, RUN)
    assert row.base_hash is None
    assert deltas.run_after(row, small, RUN) is None
    assert deltas.run_of(row.hash, [row]) is None
    assert deltas.stored(ref_of(NEXT), NEXT, Run(row.hash, small, len(small))).base_hash is None


def test_a_content_beyond_the_largest_window_is_stored_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "DELTA_UP_TO_BYTES", SIZE)
    assert deltas.stored(ref_of(NEXT), NEXT, RUN).base_hash == WHOLE.hash
    longer = NEXT + b"!"
    assert deltas.stored(ref_of(longer), longer, RUN).base_hash is None


def test_the_largest_delta_can_be_read_with_the_window_that_readers_grant() -> None:
    assert deltas.DELTA_UP_TO_BYTES == 2**27


# Length of a run.


@pytest.mark.parametrize(
    ("deltas_before", "spent", "delta_bytes", "worth_it"),
    [
        (0, 0, 500, True),
        (0, 0, 501, False),
        (1, 100, 500, True),
        (3, 600, 400, True),
        (3, 600, 401, False),
        (9, 1_000, 200, True),
        (9, 1_000, 201, False),
    ],
)
def test_a_delta_is_worth_it_up_to_half_a_key_frame_and_to_what_the_run_took_on_average(
    deltas_before: int, spent: int, delta_bytes: int, worth_it: bool
) -> None:
    run = Run("r", b"", 1_000, deltas_before, spent)
    assert deltas.is_worth_it(run, delta_bytes) is worth_it


@pytest.mark.parametrize("growth", [1, 3, 10, 30, 100, 200, 400])
def test_a_run_is_as_long_as_the_cheapest_of_all_lengths(growth: int) -> None:
    """A delta grows by so many thousandths of its key frame each turn; every length of a run is tried."""
    frame, turns = 1_000_000, 2_000

    def average(length: int) -> float:
        return (frame + sum(growth * 1_000 * distance for distance in range(1, length))) / length

    run, taken = Run("r", b"", frame), frame
    for _ in range(turns - 1):
        size = growth * 1_000 * (run.deltas + 1)
        if deltas.is_worth_it(run, size):
            run = msgspec.structs.replace(run, deltas=run.deltas + 1, spent_bytes=run.spent_bytes + size)
            taken += size
        else:
            run = Run("r", b"", frame)
            taken += frame
    cheapest = min(average(length) for length in range(1, turns))
    assert taken <= cheapest * turns * 1.02 + frame


def test_a_run_that_hardly_changes_continues_and_one_that_jumped_ends() -> None:
    run = Run("r", b"", 100_000, deltas=500, spent_bytes=500 * 60)
    assert deltas.is_worth_it(run, 80)
    assert not deltas.is_worth_it(run, 20_000)


def unrelated(count: int, size: int) -> tuple[Run, bytes, list[int]]:
    """Store contents without anything in common. Return the last run and content, and those that were tried."""
    run: Run | None = None
    tried: list[int] = []
    data = b""
    for number in range(count):
        data = noise(f"unrelated {number}", size)
        if run is not None and deltas.is_worth_trying(run, data):
            tried.append(number)
        row = deltas.stored(ref_of(data), data, run)
        assert row.base_hash is None
        run = deltas.run_after(row, data, run)
    assert run is not None
    return run, data, tried


def test_contents_that_have_nothing_in_common_are_tried_twice() -> None:
    assert unrelated(26, 8_192)[2] == [1, 2]


@pytest.mark.parametrize(("contents", "is_tried"), [(9, True), (10, False), (16, False), (17, True)])
def test_a_content_with_many_small_changes_is_tried_each_eighth_time(contents: int, is_tried: bool) -> None:
    run, data, _ = unrelated(contents, SIZE_OF_A_STATE)
    scattered = b"".join(data[at : at + 300] + b"changed" for at in range(0, SIZE_OF_A_STATE, 307))
    assert deltas.is_worth_trying(run, scattered) == is_tried


SIZE_OF_A_STATE = 8_192


CONTINUED: dict[str, Callable[[bytes], bytes]] = {
    "appended": lambda data: data + noise("appended", 4_000),
    "put before": lambda data: noise("put before", 4_000) + data,
    "cut at the end": lambda data: data[:-4_000],
    "cut at the begin": lambda data: data[4_000:],
} | {f"edited at {at}": partial(edited, at=at, inserted=b"a few other bytes") for at in range(0, SIZE_OF_A_STATE, 512)}


@pytest.mark.parametrize("change", CONTINUED)
def test_a_content_that_continues_the_one_before_is_a_delta_at_once(change: str) -> None:
    run, data, _ = unrelated(12, SIZE_OF_A_STATE)
    changed = CONTINUED[change](data)
    row = deltas.stored(ref_of(changed), changed, run)
    assert row.base_hash == run.ref
    after = deltas.run_after(row, changed, run)
    assert after is not None
    assert after.misses == 0


def test_a_content_with_a_common_begin_only_is_not_tried() -> None:
    run, data, _ = unrelated(12, SIZE_OF_A_STATE)
    other = data[:2_500] + noise("another rest", 5_692)
    assert not deltas.is_worth_trying(run, other)


def test_the_run_that_is_kept_is_the_run_that_is_read() -> None:
    rng = random.Random("edits")
    rows, data, run = {WHOLE.hash: WHOLE}, BASE, RUN
    for number in range(40):
        data = edited(data, rng.randrange(SIZE - 2_000), noise(str(number), rng.randrange(2_000)))
        row = deltas.stored(ref_of(data), data, run)
        rows[row.hash] = row
        after = deltas.run_after(row, data, run)
        assert after is not None
        # Misses are not stored: after a restart a delta is tried again.
        assert msgspec.structs.replace(after, misses=0) == deltas.run_of(row.hash, rows.values())
        run = after
    assert 2 <= sum(row.base_hash is None for row in rows.values()) <= 10
    assert {rows[row.base_hash].base_hash for row in rows.values() if row.base_hash is not None} == {None}


def test_nothing_continues_from_a_content_that_is_gone_or_whose_key_frame_is() -> None:
    assert deltas.run_of(DELTA.hash, []) is None
    assert deltas.run_of(DELTA.hash, [DELTA]) is None
    assert deltas.run_of(DELTA.hash, [WHOLE]) is None


# Decoding.


@STEADY
@given(
    st.lists(
        st.tuples(st.integers(0, SIZE), st.integers(0, 3_000), st.binary(max_size=300)),
        min_size=1,
        max_size=8,
    )
)
def test_any_change_of_the_content_comes_back(edits: list[tuple[int, int, bytes]]) -> None:
    data = BASE + noise("more")
    run = Run(ref_of(data), data, len(data))
    base = deltas.stored(run.ref, data, None)
    for at, removed, inserted in edits:
        data = data[:at] + inserted + data[at + removed :]
    row = deltas.stored(ref_of(data), data, run)
    assert deltas.opened([row, base]) == {base.hash: run.data, row.hash: data}
    if len(data) >= SIZE:
        # Eight times at most three hundred new bytes, and for each the place where the old ones continue.
        assert len(row.body) <= 12 + sum(len(inserted) for _, _, inserted in edits) + 100 * (len(edits) + 1)


def test_contents_of_several_views_count_once_for_each_view() -> None:
    views = [[WHOLE.hash, "gone"], [WHOLE.hash]]
    deltas.require_room_for_all([WHOLE], views, 2 * SIZE)
    with pytest.raises(InvalidRequest, match=f"claim {2 * SIZE} bytes together; the limit is {2 * SIZE - 1}") as info:
        deltas.require_room_for_all([WHOLE], views, 2 * SIZE - 1)
    assert (info.value.field, info.value.limit) == ("limits.load_bytes", 2 * SIZE - 1)


def test_several_deltas_share_a_key_frame_in_whatever_order_they_come() -> None:
    other = edited(BASE, 5, b"other")
    rows = [deltas.stored(ref_of(other), other, RUN), WHOLE, DELTA]
    assert deltas.opened(rows) == {ref_of(other): other, WHOLE.hash: BASE, DELTA.hash: NEXT}
    assert deltas.opened(reversed(rows)) == deltas.opened(rows)
    assert deltas.opened([]) == {}


def but(row: BlobRow, **changes: object) -> BlobRow:
    return msgspec.structs.replace(row, **changes)


LYING = but(DELTA, hash=ref_of(BASE[:-1]))
SECOND = but(DELTA, hash=ref_of(b"second"), base_hash=DELTA.hash)


@pytest.mark.parametrize(
    ("rows", "named", "reason"),
    [
        ([DELTA], DELTA, "its key frame bytes-sha256:[0-9a-f]{64} is missing"),
        ([SECOND, DELTA, WHOLE], SECOND, "its key frame bytes-sha256:[0-9a-f]{64} is a delta itself"),
        ([DELTA, SECOND], SECOND, "its key frame bytes-sha256:[0-9a-f]{64} is a delta itself"),
        ([but(DELTA, base_hash=DELTA.hash)], DELTA, "is a delta itself"),
        ([LYING, WHOLE], LYING, "does not match its hash"),
        ([but(DELTA, size=SIZE + 1), WHOLE], DELTA, "size does not match"),
        ([but(DELTA, size=2**30), WHOLE], DELTA, "size does not match"),
        ([but(DELTA, size=2**63 - 1), WHOLE], DELTA, "claims to have 9223372036854775807 bytes"),
        ([but(DELTA, body=DELTA.body[:-1]), WHOLE], DELTA, "does not decompress"),
        ([but(DELTA, body=DELTA.body + b"!"), WHOLE], DELTA, "does not decompress"),
        ([but(DELTA, body=DELTA.body[:12]), WHOLE], DELTA, "does not decompress"),
        ([but(DELTA, body=b"short"), WHOLE], DELTA, "is not a delta"),
        ([but(DELTA, encoding="zstd"), WHOLE], DELTA, "is not a delta"),
        ([but(DELTA, base_hash=None), WHOLE], DELTA, "unknown encoding 'delta'"),
        ([DELTA, but(WHOLE, body=b"?" + BASE[1:])], WHOLE, "does not match its hash"),
    ],
)
def test_a_delta_that_cannot_be_read_is_reported(rows: list[BlobRow], named: BlobRow, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        deltas.opened(rows)
    assert (info.value.table, info.value.key) == ("blobs", named.hash)


def test_a_content_is_proven_alone_or_with_its_key_frame() -> None:
    deltas.prove(WHOLE, ())
    deltas.prove(DELTA, [WHOLE])
    for row, frames, reason in (
        (DELTA, [], "is missing"),
        (SECOND, [DELTA], "is a delta itself"),
        (LYING, [WHOLE], "does not match its hash"),
        (DELTA, [but(WHOLE, body=b"?" + BASE[1:])], "does not match its hash"),
        (but(WHOLE, hash="photo"), [], "is not a ref"),
    ):
        with pytest.raises(Corrupt, match=reason):
            deltas.prove(row, frames)


def test_a_delta_on_another_key_frame_than_its_own_is_reported() -> None:
    other = edited(BASE, 0, b"?" * 60_000)
    frame = deltas.stored(ref_of(other), other, None)
    with pytest.raises(Corrupt, match=r"does not (match its hash|decompress)"):
        deltas.opened([but(DELTA, base_hash=frame.hash), frame])


@STEADY
@given(st.integers(0, len(DELTA.body) - 1), st.integers(1, 255))
def test_a_damaged_byte_of_a_delta_is_reported_or_was_a_count_of_its_run(at: int, flip: int) -> None:
    body = bytearray(DELTA.body)
    body[at] ^= flip
    try:
        found = deltas.opened([but(DELTA, body=bytes(body)), WHOLE])
    except Corrupt:
        assert at >= struct.calcsize("<IQ")
    else:
        # The leading counts concern the next delta's price. A frame has a few bits without meaning.
        assert found[DELTA.hash] == NEXT


def test_a_hostile_delta_that_states_a_small_size_is_not_expanded() -> None:
    bomb = bytearray(codec.pack_delta(bytes(1 << 26), BASE))
    info = codec.zstd.get_frame_info(bytes(bomb))
    assert info.decompressed_size == 1 << 26
    at = bytes(bomb).index((1 << 26).to_bytes(4, "little"))
    bomb[at : at + 4] = (100).to_bytes(4, "little")
    assert codec.zstd.get_frame_info(bytes(bomb)).decompressed_size == 100
    row = BlobRow(ref_of(b"x" * 100), "delta", 100, struct.pack("<IQ", 0, 0) + bytes(bomb), WHOLE.hash)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=r"size does not match|does not decompress"):
            deltas.opened([row, WHOLE])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
