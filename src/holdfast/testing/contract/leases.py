"""Leases: one holder at a time, a higher fence each time, and no write by a holder that lost it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import Lease, LeaseHolder, OnProcess, OnSession, Token
from holdfast.processes import Completed, External
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused

Resource: TypeAlias = OnSession | OnProcess
BUILD = OnProcess("build")
CHAT = OnSession("chat")
on_both = pytest.mark.parametrize("resource", [CHAT, BUILD], ids=["session", "process"])


class LeaseContract(Contract):
    """`store.leases`."""

    @pytest.fixture(autouse=True)
    def _process(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", External()))

    @on_both
    def test_a_live_lease_keeps_other_owners_out(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        with refused(bench, holdfast.LeaseHeld) as info:
            store.leases.claim(resource, owner_id="w2", ttl_ms=1_000)
        assert isinstance(info.value, holdfast.LeaseHeld)
        assert (info.value.owner, info.value.expires_at_ms) == ("w1", clock.now_ms() + 1_000)
        assert lease.expires_at_ms == clock.now_ms() + 1_000

    @on_both
    def test_an_expired_lease_is_free_and_its_old_holder_is_out(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        old = store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        clock.advance(1_000)
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(old)
        new = store.leases.claim(resource, owner_id="w2", ttl_ms=1_000)
        assert (old.fence, new.fence) == (1, 2)
        assert store.leases.release(old) is False
        holder = store.leases.holder(resource)
        assert holder is not None
        assert (holder.owner_id, holder.fence) == ("w2", 2)

    def test_the_same_owner_claims_again_and_its_old_token_is_dead(self, store: BlockingStore, bench: Bench) -> None:
        first = store.leases.claim(BUILD, owner_id="w1")
        second = store.leases.claim(BUILD, owner_id="w1")
        assert second.fence == first.fence + 1
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(first)
        assert store.leases.renew(second).fence == second.fence

    def test_a_renewed_lease_survives_its_original_end(self, store: BlockingStore, clock: ManualClock) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
        clock.advance(500)
        renewed = store.leases.renew(lease, ttl_ms=1_000)
        clock.advance(700)
        assert store.leases.holder(BUILD) is not None
        assert renewed.expires_at_ms == lease.expires_at_ms + 500

    def test_a_fence_is_part_of_the_proof(self, store: BlockingStore, bench: Bench) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1")
        forged = msgspec.structs.replace(lease, fence=lease.fence + 1)
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(forged)
        assert store.leases.release(forged) is False

    # Claiming.

    @on_both
    def test_a_lease_names_its_resource_owner_and_end(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        assert store.leases.holder(resource) is None
        lease = store.leases.claim(resource, owner_id="w1")
        assert (lease.resource, lease.owner_id, lease.fence) == (resource, "w1", 1)
        assert (lease.claimed_at_ms, lease.expires_at_ms) == (clock.now_ms(), clock.now_ms() + 900_000)
        assert bench.open().leases.holder(resource) == LeaseHolder(
            resource, "w1", 1, clock.now_ms(), clock.now_ms() + 900_000
        )

    @on_both
    def test_a_lease_ends_at_its_time_and_not_before(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        clock.advance(999)
        with refused(bench, holdfast.LeaseHeld):
            store.leases.claim(resource, owner_id="w2")
        clock.advance(1)
        assert store.leases.holder(resource) is None
        assert store.leases.claim(resource, owner_id="w2").fence == 2

    @on_both
    def test_of_two_claims_at_once_one_holds_and_the_other_learns_the_holder(
        self, store: BlockingStore, bench: Bench, resource: Resource
    ) -> None:
        handles = {"w1": store, "w2": bench.open()}
        outcomes = at_once(
            lambda: handles["w1"].leases.claim(resource, owner_id="w1"),
            lambda: handles["w2"].leases.claim(resource, owner_id="w2"),
        )
        (lease,) = [one for one in outcomes if isinstance(one, Lease)]
        (loser,) = [one for one in outcomes if isinstance(one, holdfast.LeaseHeld)]
        assert (loser.owner, lease.fence) == (lease.owner_id, 1)
        assert loser.retryable is True

    def test_leases_of_different_things_do_not_meet(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("chat", External()))
        claims = [
            store.leases.claim(CHAT, owner_id="w1"),
            store.leases.claim(OnProcess("chat"), owner_id="w2"),
            store.leases.claim(BUILD, owner_id="w3"),
            store.leases.claim(OnSession("build"), owner_id="w4"),
        ]
        holders = [store.leases.holder(claim.resource) for claim in claims]
        assert [None if one is None else one.owner_id for one in holders] == ["w1", "w2", "w3", "w4"]

    def test_an_unknown_process_cannot_be_leased(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.UnknownProcess):
            store.leases.claim(OnProcess("nobody"), owner_id="w1")
        assert store.leases.holder(OnProcess("nobody")) is None

    @pytest.mark.parametrize(
        ("resource", "owner_id", "ttl_ms"),
        [
            (OnProcess(""), "w1", 1), (OnSession("a\0"), "w1", 1), (BUILD, " ", 1), (BUILD, "w1", 0),
            (BUILD, "w1", -1), (BUILD, "w1", 7 * 24 * 3_600_000 + 1), (BUILD, "w1", True),
        ],
        ids=["blank process", "NUL", "blank owner", "no time", "negative time", "more than a week", "a flag"],
    )  # fmt: skip
    def test_a_malformed_claim_is_refused(
        self, store: BlockingStore, bench: Bench, resource: Resource, owner_id: str, ttl_ms: int
    ) -> None:
        with refused(bench, holdfast.InvalidRequest):
            store.leases.claim(resource, owner_id=owner_id, ttl_ms=ttl_ms)

    # Renewing and letting go.

    @on_both
    def test_a_renewal_changes_the_end_and_nothing_else(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        clock.advance(999)
        renewed = bench.open().leases.renew(lease, ttl_ms=5_000)
        assert renewed == msgspec.structs.replace(lease, expires_at_ms=clock.now_ms() + 5_000)
        clock.advance(4_999)
        assert store.leases.renew(lease, ttl_ms=1).token == lease.token

    @on_both
    def test_a_renewal_never_shortens_a_lease(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=60_000)
        clock.advance(10)
        assert store.leases.renew(lease, ttl_ms=1) == lease
        clock.advance(59_989)
        with refused(bench, holdfast.LeaseHeld):
            bench.open().leases.claim(resource, owner_id="w2")
        assert store.leases.release(lease) is True
        assert store.leases.claim(resource, owner_id="w2").fence == lease.fence + 1

    @pytest.mark.parametrize("ttl_ms", [0, 7 * 24 * 3_600_000 + 1], ids=["no time", "more than a week"])
    def test_a_malformed_renewal_is_refused(self, store: BlockingStore, bench: Bench, ttl_ms: int) -> None:
        lease = store.leases.claim(BUILD, owner_id="w1")
        with refused(bench, holdfast.InvalidRequest):
            store.leases.renew(lease, ttl_ms=ttl_ms)

    @on_both
    def test_a_released_lease_is_free_at_once_and_its_holder_is_out(
        self, store: BlockingStore, bench: Bench, resource: Resource
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1")
        assert store.leases.release(lease) is True
        assert store.leases.holder(resource) is None
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(lease)
        before = bench.dump()
        assert store.leases.release(lease) is False
        assert bench.dump() == before
        assert store.leases.claim(resource, owner_id="w2").fence == 2

    @on_both
    def test_the_former_holder_of_a_lease_cannot_release_its_successor(
        self, store: BlockingStore, bench: Bench, resource: Resource
    ) -> None:
        stale = store.leases.claim(resource, owner_id="w1")
        live = store.leases.claim(resource, owner_id="w1")
        before = bench.dump()
        assert store.leases.release(stale) is False
        assert store.leases.release(msgspec.structs.replace(live, token=Token("0" * 32))) is False
        assert bench.dump() == before
        assert store.leases.renew(live).fence == 2

    @on_both
    def test_an_expired_lease_has_nothing_to_release(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: Resource
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        clock.advance(1_000)
        before = bench.dump()
        assert store.leases.release(lease) is False
        assert bench.dump() == before

    def test_a_session_lease_keeps_others_out_of_the_queue_until_it_is_released(self, store: BlockingStore) -> None:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        lease = store.leases.claim(CHAT, owner_id="w1")
        assert store.queue.claim("chat", owner_id="w2") is None
        store.leases.release(lease)
        assert store.queue.claim("chat", owner_id="w2") is not None

    # Fences never go down.

    def test_fences_rise_across_release_expiry_and_own_claims(self, store: BlockingStore, clock: ManualClock) -> None:
        fences: list[int] = []
        for _ in range(2):
            lease = store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000)
            fences.append(lease.fence)
            fences.append(store.leases.claim(BUILD, owner_id="w1", ttl_ms=1_000).fence)
            clock.advance(1_000)
            last = store.leases.claim(BUILD, owner_id="w2", ttl_ms=1_000)
            fences.append(last.fence)
            store.leases.release(last)
        assert fences == [1, 2, 3, 4, 5, 6]

    def test_a_process_that_is_forgotten_and_registered_anew_starts_above_its_old_fence(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        assert [store.leases.claim(BUILD, owner_id="w1").fence for _ in range(3)] == [1, 2, 3]
        store.processes.complete("build", Completed())
        clock.advance(1_000)
        store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
        assert store.processes.get("build") is None
        store.processes.register(holdfast.ProcessRegistration("build", External()))
        assert store.leases.claim(BUILD, owner_id="w1").fence > 3

    def test_a_session_that_is_deleted_and_made_anew_starts_above_its_old_fence(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        store.sessions.create("chat")
        store.leases.claim(CHAT, owner_id="w1")
        old = store.leases.claim(CHAT, owner_id="w1")
        store.sessions.delete("chat")
        assert store.leases.holder(CHAT) is None
        with refused(bench, holdfast.SessionDeleted):
            store.leases.claim(CHAT, owner_id="w1")
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(old)
        assert store.leases.release(old) is False
        store.sessions.create("chat")
        new = store.leases.claim(CHAT, owner_id="w1")
        assert (old.fence, new.fence > 2) == (2, True)
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(old)
        assert store.leases.release(old) is False

    # Secrets.

    def test_a_token_is_long_fresh_and_shown_by_nothing(self, store: BlockingStore, bench: Bench) -> None:
        first = store.leases.claim(BUILD, owner_id="w1")
        second = store.leases.claim(BUILD, owner_id="w1")
        tokens = {str.__str__(lease.token) for lease in (first, second)}
        assert [len(token) for token in tokens] == [32, 32]
        stored = repr(bench.dump())
        for token in tokens:
            assert token not in stored
            assert token not in repr(second)
            assert token not in repr(store.leases.holder(BUILD))
        with refused(bench, holdfast.LeaseLost) as info:
            store.leases.renew(first)
        assert str.__str__(first.token) not in str(info.value)
