"""The rules of limits and pauses, each branch by an example."""

from __future__ import annotations

import msgspec
import pytest

import holdfast
from holdfast.limit_rows import LimitRow, LimitState, SlotRow
from holdfast.rows import BatchRow, ReadyRow
from holdfast.rules import limits, ready, verification

NOW_MS = 1_000


def limit(at_once: int | None = None, per_key: int | None = None, paused: int = 0, opens_at_ms: int = 0) -> LimitRow:
    return LimitRow("mail", at_once, per_key, paused, 5, opens_at_ms)


def batch(key: str | None = "ada", retry_at_ms: int = 0) -> BatchRow:
    return BatchRow(
        1, "b1", 7, 7, None, "h", "earliest_safe_boundary", "join", "never", "mail", 3, 0, 5, b"[]",
        claim_id="claim:1:1", claim_expires_at_ms=2_000, retry_at_ms=retry_at_ms, limit_key=key,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "key", "expected"),
    [
        (None, "ada", "free"),
        (LimitState(limit(at_once=2), used=1), "ada", "open"),
        (LimitState(limit(at_once=2), used=2), "ada", "closed"),
        (LimitState(limit(at_once=2), used=3), None, "closed"),
        (LimitState(limit(per_key=1), used=9, used_by_key=0), "ada", "open"),
        (LimitState(limit(per_key=1), used_by_key=1), "ada", "full"),
        (LimitState(limit(per_key=1), used_by_key=1), None, "open"),
        (LimitState(limit(at_once=1, per_key=1), used=1, used_by_key=1), "ada", "closed"),
        (LimitState(limit(paused=1)), None, "closed"),
        (LimitState(limit(at_once=5, paused=1)), None, "closed"),
    ],
)
def test_a_claim_is_admitted_while_a_slot_is_free(state: LimitState | None, key: str | None, expected: str) -> None:
    assert limits.admission(state, key) == expected


def test_a_refused_claim_looks_again_when_the_first_slot_ends() -> None:
    state = LimitState(limit(at_once=1, per_key=1), 1, 1_500, 1, 1_700)
    assert limits.admits_at_ms(state, "closed") == 1_500
    assert limits.admits_at_ms(state, "full") == 1_700
    paused = msgspec.structs.replace(state, limit=limit(at_once=1, paused=1))
    assert limits.admits_at_ms(paused, "closed") is None


@pytest.mark.parametrize(
    ("state", "key", "expected"),
    [
        (LimitState(limit(at_once=2, per_key=2)), "ada", (0, 0)),
        (LimitState(limit(at_once=1, per_key=1)), "ada", (2_000, 2_000)),
        (LimitState(limit(at_once=2, per_key=2), 1, 1_500, 1, 1_700), "ada", (1_500, 1_700)),
        (LimitState(limit(at_once=2, per_key=2), 1, 2_500, 1, 2_700), "ada", (2_000, 2_000)),
        (LimitState(limit(per_key=1)), "", (0, 0)),
        (LimitState(limit(at_once=1)), "ada", (2_000, 0)),
    ],
)
def test_the_last_slot_closes_until_the_first_ends(state: LimitState, key: str, expected: tuple[int, int]) -> None:
    assert limits.taken(state, SlotRow("mail", key, 7, "claim:1:1", 2_000)) == expected


def test_a_slot_is_that_of_the_claim_that_a_batch_bears() -> None:
    assert limits.slot_of(batch()) == SlotRow("mail", "ada", 7, "claim:1:1", 2_000)
    assert limits.slot_of(batch(key=None)).limit_key == ""
    unclaimed = msgspec.structs.replace(batch(), claim_id=None, claim_expires_at_ms=None)
    assert limits.slot_of(unclaimed) == SlotRow("mail", "ada", 7, "", 0)


def test_a_declaration_replaces_both_limits_and_keeps_the_pause() -> None:
    assert limits.declared(None, "mail", at_once=1, per_key=None, now_ms=9) == LimitRow("mail", 1, None, 0, 9, 0)
    before = limit(at_once=1, paused=1, opens_at_ms=50)
    assert limits.declared(before, "mail", at_once=1, per_key=None, now_ms=9) is before
    assert limits.declared(before, "mail", at_once=2, per_key=3, now_ms=9) == LimitRow("mail", 2, 3, 1, 9, 0)


def test_a_pause_and_a_limit_end_apart() -> None:
    assert limits.paused(None, "mail", now_ms=9) == LimitRow("mail", None, None, 1, 9, 0)
    both = limits.paused(limit(at_once=1), "mail", now_ms=9)
    assert (both.paused, both.at_once) == (1, 1)
    assert limits.resumed(both) == limit(at_once=1)
    assert limits.resumed(limit(paused=1)) is None
    assert limits.removed(limit(at_once=1, opens_at_ms=7)) is None
    assert limits.removed(both) == limit(paused=1)
    assert [limits.counts(one) for one in (None, limit(paused=1), limit(at_once=1), limit(per_key=1))] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("wrong", [0, -1, True, "2", 1.5, 10**7])
def test_a_limit_is_a_number_of_at_least_one(wrong: object) -> None:
    with pytest.raises(holdfast.InvalidRequest) as info:
        limits.check_limits(wrong, None)
    assert info.value.field == "at_once"


def test_limits_are_checked_together() -> None:
    assert limits.check_limits(1, None) == (1, None)
    assert limits.check_limits(None, 2) == (None, 2)
    with pytest.raises(holdfast.InvalidRequest):
        limits.check_limits(None, None)


def test_a_session_whose_key_is_full_waits_and_offers_nothing() -> None:
    before = ReadyRow(7, 7, 2, "turn", 0, 4, None, 0)
    unclaimed = msgspec.structs.replace(batch(), claim_id=None, claim_expires_at_ms=None)
    row = ready.ready_row(before, [unclaimed], None, now_ms=NOW_MS, is_full=True)
    assert row == ReadyRow(7, 7, 0, "mail", 3, 4, None, 0, "ada")
    assert row is not None
    offered = ready.ready_row(row, [unclaimed], None, now_ms=NOW_MS)
    assert offered == ReadyRow(7, 7, 2, "mail", 3, 4, None, 0)
    assert offered is not None
    assert not ready.arrives(row, offered)
    assert ready.arrives(msgspec.structs.replace(row, waits_for=None), offered)


def test_a_paused_session_offers_nothing_and_keeps_its_row() -> None:
    before = ReadyRow(7, 7, 2, "mail", 3, 4, 50, 0, None, 1)
    unclaimed = msgspec.structs.replace(batch(), claim_id=None, claim_expires_at_ms=None)
    assert ready.ready_row(before, [unclaimed], None, now_ms=NOW_MS) == ReadyRow(
        7, 7, 0, "mail", 3, 4, None, 0, None, 1
    )
    assert ready.ready_row(before, [unclaimed], None, now_ms=NOW_MS, is_full=True) == ReadyRow(
        7, 7, 0, "mail", 3, 4, None, 0, None, 1
    )
    assert ready.ready_row(before, [], None, now_ms=NOW_MS) == ReadyRow(7, 7, 0, "mail", 3, 4, None, 0, None, 1)
    new = msgspec.structs.replace(ready.new_row(7, 7), paused=1)
    assert ready.ready_row(new, [], None, now_ms=NOW_MS) == ReadyRow(7, 7, 0, "turn", 0, 0, None, 0, None, 1)


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        (limit(at_once=1), 0),
        (limit(paused=1), 0),
        (limit(), 1),
        (limit(at_once=0), 1),
        (limit(per_key=0, at_once=1), 1),
        (limit(at_once=1, paused=2), 1),
    ],
)
def test_a_stored_limit_is_checked(row: LimitRow, problems: int) -> None:
    assert len(list(verification.limit(row))) == problems


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        (ReadyRow(7, 7, 0, "mail", 0, 1, None, 0), 1),
        (ReadyRow(7, 7, 0, "mail", 0, 1, None, 0, "ada"), 0),
        (ReadyRow(7, 7, 0, "mail", 0, 1, None, 0, None, 1), 0),
        (ReadyRow(7, 7, 2, "mail", 0, 1, None, 0, "ada"), 1),
        (ReadyRow(7, 7, 1, "mail", 0, 1, None, 0, None, 1), 1),
        (ReadyRow(7, 7, 0, "mail", 0, 1, None, 0, None, 2), 1),
    ],
)
def test_a_ready_row_that_waits_or_is_paused_is_checked(row: ReadyRow, problems: int) -> None:
    assert len(list(verification.ready(row, None))) == problems
