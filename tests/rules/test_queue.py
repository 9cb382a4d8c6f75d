"""A claim takes a prefix of the ready batches, holds exactly those, and loses all of them at once."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ClaimLost, Corrupt, InvalidRequest, SourceKeyConflict
from holdfast.records.common import Token
from holdfast.records.limits import Limits
from holdfast.records.queue import (
    Boundary,
    Group,
    WorkBatch,
    WorkClaim,
    WorkCompletion,
    WorkDraft,
    WorkItem,
    WorkReceipt,
)
from holdfast.rows import BatchRow, LeaseRow, ReadyRow
from holdfast.rules import claims, queue, verification
from holdfast.rules.claims import ClaimStamp

STEADY = settings(derandomize=True, deadline=None)
LIMITS = Limits()
SECRET = hashlib.sha256(b"secret").hexdigest()
SOON, LATER = "earliest_safe_boundary", "after_current_turn_commit"


def batch(seq: int = 1, **changes: Any) -> BatchRow:
    plain = BatchRow(
        enqueue_seq=seq,
        batch_id=f"b{seq}",
        session_key=7,
        family=7,
        source_key=None,
        draft_hash="hash",
        delivery=SOON,
        slot="join",
        merge_key="group:a",
        kind="turn",
        priority=0,
        available_at_ms=0,
        enqueued_at_ms=50,
        payloads=b"[1]",
    )
    return msgspec.structs.replace(plain, **changes)


def claimed(seq: int = 1, **changes: Any) -> BatchRow:
    """Return a batch claimed by `w1` until 200, with fence 3."""
    claim = {
        "claim_id": "claim:1:3",
        "claim_owner": "w1",
        "claim_token_hash": SECRET,
        "claim_fence": 3,
        "claimed_at_ms": 100,
        "claim_expires_at_ms": 200,
        "claim_size": 2,
        "attempts": 1,
    }
    return batch(seq, **{**claim, **changes})


def proof(*batch_ids: str, **changes: Any) -> WorkCompletion:
    return msgspec.structs.replace(WorkCompletion("chat", "claim:1:3", Token("secret"), 3, batch_ids), **changes)


HELD = [claimed(1), claimed(2)]


# Drafts.


def draft(**changes: Any) -> WorkDraft:
    return msgspec.structs.replace(WorkDraft(session_id="chat", payloads=[{"b": 1, "a": 2}]), **changes)


def test_a_draft_becomes_a_row_with_its_payloads_as_they_were_sent() -> None:
    intent = queue.check_draft(
        "draft",
        draft(source_key="k", slot="exclusive", merge_key=Group("g"), available_at_ms=9, kind="mail", priority=-3),
        LIMITS,
    )
    expected = hashlib.sha256(b'[[{"a":2,"b":1}],"earliest_safe_boundary","exclusive","group:g","mail"]').hexdigest()
    assert intent.draft_hash == expected
    assert queue.new_batch(intent, batch_id="b", session_key=3, family=2, now_ms=50) == BatchRow(
        0, "b", 3, 2, "k", expected, SOON, "exclusive", "group:g", "mail", -3, 9, 50, b'[{"b":1,"a":2}]'
    )


@pytest.mark.parametrize(("own", "given", "target"), [(None, "other", "other"), ("chat", "other", "chat")])
def test_a_draft_goes_to_its_own_session_or_else_to_the_given_one(own: str | None, given: str, target: str) -> None:
    assert queue.check_draft("draft", draft(session_id=own), LIMITS, session_id=given).session_id == target


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"session_id": None}, "draft.session_id"),
        ({"payloads": "abc"}, "draft.payloads"),
        ({"payloads": [1, {1, 2}]}, "draft.payloads[1]"),
        ({"payloads": [0] * 1_001}, "draft.payloads"),
        ({"delivery": "now"}, "draft.delivery"),
        ({"slot": "alone"}, "draft.slot"),
        ({"merge_key": "always"}, "draft.merge_key"),
        ({"merge_key": Group("")}, "draft.merge_key.name"),
        ({"available_at_ms": -1}, "draft.available_at_ms"),
        ({"source_key": ""}, "draft.source_key"),
        ({"kind": ""}, "draft.kind"),
        ({"priority": 32_768}, "draft.priority"),
        ({"priority": -32_769}, "draft.priority"),
        ({"priority": 0.5}, "draft.priority"),
    ],
)
def test_a_draft_that_cannot_be_kept_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        queue.check_draft("draft", draft(**changes), LIMITS)
    assert info.value.field == field
    with pytest.raises(InvalidRequest) as info:
        queue.check_draft("", draft(**changes), LIMITS)
    assert info.value.field == field.removeprefix("draft.")


def test_a_payload_may_be_as_deep_as_any_document() -> None:
    limits = Limits(document_depth=3)
    assert queue.check_draft("draft", draft(payloads=[[[[]]]]), limits).payloads == b"[[[[]]]]"
    with pytest.raises(InvalidRequest, match=r"payloads\[0\]: is nested deeper than 3"):
        queue.check_draft("draft", draft(payloads=[[[[[]]]]]), limits)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"available_at_ms": 5}, True),
        ({"priority": 5}, True),
        ({"kind": "mail"}, False),
        ({"payloads": [{"a": 2, "b": 1}]}, True),
        ({"payloads": ({"a": 2, "b": 1},)}, True),
        ({"payloads": [{"a": 2, "b": True}]}, False),
        ({"payloads": []}, False),
        ({"delivery": LATER}, False),
        ({"slot": "exclusive"}, False),
        ({"merge_key": "payload_default"}, False),
        ({"merge_key": Group("never")}, False),
    ],
    ids=[
        "again",
        "other time",
        "other priority",
        "kind",
        "key order",
        "tuple",
        "value",
        "empty",
        "delivery",
        "slot",
        "merge key",
        "group",
    ],
)
def test_a_source_key_names_one_piece_of_work(changes: dict[str, Any], same: bool) -> None:
    first = queue.check_draft("draft", draft(source_key="k"), LIMITS)
    stored = queue.new_batch(first, batch_id="b", session_key=1, family=1, now_ms=0)
    again = queue.check_draft("draft", draft(source_key="k", **changes), LIMITS)
    if same:
        assert queue.same_batch(again, stored) is stored
        return
    with pytest.raises(SourceKeyConflict) as info:
        queue.same_batch(again, stored)
    assert (info.value.session_id, info.value.source_key) == ("chat", "k")


# Claiming.


def lease(owner: str = "w1", **changes: Any) -> LeaseRow:
    return msgspec.structs.replace(LeaseRow("session", "7", owner, SECRET, 1, 100, 200), **changes)


@pytest.mark.parametrize(
    ("held", "others", "exclusive", "now_ms", "may"),
    [
        (None, (False, False), False, 150, True),
        (None, (False, False), True, 150, True),
        (None, (True, False), False, 150, True),
        (None, (True, False), True, 150, False),
        (None, (True, True), False, 150, False),
        (lease("w1"), (False, False), True, 150, True),
        (lease("w2"), (False, False), False, 150, False),
        (lease("w2"), (False, False), False, 200, True),
        (lease("w2", owner_id=None, token_hash=None), (False, False), False, 150, True),
        (lease("w1"), (True, True), False, 150, False),
    ],
)
def test_leases_and_claims_decide_over_claims_in_a_session(
    held: LeaseRow | None, others: tuple[bool, bool], exclusive: bool, now_ms: int, may: bool
) -> None:
    assert claims.may_claim(held, others, owner_id="w1", exclusive=exclusive, now_ms=now_ms) is may
    if held is None:
        assert claims.may_claim(held, others, owner_id=None, exclusive=exclusive, now_ms=now_ms) is may


def test_the_exclusive_claim_of_a_session_is_named_with_its_end() -> None:
    shared, gone = claimed(1), claimed(2, claim_exclusive=1, claim_expires_at_ms=150)
    held = claimed(3, claim_exclusive=1, claim_owner="w7", claim_expires_at_ms=155)
    assert claims.exclusive_claim([shared, gone, held], 150) == ("w7", 155, 5)
    owner, _, recheck_ms = claims.exclusive_claim([shared, gone], 150)
    assert (owner, recheck_ms) == ("", claims.RECHECK_MS)


def test_a_claimer_of_any_session_is_kept_out_by_any_lease() -> None:
    assert not claims.may_claim(lease(), (False, False), owner_id=None, exclusive=False, now_ms=150)
    assert claims.may_claim(lease(), (False, False), owner_id=None, exclusive=False, now_ms=200)


@pytest.mark.parametrize(
    ("next_due_ms", "held", "wait_ms"),
    [
        (None, None, None),
        (190, None, 40),
        (None, lease(), 50),
        (190, lease(), 40),
        (290, lease(), 50),
        (290, lease(expires_at_ms=150), 140),
        (None, lease(owner_id=None, token_hash=None), None),
    ],
)
def test_time_alone_helps_when_work_is_due_or_a_lease_ends(
    next_due_ms: int | None, held: LeaseRow | None, wait_ms: int | None
) -> None:
    assert claims.due_in_ms(next_due_ms, held, 150) == wait_ms


ROOM = 10**6
JOINED = [batch(1), batch(2), batch(3)]


@pytest.mark.parametrize(
    ("rows", "boundary", "most", "taken"),
    [
        ([], "idle", 5, 0),
        (JOINED, "idle", 0, 0),
        (JOINED, "idle", -1, 0),
        (JOINED, "idle", 1, 1),
        (JOINED, "idle", 2, 2),
        (JOINED, "idle", 5, 3),
        (JOINED, "active_turn_checkpoint", 5, 3),
        ([batch(1, delivery=LATER), batch(2)], "active_turn_checkpoint", 5, 0),
        ([batch(1, delivery=LATER), batch(2)], "idle", 5, 1),
        ([batch(1), batch(2, delivery=LATER)], "idle", 5, 1),
        ([batch(1), batch(2, merge_key="group:b"), batch(3)], "idle", 5, 1),
        ([batch(1, slot="exclusive"), batch(2, slot="exclusive")], "idle", 5, 1),
        ([batch(1), batch(2, slot="exclusive")], "idle", 5, 1),
        ([batch(1, merge_key="never"), batch(2, merge_key="never")], "idle", 5, 1),
        ([batch(1, merge_key="payload_default"), batch(2, merge_key="payload_default")], "idle", 5, 2),
        ([batch(1), batch(2, merge_key="never")], "idle", 5, 1),
        ([batch(1, merge_key="group:never"), batch(2, merge_key="group:never")], "idle", 5, 2),
        ([batch(1), batch(2, kind="mail"), batch(3)], "idle", 5, 1),
        ([batch(1, retry_at_ms=151), batch(2)], "idle", 5, 0),
        ([batch(1, retry_at_ms=150), batch(2, retry_at_ms=151), batch(3)], "idle", 5, 1),
    ],
)
def test_one_claim_takes_batches_up_to_its_limits(
    rows: list[BatchRow], boundary: Boundary, most: int, taken: int
) -> None:
    assert claims.claim_prefix(rows, boundary, most, room=ROOM, kinds=None, now_ms=150) == taken


@pytest.mark.parametrize(("kinds", "taken"), [(None, 2), (["turn"], 2), (["mail", "turn"], 2), (["mail"], 0), ([], 0)])
def test_a_claim_takes_only_kinds_that_were_asked_for(kinds: list[str] | None, taken: int) -> None:
    rows = [batch(1), batch(2), batch(3, kind="mail")]
    assert claims.claim_prefix(rows, "idle", 5, room=ROOM, kinds=kinds, now_ms=150) == taken


@pytest.mark.parametrize(("room", "taken"), [(-1, 0), (0, 0), (1, 1), (10, 1), (11, 2), (25, 2), (26, 3), (99, 3)])
def test_a_claim_ends_with_the_batch_that_fills_its_room(room: int, taken: int) -> None:
    rows = [batch(seq, payloads=b"x" * size) for seq, size in enumerate([10, 15, 20], start=1)]
    assert claims.claim_prefix(rows, "idle", 5, room=room, kinds=None, now_ms=150) == taken


READY = st.lists(
    st.builds(
        lambda delivery, slot, merge_key: batch(1, delivery=delivery, slot=slot, merge_key=merge_key),
        st.sampled_from([SOON, LATER]),
        st.sampled_from(["join", "join", "exclusive"]),
        st.sampled_from(["never", "payload_default", "group:a", "group:b"]),
    ),
    max_size=6,
)


@settings(STEADY, max_examples=400)
@given(READY, st.sampled_from(["idle", "active_turn_checkpoint"]), st.integers(-1, 7))
def test_a_claim_is_a_longest_prefix_that_may_go_together(rows: list[BatchRow], boundary: Any, most: int) -> None:
    taken = claims.claim_prefix(rows, boundary, most, room=ROOM, kinds=None, now_ms=150)
    assert 0 <= taken <= max(0, min(most, len(rows)))
    prefix = rows[:taken]

    def together(group: list[BatchRow]) -> bool:
        kinds = {(row.slot, row.delivery, row.merge_key) for row in group}
        lonely = any(row.slot == "exclusive" or row.merge_key == "never" for row in group)
        waits = boundary == "active_turn_checkpoint" and any(row.delivery == LATER for row in group)
        return not waits and len(kinds) <= 1 and not (lonely and len(group) > 1)

    assert together(prefix)
    if taken < min(most, len(rows)):
        assert not together(rows[: taken + 1])


@STEADY
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_a_claim_has_a_higher_fence_than_any_of_its_batches_ever_had(fences: list[int]) -> None:
    rows = [batch(seq, claim_fence=fence) for seq, fence in enumerate(fences, start=4)]
    stamp = claims.new_claim(rows, owner_id="w1", token=Token("secret"), exclusive=True, ttl_ms=50, now_ms=100)
    assert all(stamp.fence > fence for fence in fences)
    assert stamp == ClaimStamp(f"claim:4:{max(fences) + 1}", "w1", SECRET, max(fences) + 1, 100, 150, 1, len(fences))


def test_its_owner_gets_the_claim_with_the_token_and_the_batches() -> None:
    stamp = ClaimStamp("claim:1:3", "w1", SECRET, 3, 100, 200, 0, 2)
    rows = [batch(1), batch(2, payloads=b'["x","y"]', attempts=4)]
    found = claims.claim_from("chat", Token("secret"), [claims.stamped(row, stamp, attempts=1) for row in rows])
    first = WorkBatch(
        "b1", "chat", 1, None, SOON, "join", Group("a"), 0, 50, (WorkItem("b1:item:0", 1),), "claimed",
        attempts=1, claimed_by="w1", claim_expires_at_ms=200,
    )  # fmt: skip
    second = msgspec.structs.replace(
        first, batch_id="b2", enqueue_seq=2, items=(WorkItem("b2:item:0", "x"), WorkItem("b2:item:1", "y")), attempts=5
    )
    assert found == WorkClaim("chat", "claim:1:3", "w1", Token("secret"), 3, 100, 200, (first, second))
    assert claims.check_claim("claim", found, LIMITS) == proof("b1", "b2")
    later = claims.lasting_until(found, 300)
    assert (later.expires_at_ms, [one.claim_expires_at_ms for one in later.batches]) == (300, [300, 300])


@pytest.mark.parametrize(
    ("joining", "ttl_ms", "fence", "ends_at_ms"),
    [
        ([], 40, 4, 200),
        ([], 60, 4, 210),
        ([batch(3), batch(4, claim_fence=2)], 40, 4, 200),
        ([batch(3, claim_fence=8), batch(4)], 60, 9, 210),
    ],
)
def test_a_widened_claim_keeps_its_start_and_never_ends_earlier(
    joining: list[BatchRow], ttl_ms: int, fence: int, ends_at_ms: int
) -> None:
    stamp = claims.widened([claimed(1), claimed(2)], joining, exclusive=True, ttl_ms=ttl_ms, now_ms=150)
    assert stamp == ClaimStamp("claim:1:3", "w1", SECRET, fence, 100, ends_at_ms, 1, 2 + len(joining))


def test_nothing_joins_or_is_joined_that_is_claimed_alone() -> None:
    alone = batch(3, slot="exclusive")
    assert claims.may_join(HELD, [batch(3), batch(4)])
    assert claims.may_join(HELD, [])
    assert not claims.may_join(HELD, [alone])
    assert not claims.may_join([alone], [batch(4)])


def test_only_work_of_its_own_kind_joins_a_claim() -> None:
    mail = batch(3, kind="mail")
    assert claims.may_join([mail], [batch(4, kind="mail")])
    assert not claims.may_join(HELD, [mail])
    assert not claims.may_join([mail], [batch(4)])


# Holding.


@pytest.mark.parametrize(
    ("row", "now_ms", "held"),
    [
        (batch(), 150, False),
        (claimed(), 150, True),
        (claimed(), 199, True),
        (claimed(), 200, False),
        (claimed(claim_token_hash=None), 150, False),
        (claimed(claim_expires_at_ms=None), 150, False),
    ],
)
def test_a_batch_is_claimed_until_the_end_of_its_claim(row: BatchRow, now_ms: int, held: bool) -> None:
    assert row.is_claimed(now_ms) is held
    assert queue.may_cancel(row, now_ms) is not held


def test_a_settled_batch_cannot_be_cancelled() -> None:
    assert queue.may_cancel(batch(), 150)
    assert not queue.may_cancel(batch(settled_state="completed"), 150)


def test_a_claim_that_holds_gives_its_batches() -> None:
    assert claims.require_claim(proof("b1", "b2"), HELD, 150) == HELD
    assert claims.require_claim(proof("b2", "b1"), [*HELD, batch(3)], 199) == HELD


@pytest.mark.parametrize(
    ("completion", "rows", "now_ms"),
    [
        (proof("b1", "b2"), [], 150),
        (proof(), [], 150),
        (proof(), HELD, 150),
        (proof("b1"), HELD, 150),
        (proof("b1"), HELD[:1], 150),
        (proof("b1", "b2"), [claimed(1), claimed(2, settled_state="completed")], 150),
        (proof("b1", "b2", "b3"), HELD, 150),
        (proof("b1", "b2", "b3"), [*HELD, batch(3)], 150),
        (proof("b1", "b1", "b2"), HELD, 150),
        (proof("b1", "b2"), HELD, 200),
        (proof("b1", "b2", token=Token("other")), HELD, 150),
        (proof("b1", "b2", fence=4), HELD, 150),
        (proof("b1", "b2", claim_id="claim:9:3"), HELD, 150),
        (proof("b1", "b2"), [claimed(1), claimed(2, claim_fence=4)], 150),
        (proof("b1", "b2"), [claimed(1), claimed(2, claim_expires_at_ms=150)], 150),
        (proof("b1", "b2"), [claimed(1), claimed(2, claim_id="claim:2:4")], 150),
        (proof("b1", "b2"), [claimed(1, claim_size=1), claimed(2, claim_size=1)], 150),
    ],
    ids=[
        "gone",
        "nothing",
        "none of it",
        "fewer",
        "fewer by far",
        "one settled",
        "more",
        "foreign",
        "twice",
        "expired",
        "token",
        "fence",
        "claim",
        "one overtaken",
        "one expired",
        "one stolen",
        "more than it holds",
    ],
)
def test_a_claim_that_does_not_hold_exactly_this_is_lost(
    completion: WorkCompletion, rows: list[BatchRow], now_ms: int
) -> None:
    with pytest.raises(ClaimLost) as info:
        claims.require_claim(completion, rows, now_ms)
    assert (info.value.session_id, info.value.claim_id) == ("chat", completion.claim_id)
    holds_more = completion.batch_ids == ("b1",)
    was_changed = any(row.claim_fence > completion.fence for row in rows)
    assert info.value.widened is (holds_more or was_changed)


@pytest.mark.parametrize("named", [("b1",), ("b2",), ("b1", "b2"), ("b2", "b1")])
def test_every_proof_of_a_claim_renews_all_its_batches(named: tuple[str, ...]) -> None:
    assert claims.require_whole_claim(proof(*named), HELD, 199) == HELD
    assert claims.require_whole_claim(proof(*named, fence=2), [*HELD, claimed(3, claim_id="claim:3:1")], 199) == HELD


@pytest.mark.parametrize(
    ("completion", "rows", "now_ms"),
    [
        (proof("b1"), [], 150),
        (proof(), HELD, 150),
        (proof("b1", "b1"), HELD, 150),
        (proof("b1", "b3"), HELD, 150),
        (proof("b1"), HELD, 200),
        (proof("b1", token=Token("other")), HELD, 150),
        (proof("b1", fence=4), HELD, 150),
        (proof("b1", claim_id="claim:9:3"), HELD, 150),
        (proof("b1"), HELD[:1], 150),
        (proof("b1"), [*HELD, claimed(3)], 150),
        (proof("b1"), [claimed(1), claimed(2, claim_expires_at_ms=150)], 150),
    ],
    ids=["gone", "nothing", "twice", "foreign", "expired", "token", "fence", "claim", "fewer", "more", "one expired"],
)
def test_a_claim_that_is_not_proven_is_not_renewed(
    completion: WorkCompletion, rows: list[BatchRow], now_ms: int
) -> None:
    with pytest.raises(ClaimLost) as info:
        claims.require_whole_claim(completion, rows, now_ms)
    assert not info.value.widened


def test_work_that_still_bears_a_claim_is_given_back_even_when_it_expired() -> None:
    rows = [
        claimed(1, claim_expires_at_ms=1),
        claimed(2, claim_fence=2),
        claimed(3, claim_token_hash=None),
        claimed(4),
        claimed(5, settled_state="dead"),
        claimed(6, claim_id="claim:6:3"),
    ]
    assert [row.enqueue_seq for row in claims.held_by(proof("b1"), rows)] == [1, 4]
    assert [row.enqueue_seq for row in claims.held_by(proof("b1", fence=2), rows)] == [1, 2, 4]
    assert claims.held_by(proof("b1", token=Token("other")), rows) == []
    assert queue.given_back(claimed(4, attempts=2)) == batch(4, claim_fence=3, attempts=1)


DONE = {"settled_state": "completed", "settled_at_ms": 170, "settled_revision": 9}


@pytest.mark.parametrize(
    ("completion", "rows", "again"),
    [
        (proof("b1", "b2"), [claimed(1, **DONE), claimed(2, **DONE)], True),
        (proof("b1", "b2"), [claimed(1, **DONE), claimed(2)], False),
        (proof("b1"), [claimed(1, **DONE)], False),
        (proof("b1", "b2"), [claimed(1, **{**DONE, "settled_state": "dead"}), claimed(2, **DONE)], False),
        (proof("b1", "b2", token=Token("other")), [claimed(1, **DONE), claimed(2, **DONE)], False),
        (proof("b1", "b2", fence=2), [claimed(1, **DONE), claimed(2, **DONE)], False),
        (proof(), [], False),
    ],
)
def test_a_claim_that_was_completed_gives_its_receipt_again(
    completion: WorkCompletion, rows: list[BatchRow], again: bool
) -> None:
    receipt = WorkReceipt("chat", "claim:1:3", ("b1", "b2"), 170, 9)
    assert claims.settled_before(completion, rows) == (receipt if again else None)


@pytest.mark.parametrize(
    ("attempts", "retry_in_ms", "max_attempts", "state", "retry_at_ms"),
    [
        (1, 50, None, None, 200),
        (7, 0, None, None, 150),
        (1, 50, 2, None, 200),
        (2, 50, 2, "dead", 0),
        (3, 50, 2, "dead", 0),
        (1, None, None, "dead", 0),
        (1, 2**63, 9, None, 2**63 - 1),
    ],
)
def test_a_failure_is_tried_again_until_the_last_attempt(
    attempts: int, retry_in_ms: int | None, max_attempts: int | None, state: str | None, retry_at_ms: int
) -> None:
    found = queue.failed(
        claimed(1, attempts=attempts), "broke", retry_in_ms=retry_in_ms, max_attempts=max_attempts, now_ms=150
    )
    assert (found.settled_state, found.retry_at_ms, found.last_error) == (state, retry_at_ms, "broke")
    assert (found.claim_id is None, found.attempts, found.claim_fence) == (state is None, attempts, 3)


def test_dead_work_that_is_retried_stands_where_it_stood_with_all_attempts_before_it() -> None:
    dead = claimed(1, settled_state="dead", settled_at_ms=170, attempts=5, last_error="broke", retry_at_ms=90)
    assert queue.is_dead(dead)
    assert queue.retried(dead) == batch(1, claim_fence=3, last_error="broke")


@pytest.mark.parametrize(
    ("value", "field"), [([], "kinds"), ("turn", "kinds"), (["a", ""], "kinds[1]"), ([1], "kinds[0]")]
)
def test_kinds_that_name_nothing_are_refused(value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        queue.check_kinds(value, LIMITS)
    assert info.value.field == field
    assert queue.check_kinds(None, LIMITS) is None
    assert queue.check_kinds(["b", "a", "b"], LIMITS) == ("b", "a")


@pytest.mark.parametrize(("ttl_ms", "ends_at"), [(100, 250), (10, 200), (0, 200), (2**63, 2**63 - 1)])
def test_a_renewed_claim_is_the_same_claim_and_never_ends_earlier(ttl_ms: int, ends_at: int) -> None:
    found = claims.renewed([claimed(1, claim_exclusive=1)], ttl_ms=ttl_ms, now_ms=150)
    assert found == ClaimStamp("claim:1:3", "w1", SECRET, 3, 100, ends_at, 1, 2)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("claim", "claim"),
        (proof(1), "claim.batch_ids[0]"),  # type: ignore[arg-type]
        (proof("b1", batch_ids="b1"), "claim.batch_ids"),
        (proof("b1", session_id=""), "claim.session_id"),
        (proof("b1", claim_id=""), "claim.claim_id"),
        (proof("b1", token="é"), "claim.token"),
        (proof("b1", fence=-1), "claim.fence"),
        (WorkClaim("chat", "c", "w1", Token("t"), 1, 0, 0, ("b1",)), "claim.batches[0]"),  # type: ignore[arg-type]
        (WorkClaim("chat", "c", "w1", Token("t"), 1, 0, 0, None), "claim.batches"),  # type: ignore[arg-type]
    ],
    ids=["type", "id", "ids", "session", "claim", "token", "fence", "batch", "batches"],
)
def test_anything_but_a_claim_is_refused(value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as info:
        claims.check_claim("claim", value, LIMITS)
    assert info.value.field == field


def test_batches_are_named_once_each_and_in_order() -> None:
    assert queue.check_batch_ids(["b2", "b1"], LIMITS) == ("b2", "b1")
    for value, field in ((["b1", "b1"], "batch_ids"), (["b1", ""], "batch_ids[1]"), ("b1", "batch_ids")):
        with pytest.raises(InvalidRequest) as info:
            queue.check_batch_ids(value, LIMITS)
        assert info.value.field == field


# Reading.


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (batch(), "pending"),
        (claimed(), "claimed"),
        (claimed(claim_expires_at_ms=150), "pending"),
        (claimed(settled_state="completed", settled_at_ms=120), "completed"),
        (batch(settled_state="cancelled", settled_at_ms=120), "cancelled"),
        (claimed(settled_state="dead", settled_at_ms=120), "dead"),
    ],
)
def test_a_batch_says_how_it_stands(row: BatchRow, state: str) -> None:
    found = queue.batch_of("chat", row, now_ms=150)
    assert (found.state, found.settled_at_ms) == (state, row.settled_at_ms)
    assert queue.batch_of("chat", row, state="claimed").state == "claimed"


@pytest.mark.parametrize(
    ("stored", "merge_key"),
    [
        ("never", "never"),
        ("payload_default", "payload_default"),
        ("group:a", Group("a")),
        ("group:group:a", Group("group:a")),
        ("group:never", Group("never")),
    ],
)
def test_a_merge_key_comes_back_as_it_was_sent(stored: str, merge_key: Any) -> None:
    intent = queue.check_draft("draft", draft(merge_key=merge_key), LIMITS)
    assert intent.merge_key == stored
    assert queue.batch_of("chat", batch(merge_key=stored)).merge_key == merge_key


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payloads": b"{}"}, "the payloads are not a list"),
        ({"payloads": b"["}, "not JSON"),
        ({"delivery": "now"}, "delivery is 'now'"),
        ({"slot": "both"}, "slot is 'both'"),
        ({"merge_key": "always"}, "merge_key is 'always'"),
        ({"settled_state": "lost"}, "state is 'lost'"),
    ],
)
def test_a_stored_batch_that_makes_no_sense_is_damage(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason) as info:
        queue.batch_of("chat", batch(**changes))
    assert (info.value.table, info.value.key) == ("batches", "b1")


@pytest.mark.parametrize("kind", ["", " "])
def test_a_batch_whose_kind_is_blank_is_damaged(kind: str) -> None:
    with pytest.raises(Corrupt, match="its kind is blank"):
        queue.batch_of("chat", batch(kind=kind))


def test_a_claim_beyond_those_that_are_known_is_found() -> None:
    offer = ReadyRow(7, 7, 1, "turn", priority=0, served=1, due_at_ms=None, claimed_upto=1)
    claimed = batch(2, claim_id="claim:2:1")
    [finding] = verification.offered_batch(claimed, offer)
    assert "claims are known up to 1 only" in finding.problem
    assert list(verification.offered_batch(batch(2), offer)) == []
