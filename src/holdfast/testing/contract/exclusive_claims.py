"""Exclusive claims: no other claim is live beside one, and its holder may add work that comes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnSession, Token
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.claims import fill, ids_of
from holdfast.testing.contract.queue import settle, take, texts

WHOLE: dict[str, Callable[[BlockingStore, holdfast.WorkClaim], object]] = {
    "a commit": settle,
    "a completion": lambda store, claim: store.queue.complete(claim),
    "a completion with the next claim": lambda store, claim: store.queue.complete_and_claim_next(claim, owner_id="w1"),
    "a failure": lambda store, claim: store.queue.fail(claim, "no"),
    "another widening": lambda store, claim: store.queue.claim("chat", owner_id="w1", holding=claim),
}
"""Calls that accept a claim only with all its batches."""


def widen(store: BlockingStore, claim: holdfast.WorkClaim, **options: Any) -> holdfast.WorkClaim | None:
    """Widen a held claim."""
    return store.queue.claim(claim.session_id, owner_id=claim.owner_id, holding=claim, **options)


class ExclusiveClaimContract(Contract):
    """`store.queue.claim` with `exclusive`, `lease` and `holding`."""

    @pytest.mark.parametrize("owner_id", ["w1", "w2"], ids=["the same owner", "another owner"])
    def test_an_exclusive_claim_keeps_every_other_claim_out_while_it_lives(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, owner_id: str
    ) -> None:
        ids = fill(store, "1", "2", "3")
        take(store, "w1", exclusive=True, ttl_ms=1_000)
        before = bench.dump()
        assert store.queue.claim("chat", owner_id=owner_id) is None
        assert store.queue.claim("chat", owner_id=owner_id, exclusive=True) is None
        assert store.queue.claim_exactly("chat", [ids[1]], owner_id=owner_id) is None
        assert bench.dump() == before
        clock.advance(1_000)
        assert texts(take(store, owner_id).batches) == ["1"]

    @pytest.mark.parametrize("owner_id", ["w1", "w2"], ids=["the same owner", "another owner"])
    def test_an_exclusive_claim_is_not_given_beside_any_live_claim(self, store: BlockingStore, owner_id: str) -> None:
        fill(store, "1", "2")
        other = take(store, "w1")
        assert store.queue.claim("chat", owner_id=owner_id, exclusive=True) is None
        store.queue.give_back(other)
        assert texts(take(store, owner_id, exclusive=True).batches) == ["1"]

    # Widening a held claim.

    def test_the_holder_of_an_exclusive_claim_takes_in_work_that_came_meanwhile(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        fill(store, "1")
        claim = take(store, "w1", exclusive=True, ttl_ms=10_000)
        assert store.queue.claim("chat", owner_id="w1", holding=claim) is None
        fill(store, "2", "3")
        clock.advance(1_000)
        wider = store.queue.claim("chat", owner_id="w1", holding=claim, ttl_ms=5_000)
        assert wider is not None
        assert (wider.claim_id, wider.token, wider.claimed_at_ms) == (claim.claim_id, claim.token, claim.claimed_at_ms)
        assert (texts(wider.batches), wider.expires_at_ms) == (["1", "2"], claim.expires_at_ms)
        assert store.queue.claim("chat", owner_id="w1") is None
        widest = store.queue.claim("chat", owner_id="w1", holding=wider, ttl_ms=60_000)
        assert widest is not None
        assert texts(widest.batches) == ["1", "2", "3"]
        assert widest.expires_at_ms == clock.now_ms() + 60_000
        settle(store, widest)
        assert len(store.queue.list("chat")) == 0

    @pytest.mark.parametrize("call", WHOLE)
    def test_the_claim_from_before_a_widening_settles_nothing_and_says_what_to_pass(
        self, store: BlockingStore, bench: Bench, call: str
    ) -> None:
        fill(store, "1", "2", "3")
        claim = take(store, "w1", exclusive=True, max_batches=1)
        wider = take(store, "w1", holding=claim)
        for widened, advice in ((True, "pass the claim that claim(holding=...) returned"), (False, "claim again")):
            with refused(bench, holdfast.ClaimLost) as info:
                WHOLE[call](store, claim)
            assert isinstance(info.value, holdfast.ClaimLost)
            assert info.value.widened is widened
            assert str(info.value).endswith(advice)
            if widened:
                settle(store, wider)

    def test_the_claim_from_before_a_widening_renews_all_batches(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        fill(store, "1", "2", "3")
        claim = take(store, "w1", max_batches=1, ttl_ms=1_000)
        for _ in range(2):
            store.queue.give_back(take(store, "w2"))
        wider = take(store, "w1", holding=claim, ttl_ms=1_000)
        assert (claim.fence, wider.fence) == (1, 3)
        clock.advance(999)
        renewed = store.queue.renew(claim, ttl_ms=60_000)
        ends_at_ms = clock.now_ms() + 60_000
        assert (ids_of(renewed), renewed.expires_at_ms) == (ids_of(claim), ends_at_ms)
        assert [one.claim_expires_at_ms for one in store.queue.list("chat")] == [ends_at_ms, ends_at_ms, None]
        clock.advance(59_999)
        assert store.queue.renew(renewed, ttl_ms=1).expires_at_ms == ends_at_ms
        settle(store, wider)
        assert texts(store.queue.list("chat")) == ["3"]

    @pytest.mark.parametrize("wrong", ["token", "fence", "none", "more", "twice", "expired", "settled", "given back"])
    def test_the_claim_from_before_a_widening_must_be_proven_to_renew_it(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, wrong: str
    ) -> None:
        fill(store, "1", "2", "3", "4")
        claim = take(store, "w1", exclusive=True, ttl_ms=1_000)
        wider = take(store, "w1", holding=take(store, "w1", holding=claim))
        waiting = store.queue.list("chat").items[-1]
        forgeries = {
            "token": msgspec.structs.replace(claim, token=Token("0" * 32)),
            "fence": msgspec.structs.replace(claim, fence=wider.fence + 1),
            "none": msgspec.structs.replace(claim, batches=()),
            "more": msgspec.structs.replace(claim, batches=(*claim.batches, waiting)),
            "twice": msgspec.structs.replace(claim, batches=claim.batches * 2),
        }
        if wrong == "expired":
            clock.advance(15 * 60_000)
        if wrong == "settled":
            settle(store, wider)
        if wrong == "given back":
            store.queue.give_back(wider)
        with refused(bench, holdfast.ClaimLost):
            store.queue.renew(forgeries.get(wrong, claim))

    def test_the_claim_from_before_a_widening_gives_all_batches_back(self, store: BlockingStore) -> None:
        fill(store, "1", "2", "3")
        claim = take(store, "w1", exclusive=True)
        take(store, "w1", holding=claim)
        assert store.queue.give_back(msgspec.structs.replace(claim, fence=3)) == 0
        assert store.queue.give_back(claim) == 2
        assert [(one.state, one.attempts) for one in store.queue.list("chat")] == [("pending", 0)] * 3
        assert store.queue.give_back(claim) == 0

    # Work that must not join.

    @pytest.mark.parametrize("policy", [{"delivery": "after_current_turn_commit"}, {"slot": "exclusive"}])
    def test_work_that_is_not_for_this_turn_does_not_join_a_held_claim(
        self, store: BlockingStore, bench: Bench, policy: dict[str, Any]
    ) -> None:
        fill(store, "1")
        claim = take(store, "w1", exclusive=True)
        fill(store, "later", **policy)
        fill(store, "behind it")
        before = bench.dump()
        assert store.queue.claim("chat", owner_id="w1", holding=claim) is None
        assert bench.dump() == before
        idle = store.queue.claim("chat", owner_id="w1", holding=claim, boundary="idle")
        assert (idle is None) is ("slot" in policy)
        settle(store, idle or claim)
        assert texts(take(store, "w1").batches) == ["behind it" if idle else "later"]

    def test_a_command_is_claimed_alone_after_the_turn(self, store: BlockingStore) -> None:
        fill(store, "1")
        claim = take(store, "w1", exclusive=True)
        command = store.queue.enqueue(holdfast.WorkDraft.command("chat", "refresh", idempotency_key="k"))
        assert store.queue.claim("chat", owner_id="w1", holding=claim) is None
        settle(store, claim)
        fill(store, "2")
        alone = take(store, "w1", exclusive=True)
        assert ids_of(alone) == (command.batch_id,)
        for boundary in (None, "idle", "active_turn_checkpoint"):
            assert widen(store, alone, boundary=boundary) is None

    # A held claim becomes exclusive.

    @pytest.mark.parametrize("slot", ["join", "exclusive"])
    @pytest.mark.parametrize("how", ["exclusive", "lease"])
    def test_a_held_claim_becomes_exclusive_although_no_work_joins_it(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, how: str, slot: str
    ) -> None:
        fill(store, "1", slot=slot)
        held = take(store, "w1", ttl_ms=1_000)
        asked: dict[str, Any] = {"exclusive": True}
        if how == "lease":
            asked = {"lease": store.leases.claim(OnSession("chat"), owner_id="w1")}
        alone = take(store, "w1", holding=held, ttl_ms=5_000, **asked)
        assert (alone.claim_id, alone.fence, ids_of(alone)) == (held.claim_id, held.fence + 1, ids_of(held))
        assert (held.exclusive, alone.exclusive) == (False, True)
        assert (alone.expires_at_ms, alone.batches[0].attempts) == (clock.now_ms() + 5_000, 1)
        before = bench.dump()
        assert widen(store, alone, **asked) is None, "it was so before"
        assert bench.dump() == before
        if how == "lease":
            store.leases.release(asked["lease"])
        fill(store, "2")
        for owner_id in ("w1", "w2"):
            assert store.queue.claim("chat", owner_id=owner_id) is None
            assert store.queue.claim_next(owner_id=owner_id) is None
        with refused(bench, holdfast.ClaimLost) as info:
            settle(store, held)
        assert isinstance(info.value, holdfast.ClaimLost)
        assert info.value.widened
        settle(store, alone)
        assert texts(take(store, "w2").batches) == ["2"]

    @pytest.mark.parametrize("other", ["claim", "lease"])
    def test_a_held_claim_does_not_become_exclusive_while_others_keep_it_out(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, other: str
    ) -> None:
        fill(store, "1")
        held = take(store, "w1", ttl_ms=10_000)
        if other == "claim":
            fill(store, "2")
            take(store, "w2", ttl_ms=1_000)
        else:
            store.leases.claim(OnSession("chat"), owner_id="w2", ttl_ms=1_000)
        before = bench.dump()
        assert store.queue.claim("chat", owner_id="w1", holding=held, exclusive=True) is None
        assert bench.dump() == before
        clock.advance(1_000)
        alone = take(store, "w1", holding=held, exclusive=True)
        assert texts(alone.batches) == (["1", "2"] if other == "claim" else ["1"])
        fill(store, "3")
        assert store.queue.claim("chat", owner_id="w2") is None

    def test_a_widened_claim_has_a_fence_above_that_of_each_new_batch(self, store: BlockingStore) -> None:
        first, second = fill(store, "1", "2")
        held = take(store, "w1", max_batches=1)
        for _ in range(3):
            store.queue.give_back(take(store, "w2"))
        wider = store.queue.claim("chat", owner_id="w1", holding=held)
        assert wider is not None
        assert (ids_of(wider), wider.fence) == ((first, second), 4)
        settle(store, wider)

    def test_a_claim_is_widened_beside_others_unless_it_is_to_be_exclusive(self, store: BlockingStore) -> None:
        fill(store, "1", "2", "3", "4")
        held, other = take(store, "w1"), take(store, "w2")
        assert store.queue.claim("chat", owner_id="w1", holding=held, exclusive=True) is None
        wider = store.queue.claim("chat", owner_id="w1", holding=held)
        assert wider is not None
        assert texts(wider.batches) == ["1", "3"]
        store.queue.give_back(other)
        alone = store.queue.claim("chat", owner_id="w1", holding=wider, exclusive=True)
        assert alone is not None
        assert texts(alone.batches) == ["1", "2", "3"]
        assert store.queue.claim("chat", owner_id="w1") is None
        assert store.queue.claim("chat", owner_id="w2") is None

    def test_a_claim_is_widened_under_the_lease_of_its_owner_only(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2", "3", "4")
        held = take(store, "w1", ttl_ms=60_000)
        theirs = store.leases.claim(OnSession("chat"), owner_id="w2", ttl_ms=1_000)
        assert store.queue.claim("chat", owner_id="w1", holding=held) is None
        with refused(bench, holdfast.LeaseLost):
            store.queue.claim("chat", owner_id="w1", holding=held, lease=msgspec.structs.replace(theirs, fence=7))
        clock.advance(1_000)
        lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        wider = store.queue.claim("chat", owner_id="w1", holding=held)
        assert wider is not None
        widest = store.queue.claim("chat", owner_id="w1", holding=wider, lease=lease)
        assert widest is not None
        assert texts(widest.batches) == ["1", "2", "3"]
        store.leases.release(lease)
        assert store.queue.claim("chat", owner_id="w2") is None, "it was widened under a lease, and is exclusive now"
        settle(store, widest)
        assert texts(take(store, "w2").batches) == ["4"]

    def test_nothing_to_take_in_leaves_the_held_claim_as_it_was(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1")
        claim = take(store, "w1", exclusive=True, ttl_ms=10_000)
        store.queue.enqueue(
            holdfast.WorkDraft(session_id="chat", payloads=["later"], available_at_ms=clock.now_ms() + 5_000)
        )
        store.queue.enqueue(
            holdfast.WorkDraft(session_id="chat", payloads=["after"], delivery="after_current_turn_commit")
        )
        before = bench.dump()
        assert store.queue.claim("chat", owner_id="w1", holding=claim, boundary="active_turn_checkpoint") is None
        assert bench.dump() == before
        assert ids_of(store.queue.renew(claim)) == ids_of(claim)

    @pytest.mark.parametrize("change", ["token", "fence", "batches", "expired", "settled"])
    def test_only_a_held_claim_can_be_widened(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, change: str
    ) -> None:
        fill(store, "1", "2")
        claim = take(store, "w1", exclusive=True, ttl_ms=1_000, max_batches=1)
        fill(store, "x", session_id="mail")
        other = take(store, "w2", session_id="mail")
        forgeries = {
            "token": msgspec.structs.replace(claim, token=other.token),
            "fence": msgspec.structs.replace(claim, fence=2),
            "batches": msgspec.structs.replace(claim, batches=()),
        }
        if change == "expired":
            clock.advance(1_000)
        if change == "settled":
            settle(store, claim)
        with refused(bench, holdfast.ClaimLost):
            store.queue.claim("chat", owner_id="w1", holding=forgeries.get(change, claim))

    def test_a_claim_in_a_session_that_never_was_is_not_held(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        elsewhere = msgspec.structs.replace(take(store, "w1"), session_id="nowhere")
        with refused(bench, holdfast.ClaimLost):
            widen(store, elsewhere)

    def test_work_of_another_kind_does_not_join_a_held_claim(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1", kind="mail")
        held = take(store, "w1", exclusive=True)
        fill(store, "2", kind="report")
        fill(store, "3", kind="mail")
        before = bench.dump()
        assert widen(store, held) is None
        assert bench.dump() == before

    def test_a_claim_is_not_widened_past_a_page_because_it_could_not_be_settled(self, bench: Bench) -> None:
        store = bench.open(limits=holdfast.Limits(page=3))
        fill(store, "1", "2", "3", "4")
        claim = take(store, "w1", max_batches=1)
        for size in (2, 3):
            claim = take(store, "w1", holding=claim, max_batches=1)
            assert len(claim.batches) == size
        assert widen(store, claim, max_batches=1) is None
        alone = take(store, "w1", holding=claim, exclusive=True, max_batches=1)
        assert (alone.exclusive, len(alone.batches)) == (True, 3)
        settle(store, alone)

    def test_a_claim_is_widened_in_its_own_session_by_its_own_owner(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        claim = take(store, "w1")
        for session_id, owner_id, field in (("mail", "w1", "holding"), ("chat", "w2", "owner_id")):
            with refused(bench, holdfast.InvalidRequest) as info:
                store.queue.claim(session_id, owner_id=owner_id, holding=claim)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == field

    def test_an_exclusive_claim_leaves_other_sessions_alone(self, store: BlockingStore) -> None:
        fill(store, "1")
        fill(store, "2", session_id="mail")
        take(store, "w1", exclusive=True)
        assert texts(take(store, "w2", session_id="mail", exclusive=True).batches) == ["2"]

    def test_a_session_lease_keeps_other_owners_out_of_the_queue(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2")
        lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        assert store.queue.claim("chat", owner_id="w2") is None
        assert texts(take(store, "w1", lease=lease, ttl_ms=60_000).batches) == ["1"]
        store.leases.release(lease)
        assert store.queue.claim("chat", owner_id="w2") is None, "the claim under the lease is exclusive by itself"
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=lease)
        clock.advance(60_000)
        assert texts(take(store, "w2").batches) == ["1"]

    def test_a_claim_with_a_foreign_lease_is_refused(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1")
        lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        elsewhere = store.leases.claim(OnSession("mail"), owner_id="w1")
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=msgspec.structs.replace(lease, token=Token("0" * 32)))
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=msgspec.structs.replace(lease, fence=2))
        with refused(bench, holdfast.InvalidRequest):
            take(store, "w1", lease=elsewhere)
        clock.advance(1_000)
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=lease)
