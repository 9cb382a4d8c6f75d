"""Claim runs, let them sleep, and give them back."""

from __future__ import annotations

import msgspec

from holdfast.errors import Corrupt, UnknownProcess
from holdfast.operations import events
from holdfast.operations.processes import complete
from holdfast.operations.topics import notify_claim_ended, notify_run, process_topic
from holdfast.operations.writes import damage_of, expect_rows
from holdfast.ports import Transaction
from holdfast.ports.fast_path_params import ClaimRunParams
from holdfast.ports.verdicts import RunVerdict
from holdfast.records.common import Token
from holdfast.records.leases import Lease, OnProcess
from holdfast.records.processes import Process, RunClaim
from holdfast.rows import LeaseRow, ProcessRow
from holdfast.rules import events as event_rules
from holdfast.rules import leases, limits, processes, verdicts
from holdfast.rules import runs as rules


class NextRequest(msgspec.Struct, frozen=True):
    """A request for a run of these kinds, or of all."""

    owner_id: str
    kinds: rules.Kinds | None
    ttl_ms: int
    token: Token


# Claiming.


def _params(request: NextRequest, *, claims: bool = True) -> ClaimRunParams:
    token_hash = leases.hash_token(request.token) if claims else None
    return ClaimRunParams(request.owner_id, request.kinds, request.ttl_ms, token_hash)


async def claim_next(tx: Transaction, request: NextRequest) -> tuple[RunClaim | Corrupt | None, bool]:
    """Claim the run that has been due longest. True: call again, because other claims have locked the due runs.

    A damaged run is put off like one that was claimed, and its error returned: a raise would undo that, and the run
    would keep all others back.
    """
    try:
        answer = await tx.claim_run(_params(request))
        return (await _claim(tx, request), False) if answer is None else _answered(answer, request)
    except Corrupt as damage:
        return damage, False


def _answered(answer: RunVerdict, request: NextRequest) -> tuple[RunClaim | None, bool]:
    verdicts.require_fresh(answer.verdict)
    if answer.process is None or answer.lease is None:
        return None, answer.verdict == "busy"
    return _claim_of(answer.process, answer.lease, request.token), False


class Ended(msgspec.Struct, frozen=True):
    """A run that was ended, and the one that was claimed with it. `is_busy`: ask for the next one again, on its own."""

    process: ProcessRow
    claim: RunClaim | None
    is_busy: bool


async def complete_and_claim_next(
    tx: Transaction,
    intent: event_rules.EventIntent,
    judgement: event_rules.Judgement | None,
    lease: Lease,
    batch_id: str,
    request: NextRequest,
) -> Ended | events.Unjudged:
    """End a run and claim the next one in one transaction, which does not wait for those of others.

    A damaged run is put off, and the end still holds.
    """
    asked = msgspec.structs.replace(_params(request), waits=False)
    decided = await events.decide(tx, intent, judgement, batch_id, leases.proof_of(lease), asked)
    if isinstance(decided, events.Unjudged):
        return decided
    answer: RunVerdict | None = None
    if decided is None:
        ended = await complete(tx, intent, judgement, lease, batch_id)
        if isinstance(ended, events.Unjudged):
            return ended
        answer = await tx.claim_run(asked)
    else:
        ended, _, answer = decided
    try:
        if answer is not None:
            return Ended(ended, *_answered(answer, request))
        claim = await _claim(tx, request)
    except Corrupt as damage:
        claim = damage
    return Ended(ended, None, is_busy=True) if isinstance(claim, Corrupt) else Ended(ended, claim, is_busy=False)


def _claim_of(row: ProcessRow, lease: LeaseRow, token: Token) -> RunClaim:
    process = processes.process_of(row)
    must_abandon = rules.must_abandon(process.lost_owner_id, process.recovery)
    return RunClaim(process, leases.lease_of(lease, OnProcess(row.process_id), token), must_abandon)


async def _claim(tx: Transaction, request: NextRequest) -> RunClaim | Corrupt | None:
    found = await _find(tx, request)
    if found is None:
        return None
    process_id, row, before = found
    try:
        if not isinstance(row, Corrupt):
            return await _take(tx, request, row, before)
        damage = row
    except Corrupt as error:
        damage = error
    await tx.put_off_run(process_id, leases.expiry(tx.now_ms, request.ttl_ms))
    return damage_of(damage, "processes", process_id)


async def _take(tx: Transaction, request: NextRequest, row: ProcessRow, before: LeaseRow | None) -> RunClaim:
    lease = leases.claim(
        before,
        OnProcess(row.process_id),
        stored_as=("process", row.process_id),
        owner_id=request.owner_id,
        token=request.token,
        ttl_ms=request.ttl_ms,
        fence_floor=await tx.fence_floor() if before is None else 0,
        now_ms=tx.now_ms,
    )
    after = rules.claimed(row, before, lease, now_ms=tx.now_ms)
    claim = _claim_of(after, lease, request.token)
    await tx.save_lease(lease)
    expect_rows(await tx.save_process(after), "processes", row.process_id)
    return claim


async def _find(tx: Transaction, request: NextRequest) -> tuple[str, ProcessRow | Corrupt, LeaseRow | None] | None:
    """Return the run to claim, with its lease, or the error of a damaged one that would come next.

    Corrects runs whose lease was renewed since a claim last looked.
    """
    closed, _ = await _full_kinds(tx, request)
    while (found := await tx.first_claimable(request.kinds, closed)) is not None:
        try:
            # Locks the rows before the clock is read.
            row = await tx.find_process(found[0])
            lease = await tx.find_lease("process", found[0])
        except Corrupt as damage:
            return None if found[1] > tx.now_ms else (found[0], damage, None)
        if row is None or row.claimable_at_ms != found[1]:
            continue  # pragma: no cover - another transaction came first
        if not rules.is_claimable(row, tx.now_ms):
            return None
        if lease is None or not lease.is_live(tx.now_ms):
            return found[0], row, lease
        expect_rows(await tx.save_process(rules.leased_until(row, lease)), "processes", row.process_id)
    return None


async def _full_kinds(tx: Transaction, request: NextRequest) -> tuple[list[str], int | None]:
    kinds = None if request.kinds is None else list(dict.fromkeys(kind for kind, _ in request.kinds))
    return limits.full_kinds(await tx.run_limits(kinds, tx.now_ms))


class Outlook(msgspec.Struct, frozen=True):
    """The chance of a claim: if it would find a run now, and in how many milliseconds time alone may change that.

    `is_full`: a kind is at its limit, so that the end of a claim may change that, too.
    """

    is_claimable: bool
    due_in_ms: int | None
    is_full: bool


async def outlook(tx: Transaction, request: NextRequest) -> Outlook:
    """Return whether a run seems claimable."""
    closed, opens_at_ms = await _full_kinds(tx, request)
    found = await tx.first_claimable(request.kinds, closed)
    times_ms = [time_ms for time_ms in (None if found is None else found[1], opens_at_ms) if time_ms is not None]
    due_in_ms = min(times_ms) - tx.now_ms if times_ms else None
    return Outlook(found is not None and found[1] <= tx.now_ms, due_in_ms, bool(closed))


async def is_offered(tx: Transaction, request: NextRequest) -> tuple[bool, int | None]:
    """Return whether a run seems claimable, and in how many milliseconds time alone may change that."""
    seen = await outlook(tx, request)
    return seen.is_claimable, seen.due_in_ms


async def is_claimable(tx: Transaction, request: NextRequest) -> tuple[bool, int | None]:
    """Like `is_offered`, but for a run that could be claimed now. Corrects runs whose lease was renewed."""
    answer = await tx.claim_run(_params(request, claims=False))
    if answer is None:
        found = await _find(tx, request) is not None
    else:
        verdicts.require_fresh(answer.verdict)
        found = answer.verdict == "claimable"
    return (True, None) if found else (False, (await is_offered(tx, request))[1])


# Giving back.


async def suspend(tx: Transaction, lease: Lease, asked: rules.Sleep) -> Process:
    """Let a held run sleep, and release its lease."""
    row, held = await _held(tx, lease)
    after = rules.suspended(row, asked, held.fence, now_ms=tx.now_ms)
    if asked.wait is not None:
        after = processes.with_wait(after, asked.wait, now_ms=tx.now_ms)
    return await _give_back(tx, processes.with_waits(after, asked.waits), held)


async def retry_later(tx: Transaction, lease: Lease, error: str, retry_in_ms: int) -> Process:
    """Give a held run back after a failed attempt."""
    row, held = await _held(tx, lease)
    return await _give_back(tx, rules.failed(row, error, retry_in_ms=retry_in_ms, now_ms=tx.now_ms), held)


async def release(tx: Transaction, lease: Lease, process_id: str) -> bool:
    """Release the lease of a process, which for a run makes it claimable again. False if it is no longer held."""
    row = await tx.find_process(process_id)
    held = await tx.find_lease("process", process_id)
    if row is None or held is None or not leases.holds(held, lease, tx.now_ms):
        return False
    if row.run_kind is None:
        await tx.save_lease(leases.released(held))
        return True
    await _give_back(tx, rules.given_back(row, held.fence, now_ms=tx.now_ms), held)
    return True


async def _held(tx: Transaction, lease: Lease) -> tuple[ProcessRow, LeaseRow]:
    process_id = leases.proof_of(lease).process_id or ""
    row = await tx.find_process(process_id)
    if row is None:
        raise UnknownProcess(process_id)
    rules.require_run(row)
    return row, leases.require(await tx.find_lease("process", process_id), lease, tx.now_ms)


async def _give_back(tx: Transaction, row: ProcessRow, lease: LeaseRow) -> Process:
    await tx.save_lease(leases.released(lease))
    expect_rows(await tx.save_process(row), "processes", row.process_id)
    tx.notify(process_topic(row.process_id))
    notify_run(tx, row)
    notify_claim_ended(tx, row)
    return processes.process_of(row)
