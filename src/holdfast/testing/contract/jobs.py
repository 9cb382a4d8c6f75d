"""Jobs: work of any session is claimed in turn, and settled without a revision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnSession, Token
from holdfast.queue import Group, WorkReceipt
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.claims import fill, forged, ids_of
from holdfast.testing.contract.queue import settle, take, texts, work

HOUR_MS = 3_600_000


def next_of(store: BlockingStore, owner_id: str = "w1", **options: Any) -> holdfast.WorkClaim:
    """Claim any session's work. It must succeed."""
    claim = store.queue.claim_next(owner_id=owner_id, **options)
    assert claim is not None, "there was nothing to claim"
    return claim


def sessions_served(store: BlockingStore, **options: Any) -> list[str]:
    """Claim everything, and return the sessions in the order in which they are served."""
    served: list[str] = []
    while (claim := store.queue.claim_next(owner_id="w1", max_batches=1, **options)) is not None:
        served.append(claim.session_id)
    return served


def complete(store: BlockingStore, claim: holdfast.WorkClaim) -> Any:
    """Settle the claim."""
    return store.queue.complete(claim)


def fail(store: BlockingStore, claim: holdfast.WorkClaim) -> Any:
    """Fail the claim."""
    return store.queue.fail(claim, "broke")


def hand_over(store: BlockingStore, claim: holdfast.WorkClaim) -> Any:
    """Settle the claim and claim the next."""
    return store.queue.complete_and_claim_next(claim, owner_id="w1")


SETTLING: dict[str, Callable[[BlockingStore, holdfast.WorkClaim], Any]] = {
    "complete": complete,
    "fail": fail,
    "complete_and_claim_next": hand_over,
}

FREEING: dict[str, Callable[[BlockingStore, holdfast.WorkClaim], Any]] = {
    "complete": complete,
    "commit": settle,
    "give_back": lambda store, claim: store.queue.give_back(claim),
    "fail": fail,
    "dead": lambda store, claim: store.queue.fail(claim, "broke", retry_in_ms=None),
}
"""Calls that end an exclusive claim, so that the session's other work can be claimed."""


DUE_AT_ONCE = 100
"""Number of sessions whose due rows a claim corrects in one go."""


class JobContract(Contract):
    """`store.queue`: claim_next, complete, complete_and_claim_next."""

    # Claiming the work of any session.

    def test_work_of_any_session_is_claimed_and_none_means_none(self, store: BlockingStore) -> None:
        assert store.queue.claim_next(owner_id="w1") is None
        batch = store.queue.enqueue(work("x", session_id="mail", kind="send", priority=3))
        claim = next_of(store)
        assert (claim.session_id, claim.owner_id, ids_of(claim)) == ("mail", "w1", (batch.batch_id,))
        assert (claim.batches[0].kind, claim.batches[0].priority, claim.batches[0].attempts) == ("send", 3, 1)
        assert (claim.batches[0].state, claim.batches[0].claimed_by) == ("claimed", "w1")
        assert claim.batches[0].claim_expires_at_ms == claim.expires_at_ms
        assert store.queue.get("mail", batch.batch_id) == claim.batches[0]
        assert store.queue.claim_next(owner_id="w1") is None

    def test_work_that_a_commit_or_a_wake_enqueues_is_found(self, store: BlockingStore) -> None:
        turn = holdfast.Commit(enqueues=[work("own", "chat"), work("other", "mail", kind="send")])
        store.sessions.handle("chat").commit(turn)
        store.sessions.handle("chat").commit(holdfast.Commit(enqueues=[work("later", "chat"), work("new", "new")]))
        assert sorted(sessions_served(store)) == ["chat", "chat", "mail", "new"]

    def test_sessions_are_served_in_turn_however_much_waits_in_each(self, store: BlockingStore) -> None:
        for number in range(6):
            store.queue.enqueue(work(str(number), "large"))
        for name in ("a", "b", "c"):
            fill(store, "x", session_id=name)
        assert sessions_served(store) == ["large", "a", "b", "c", *["large"] * 5]

    def test_a_hundred_small_sessions_are_served_within_two_hundred_claims_beside_a_large_one(
        self, store: BlockingStore
    ) -> None:
        turn = holdfast.Commit(enqueues=[holdfast.WorkDraft(payloads=[number]) for number in range(250)])
        store.sessions.handle("large").commit(turn)
        for _ in range(3):
            store.queue.complete(next_of(store))
        for number in range(100):
            fill(store, "x", session_id=f"small-{number}")
        served: list[str] = []
        claim = next_of(store)
        for _ in range(200):
            served.append(claim.session_id)
            _, following = store.queue.complete_and_claim_next(claim, owner_id="w1")
            assert following is not None
            claim = following
        assert {name for name in served if name != "large"} == {f"small-{number}" for number in range(100)}

    def test_a_session_that_comes_later_does_not_starve_one_that_waits(self, store: BlockingStore) -> None:
        fill(store, "1", "2", session_id="old")
        next_of(store)
        for number in range(3):
            fill(store, "x", session_id=f"new-{number}")
        assert sessions_served(store) == ["old", "new-0", "new-1", "new-2"]

    def test_the_highest_priority_comes_first_and_order_inside_a_session_stays(self, store: BlockingStore) -> None:
        fill(store, "x", session_id="usual")
        fill(store, "x", session_id="low", priority=-1)
        fill(store, "x", session_id="high", priority=7)
        store.queue.enqueue(work("first", "mixed"))
        store.queue.enqueue(work("urgent", "mixed", priority=9))
        assert sessions_served(store) == ["high", "usual", "mixed", "mixed", "low"]
        assert [one.priority for one in store.queue.list("mixed")] == [0, 9]

    def test_a_session_whose_next_batch_is_of_another_kind_is_passed_over(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("turn", "a"))
        store.queue.enqueue(work("mail", "a", kind="mail"))
        store.queue.enqueue(work("mail", "b", kind="mail"))
        claim = next_of(store, kinds=["mail", "none"])
        assert (claim.session_id, texts(claim.batches)) == ("b", ["mail"])
        assert store.queue.claim_next(owner_id="w1", kinds=["mail"]) is None
        first = next_of(store, kinds=["turn"])
        assert (first.session_id, texts(first.batches)) == ("a", ["turn"])
        assert texts(next_of(store, kinds=["mail"]).batches) == ["mail"]

    def test_batches_of_different_kinds_are_not_claimed_together(self, store: BlockingStore) -> None:
        group = Group("g")
        for name, kind in (("1", "turn"), ("2", "turn"), ("3", "mail")):
            store.queue.enqueue(work(name, merge_key=group, kind=kind))
        assert texts(next_of(store).batches) == ["1", "2"]
        assert texts(next_of(store).batches) == ["3"]

    def test_a_kind_that_comes_to_the_head_by_time_alone_is_found(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.queue.enqueue(work("turn", available_at_ms=clock.now_ms() + 1_000))
        store.queue.enqueue(work("mail", kind="mail"))
        assert store.queue.claim_next(owner_id="w1", kinds=["turn"]) is None
        clock.advance(1_000)
        assert texts(next_of(store, kinds=["turn"]).batches) == ["turn"]
        assert texts(next_of(store, kinds=["mail"]).batches) == ["mail"]

    def test_work_is_found_when_its_time_comes_and_when_its_claim_ends(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        store.queue.enqueue(work("later", "a", available_at_ms=clock.now_ms() + 500))
        store.queue.enqueue(work("now", "b"))
        assert next_of(store, ttl_ms=1_000).session_id == "b"
        assert store.queue.claim_next(owner_id="w1") is None
        clock.advance(500)
        assert next_of(store).session_id == "a"
        assert store.queue.claim_next(owner_id="w1") is None
        clock.advance(500)
        again = next_of(store)
        assert (again.session_id, again.fence, again.batches[0].attempts) == ("b", 2, 2)

    def test_a_claim_that_was_renewed_is_not_taken_over_at_its_first_end(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        fill(store, "1")
        claim = next_of(store, ttl_ms=1_000)
        clock.advance(900)
        store.queue.renew(claim, ttl_ms=1_000)
        clock.advance(900)
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(100)
        assert next_of(store, "w2").fence == 2

    def test_a_session_under_a_lease_is_left_to_its_holder(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1")
        lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        assert store.queue.claim_next(owner_id="w1") is None
        assert store.queue.claim_next(owner_id="w2") is None
        store.leases.release(lease)
        claim = next_of(store, "w2")
        store.queue.give_back(claim)
        store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(1_000)
        assert next_of(store, "w2").fence == 2

    def test_work_is_found_behind_that_of_a_hundred_sessions_that_became_available_with_it(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        later_ms = clock.now_ms() + 1_000
        for number in range(101):
            fill(store, "1", session_id=f"s{number}", kind="report", available_at_ms=later_ms)
        fill(store, "2", session_id="last", kind="mail", available_at_ms=later_ms + 1)
        assert store.queue.claim_next(owner_id="w1") is None
        clock.advance(2_000)
        assert next_of(store, kinds=["mail"]).session_id == "last"

    def test_the_work_of_many_sessions_that_becomes_available_at_once_is_all_found(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        names = [f"s{number}" for number in range(DUE_AT_ONCE + 1)]
        for name in names:
            store.queue.enqueue(work("later", name, available_at_ms=clock.now_ms() + 1_000))
        assert store.queue.claim_next(owner_id="w1") is None
        clock.advance(1_000)
        assert sorted(sessions_served(store)) == sorted(names)

    @pytest.mark.parametrize("cause", FREEING)
    def test_an_exclusive_claim_keeps_its_session_from_others_until(self, store: BlockingStore, cause: str) -> None:
        fill(store, "1", "2")
        fill(store, "x", session_id="other")
        claim = next_of(store, exclusive=True)
        assert next_of(store, exclusive=True).session_id == "other"
        for exclusive in (True, False):
            assert store.queue.claim_next(owner_id="w2", exclusive=exclusive) is None
        FREEING[cause](store, claim)
        assert next_of(store, "w2", exclusive=True).session_id == "chat"

    def test_an_exclusive_claim_is_not_given_beside_a_shared_one_but_elsewhere(self, store: BlockingStore) -> None:
        fill(store, "1", "2")
        shared = next_of(store)
        fill(store, "x", session_id="other")
        assert next_of(store, "w2", exclusive=True).session_id == "other"
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        store.queue.complete(shared)
        assert texts(next_of(store, "w2", exclusive=True).batches) == ["2"]

    def test_work_of_a_deleted_session_is_not_claimed(self, store: BlockingStore) -> None:
        fill(store, "1")
        fill(store, "x", session_id="other")
        store.sessions.delete("chat")
        assert sessions_served(store) == ["other"]

    def test_a_claim_on_one_session_takes_it_from_those_that_are_served(self, store: BlockingStore) -> None:
        fill(store, "1")
        claim = take(store)
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.give_back(claim)
        assert ids_of(next_of(store, "w2")) == ids_of(claim)

    def test_cancelled_work_is_not_claimed_and_what_stood_behind_it_is(self, store: BlockingStore) -> None:
        first, second = fill(store, "1", "2")
        store.queue.cancel("chat", first)
        assert ids_of(next_of(store)) == (second,)

    # Settling without a revision.

    def test_complete_settles_without_a_revision(self, store: BlockingStore, clock: ManualClock) -> None:
        store.sessions.handle("chat").commit(holdfast.Commit())
        (batch_id,) = fill(store, "1")
        claim = next_of(store)
        clock.advance(5)
        receipt = store.queue.complete(claim)
        assert receipt == WorkReceipt("chat", claim.claim_id, (batch_id,), clock.now_ms(), None)
        batch = store.queue.get("chat", batch_id)
        assert batch is not None
        assert (batch.state, batch.settled_at_ms, batch.settled_revision) == ("completed", clock.now_ms(), None)
        assert (batch.claimed_by, batch.claim_expires_at_ms, batch.attempts) == (None, None, 1)
        view = store.sessions.handle("chat").load()
        assert view is not None
        assert view.revision == 1
        assert store.queue.claim_next(owner_id="w1") is None

    def test_completing_again_gives_the_same_receipt_after_any_time(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2", merge_key=Group("g"))
        claim = next_of(store)
        receipt = store.queue.complete(claim)
        clock.advance(HOUR_MS)
        before = bench.dump()
        assert store.queue.complete(claim) == receipt
        assert store.queue.complete(claim.completion()) == receipt
        assert bench.dump() == before

    def test_completing_what_a_commit_settled_names_its_revision(self, store: BlockingStore) -> None:
        fill(store, "1")
        claim = next_of(store)
        settle(store, claim)
        receipt = store.queue.complete(claim)
        assert (receipt.revision, receipt.batch_ids) == (1, ids_of(claim))
        with pytest.raises(holdfast.ClaimLost):
            settle(store, claim)

    def test_a_source_key_that_was_completed_gives_the_batch_as_it_ended(self, store: BlockingStore) -> None:
        draft = work("1", source_key="k")
        store.queue.enqueue(draft)
        store.queue.complete(next_of(store))
        assert store.queue.enqueue(draft).state == "completed"
        assert store.queue.claim_next(owner_id="w1") is None

    @pytest.mark.parametrize("call", SETTLING)
    @pytest.mark.parametrize(
        "wrong", ["token", "fence", "claim", "fewer", "more", "none", "twice", "expired", "taken over", "cancelled"]
    )
    def test_a_claim_that_does_not_hold_settles_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, call: str, wrong: str
    ) -> None:
        fill(store, "1", "2", merge_key=Group("g"))
        fill(store, "3")
        claim = next_of(store, ttl_ms=1_000)
        ids = ids_of(claim)
        lost: Any = {
            "token": lambda: forged(claim, token=Token("0" * 32)),
            "fence": lambda: forged(claim, fence=2),
            "claim": lambda: forged(claim, claim_id="claim:9:1"),
            "fewer": lambda: forged(claim, batch_ids=ids[:1]),
            "more": lambda: forged(claim, batch_ids=(*ids, "batch:unknown")),
            "none": lambda: forged(claim, batch_ids=()),
            "twice": lambda: forged(claim, batch_ids=ids[:1] * 2),
        }.get(wrong, lambda: claim)()
        if wrong in {"expired", "taken over", "cancelled"}:
            clock.advance(1_000)
        if wrong == "taken over":
            next_of(store, "w2")
        if wrong == "cancelled":
            store.queue.cancel("chat", ids[0])
        with refused(bench, holdfast.ClaimLost):
            SETTLING[call](store, lost)

    @pytest.mark.parametrize("call", SETTLING)
    def test_a_claim_on_a_session_that_is_gone_is_refused(self, store: BlockingStore, bench: Bench, call: str) -> None:
        fill(store, "1")
        claim = next_of(store)
        with refused(bench, holdfast.ClaimLost):
            SETTLING[call](store, msgspec.structs.replace(claim, session_id="never"))
        store.sessions.delete("chat")
        with refused(bench, holdfast.SessionDeleted):
            SETTLING[call](store, claim)

    def test_settling_and_claiming_the_next_are_one(self, store: BlockingStore) -> None:
        fill(store, "1", "2")
        first = next_of(store)
        receipt, second = store.queue.complete_and_claim_next(first, owner_id="w2", kinds=["turn"], ttl_ms=7)
        assert (receipt.claim_id, receipt.batch_ids) == (first.claim_id, ids_of(first))
        assert second is not None
        assert (second.owner_id, texts(second.batches)) == ("w2", ["2"])
        assert second.expires_at_ms == second.claimed_at_ms + 7
        last, none = store.queue.complete_and_claim_next(second, owner_id="w2")
        assert (last.claim_id, none) == (second.claim_id, None)

    def test_the_next_of_an_exclusive_claim_may_be_of_the_same_session(self, store: BlockingStore) -> None:
        fill(store, "1", "2")
        first = next_of(store, exclusive=True)
        _, second = store.queue.complete_and_claim_next(first, owner_id="w1", exclusive=True)
        assert second is not None
        assert texts(second.batches) == ["2"]
        assert store.queue.claim_next(owner_id="w2") is None
