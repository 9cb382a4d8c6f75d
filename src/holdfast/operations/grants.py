"""Grant, revoke, move and list handles on processes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import NotGranted, UnknownProcess
from holdfast.operations import sessions
from holdfast.operations.pages import page_of
from holdfast.ports import Transaction
from holdfast.records.common import Page, Scope
from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor
from holdfast.rules import grants as rules


async def grant(tx: Transaction, scope: Scope, process_id: str, descriptor: HandleDescriptor) -> Grant:
    """Give a scope a handle, or a new descriptor to the handle that it has. A deleted session is refused."""
    await _require(tx, process_id)
    await sessions.find(tx, (scope.session_id, None))
    row = rules.row_of(scope, process_id, descriptor)
    await tx.save_grant(row)
    return rules.grant_of(row)


async def _require(tx: Transaction, process_id: str) -> None:
    if await tx.find_process(process_id) is None:
        raise UnknownProcess(process_id)


async def revoke(tx: Transaction, scope: Scope, process_id: str) -> bool:
    """Revoke a handle. Return False if there was nothing to revoke."""
    return await tx.drop_grant(*rules.place(scope), process_id) > 0


async def transfer(tx: Transaction, source: Scope, target: Scope, process_ids: Sequence[str]) -> tuple[Grant, ...]:
    """Move handles with their descriptors, all or none."""
    rows = [await tx.find_grant(*rules.place(source), process_id) for process_id in process_ids]
    await sessions.find(tx, (target.session_id, None))
    moved: list[Grant] = []
    for row, process_id in zip(rows, process_ids, strict=True):
        if row is None:
            raise NotGranted(process_id, source.session_id)
        await tx.drop_grant(*rules.place(source), process_id)
        session_id, frame_id = rules.place(target)
        given = msgspec.structs.replace(row, session_id=session_id, frame_id=frame_id)
        await tx.save_grant(given)
        moved.append(rules.grant_of(given))
    return tuple(moved)


async def list_page(
    tx: Transaction, scope: Scope, *, running_only: bool, after: str, limit: int
) -> Page[GrantedProcess]:
    """Return one page of a scope's handles with their processes."""
    found = await tx.list_grants(*rules.place(scope), running_only=running_only, after=after, limit=limit + 1)
    return page_of(
        found, limit, lambda one: rules.granted(*one), listing="grants", place=lambda one: (one[0].process_id,)
    )


async def has(tx: Transaction, scope: Scope, process_id: str) -> bool:
    """Return whether a scope holds a handle."""
    return await tx.find_grant(*rules.place(scope), process_id) is not None


async def of_process(tx: Transaction, process_id: str, *, after: tuple[str, str] | None, limit: int) -> Page[Grant]:
    """Return one page of the grants on a process."""
    await _require(tx, process_id)
    rows = await tx.grants_of_process(process_id, after=after, limit=limit + 1)
    return page_of(
        rows, limit, rules.grant_of, listing="grants of a process", place=lambda row: (row.session_id, row.frame_id)
    )
