"""Leases: one holder at a time, a higher fence each time, and nothing from a holder that lost it."""

from __future__ import annotations

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused

RESOURCES = [holdfast.OnSession("chat"), holdfast.OnProcess("build")]


class LeaseContract(Contract):
    """`store.leases`."""

    @pytest.fixture(autouse=True)
    def _process(self, store: BlockingStore) -> None:
        store.processes.register(holdfast.ProcessRegistration("build", holdfast.External()))

    @pytest.mark.parametrize("resource", RESOURCES, ids=["session", "process"])
    def test_a_live_lease_keeps_other_owners_out(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: holdfast.OnSession | holdfast.OnProcess
    ) -> None:
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=1_000)
        with refused(bench, holdfast.LeaseHeld) as info:
            store.leases.claim(resource, owner_id="w2", ttl_ms=1_000)
        assert isinstance(info.value, holdfast.LeaseHeld)
        assert (info.value.owner, info.value.expires_at_ms) == ("w1", clock.now_ms() + 1_000)
        assert lease.expires_at_ms == clock.now_ms() + 1_000

    @pytest.mark.parametrize("resource", RESOURCES, ids=["session", "process"])
    def test_an_expired_lease_is_free_and_its_old_holder_is_out(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, resource: holdfast.OnSession | holdfast.OnProcess
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
        first = store.leases.claim(holdfast.OnProcess("build"), owner_id="w1")
        second = store.leases.claim(holdfast.OnProcess("build"), owner_id="w1")
        assert second.fence == first.fence + 1
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(first)
        assert store.leases.renew(second).fence == second.fence

    def test_a_renewed_lease_survives_its_original_end(self, store: BlockingStore, clock: ManualClock) -> None:
        lease = store.leases.claim(holdfast.OnProcess("build"), owner_id="w1", ttl_ms=1_000)
        clock.advance(500)
        renewed = store.leases.renew(lease, ttl_ms=1_000)
        clock.advance(700)
        assert store.leases.holder(holdfast.OnProcess("build")) is not None
        assert renewed.expires_at_ms == lease.expires_at_ms + 500

    def test_a_fence_is_part_of_the_proof(self, store: BlockingStore, bench: Bench) -> None:
        lease = store.leases.claim(holdfast.OnProcess("build"), owner_id="w1")
        forged = msgspec.structs.replace(lease, fence=lease.fence + 1)
        with refused(bench, holdfast.LeaseLost):
            store.leases.renew(forged)
        assert store.leases.release(forged) is False
