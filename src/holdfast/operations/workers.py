"""Keep the list of live workers, renew everything that one holds, and end what a dead one held."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import msgspec

from holdfast.errors import ClaimLost, LeaseLost, SessionDeleted
from holdfast.operations import leases, limits, queue, ready
from holdfast.operations.pages import page_of
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import HeartbeatParams
from holdfast.ports.queries import WorkersQuery
from holdfast.records.common import Page
from holdfast.records.leases import Lease
from holdfast.records.queue import WorkClaim
from holdfast.records.workers import Heartbeat, WorkerInfo, WorkerRelease
from holdfast.rows import BatchRow, SessionRow
from holdfast.rules import claims as claim_rules
from holdfast.rules import leases as lease_rules
from holdfast.rules import workers as rules

HOLDERS = 1_000
"""Owners of claims and leases among which dead workers are looked for at a time."""
HELD = 10_000
"""Claims and leases of one dead worker that are looked at, of each."""
HELD_SESSIONS = "held-sessions"


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """A report of a worker, and all that it renews."""

    worker: WorkerInfo | None
    claims: tuple[WorkClaim, ...]
    leases: tuple[Lease, ...]
    ttl_ms: int


async def heartbeat(tx: Transaction, request: HeartbeatRequest) -> Heartbeat:
    """Renew claims and leases, each on its own: a lost one does not stop the others."""
    answer = await tx.renew_all(_params(request))
    if answer is not None:
        ends = list(answer.expires_at_ms)
        claimed = tuple(
            None if end is None else claim_rules.lasting_until(claim, end)
            for claim, end in zip(request.claims, ends, strict=False)
        )
        held = tuple(
            None if end is None else msgspec.structs.replace(lease, expires_at_ms=end)
            for lease, end in zip(request.leases, ends[len(request.claims) :], strict=True)
        )
        for lease in held:
            if lease is not None:
                leases.notify_waiters(tx, lease.resource)
        return Heartbeat(claimed, held)
    if request.worker is not None:
        before = await tx.find_worker(request.worker.id)
        if before is None:
            await tx.drop_expired_workers(tx.now_ms - rules.FORGOTTEN_MS)
        await tx.save_worker(rules.row_of(request.worker, before, ttl_ms=request.ttl_ms, now_ms=tx.now_ms))
    return Heartbeat(
        tuple([await _renewed_claim(tx, claim, request.ttl_ms) for claim in request.claims]),
        tuple([await _renewed_lease(tx, lease, request.ttl_ms) for lease in request.leases]),
    )


def _params(request: HeartbeatRequest) -> HeartbeatParams:
    worker = request.worker
    return HeartbeatParams(
        worker_id=None if worker is None else worker.id,
        report=None if worker is None else rules.report_of(worker),
        claims=tuple(claim_rules.proof_of(claim.completion()) for claim in request.claims),
        leases=tuple(lease_rules.proof_of(lease) for lease in request.leases),
        ttl_ms=request.ttl_ms,
        forgotten_ms=rules.FORGOTTEN_MS,
    )


async def _renewed_claim(tx: Transaction, claim: WorkClaim, ttl_ms: int) -> WorkClaim | None:
    try:
        return await queue.renew(tx, claim, claim.completion(), ttl_ms)
    except (ClaimLost, SessionDeleted):
        return None


async def _renewed_lease(tx: Transaction, lease: Lease, ttl_ms: int) -> Lease | None:
    try:
        return await leases.renew(tx, lease, ttl_ms)
    except (LeaseLost, SessionDeleted):
        return None


def one_more(after: str, limit: int) -> WorkersQuery:
    """Return the rows that a page needs: one more, which tells if there is a next page."""
    return WorkersQuery(after, limit + 1)


async def list_page(tx: Transaction, *, after: str, limit: int) -> Page[WorkerInfo]:
    """Return one page of the workers that are alive, by id."""
    asked = one_more(after, limit)
    rows = await tx.list_workers(tx.now_ms, after=asked.after, limit=asked.limit)
    return page_of(rows, limit, rules.worker_of, listing="workers", place=lambda row: (row.worker_id,))


async def held_sessions(tx: Transaction, *, after: tuple[str, str], limit: int) -> Page[str]:
    """Return one page of the sessions of which dead workers hold work or the lease, by worker and id."""
    found: list[tuple[str, str]] = []
    async for worker_id in dead_holders(tx, after[0]):
        if len(found) > limit:
            break
        claims = await tx.claims_of_owner(worker_id, tx.now_ms, HELD)
        leased = await tx.leases_of_owner("session", worker_id, tx.now_ms, HELD)
        keys = {*(key for key, _ in claims), *(int(resource) for resource in leased if resource.isdecimal())}
        ids = await tx.session_ids(sorted(keys)) if keys else {}
        places = [(worker_id, session_id) for session_id in sorted(ids.values())]
        found += [place for place in places if place > after]
    return page_of(found[: limit + 1], limit, lambda one: one[1], listing=HELD_SESSIONS, place=lambda one: one)


async def dead_holders(tx: Transaction, first: str = "") -> AsyncIterator[str]:
    """Yield the workers that have stopped reporting and hold a claim or a lease, by id, from one of them on."""
    if first and await tx.expired_workers([first], tx.now_ms):
        yield first
    while owners := await tx.holders(tx.now_ms, after=first, limit=HOLDERS):
        for worker_id in await tx.expired_workers(owners, tx.now_ms):
            yield worker_id
        first = owners[-1]


async def leave(tx: Transaction, worker_id: str) -> bool:
    """Take a worker off the list."""
    return await tx.drop_worker(worker_id) > 0


async def renew(tx: Transaction, worker_id: str, ttl_ms: int, limit: int) -> int:
    """Renew claims and leases of runs that a worker holds, by its id: at most so many of each. Return their number."""
    kept = 0
    async for session, held in _held_batches(tx, worker_id, limit):
        for claim_id in dict.fromkeys(row.claim_id for row in held if row.claim_id is not None):
            rows = await tx.find_claimed(session.session_key, claim_id)
            if await tx.extend_claim(claim_rules.proof_of_rows(session.session_id, rows), ttl_ms) is None:
                await queue.extend(tx, rows, ttl_ms)
            kept += 1
    for process_id in await tx.leases_of_owner("process", worker_id, tx.now_ms, limit):
        kept += await leases.extend_of_process(tx, process_id, worker_id, ttl_ms)
    return kept


async def _held_batches(
    tx: Transaction, worker_id: str, limit: int
) -> AsyncIterator[tuple[SessionRow, list[BatchRow]]]:
    """Yield the sessions of which a worker has claimed batches, with those batches, each under its lock."""
    found = await tx.claims_of_owner(worker_id, tx.now_ms, limit)
    ids = await tx.session_ids([session_key for session_key, _ in found]) if found else {}
    for session_key, of_session in itertools.groupby(found, key=lambda one: one[0]):
        session = await tx.find_session(ids.get(session_key, ""), key_only=True)
        if session is None or session.session_key != session_key:
            continue  # pragma: no cover - deleted since the first look
        await tx.hold_queue(session.family, session_key)
        rows = await tx.find_batches(session_key, [batch_id for _, batch_id in of_session])
        held = [row for row in rows if rules.is_held(row, worker_id, tx.now_ms)]
        if held:  # pragma: no branch - another worker has them since the first look
            yield session, held


async def release(tx: Transaction, worker_id: str, limit: int) -> WorkerRelease:
    """End claims and leases of a worker, so that others can take its work over now: at most so many of each."""
    batches = 0
    async for session, held in _held_batches(tx, worker_id, limit):
        ended = [claim_rules.ended(row, now_ms=tx.now_ms) for row in held]
        expect_rows(await tx.save_batches(ended), "batches", session.session_key, expected=len(ended))
        await ready.update(tx, session.session_key, session.family, freed=True)
        await limits.free(tx, held)
        ready.notify(tx, session.session_id)
        batches += len(ended)
    sessions = runs = 0
    resources = await tx.leases_of_owner("session", worker_id, tx.now_ms, limit)
    keys = [int(resource) for resource in resources if resource.isdecimal()]  # verify names one that is damaged
    ids = await tx.session_ids(keys) if keys else {}
    for session_key in keys:
        leased = await tx.find_session(ids.get(session_key, ""), key_only=True)
        if leased is not None and leased.session_key == session_key:  # pragma: no branch - deleted since
            sessions += await leases.end_of_session(tx, leased, worker_id) is not None
    for process_id in await tx.leases_of_owner("process", worker_id, tx.now_ms, limit):
        runs += await leases.end_of_process(tx, process_id, worker_id) is not None
    return WorkerRelease(batches, runs, sessions)
