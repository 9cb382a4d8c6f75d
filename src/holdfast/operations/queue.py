"""Enqueue, claim, renew, abandon and list the work of one session's queue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast import columns
from holdfast.errors import ClaimLost
from holdfast.operations import ready, sessions
from holdfast.operations.pages import page_of
from holdfast.operations.writes import hit
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import ClaimAsk
from holdfast.records.common import Page, Token
from holdfast.records.leases import Lease
from holdfast.records.queue import Boundary, WorkBatch, WorkClaim, WorkCompletion
from holdfast.rows import BatchRow, SessionRow
from holdfast.rules import claims, leases, verdicts
from holdfast.rules import queue as rules


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request for a session's next work. With `holding`, the work joins that claim and `token` is that claim's."""

    session_id: str
    owner_id: str
    boundary: Boundary
    ttl_ms: int
    most: int
    exclusive: bool
    lease: Lease | None
    token: Token
    exactly: tuple[str, ...] | None = None
    holding: WorkCompletion | None = None
    kinds: tuple[str, ...] | None = None
    of_any_session: bool = False
    """The claimer did not choose the session: any lease on it, also the claimer's own, keeps the claim out."""


async def enqueue(tx: Transaction, intent: rules.WorkIntent, batch_id: str) -> WorkBatch:
    """Enqueue work, or return the batch that its source key made before."""
    answer = await tx.enqueue_new(
        intent.session_id, rules.new_batch(intent, batch_id=batch_id, session_key=0, family=0, now_ms=0)
    )
    if answer is not None:
        verdicts.refuse_work(answer.verdict, intent.session_id)
        [row] = answer.rows
        if answer.verdict == "enqueued":
            ready.tell(tx, intent.session_id)
        return rules.batch_of(intent.session_id, rules.same_work(intent, row), now_ms=tx.now_ms)
    session = await sessions.ensure(tx, (intent.session_id, None))
    return rules.batch_of(intent.session_id, await put(tx, session, intent, batch_id), now_ms=tx.now_ms)


async def put(tx: Transaction, session: SessionRow, intent: rules.WorkIntent, batch_id: str) -> BatchRow:
    """Enqueue work in a session that was found. Return the stored batch, new or not."""
    if intent.source_key is not None:
        found = await tx.find_sources([(session.session_key, intent.source_key)])
        if found:
            return rules.same_work(intent, found[0])
    row = rules.new_batch(
        intent, batch_id=batch_id, session_key=session.session_key, family=session.family, now_ms=tx.now_ms
    )
    (stored,) = await tx.insert_batches([row])
    await ready.keep(tx, session.session_key, session.family, freed=False)
    ready.tell(tx, intent.session_id)
    return stored


async def claim(tx: Transaction, request: ClaimRequest) -> WorkClaim | None:
    """Claim the next ready batches, or exactly those asked for if they are next. Return None if there are none."""
    answer = await tx.claim_ready(_ask(request))
    if answer is not None:
        claim_id = "" if request.holding is None else request.holding.claim_id
        if answer.verdict == "absent":
            _require_nothing_held(request)
            return None
        verdicts.refuse_work(answer.verdict, request.session_id, claim_id)
        return claims.claim_from(request.session_id, request.token, answer.rows) if answer.rows else None
    session = await sessions.find(tx, (request.session_id, None))
    if session is None:
        _require_nothing_held(request)
        return None
    held = () if request.holding is None else await _require_held(tx, session, request.holding)
    rows = await claimable(tx, session, request, held)
    exclusive = _is_exclusive(request, held)
    becomes_exclusive = exclusive and any(not row.claim_exclusive for row in held)
    if rows is None or not (rows or becomes_exclusive):
        return None
    if held:
        stamp = claims.widened(held, rows, exclusive=exclusive, ttl_ms=request.ttl_ms, now_ms=tx.now_ms)
    else:
        stamp = claims.new_claim(
            rows,
            owner_id=request.owner_id,
            token=request.token,
            exclusive=exclusive,
            ttl_ms=request.ttl_ms,
            now_ms=tx.now_ms,
        )
    bearers = [claims.stamped(row, stamp, attempts=0) for row in held]
    bearers += [claims.stamped(row, stamp, attempts=1) for row in rows]
    bearers.sort(key=lambda row: row.enqueue_seq)
    hit(await tx.save_batches(bearers), "work", stamp.claim_id, expected=len(bearers))
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    await ready.serve(tx, tables, session.session_key, session.family, bearers[-1].enqueue_seq)
    return claims.claim_from(request.session_id, request.token, bearers)


def _require_nothing_held(request: ClaimRequest) -> None:
    """Raises ClaimLost if the request names a held claim: its session was never made."""
    if request.holding is not None:
        raise ClaimLost(request.session_id, request.holding.claim_id)


def _is_exclusive(request: ClaimRequest, held: Sequence[BatchRow]) -> bool:
    """Return whether the claim is exclusive. A widened claim stays exclusive, or becomes so on request."""
    return request.exclusive or request.lease is not None or any(row.claim_exclusive for row in held)


async def _require_held(tx: Transaction, session: SessionRow, holding: WorkCompletion) -> Sequence[BatchRow]:
    rows = await tx.find_batches(session.session_key, holding.batch_ids)
    return claims.require_claim(holding, rows, tx.now_ms)


def _ask(request: ClaimRequest) -> ClaimAsk:
    lease, holding = request.lease, request.holding
    return ClaimAsk(
        session_id=request.session_id,
        owner_id=request.owner_id,
        boundary=request.boundary,
        ttl_ms=request.ttl_ms,
        most=request.most,
        most_bytes=columns.PAGE_BYTES,
        exclusive=request.exclusive or lease is not None,
        token_hash=leases.hash_token(request.token),
        exactly=request.exactly,
        lease=None if lease is None else leases.proof_of(lease),
        holding=None if holding is None else claims.proof_of(holding),
    )


async def claimable(
    tx: Transaction, session: SessionRow, request: ClaimRequest, held: Sequence[BatchRow] = ()
) -> Sequence[BatchRow] | None:
    """Return the batches that the request would claim now; None if a lease or another claim keeps it out."""
    exclusive = _is_exclusive(request, held)
    lease = await tx.find_lease("session", str(session.session_key))
    if request.lease is not None:
        leases.require(lease, request.lease, tx.now_ms)
    held_claim_id = "" if request.holding is None else request.holding.claim_id
    others = await tx.other_claims(session.session_key, held_claim_id, tx.now_ms)
    owner_id = None if request.of_any_session else request.owner_id
    if not claims.may_claim(lease, others, owner_id=owner_id, exclusive=exclusive, now_ms=tx.now_ms):
        return None
    candidates = await tx.ready_batches(session.session_key, tx.now_ms, request.most, with_back_off=exclusive)
    taken = candidates[
        : claims.claim_prefix(
            candidates,
            request.boundary,
            request.most,
            room=columns.PAGE_BYTES - sum(len(row.payloads) for row in held),
            kinds=request.kinds,
            now_ms=tx.now_ms,
        )
    ]
    if held and not claims.may_join(held, taken):
        return ()
    if request.exactly is not None and tuple(row.batch_id for row in taken) != request.exactly:
        return ()
    return taken


async def is_claimable(
    tx: Transaction, session_id: str, boundary: Boundary, *, owner_id: str | None, exclusive: bool
) -> tuple[bool, int | None]:
    """Return whether an owner could claim anything now, and in how many milliseconds time alone may change that.

    Without an owner, the claimer does not hold the session's lease.
    """
    session = await sessions.find(tx, (session_id, None))
    if session is None:
        return False, None
    lease = await tx.find_lease("session", str(session.session_key))
    others = await tx.other_claims(session.session_key, "", tx.now_ms)
    if claims.may_claim(lease, others, owner_id=owner_id, exclusive=exclusive, now_ms=tx.now_ms):
        candidates = await tx.ready_batches(session.session_key, tx.now_ms, 1, with_back_off=exclusive)
        if claims.claim_prefix(candidates, boundary, 1, room=1, kinds=None, now_ms=tx.now_ms):
            return True, None
    return False, claims.due_in_ms(await tx.next_due_ms(session.session_key, tx.now_ms), lease, tx.now_ms)


async def renew(tx: Transaction, claim: WorkClaim, completion: WorkCompletion, ttl_ms: int) -> WorkClaim:
    """Return the claim with a later end. Batches that joined it later get that end, too."""
    answer = await tx.extend_claim(claims.proof_of(completion), ttl_ms)
    if answer is not None:
        verdicts.refuse_work(answer.verdict, completion.session_id, completion.claim_id)
        return claims.lasting_until(claim, answer.expires_at_ms)
    session = await sessions.find(tx, (completion.session_id, None))
    if session is None:
        raise ClaimLost(completion.session_id, completion.claim_id)
    rows = await tx.find_claimed(session.session_key, completion.claim_id)
    held = claims.require_bearers(completion, rows, tx.now_ms)
    stamp = claims.renewed(held, ttl_ms=ttl_ms, now_ms=tx.now_ms)
    renewed = [claims.stamped(row, stamp, attempts=0) for row in held]
    hit(await tx.save_batches(renewed), "work", stamp.claim_id, expected=len(held))
    return claims.lasting_until(claim, stamp.expires_at_ms)


async def abandon(tx: Transaction, completion: WorkCompletion) -> int:
    """Give claimed work back. Skip batches that the claim no longer holds."""
    session = await tx.find_session(completion.session_id)
    if session is None:
        return 0
    rows = await tx.find_claimed(session.session_key, completion.claim_id)
    held = [rules.given_back(row) for row in claims.held_by(completion, rows)]
    if not held:
        return 0
    hit(await tx.save_batches(held), "work", completion.claim_id, expected=len(held))
    await ready.keep(tx, session.session_key, session.family, freed=True)
    ready.tell(tx, completion.session_id)
    return len(held)


async def list_page(tx: Transaction, session_id: str, *, pending: bool, after: int, limit: int) -> Page[WorkBatch]:
    """Return one page of a session's unsettled work."""
    session = await sessions.find(tx, (session_id, None))
    if session is None:
        return Page(())
    rows = await tx.list_batches(
        session.session_key, pending_at_ms=tx.now_ms if pending else None, after=after, limit=limit + 1
    )
    make = partial(rules.batch_of, session_id, now_ms=tx.now_ms)
    return page_of(rows, limit, make, listing="work", place=lambda row: (row.enqueue_seq,))


async def find(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Return one batch, settled or not."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    return rules.batch_of(session_id, found[0], now_ms=tx.now_ms) if found else None


async def find_source(tx: Transaction, session_id: str, source_key: str) -> WorkBatch | None:
    """Return the batch of a source key, settled or not."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_sources([(session.session_key, source_key)])
    return rules.batch_of(session_id, found[0], now_ms=tx.now_ms) if found else None


async def sessions_page(tx: Transaction, *, after: int, limit: int) -> Page[str]:
    """Return one page of the sessions that have work that is ready and unclaimed."""
    found = await tx.sessions_with_work(tx.now_ms, after=after, limit=limit + 1)
    return page_of(found, limit, lambda one: one[1], listing="sessions with work", place=lambda one: (one[0],))
