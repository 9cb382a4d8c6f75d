"""Reports of workers are stored as they were given, damage is named, and only what a dead worker holds is ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import Corrupt, InvalidRequest
from holdfast.records.limits import Limits
from holdfast.rows import BatchRow, LeaseRow
from holdfast.rules import claims, leases, verification, workers
from holdfast.worker_rows import WorkerRow

ME = holdfast.workers.WorkerInfo("w1", host="here", pid=7, kinds=("turn",), boot_id="b")


def test_a_report_is_stored_and_returned_with_its_times() -> None:
    first = workers.row_of(ME, None, ttl_ms=10, now_ms=100)
    again = workers.row_of(ME, first, ttl_ms=10, now_ms=105)
    assert (again.started_at_ms, again.heartbeat_at_ms, again.expires_at_ms) == (100, 105, 115)
    answer = workers.worker_of(again)
    assert answer == msgspec.structs.replace(ME, started_at_ms=100, heartbeat_at_ms=105, expires_at_ms=115)


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", ""), ("host", 7), ("pid", -1), ("kinds", "turn"), ("kinds", [""]), ("running", [1]), ("boot_id", 7)],
)
def test_a_report_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"worker\.{field}"):
        workers.check_worker(msgspec.structs.replace(ME, **{field: value}), Limits())


DEEP = b'{"further":' + b"[" * 100_000
"""An unknown field is skipped, and its depth is the decoder's."""


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (b"{", "cannot be read"),
        (b'{"id":"\xff"}', "cannot be read"),
        (DEEP, "cannot be read"),
        (workers.report_of(ME), "that of 'w1'"),
    ],
    ids=["cut", "no text", "deep", "of another"],
)
def test_a_damaged_report_is_named(report: bytes, says: str) -> None:
    row = WorkerRow("w2", 1, 2, 3, report)
    with pytest.raises(Corrupt, match=says):
        workers.worker_of(row)
    with pytest.raises(Corrupt, match=says):
        list(verification.worker(row))


def batch(**changes: Any) -> BatchRow:
    row = BatchRow(1, "b1", 7, 7, None, "h", "earliest_safe_boundary", "join", "group:a", "turn", 0, 0, 50, b"[1]")
    claim = {"claim_id": "c", "claim_owner": "w1", "claim_token_hash": "t", "claim_expires_at_ms": 200, "attempts": 1}
    return msgspec.structs.replace(row, **{**claim, **changes})


def test_a_live_claim_of_the_owner_is_held_and_can_be_ended() -> None:
    assert workers.is_held(batch(), "w1", 100)
    assert not workers.is_held(batch(), "w2", 100)
    assert not workers.is_held(batch(claim_expires_at_ms=100), "w1", 100)
    assert claims.ended(batch(claim_slot=1), now_ms=100) == batch(claim_expires_at_ms=100), "the attempt counts"


def test_only_a_live_lease_of_the_owner_is_ended() -> None:
    lease = LeaseRow("process", "r1", "w1", "t", 3, 50, 200)
    ended = LeaseRow("process", "r1", "w1", "t", 3, 50, 100)
    assert leases.ended(lease, "w1", now_ms=100) == ended
    assert leases.ended(lease, None, now_ms=100) == ended, "None is any owner"
    assert leases.ended(lease, "w2", now_ms=100) is None
    assert leases.ended(lease, "w1", now_ms=200) is None
    assert leases.ended(None, "w1", now_ms=100) is None
