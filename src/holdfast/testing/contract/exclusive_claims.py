"""Exclusive claims: no other claim lives beside one, and its holder may take in work that comes meanwhile."""

from __future__ import annotations

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.claims import fill, ids_of
from holdfast.testing.contract.queue import settle, take, texts


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
        store.queue.abandon(other)
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

    def test_a_widened_claim_replaces_the_one_before(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1", "2")
        claim = take(store, "w1", exclusive=True, max_batches=1)
        wider = store.queue.claim("chat", owner_id="w1", holding=claim)
        assert wider is not None
        with refused(bench, holdfast.ClaimLost):
            settle(store, claim)
        with refused(bench, holdfast.ClaimLost):
            store.queue.renew(claim)
        assert texts(store.queue.renew(wider).batches) == ["1", "2"]

    def test_a_widened_claim_has_a_fence_above_that_of_each_new_batch(self, store: BlockingStore) -> None:
        first, second = fill(store, "1", "2")
        held = take(store, "w1", max_batches=1)
        for _ in range(3):
            store.queue.abandon(take(store, "w2"))
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
        store.queue.abandon(other)
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
        theirs = store.leases.claim(holdfast.OnSession("chat"), owner_id="w2", ttl_ms=1_000)
        assert store.queue.claim("chat", owner_id="w1", holding=held) is None
        with refused(bench, holdfast.LeaseLost):
            store.queue.claim("chat", owner_id="w1", holding=held, lease=msgspec.structs.replace(theirs, fence=7))
        clock.advance(1_000)
        lease = store.leases.claim(holdfast.OnSession("chat"), owner_id="w1", ttl_ms=1_000)
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
        assert store.queue.renew(claim).batches == claim.batches

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
        lease = store.leases.claim(holdfast.OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        assert store.queue.claim("chat", owner_id="w2") is None
        assert texts(take(store, "w1", lease=lease, ttl_ms=60_000).batches) == ["1"]
        store.leases.release(lease)
        assert store.queue.claim("chat", owner_id="w2") is None, "the claim under the lease is exclusive by itself"
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=lease)
        clock.advance(60_000)
        assert texts(take(store, "w2").batches) == ["1"]

    def test_a_claim_with_a_lease_that_is_not_ours_is_refused(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1")
        lease = store.leases.claim(holdfast.OnSession("chat"), owner_id="w1", ttl_ms=1_000)
        elsewhere = store.leases.claim(holdfast.OnSession("mail"), owner_id="w1")
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=msgspec.structs.replace(lease, token=holdfast.Token("0" * 32)))
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=msgspec.structs.replace(lease, fence=2))
        with refused(bench, holdfast.InvalidRequest):
            take(store, "w1", lease=elsewhere)
        clock.advance(1_000)
        with refused(bench, holdfast.LeaseLost):
            take(store, "w1", lease=lease)
