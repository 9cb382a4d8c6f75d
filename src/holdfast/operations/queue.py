"""Enqueue, claim, renew, give back and list the work of one session's queue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from holdfast import columns
from holdfast.errors import ClaimLost
from holdfast.limit_rows import LimitState
from holdfast.operations import limits, ready, sessions
from holdfast.operations.pages import page_of
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import ClaimParams
from holdfast.records.commits import SessionView
from holdfast.records.common import Page, Token
from holdfast.records.leases import Lease
from holdfast.records.queue import Boundary, WorkBatch, WorkClaim, WorkCompletion
from holdfast.rows import BatchRow, RevisionRow, SessionRow
from holdfast.rules import claims, leases, verdicts
from holdfast.rules import limits as limit_rules
from holdfast.rules import queue as rules

TurnStart: TypeAlias = tuple[SessionView | None, RevisionRow | None]
"""The newest view; if the turn was committed before, its revision and the view at it."""
FIRST_BATCHES = 50
"""Batches in which the exclusive claim of a session is looked for: it takes the first one that is ready."""


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


async def enqueue(
    tx: Transaction, intent: rules.BatchIntent, batch_id: str, incarnation: int | None = None
) -> WorkBatch:
    """Enqueue work, or return the batch that its source key made before. With an incarnation, in no later one."""
    answer = None
    if incarnation is None:
        answer = await tx.enqueue_new(
            intent.session_id, rules.new_batch(intent, batch_id=batch_id, session_key=0, family=0, now_ms=0)
        )
    if answer is not None:
        verdicts.refuse_claim(answer.verdict, intent.session_id)
        [row] = answer.rows
        if answer.verdict == "enqueued":
            ready.notify(tx, intent.session_id)
        return rules.batch_of(intent.session_id, rules.same_batch(intent, row), now_ms=tx.now_ms)
    session = await sessions.ensure(tx, (intent.session_id, incarnation))
    return rules.batch_of(intent.session_id, await put(tx, session, intent, batch_id), now_ms=tx.now_ms)


async def put(tx: Transaction, session: SessionRow, intent: rules.BatchIntent, batch_id: str) -> BatchRow:
    """Enqueue work in a session that was found. Return the stored batch, new or not."""
    if intent.source_key is not None:
        found = await tx.find_sources([(session.session_key, intent.source_key)])
        if found:
            return rules.same_batch(intent, found[0])
    row = rules.new_batch(
        intent, batch_id=batch_id, session_key=session.session_key, family=session.family, now_ms=tx.now_ms
    )
    (stored,) = await tx.insert_batches([row])
    await ready.update(tx, session.session_key, session.family, freed=False)
    ready.notify(tx, intent.session_id)
    return stored


async def claim(tx: Transaction, request: ClaimRequest) -> WorkClaim | None:
    """Claim the next ready batches, or exactly those asked for if they are next. Return None if no batch is ready."""
    answer = await tx.claim_ready(_params(request))
    if answer is not None:
        claim_id = "" if request.holding is None else request.holding.claim_id
        if answer.verdict == "absent":
            _require_nothing_held(request)
            return None
        verdicts.refuse_claim(answer.verdict, request.session_id, claim_id)
        return claims.claim_from(request.session_id, request.token, answer.rows) if answer.rows else None
    session = await sessions.find(tx, (request.session_id, None))
    if session is None:
        _require_nothing_held(request)
        return None
    held = () if request.holding is None else await _require_held(tx, session, request.holding)
    found = await claimable(tx, session, request, held)
    rows = found.rows
    exclusive = _is_exclusive(request, held)
    becomes_exclusive = exclusive and any(not row.claim_exclusive for row in held)
    if found.is_kept_out or not (rows or becomes_exclusive):
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
            takes_slot=found.limited_by is not None and limit_rules.counts(found.limited_by.limit),
        )
    members = [claims.stamped(row, stamp, attempts=0) for row in held]
    members += [claims.stamped(row, stamp, attempts=1) for row in rows]
    members.sort(key=lambda row: row.enqueue_seq)
    # Decoded before anything is written: a damaged payload leaves nothing half done.
    made = claims.claim_from(request.session_id, request.token, members)
    expect_rows(await tx.save_batches(members), "batches", stamp.claim_id, expected=len(members))
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    if held:
        await limits.extend(tx, members[0])
    elif stamp.slot and found.limited_by is not None:
        await limits.take(tx, tables, found.limited_by, members[0])
    await ready.move_to_end(tx, tables, session.session_key, session.family, members[-1].enqueue_seq)
    return made


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


def _params(request: ClaimRequest) -> ClaimParams:
    lease, holding = request.lease, request.holding
    return ClaimParams(
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


class Claimable(msgspec.Struct, frozen=True):
    """The batches that a request would claim now.

    Return no batches if a lease, a pause, another claim or a limit refuses the claim. `limited_by` holds the limit of
    their kind.
    """

    rows: Sequence[BatchRow] = ()
    is_kept_out: bool = False
    is_refused: bool = False
    limited_by: LimitState | None = None


async def claimable(
    tx: Transaction, session: SessionRow, request: ClaimRequest, held: Sequence[BatchRow] = ()
) -> Claimable:
    """Return the batches that the request would claim now. A session that a limit refuses is noted as waiting."""
    exclusive = _is_exclusive(request, held)
    lease = await tx.find_lease("session", str(session.session_key))
    if request.lease is not None:
        leases.require(lease, request.lease, tx.now_ms)
    held_claim_id = "" if request.holding is None else request.holding.claim_id
    others = await tx.obstacles(session.session_key, held_claim_id, tx.now_ms)
    owner_id = None if request.of_any_session else request.owner_id
    claimed = others.claimed, others.exclusively
    if not claims.may_claim(lease, claimed, owner_id=owner_id, exclusive=exclusive, now_ms=tx.now_ms):
        return Claimable(is_kept_out=True)
    if others.paused:
        return Claimable()
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
        return Claimable()
    if request.exactly is not None and tuple(row.batch_id for row in taken) != request.exactly:
        return Claimable()
    if held or not taken or not others.any_limits:
        return Claimable(taken)
    answer, state = await limits.admit(tx, taken[0])
    if state is None or answer == "open":
        return Claimable(taken, limited_by=state)
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    await limits.refuse(tx, tables, session.session_key, taken[0], answer, state)
    return Claimable(is_refused=True)


class Outlook(msgspec.Struct, frozen=True):
    """The chance of a claim: if it would find something now, and in how many milliseconds time alone may change that.

    `is_refused`: a limit refuses the claim, so that work of other sessions may change that, too.
    """

    is_claimable: bool = False
    due_in_ms: int | None = None
    is_refused: bool = False


async def is_claimable(
    tx: Transaction, session_id: str, boundary: Boundary, *, owner_id: str | None, exclusive: bool
) -> Outlook:
    """Return whether an owner could claim anything now.

    Without an owner, the claimer does not hold the session's lease.
    """
    session = await sessions.find(tx, (session_id, None))
    if session is None:
        return Outlook()
    lease = await tx.find_lease("session", str(session.session_key))
    others = await tx.obstacles(session.session_key, "", tx.now_ms)
    if others.paused:
        return Outlook()
    claimed = others.claimed, others.exclusively
    opens_at_ms: int | None = None
    is_refused = False
    if claims.may_claim(lease, claimed, owner_id=owner_id, exclusive=exclusive, now_ms=tx.now_ms):
        candidates = await tx.ready_batches(session.session_key, tx.now_ms, 1, with_back_off=exclusive)
        if claims.claim_prefix(candidates, boundary, 1, room=1, kinds=None, now_ms=tx.now_ms):
            answer, state = await limits.admit(tx, candidates[0]) if others.any_limits else ("free", None)
            if state is None or answer == "open":
                return Outlook(is_claimable=True)
            is_refused = True
            opens_at_ms = limit_rules.admits_at_ms(state, answer)
    due_ms = await tx.next_due_ms(session.session_key, tx.now_ms)
    first_ms = min((time for time in (due_ms, opens_at_ms) if time is not None), default=None)
    return Outlook(due_in_ms=claims.due_in_ms(first_ms, lease, tx.now_ms), is_refused=is_refused)


async def claimed_exclusively(
    tx: Transaction, address: sessions.Address, turn_id: str | None
) -> claims.ExclusiveClaim | None:
    """Return owner, end and remaining milliseconds of the claim that keeps other claims out of a session, if any.

    None, too, if the turn was committed before: it has nothing to wait for.
    """
    session = await sessions.find(tx, address)
    if session is None or (turn_id is not None and await tx.find_turn(session, turn_id) is not None):
        return None
    return await _exclusive_claim(tx, session)


async def begin_turn(
    tx: Transaction, address: sessions.Address, turn_id: str, last: int | None, most_bytes: int
) -> tuple[SessionRow | None, tuple[TurnStart, claims.ExclusiveClaim | None]]:
    """Return what `sessions.load_turn` does, and the claim that keeps the turn out of its session, if any."""
    session, loaded = await sessions.load_turn(tx, address, turn_id, last, most_bytes)
    if session is None or loaded[1] is not None:
        return session, (loaded, None)
    return session, (loaded, await _exclusive_claim(tx, session))


async def _exclusive_claim(tx: Transaction, session: SessionRow) -> claims.ExclusiveClaim | None:
    # Without a clock at first: that answer may be prefetched.
    if not await tx.may_be_claimed(session.session_key):
        return None
    if not (await tx.obstacles(session.session_key, "", tx.now_ms)).exclusively:
        return None
    rows = await tx.list_batches(session.session_key, pending_at_ms=None, after=0, limit=FIRST_BATCHES)
    return claims.exclusive_claim(rows, tx.now_ms)


async def renew(tx: Transaction, claim: WorkClaim, completion: WorkCompletion, ttl_ms: int) -> WorkClaim:
    """Return the claim with a later end. Batches that joined it later get that end, too."""
    answer = await tx.extend_claim(claims.proof_of(completion), ttl_ms)
    if answer is not None:
        verdicts.refuse_claim(answer.verdict, completion.session_id, completion.claim_id)
        return claims.lasting_until(claim, answer.expires_at_ms)
    session = await sessions.find(tx, (completion.session_id, None))
    if session is None:
        raise ClaimLost(completion.session_id, completion.claim_id)
    rows = await tx.find_claimed(session.session_key, completion.claim_id)
    held = claims.require_whole_claim(completion, rows, tx.now_ms)
    return claims.lasting_until(claim, await extend(tx, held, ttl_ms))


async def extend(tx: Transaction, held: Sequence[BatchRow], ttl_ms: int) -> int:
    """Give the batches of a live claim a later end. Return that end."""
    stamp = claims.renewed(held, ttl_ms=ttl_ms, now_ms=tx.now_ms)
    renewed = [claims.stamped(row, stamp, attempts=0) for row in held]
    await limits.extend(tx, renewed[0])
    expect_rows(await tx.save_batches(renewed), "batches", stamp.claim_id, expected=len(held))
    return stamp.expires_at_ms


async def give_back(tx: Transaction, completion: WorkCompletion) -> int:
    """Give claimed work back. Skip batches that the claim no longer holds."""
    session = await tx.find_session(completion.session_id)
    if session is None:
        return 0
    rows = await tx.find_claimed(session.session_key, completion.claim_id)
    before = claims.held_by(completion, rows)
    held = [rules.given_back(row) for row in before]
    if not held:
        return 0
    expect_rows(await tx.save_batches(held), "batches", completion.claim_id, expected=len(held))
    await ready.update(tx, session.session_key, session.family, freed=True)
    await limits.free(tx, before)
    ready.notify(tx, completion.session_id)
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
    return page_of(rows, limit, make, listing="queue", place=lambda row: (row.enqueue_seq,))


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
    found = await tx.sessions_with_ready(tx.now_ms, after=after, limit=limit + 1)
    return page_of(found, limit, lambda one: one[1], listing="sessions with work", place=lambda one: (one[0],))
