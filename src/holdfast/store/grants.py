"""`store.grants`: visibility of processes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.operations import grants as operations
from holdfast.records.common import Page, Scope
from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor
from holdfast.rules import checks
from holdfast.rules import grants as rules
from holdfast.store.context import Context, FacetBase


class Grants(FacetBase):
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

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.grants.grant(holdfast.Scope("chat-42"), "build-7").process_id
        'build-7'
        """
        holder = self._scope("scope", scope)
        checked = self._context.identifier("process_id", process_id)
        seen_as = rules.check_descriptor(descriptor, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.grant(tx, holder, checked, seen_as))

    async def revoke(self, scope: Scope, process_id: str) -> bool:
        """Revoke a handle. Return False if there was nothing to revoke.

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
        source_scope, target_scope = self._scope("source", source), self._scope("target", target)
        limits = self._context.limits
        ids = checks.sequence("process_ids", process_ids, most=limits.page)
        checked = [checks.identifier(f"process_ids[{index}]", one, limits) for index, one in enumerate(ids)]
        rules.require_distinct(checked)
        return await self._context.backend.write(
            lambda tx: operations.transfer(tx, source_scope, target_scope, checked)
        )

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

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> len(store.grants.of_process("build-7"))
        0
        """
        checked = self._context.identifier("process_id", process_id)
        place = checks.cursor("grants of a process", after, [str, str])
        start = None if place is None else (str(place[0]), str(place[1]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.of_process(tx, checked, after=start, limit=size))
