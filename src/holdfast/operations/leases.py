"""Claim, renew and release leases on processes and sessions."""

from __future__ import annotations

import msgspec

from holdfast.errors import AlreadyTerminal, LeaseLost, UnknownProcess
from holdfast.operations import ready, runs, sessions
from holdfast.operations.topics import notify_claim_ended, notify_run, process_topic
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import LeaseParams
from holdfast.records.common import Token
from holdfast.records.leases import Lease, LeaseHolder, OnProcess, OnSession, Resource
from holdfast.rows import SessionRow
from holdfast.rules import leases as rules
from holdfast.rules import runs as run_rules
from holdfast.rules import verdicts


async def claim(tx: Transaction, resource: Resource, *, owner_id: str, token: Token, ttl_ms: int) -> Lease:
    """Take a lease that is free, expired, or held by this owner."""
    answer = await tx.take_lease(LeaseParams(*rules.names_of(resource), owner_id, rules.hash_token(token), ttl_ms))
    if answer is not None:
        verdicts.refuse_lease(answer, resource)
        assert answer.row is not None, "a lease that was taken is returned"
        notify_waiters(tx, resource)
        return rules.lease_of(answer.row, resource, token)
    place = await _place_for_claim(tx, resource)
    current = await tx.find_lease(*place)
    floor = await tx.fence_floor() if current is None else 0
    row = rules.claim(
        current,
        resource,
        stored_as=place,
        owner_id=owner_id,
        token=token,
        ttl_ms=ttl_ms,
        fence_floor=floor,
        now_ms=tx.now_ms,
    )
    await tx.save_lease(row)
    notify_waiters(tx, resource)
    return rules.lease_of(row, resource, token)


async def _place_for_claim(tx: Transaction, resource: Resource) -> tuple[str, str]:
    if isinstance(resource, OnSession):
        session = await sessions.ensure(tx, (resource.session_id, None))
        return "session", str(session.session_key)
    process = await tx.find_process(resource.process_id)
    if process is None:
        raise UnknownProcess(resource.process_id)
    if process.status != "running":
        raise AlreadyTerminal(process.process_id, process.status)
    return "process", resource.process_id


async def place_of(tx: Transaction, resource: Resource) -> tuple[str, str] | None:
    """Return the key of a resource's lease row, None if the session was never made or is deleted."""
    if isinstance(resource, OnProcess):
        return "process", resource.process_id
    session = await tx.find_session(resource.session_id)
    return None if session is None or session.deleted_at_ms is not None else ("session", str(session.session_key))


async def renew(tx: Transaction, lease: Lease, ttl_ms: int) -> Lease:
    """Move the end of a held lease to a later time. An earlier time changes nothing."""
    answer = await tx.extend_lease(rules.proof_of(lease), ttl_ms)
    if answer is not None:
        verdicts.refuse_lease(answer, lease.resource)
        assert answer.row is not None, "a lease that was renewed is returned"
        notify_waiters(tx, lease.resource)
        return msgspec.structs.replace(lease, expires_at_ms=answer.row.expires_at_ms)
    place = await place_of(tx, lease.resource)
    if place is None:
        raise LeaseLost(rules.describe(lease.resource))
    row = rules.require(await tx.find_lease(*place), lease, tx.now_ms)
    renewed = rules.renewed(row, ttl_ms=ttl_ms, now_ms=tx.now_ms)
    await tx.save_lease(renewed)
    notify_waiters(tx, lease.resource)
    return msgspec.structs.replace(lease, expires_at_ms=renewed.expires_at_ms)


async def release(tx: Transaction, lease: Lease) -> bool:
    """Release a lease. Return False, and change nothing, if the caller no longer holds it."""
    if isinstance(lease.resource, OnSession):
        return await _release_session(tx, lease, lease.resource.session_id)
    return await runs.release(tx, lease, lease.resource.process_id)


async def _release_session(tx: Transaction, lease: Lease, session_id: str) -> bool:
    session = await tx.find_session(session_id)
    if session is None or session.deleted_at_ms is not None:
        return False
    await tx.hold_queue(session.family, session.session_key)
    row = await tx.find_lease("session", str(session.session_key))
    if row is None or not rules.holds(row, lease, tx.now_ms):
        return False
    await tx.save_lease(rules.released(row))
    await ready.update(tx, session.session_key, session.family, freed=True)
    ready.notify(tx, session_id)
    return True


async def revoke(tx: Transaction, resource: Resource) -> LeaseHolder | None:
    """End the live lease of any holder, as if its time were over. Return that holder, or None."""
    if isinstance(resource, OnProcess):
        return await end_of_process(tx, resource.process_id, None)
    session = await sessions.find(tx, (resource.session_id, None))
    return None if session is None else await end_of_session(tx, session, None)


async def extend_of_process(tx: Transaction, process_id: str, owner_id: str, ttl_ms: int) -> bool:
    """Give the lease that an owner holds on a process a later end. Return False if the owner does not hold it."""
    row = await tx.find_lease("process", process_id)
    if row is None or not row.is_live(tx.now_ms) or row.owner_id != owner_id:
        return False  # pragma: no cover - it ended since the first look
    await tx.save_lease(rules.renewed(row, ttl_ms=ttl_ms, now_ms=tx.now_ms))
    notify_waiters(tx, OnProcess(process_id))
    return True


async def end_of_session(tx: Transaction, session: SessionRow, owner_id: str | None) -> LeaseHolder | None:
    """End the lease that an owner (None: any) holds on a session. Its work can be claimed at once."""
    await tx.hold_queue(session.family, session.session_key)
    before = await tx.find_lease("session", str(session.session_key))
    row = rules.ended(before, owner_id, now_ms=tx.now_ms)
    if row is None:
        return None
    await tx.save_lease(row)
    await ready.update(tx, session.session_key, session.family, freed=True)
    ready.notify(tx, session.session_id)
    return rules.holder(before, OnSession(session.session_id), tx.now_ms)


async def end_of_process(tx: Transaction, process_id: str, owner_id: str | None) -> LeaseHolder | None:
    """End the lease that an owner (None: any) holds on a process. A run can be claimed at once, as a takeover."""
    process = await tx.find_process(process_id)
    before = await tx.find_lease("process", process_id)
    row = rules.ended(before, owner_id, now_ms=tx.now_ms)
    if process is None or row is None:
        return None
    await tx.save_lease(row)
    after = run_rules.claimable_now(process, tx.now_ms)
    if after != process:
        expect_rows(await tx.save_process(after), "processes", process_id)
        notify_run(tx, after)
    notify_claim_ended(tx, process)
    tx.notify(process_topic(process_id))
    return rules.holder(before, OnProcess(process_id), tx.now_ms)


def notify_waiters(tx: Transaction, resource: Resource) -> None:
    """Wake waiters for the session's work: they also wait for the end of its lease, which has changed."""
    if isinstance(resource, OnSession):
        ready.notify(tx, resource.session_id)


async def holder(tx: Transaction, resource: Resource) -> LeaseHolder | None:
    """Return the current holder, or None."""
    place = await place_of(tx, resource)
    return None if place is None else rules.holder(await tx.find_lease(*place), resource, tx.now_ms)
