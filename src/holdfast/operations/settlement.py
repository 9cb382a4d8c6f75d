"""Settle work without a revision: completed, cancelled, interrupted, or dead after its last attempt.

Dead work can be retried or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.errors import ClaimLost, UnknownBatch
from holdfast.operations import limits, ready, sessions
from holdfast.operations.pages import may_follow, page_of
from holdfast.operations.positions import stamped
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.ports.verdicts import SettlementVerdict
from holdfast.records.common import Page, Token
from holdfast.records.leases import OnSession
from holdfast.records.queue import SETTLED, WorkBatch, WorkCompletion, WorkReceipt
from holdfast.rows import BatchRow, SessionRow
from holdfast.rules import claims, verdicts
from holdfast.rules import leases as lease_rules
from holdfast.rules import queue as rules
from holdfast.rules import sessions as session_rules

FIRST_BATCHES = 50
"""Batches of one read in which the turn in progress is looked for: it took the first ones that were ready."""


async def _present(tx: Transaction, session_id: str) -> SessionRow | None:
    """Return the session, locked against deletion only, so that settling work does not wait for a turn."""
    return session_rules.admit(await tx.find_session(session_id, key_only=True), session_id, None)


async def _save(tx: Transaction, session: SessionRow, before: Sequence[BatchRow], rows: list[BatchRow]) -> None:
    expect_rows(await tx.save_batches(rows), "batches", rows[0].batch_id, expected=len(rows))
    await ready.update(tx, session.session_key, session.family, freed=True)
    await limits.free(tx, before)
    ready.notify(tx, session.session_id)


async def complete(tx: Transaction, completion: WorkCompletion) -> WorkReceipt:
    """Settle a claim without a revision. Idempotent: a repeated call returns the same receipt."""
    answer = await tx.settle_claim(claims.proof_of(completion))
    if answer is not None:
        return await settled(tx, completion, answer[0])
    session = await _present(tx, completion.session_id)
    rows = [] if session is None else await tx.find_batches(session.session_key, completion.batch_ids)
    before = claims.settled_before(completion, rows)
    if before is not None:
        return await stamped(tx, before)
    held = claims.require_claim(completion, rows, tx.now_ms)
    assert session is not None, "a session that is absent has no claim"
    done = [rules.settled(row, "completed", now_ms=tx.now_ms) for row in held]
    expect_rows(await tx.save_batches(done), "batches", completion.claim_id, expected=len(done))
    await ready.update_settled(tx, session.session_key, session.family)
    await limits.free(tx, held)
    ready.notify(tx, session.session_id)
    return await stamped(tx, claims.receipt_of(completion, tx.now_ms, None))


async def settled(tx: Transaction, completion: WorkCompletion, answer: SettlementVerdict) -> WorkReceipt:
    """Return the receipt of a claim that the database settled itself, and wake the waiters."""
    verdicts.refuse_claim(answer.verdict, completion.session_id, completion.claim_id)
    ready.notify(tx, completion.session_id)
    return await stamped(tx, claims.receipt_of(completion, answer.settled_at_ms, answer.revision))


async def fail(
    tx: Transaction, completion: WorkCompletion, error: str, *, retry_in_ms: int | None, max_attempts: int | None
) -> tuple[WorkBatch, ...]:
    """Give failed work back at its old place, to be tried again later. After the last attempt it is dead."""
    session = await _present(tx, completion.session_id)
    if session is None:
        raise ClaimLost(completion.session_id, completion.claim_id)
    held = claims.require_claim(completion, await tx.find_batches(session.session_key, completion.batch_ids), tx.now_ms)
    failed = [
        rules.failed(row, error, retry_in_ms=retry_in_ms, max_attempts=max_attempts, now_ms=tx.now_ms) for row in held
    ]
    await _save(tx, session, held, failed)
    return tuple(rules.batch_of(session.session_id, row, now_ms=tx.now_ms) for row in failed)


async def cancel(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Cancel a batch that no claim holds. Return None if it is claimed, settled or unknown."""
    return await _end(tx, session_id, batch_id, dead=False)


async def drop(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Take a dead batch off the list of dead letters, as cancelled. Return None if it is not dead."""
    return await _end(tx, session_id, batch_id, dead=True)


async def _end(tx: Transaction, session_id: str, batch_id: str, *, dead: bool) -> WorkBatch | None:
    session = await _present(tx, session_id)
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    ends = rules.is_dead(found[0]) if found and dead else bool(found) and rules.may_cancel(found[0], tx.now_ms)
    if session is None or not ends:
        return None
    row = rules.settled(found[0], "cancelled", now_ms=tx.now_ms)
    await _save(tx, session, found, [row])
    return rules.batch_of(session_id, row)


async def retry(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Put a dead batch back at its old place. Return None if it is not dead."""
    session = await _present(tx, session_id)
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    if session is None or not found or not rules.is_dead(found[0]):
        return None
    row = rules.retried(found[0])
    await _save(tx, session, found, [row])
    return rules.batch_of(session_id, row, now_ms=tx.now_ms)


async def release(tx: Transaction, session_id: str, batch_id: str) -> tuple[WorkBatch, ...]:
    """End the live claim on a batch, as if its time were over. Return all batches of the claim, none if it has none."""
    session = await _present(tx, session_id)
    if session is None:
        return ()
    await tx.hold_queue(session.family, session.session_key)
    found = await tx.find_batches(session.session_key, [batch_id])
    if not found or not found[0].is_claimed(tx.now_ms):
        return ()
    held = await tx.find_claimed(session.session_key, found[0].claim_id or "")
    ended = [claims.ended(row, now_ms=tx.now_ms) for row in held]
    await _save(tx, session, held, ended)
    return tuple(rules.batch_of(session_id, row, now_ms=tx.now_ms) for row in ended)


async def interrupt(
    tx: Transaction, address: sessions.Address, reason: str, token: Token
) -> tuple[SessionRow | None, tuple[WorkBatch, ...]]:
    """Settle the work of the turn in progress as interrupted. Its worker has a while to store what the turn keeps."""
    session = session_rules.admit(await tx.find_session(address[0], key_only=True), *address)
    if session is None:
        return None, ()
    await tx.hold_queue(session.family, session.session_key)
    lease = await tx.find_lease("session", str(session.session_key))
    held = await _in_progress(tx, session)
    if not held:
        return session, ()
    owners = {row.claim_owner for row in held if row.claim_exclusive and row.is_claimed(tx.now_ms)}
    if owners:
        [owner_id] = owners  # an exclusive claim is the only one
        row = lease_rules.reserved(
            lease,
            OnSession(session.session_id),
            stored_as=("session", str(session.session_key)),
            owner_id=owner_id or "",
            token=token,
            fence_floor=await tx.fence_floor() if lease is None else 0,
            now_ms=tx.now_ms,
        )
        if row is not None:
            await tx.save_lease(row)
    ended = [rules.interrupted(row, reason, now_ms=tx.now_ms) for row in held]
    await _save(tx, session, held, ended)
    return session, tuple(rules.batch_of(session.session_id, row) for row in ended)


async def _in_progress(tx: Transaction, session: SessionRow) -> list[BatchRow]:
    """Return all batches of the turn in progress. Only delayed ones come before them, but a claim may have many."""
    ids: list[str] = []
    after = 0
    while not ids:
        page = await tx.list_batches(session.session_key, pending_at_ms=None, after=after, limit=FIRST_BATCHES)
        ids = [row.batch_id for row in page if rules.is_in_progress(row)]
        if not ids and not may_follow(page, FIRST_BATCHES):
            return []
        after = page[-1].enqueue_seq
    found = {row.batch_id: row for row in await tx.find_batches(session.session_key, ids)}
    for claim_id in sorted({row.claim_id for row in found.values() if row.claim_id is not None}):
        found |= {row.batch_id: row for row in await tx.find_claimed(session.session_key, claim_id)}
    held = [row for row in found.values() if rules.is_in_progress(row)]
    return sorted(held, key=lambda row: row.enqueue_seq)


async def dead_page(
    tx: Transaction, session_id: str | None, kind: str | None, *, after: int, limit: int
) -> Page[WorkBatch]:
    """Return one page of the dead batches of a session, or of all."""
    session_key = None
    if session_id is not None:
        session = await sessions.find(tx, (session_id, None))
        if session is None:
            return Page(())
        session_key = session.session_key
    rows = await tx.list_dead(session_key, kind, after=after, limit=limit + 1)
    ids = await tx.session_ids([row.session_key for row in rows]) if rows else {}
    make = partial(_dead_batch, ids)
    return page_of(rows, limit, make, listing="dead letters", place=lambda row: (row.enqueue_seq,))


def _dead_batch(ids: dict[int, str], row: BatchRow) -> WorkBatch:
    return rules.batch_of(ids[row.session_key], row)


async def outcome(tx: Transaction, session_id: str, batch_id: str) -> WorkBatch | None:
    """Return the batch if it is settled, else None. Raises UnknownBatch if it does not exist."""
    session = await sessions.find(tx, (session_id, None))
    found = [] if session is None else await tx.find_batches(session.session_key, [batch_id])
    if not found:
        raise UnknownBatch(session_id, batch_id)
    batch = rules.batch_of(session_id, found[0], now_ms=tx.now_ms)
    return batch if batch.state in SETTLED else None
