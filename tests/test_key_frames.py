"""Key frames are cached up to a bound, least recently used first out; a dropped one costs a read and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.operations.key_frames import KEPT_BYTES, KeyFrames, learn, runs_for
from holdfast.rows import BlobRow, Run
from holdfast.rules import deltas
from holdfast.wait import run_to_end


def run(size: int, deltas: int = 0) -> Run:
    return Run(f"frame of {size}", bytes(size), size, deltas)


def test_a_content_is_found_under_its_family_and_hash() -> None:
    kept = KeyFrames()
    kept.put(1, "a", run(3))
    assert kept.get(1, "a") == run(3)
    assert kept.get(2, "a") is None
    assert kept.get(1, "b") is None
    kept.put(1, "a", run(3, deltas=1))
    assert kept.get(1, "a") == run(3, deltas=1)
    kept.drop(1, "a")
    kept.drop(1, "never there")
    assert kept.get(1, "a") is None


def test_the_least_recently_used_goes_when_the_bound_is_reached() -> None:
    kept = KeyFrames(most_bytes=10)
    for ref in "abc":
        kept.put(1, ref, run(3))
    assert kept.get(1, "a") is not None
    kept.put(1, "d", run(2))
    assert [ref for ref in "abcd" if kept.get(1, ref) is not None] == ["a", "c", "d"]
    # Dropped and replaced ones make room.
    kept.drop(1, "c")
    kept.put(1, "d", run(1))
    kept.put(1, "e", run(6))
    assert [ref for ref in "ade" if kept.get(1, ref) is not None] == ["a", "d", "e"]


def test_one_that_is_larger_than_the_bound_is_not_kept() -> None:
    kept = KeyFrames(most_bytes=10)
    kept.put(1, "a", run(11))
    assert kept.get(1, "a") is None
    kept.put(1, "b", run(10))
    assert kept.get(1, "b") is not None


def test_a_store_keeps_64_mebibytes() -> None:
    assert KEPT_BYTES == 64 * 1024 * 1024


def test_only_the_key_frame_of_a_probable_delta_is_held() -> None:
    asked: list[list[str]] = []

    class Holding:
        async def hold_key_frames(self, family: int, hashes: list[str]) -> frozenset[str]:
            asked.append(hashes)
            return frozenset(hashes)

    transaction: Any = Holding()
    kept = KeyFrames()
    kept.put(1, "whole before", Run("whole before", b"x" * 5_000, 100, misses=3))
    kept.put(1, "frame", Run("frame", b"y" * 5_000, 100))
    earlier = {"new": "whole before", "delta": "frame"}
    found = run_to_end(runs_for(transaction, kept, 1, earlier, {"new": b"z" * 5_000, "delta": b"y" * 5_001}))
    assert (sorted(found), asked) == (["delta", "new"], [["frame"]])


def test_nothing_new_rests_on_a_key_frame_that_is_damaged() -> None:
    earlier = "bytes-sha256:" + "0" * 64

    class Damaged:
        async def load_blobs(self, family: int, hashes: list[str]) -> list[BlobRow]:
            return [BlobRow(earlier, "raw", 70_000, b"x" * 70_000)]

    transaction: Any = Damaged()
    assert run_to_end(runs_for(transaction, KeyFrames(), 1, {"new": earlier}, {"new": b""})) == {}


def test_a_content_on_which_no_delta_can_rest_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "DELTA_UP_TO_BYTES", 5_000)
    kept = KeyFrames()
    for size in (5_000, 5_001):
        data = bytes(size)
        row = deltas.stored(f"content of {size}", data, None)
        plan: Any = SimpleNamespace(session=SimpleNamespace(family=1), blobs=(row,))
        learn(kept, plan, {row.hash: data}, {}, {})
    assert kept.get(1, "content of 5000") is not None
    assert kept.get(1, "content of 5001") is None
