"""Claim work of any session: by priority, then sessions in turn."""

from __future__ import annotations

import msgspec

from holdfast import columns
from holdfast.errors import Corrupt
from holdfast.operations import queue, ready, settlement
from holdfast.operations.writes import damage_of
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import ClaimNextParams
from holdfast.records.common import Token
from holdfast.records.queue import WorkClaim, WorkCompletion, WorkReceipt
from holdfast.rules import claims, leases, verdicts
from holdfast.rules import ready as rules


class NextRequest(msgspec.Struct, frozen=True):
    """A request for work of any session, of these kinds or of all."""

    owner_id: str
    kinds: tuple[str, ...] | None
    ttl_ms: int
    most: int
    exclusive: bool
    token: Token
    was_busy: bool = False
    """An earlier call has found all such work locked by other transactions."""


def _params(request: NextRequest, *, claims: bool = True) -> ClaimNextParams:
    return ClaimNextParams(
        owner_id=request.owner_id,
        kinds=request.kinds,
        ttl_ms=request.ttl_ms,
        most=request.most,
        most_bytes=columns.PAGE_BYTES,
        exclusive=request.exclusive,
        token_hash=leases.hash_token(request.token) if claims else None,
        was_busy=request.was_busy,
    )


async def claim_next(tx: Transaction, request: NextRequest) -> tuple[WorkClaim | Corrupt | None, bool]:
    """Claim the next work of any session. True: call again, because other claims have locked the work.

    Damaged work is put off like work that was claimed, and its error returned: a raise would undo that, and the work
    would keep all others back.
    """
    try:
        answer = await tx.claim_any(_params(request))
        if answer is None:
            return await _claim_in_turn(tx, request), False
        verdicts.require_fresh(answer.verdict)
        claim = claims.claim_from(answer.session_id, request.token, answer.rows) if answer.rows else None
        return claim, answer.verdict == "busy"
    except Corrupt as damage:
        return damage, False


async def _claim_in_turn(tx: Transaction, request: NextRequest) -> WorkClaim | Corrupt | None:
    found = await _find(tx, request)
    if found is None:
        return None
    session_key, asked = found
    try:
        if not isinstance(asked, Corrupt):
            return await queue.claim(tx, asked)
        damage = asked
    except Corrupt as error:
        damage = error
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    await tables.move_ready(session_key, rules.NOTHING, leases.expiry(tx.now_ms, request.ttl_ms))
    return damage_of(damage, "ready", str(session_key))


async def _find(tx: Transaction, request: NextRequest) -> tuple[int, queue.ClaimRequest | Corrupt] | None:
    """Return the next session that has such work, with the request for it, or with the error of damage in it.

    Corrects ready rows whose offer is stale.
    """
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables claims by itself"
    await ready.update_due(tx, tables)
    passed: list[int] = []
    while True:
        levels = rules.levels(exclusive=request.exclusive)
        key = await tables.next_ready(levels, request.kinds, passed, tx.now_ms)
        if key is None:
            return None
        try:
            row = await tables.find_ready(key)
            session_id = (await tx.session_ids([key])).get(key, "")
            session = None if not session_id else await tx.find_session(session_id)
            if row is not None and session is not None and session.session_key == key and session.deleted_at_ms is None:
                asked = _in_session(request, session_id)
                found = await queue.claimable(tx, session, asked)
                if found.rows:
                    return key, asked
                if not found.is_refused:
                    await ready.update(tx, key, row.family, freed=True)
        except Corrupt as damage:
            return key, damage
        passed.append(key)


def _in_session(request: NextRequest, session_id: str) -> queue.ClaimRequest:
    return queue.ClaimRequest(
        session_id=session_id,
        owner_id=request.owner_id,
        boundary="idle",
        ttl_ms=request.ttl_ms,
        most=request.most,
        exclusive=request.exclusive,
        lease=None,
        token=request.token,
        kinds=request.kinds,
        of_any_session=True,
    )


async def complete_and_claim_next(
    tx: Transaction, completion: WorkCompletion, request: NextRequest
) -> tuple[WorkReceipt, WorkClaim | None, bool]:
    """Settle a claim and claim the next work in one transaction. True: ask for the next work again, on its own.

    A transaction that has settled work holds locks, so it does not wait for those of others.
    """
    answer = await tx.settle_claim(claims.proof_of(completion), _params(request))
    if answer is None:
        receipt, following = await settlement.complete(tx, completion), await _claim_in_turn(tx, request)
        # Damaged work is put off now. The claim must still be settled.
        return (receipt, None, True) if isinstance(following, Corrupt) else (receipt, following, False)
    verdict, claimed = answer
    receipt = await settlement.settled(tx, completion, verdict)
    assert claimed is not None, "the next work was asked for"
    try:
        claim = claims.claim_from(claimed.session_id, request.token, claimed.rows) if claimed.rows else None
    except Corrupt:
        return receipt, None, True
    return receipt, claim, claimed.verdict == "busy"


async def is_offered(tx: Transaction, request: NextRequest) -> tuple[bool, int | None]:
    """Return whether any session offers such work, and in how many milliseconds time alone may change that."""
    if await tx.offers_ready(rules.levels(exclusive=request.exclusive), request.kinds, tx.now_ms):
        return True, None
    due_at_ms = await tx.next_ready_due_ms(tx.now_ms)
    return due_at_ms is not None and due_at_ms <= tx.now_ms, None if due_at_ms is None else due_at_ms - tx.now_ms


async def is_claimable(tx: Transaction, request: NextRequest) -> tuple[bool, int | None]:
    """Like `is_offered`, but for work that could be claimed now. Corrects ready rows whose offer is stale."""
    answer = await tx.claim_any(_params(request, claims=False))
    if answer is not None:
        verdicts.require_fresh(answer.verdict)
        found = answer.verdict == "claimable"
    else:
        found = await _find(tx, request) is not None
    due_at_ms = None if found else await tx.next_ready_due_ms(tx.now_ms)
    return found, None if due_at_ms is None else due_at_ms - tx.now_ms
