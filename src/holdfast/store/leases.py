"""`store.leases`: the right to act on sessions and processes."""

from __future__ import annotations

from holdfast.operations import leases as operations
from holdfast.records.leases import Lease, LeaseHolder, Resource
from holdfast.rules import leases as rules
from holdfast.store.context import Context, FacetBase

LEASE_TTL_MS = 900_000


class Leases(FacetBase):
    """The right to act on a process or a session, for a time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def claim(self, resource: Resource, *, owner_id: str, ttl_ms: int = LEASE_TTL_MS) -> Lease:
        """Take a lease; `LeaseHeld` while another owner has it. Each claim has a higher fence than any before.

        A session that was never made is created, as by a commit. A process must be registered.

        >>> lease = store.leases.claim(holdfast.leases.OnSession("chat-42"), owner_id="worker-1", ttl_ms=30_000)
        >>> lease.fence
        1
        """
        wanted = rules.check_resource("resource", resource, self._context.limits)
        owner = self._context.identifier("owner_id", owner_id)
        ttl, token = self._context.ttl_ms(ttl_ms), self._context.token()
        return await self._context.backend.write(
            lambda tx: operations.claim(tx, wanted, owner_id=owner, token=token, ttl_ms=ttl),
            single_write=True,
            idempotent=True,
        )

    async def renew(self, lease: Lease, *, ttl_ms: int = LEASE_TTL_MS) -> Lease:
        """Move the lease's end to `ttl_ms` from now; `LeaseLost` once it expired or was taken over.

        A renewal never shortens a lease: one that lasts longer already stays as it is. To end it sooner, release it.

        >>> lease = store.leases.claim(holdfast.leases.OnSession("chat-42"), owner_id="worker-1", ttl_ms=30_000)
        >>> store.leases.renew(lease, ttl_ms=60_000).fence == lease.fence
        True
        """
        held = rules.check_lease("lease", lease, self._context.limits)
        ttl = self._context.ttl_ms(ttl_ms)
        return await self._context.backend.write(
            lambda tx: operations.renew(tx, held, ttl), single_write=True, idempotent=True
        )

    async def release(self, lease: Lease) -> bool:
        """Release a lease. Return False, and change nothing, if the caller no longer holds it.

        >>> lease = store.leases.claim(holdfast.leases.OnSession("chat-42"), owner_id="worker-1")
        >>> store.leases.release(lease), store.leases.release(lease)
        (True, False)
        """
        held = rules.check_lease("lease", lease, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.release(tx, held))

    async def revoke(self, resource: Resource) -> LeaseHolder | None:
        """End a lease without its token, as if its time were over. Return the holder that lost it, None if none did.

        For operators, when a holder hangs. Its writes under the lease are refused from now on.

        >>> chat = holdfast.leases.OnSession("chat-42")
        >>> _ = store.leases.claim(chat, owner_id="worker-1")
        >>> store.leases.revoke(chat).owner_id
        'worker-1'
        """
        wanted = rules.check_resource("resource", resource, self._context.limits)
        found = await self._context.backend.write(lambda tx: operations.revoke(tx, wanted))
        if found is not None:
            self._context.log_remedy("the lease on %(resource)s was revoked", resource=rules.describe(wanted))
        return found

    async def holder(self, resource: Resource) -> LeaseHolder | None:
        """Return the current holder of a lease, without its token, or None.

        >>> store.leases.holder(holdfast.leases.OnSession("chat-42")) is None
        True
        """
        wanted = rules.check_resource("resource", resource, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.holder(tx, wanted))
