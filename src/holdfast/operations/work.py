"""Work enters a session's queue, is claimed, renewed, given back or cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from holdfast.errors import ClaimLost
from holdfast.operations import sessions
from holdfast.operations.pages import page_of
from holdfast.operations.writes import hit
from holdfast.ports import Transaction
from holdfast.records.common import Page, Token
from holdfast.records.leases import Lease
from holdfast.records.work import Boundary, WorkBatch, WorkClaim, WorkCompletion
from holdfast.rows import BatchRow, ClaimAsk, ClaimProof, LeaseProof, SessionRow
from holdfast.rules import leases, verdicts
from holdfast.rules import work as rules


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request for a session's next work. With `holding`, the work is added to that claim, whose token it has."""

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


def queue_topic(session_id: str) -> str:
    """What a waiter on a session's queue watches."""
    return f"queue:{session_id}"


async def enqueue(tx: Transaction, intent: rules.WorkIntent, batch_id: str) -> WorkBatch:
    """Put work into the queue, or give what its source key made before."""
    answer = await tx.enqueue_new(
        intent.session_id, rules.new_batch(intent, batch_id=batch_id, session_key=0, family=0, now_ms=0)
    )
    if answer is not None:
        verdicts.refuse_work(answer.verdict, intent.session_id)
        [row] = answer.rows
        if answer.verdict == "enqueued":
            tx.notify(queue_topic(intent.session_id))
        return rules.batch_of(intent.session_id, rules.same_work(intent, row), now_ms=tx.now_ms)
    session = await sessions.ensure(tx, (intent.session_id, None))
    return rules.batch_of(intent.session_id, await put(tx, session, intent, batch_id), now_ms=tx.now_ms)


async def put(tx: Transaction, session: SessionRow, intent: rules.WorkIntent, batch_id: str) -> BatchRow:
    """The stored batch of this work, new or not."""
    if intent.source_key is not None:
        found = await tx.find_sources([(session.session_key, intent.source_key)])
        if found:
            return rules.same_work(intent, found[0])
    row = rules.new_batch(
        intent, batch_id=batch_id, session_key=session.session_key, family=session.family, now_ms=tx.now_ms
    )
    (stored,) = await tx.insert_batches([row])
    tx.notify(queue_topic(intent.session_id))
    return stored


async def claim(tx: Transaction, request: ClaimRequest) -> WorkClaim | None:
    """Claim the next ready batches, or exactly those asked for if they are next; None if there is nothing to claim."""
    answer = await tx.claim_ready(_ask(request))
    if answer is not None:
        claim_id = "" if request.holding is None else request.holding.claim_id
        verdicts.refuse_work(answer.verdict, request.session_id, claim_id)
        return rules.claim_from(request.session_id, request.token, answer.rows) if answer.rows else None
    session = await sessions.find(tx, (request.session_id, None))
    if session is None:
        return None
    held = () if request.holding is None else await _require_held(tx, session, request.holding)
    rows = await _claimable(tx, session, request, exclusive=_is_exclusive(request, held))
    if not rows:
        return None
    stamp = rules.new_claim(
        rows,
        owner_id=request.owner_id,
        token=request.token,
        exclusive=_is_exclusive(request, held),
        ttl_ms=request.ttl_ms,
        now_ms=tx.now_ms,
    )
    if held:
        stamp = rules.widened(stamp, held)
    bearers = sorted((*held, *rows), key=lambda row: row.enqueue_seq)
    written = await tx.stamp_claim([row.enqueue_seq for row in bearers], stamp)
    hit(written, "work", stamp.claim_id, expected=len(bearers))
    return rules.claim_of(request.session_id, stamp, request.token, bearers)


def _is_exclusive(request: ClaimRequest, held: Sequence[BatchRow]) -> bool:
    """A claim that is widened stays exclusive, or becomes it with the work that joins it."""
    return request.exclusive or request.lease is not None or any(row.claim_exclusive for row in held)


async def _require_held(tx: Transaction, session: SessionRow, holding: WorkCompletion) -> Sequence[BatchRow]:
    rows = await tx.claimed_batches(session.session_key, holding.claim_id)
    rules.require_claim(holding, rows, tx.now_ms)
    return rows


def _ask(request: ClaimRequest) -> ClaimAsk:
    lease, holding = request.lease, request.holding
    return ClaimAsk(
        session_id=request.session_id,
        owner_id=request.owner_id,
        boundary=request.boundary,
        ttl_ms=request.ttl_ms,
        most=request.most,
        exclusive=request.exclusive or lease is not None,
        token_hash=leases.hash_token(request.token),
        exactly=request.exactly,
        lease=None
        if lease is None
        else LeaseProof(request.session_id, None, leases.hash_token(lease.token), lease.fence),
        holding=None if holding is None else _proof(holding),
    )


def _proof(completion: WorkCompletion) -> ClaimProof:
    return ClaimProof(
        completion.session_id,
        completion.claim_id,
        leases.hash_token(completion.token),
        completion.fence,
        completion.batch_ids,
    )


async def _claimable(
    tx: Transaction, session: SessionRow, request: ClaimRequest, *, exclusive: bool
) -> Sequence[BatchRow]:
    lease = await tx.find_lease("session", str(session.session_key))
    if request.lease is not None:
        leases.require(lease, request.lease, tx.now_ms)
    held_claim_id = "" if request.holding is None else request.holding.claim_id
    others = await tx.other_claims(session.session_key, held_claim_id, tx.now_ms)
    if not rules.may_claim(lease, others, owner_id=request.owner_id, exclusive=exclusive, now_ms=tx.now_ms):
        return ()
    candidates = await tx.ready_batches(session.session_key, tx.now_ms, request.most)
    taken = candidates[: rules.claim_prefix(candidates, request.boundary, request.most)]
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
    may_claim = rules.may_claim(lease, others, owner_id=owner_id or "", exclusive=exclusive, now_ms=tx.now_ms)
    if may_claim and rules.claim_prefix(await tx.ready_batches(session.session_key, tx.now_ms, 1), boundary, 1):
        return True, None
    return False, rules.due_in_ms(await tx.next_due_ms(session.session_key, tx.now_ms), lease, tx.now_ms)


async def renew(tx: Transaction, claim: WorkClaim, completion: WorkCompletion, ttl_ms: int) -> WorkClaim:
    """The claim with a later end."""
    answer = await tx.extend_claim(_proof(completion), ttl_ms)
    if answer is not None:
        verdicts.refuse_work(answer.verdict, completion.session_id, completion.claim_id)
        return msgspec.structs.replace(claim, expires_at_ms=answer.expires_at_ms)
    rows = await _held(tx, completion)
    seqs = rules.require_claim(completion, rows, tx.now_ms)
    stamp = rules.renewed(rows, ttl_ms=ttl_ms, now_ms=tx.now_ms)
    hit(await tx.stamp_claim(seqs, stamp), "work", stamp.claim_id, expected=len(seqs))
    return msgspec.structs.replace(claim, expires_at_ms=stamp.expires_at_ms)


async def _held(tx: Transaction, completion: WorkCompletion) -> list[BatchRow]:
    session = await sessions.find(tx, (completion.session_id, None))
    if session is None:
        raise ClaimLost(completion.session_id, completion.claim_id)
    return await tx.claimed_batches(session.session_key, completion.claim_id)


async def abandon(tx: Transaction, completion: WorkCompletion) -> int:
    """Give claimed work back; what is not held any more is passed over."""
    session = await tx.find_session(completion.session_id)
    if session is None:
        return 0
    rows = await tx.claimed_batches(session.session_key, completion.claim_id)
    held = rules.held_by(completion, rows)
    if held:
        tx.notify(queue_topic(completion.session_id))
    return await tx.clear_claim(held)


async def cancel(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Take a batch that nobody holds out of the queue; None if there is none."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    if not found or not rules.may_cancel(found[0], tx.now_ms):
        return None
    row = found[0]
    hit(await tx.settle_batches([row.enqueue_seq], "cancelled", tx.now_ms), "work", row.batch_id)
    tx.notify(queue_topic(session_id))
    settled = msgspec.structs.replace(row, settled_at_ms=tx.now_ms)
    return rules.batch_of(session_id, settled, state="cancelled")


async def list_page(tx: Transaction, session_id: str, *, pending: bool, after: int, limit: int) -> Page[WorkBatch]:
    """One page of a session's unsettled work."""
    session = await sessions.find(tx, (session_id, None))
    if session is None:
        return Page(())
    rows = await tx.list_batches(
        session.session_key, pending_at_ms=tx.now_ms if pending else None, after=after, limit=limit + 1
    )
    make = partial(rules.batch_of, session_id, now_ms=tx.now_ms)
    return page_of(rows, limit, make, listing="work", place=lambda row: (row.enqueue_seq,))


async def find(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """One batch, settled or not."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    return rules.batch_of(session_id, found[0], now_ms=tx.now_ms) if found else None


async def find_source(tx: Transaction, session_id: str, source_key: str) -> WorkBatch | None:
    """Return the batch of a source key, settled or not."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_sources([(session.session_key, source_key)])
    return rules.batch_of(session_id, found[0], now_ms=tx.now_ms) if found else None


async def sessions_page(tx: Transaction, *, after: int, limit: int) -> Page[str]:
    """One page of the sessions that have work that is ready and in nobody's hands."""
    found = await tx.sessions_with_work(tx.now_ms, after=after, limit=limit + 1)
    return page_of(found, limit, lambda one: one[1], listing="sessions with work", place=lambda one: (one[0],))
