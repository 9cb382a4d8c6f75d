"""`store.grants` and `store.leases`: visibility of processes, and the right to act on sessions and processes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.operations import grants as operations
from holdfast.operations import leases as lease_operations
from holdfast.records.common import Page, Scope
from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor
from holdfast.records.leases import Lease, LeaseHolder, Resource
from holdfast.rules import checks
from holdfast.rules import grants as rules
from holdfast.rules import leases as lease_rules
from holdfast.store.context import Context

LEASE_TTL_MS = 900_000


class Grants:
    """Handles on processes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _scope(self, field: str, scope: object) -> Scope:
        return checks.scope(field, scope, self._context.limits)

    async def grant(
        self,
        scope: Scope,
        process_id: str,
        descriptor: HandleDescriptor = HandleDescriptor(),  # noqa: B008 - a frozen value
    ) -> Grant:
        """Give a scope a handle on a process, ended or not. A repeated call replaces the descriptor.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.External()))
        >>> store.grants.grant(holdfast.Scope("chat-42"), "build-7").process_id
        'build-7'
        """
        holder = self._scope("scope", scope)
        checked = self._context.identifier("process_id", process_id)
        seen_as = rules.check_descriptor(descriptor, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.grant(tx, holder, checked, seen_as))

    async def revoke(self, scope: Scope, process_id: str) -> bool:
        """Take a handle away. Return False if there was none.

        >>> store.grants.revoke(holdfast.Scope("chat-42"), "build-7")
        False
        """
        holder = self._scope("scope", scope)
        checked = self._context.identifier("process_id", process_id)
        return await self._context.backend.write(lambda tx: operations.revoke(tx, holder, checked))

    async def transfer(self, source: Scope, target: Scope, process_ids: Sequence[str]) -> tuple[Grant, ...]:
        """Move handles from one scope to another, all or none.

        >>> store.grants.transfer(holdfast.Scope("chat-42"), holdfast.Scope("chat-43"), [])
        ()
        """
        giver, taker = self._scope("source", source), self._scope("target", target)
        limits = self._context.limits
        ids = checks.sequence("process_ids", process_ids, most=limits.page)
        checked = [checks.identifier(f"process_ids[{index}]", one, limits) for index, one in enumerate(ids)]
        rules.require_distinct(checked)
        return await self._context.backend.write(lambda tx: operations.transfer(tx, giver, taker, checked))

    async def list(
        self, scope: Scope, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[GrantedProcess]:
        """Return one page of the handles of exactly this scope, with their processes, by process id.

        >>> len(store.grants.list(holdfast.Scope("chat-42")))
        0
        """
        return await self._page(scope, after, limit, running_only=False)

    async def list_live(
        self, scope: Scope, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[GrantedProcess]:
        """Return one page of the handles of exactly this scope whose processes still run.

        >>> len(store.grants.list_live(holdfast.Scope("chat-42")))
        0
        """
        return await self._page(scope, after, limit, running_only=True)

    async def _page(self, scope: object, after: object, limit: object, *, running_only: bool) -> Page[GrantedProcess]:
        holder = self._scope("scope", scope)
        place = checks.cursor("grants", after, [str])
        size = checks.page_size(limit, self._context.limits)
        start: str = "" if place is None else place[0]
        return await self._context.backend.read(
            lambda tx: operations.list_page(tx, holder, running_only=running_only, after=start, limit=size)
        )

    async def has(self, scope: Scope, process_id: str) -> bool:
        """Return whether a scope holds a handle on a process.

        >>> store.grants.has(holdfast.Scope("chat-42"), "build-7")
        False
        """
        holder = self._scope("scope", scope)
        checked = self._context.identifier("process_id", process_id)
        return await self._context.backend.read(lambda tx: operations.has(tx, holder, checked))

    async def of_process(
        self, process_id: str, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[Grant]:
        """Return one page of the grants on a process, by session and frame.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.External()))
        >>> len(store.grants.of_process("build-7"))
        0
        """
        checked = self._context.identifier("process_id", process_id)
        place = checks.cursor("grants of a process", after, [str, str])
        start = None if place is None else (str(place[0]), str(place[1]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.of_process(tx, checked, after=start, limit=size))


class Leases:
    """The right to act on a process or a session, for a time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def claim(self, resource: Resource, *, owner_id: str, ttl_ms: int = LEASE_TTL_MS) -> Lease:
        """Take a lease; `LeaseHeld` while another owner has it. Each claim has a higher fence than any before.

        A session that was never made is created, as by a commit. A process must be registered.

        >>> lease = store.leases.claim(holdfast.OnSession("chat-42"), owner_id="worker-1", ttl_ms=30_000)
        >>> lease.fence
        1
        """
        wanted = lease_rules.check_resource("resource", resource, self._context.limits)
        owner = self._context.identifier("owner_id", owner_id)
        ttl, token = self._context.ttl_ms(ttl_ms), self._context.token()
        return await self._context.backend.write(
            lambda tx: lease_operations.claim(tx, wanted, owner_id=owner, token=token, ttl_ms=ttl),
            one_step=True,
            repeatable=True,
        )

    async def renew(self, lease: Lease, *, ttl_ms: int = LEASE_TTL_MS) -> Lease:
        """Move the lease's end to `ttl_ms` from now; `LeaseLost` once it expired or was taken over.

        A renewal never shortens a lease: one that lasts longer already stays as it is. To end it sooner, release it.

        >>> lease = store.leases.claim(holdfast.OnSession("chat-42"), owner_id="worker-1", ttl_ms=30_000)
        >>> store.leases.renew(lease, ttl_ms=60_000).fence == lease.fence
        True
        """
        held = lease_rules.check_lease("lease", lease, self._context.limits)
        ttl = self._context.ttl_ms(ttl_ms)
        return await self._context.backend.write(
            lambda tx: lease_operations.renew(tx, held, ttl), one_step=True, repeatable=True
        )

    async def release(self, lease: Lease) -> bool:
        """Release a lease. Return False, and change nothing, if the caller no longer holds it.

        >>> lease = store.leases.claim(holdfast.OnSession("chat-42"), owner_id="worker-1")
        >>> store.leases.release(lease), store.leases.release(lease)
        (True, False)
        """
        held = lease_rules.check_lease("lease", lease, self._context.limits)
        return await self._context.backend.write(lambda tx: lease_operations.release(tx, held))

    async def holder(self, resource: Resource) -> LeaseHolder | None:
        """Return the current holder of a lease, without its token; None if there is none.

        >>> store.leases.holder(holdfast.OnSession("chat-42")) is None
        True
        """
        wanted = lease_rules.check_resource("resource", resource, self._context.limits)
        return await self._context.backend.read(lambda tx: lease_operations.holder(tx, wanted))
