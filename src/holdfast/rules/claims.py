"""Claims on work: the batches that a claim takes, its proof, how it widens and ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from holdfast.errors import ClaimLost, InvalidRequest
from holdfast.ports.fast_path_params import ClaimProof
from holdfast.records.common import Token
from holdfast.records.limits import Limits
from holdfast.records.queue import (
    Boundary,
    WorkBatch,
    WorkClaim,
    WorkCompletion,
    WorkReceipt,
)
from holdfast.rows import BatchRow, LeaseRow
from holdfast.rules import checks, leases, queue


class ClaimStamp(msgspec.Struct, frozen=True):
    """The columns that a claim sets on each of its batches."""

    claim_id: str
    owner_id: str
    token_hash: str
    fence: int
    claimed_at_ms: int
    expires_at_ms: int
    exclusive: int
    size: int
    slot: int = 0


def may_claim(
    lease: LeaseRow | None, others: tuple[bool, bool], *, owner_id: str | None, exclusive: bool, now_ms: int
) -> bool:
    """Return True if an owner may claim in a session at all.

    It may not while another owner holds the session's lease, or while any other claim there is exclusive; an exclusive
    claim excludes every other one. Claims of the same owner count, too: an owner id does not prove identity. Without an
    owner, any lease counts. `others` says whether another claim lives, and whether an exclusive one does.
    """
    claimed, exclusively = others
    if lease is not None and lease.is_live(now_ms) and lease.owner_id != owner_id:
        return False
    return not exclusively and not (exclusive and claimed)


ExclusiveClaim: TypeAlias = tuple[str, int, int]
"""Owner, end and remaining milliseconds of a claim that keeps other claims out of a session."""


def exclusive_claim(rows: Sequence[BatchRow], now_ms: int) -> ExclusiveClaim:
    """Return owner, end and remaining milliseconds of the exclusive claim that one of the batches carries.

    If none of them does, another batch does: its owner and end are unknown then.
    """
    for row in rows:
        if row.claim_exclusive and row.is_claimed(now_ms):
            ends_at_ms = row.claim_expires_at_ms or 0
            return row.claim_owner or "", ends_at_ms, ends_at_ms - now_ms
    return "", now_ms, RECHECK_MS


RECHECK_MS = 1_000
"""Time until the next check of an exclusive claim whose end is unknown."""


def due_in_ms(next_due_ms: int | None, lease: LeaseRow | None, now_ms: int) -> int | None:
    """Return the milliseconds after which a claim may succeed by time alone: work becomes due, or a lease expires."""
    times = [] if next_due_ms is None else [next_due_ms]
    if lease is not None and lease.is_live(now_ms):
        times.append(lease.expires_at_ms)
    return min(times) - now_ms if times else None


def claim_prefix(
    candidates: Sequence[BatchRow],
    boundary: Boundary,
    most: int,
    *,
    room: int,
    kinds: Collection[str] | None,
    now_ms: int,
) -> int:
    """Return how many of the batches, which come in order, one claim takes.

    At a checkpoint inside a turn, work that waits for the turn's end holds up the queue. Only adjacent `join` batches
    with the same kind, key, delivery and merge key are claimed together; a batch that never merges is claimed alone. A
    batch in back-off is a candidate for exclusive claims only, and ends the prefix. So does the batch with which the
    payloads reach `room` bytes: the first is taken, however large, if there is any room.
    """
    if most < 1 or room < 1 or not candidates or candidates[0].retry_at_ms > now_ms:
        return 0
    first = candidates[0]
    if boundary == "active_turn_checkpoint" and first.delivery != "earliest_safe_boundary":
        return 0
    if kinds is not None and first.kind not in kinds:
        return 0
    if first.slot != "join" or first.merge_key == "never":
        return 1
    taken, total = 1, len(first.payloads)
    for row in candidates[1:most]:
        if total >= room or row.retry_at_ms > now_ms or _grouping_of(row) != _grouping_of(first):
            break
        taken, total = taken + 1, total + len(row.payloads)
    return taken


def _grouping_of(row: BatchRow) -> tuple[str | None, ...]:
    """Return the values that batches must share to be claimed together."""
    return row.kind, row.limit_key, row.slot, row.delivery, row.merge_key


def may_join(held: Sequence[BatchRow], joining: Sequence[BatchRow]) -> bool:
    """Return True if batches may join a claim: all have the kind and key that it holds, and no slot is exclusive."""
    held_place = held[0].kind, held[0].limit_key
    return all(row.slot == "join" and (row.kind, row.limit_key) == held_place for row in (*held, *joining))


def new_claim(
    rows: Sequence[BatchRow],
    *,
    owner_id: str,
    token: Token,
    exclusive: bool,
    ttl_ms: int,
    now_ms: int,
    takes_slot: bool = False,
) -> ClaimStamp:
    """Return the claim on these batches. Its fence is above any that one of them ever had."""
    fence = max(row.claim_fence for row in rows) + 1
    return ClaimStamp(
        claim_id=f"claim:{rows[0].enqueue_seq}:{fence}",
        owner_id=owner_id,
        token_hash=leases.hash_token(token),
        fence=fence,
        claimed_at_ms=now_ms,
        expires_at_ms=leases.expiry(now_ms, ttl_ms),
        exclusive=int(exclusive),
        size=len(rows),
        slot=int(takes_slot),
    )


def widened(
    held: Sequence[BatchRow], joining: Sequence[BatchRow], *, exclusive: bool, ttl_ms: int, now_ms: int
) -> ClaimStamp:
    """Return the held claim after it took in more batches or became exclusive.

    Id and token stay, and its end is no earlier than before. The new fence tells proofs from before the change apart:
    they do not settle the claim.
    """
    before = stamp_of(held[0])
    return msgspec.structs.replace(
        before,
        fence=max(row.claim_fence for row in (*held, *joining)) + 1,
        expires_at_ms=leases.renewed_end(before.expires_at_ms, ttl_ms=ttl_ms, now_ms=now_ms),
        size=before.size + len(joining),
        exclusive=int(exclusive),
    )


def stamped(row: BatchRow, stamp: ClaimStamp, *, attempts: int) -> BatchRow:
    """Return the batch with the claim's columns set, after `attempts` more attempts."""
    return msgspec.structs.replace(
        row,
        claim_id=stamp.claim_id,
        claim_owner=stamp.owner_id,
        claim_token_hash=stamp.token_hash,
        claim_fence=stamp.fence,
        claimed_at_ms=stamp.claimed_at_ms,
        claim_expires_at_ms=stamp.expires_at_ms,
        claim_exclusive=stamp.exclusive,
        claim_size=stamp.size,
        claim_slot=stamp.slot,
        attempts=row.attempts + attempts,
    )


def ended(row: BatchRow, *, now_ms: int) -> BatchRow:
    """Return the batch after its claim ended now, before its time. The attempt counts."""
    return msgspec.structs.replace(row, claim_expires_at_ms=now_ms, claim_slot=0)


def claim_from(session_id: str, token: Token, rows: Sequence[BatchRow]) -> WorkClaim:
    """Return the claim that these batches carry, as its owner gets it."""
    stamp = stamp_of(rows[0])
    return WorkClaim(
        session_id=session_id,
        claim_id=stamp.claim_id,
        owner_id=stamp.owner_id,
        token=token,
        fence=stamp.fence,
        claimed_at_ms=stamp.claimed_at_ms,
        expires_at_ms=stamp.expires_at_ms,
        batches=tuple(queue.batch_of(session_id, row, state="claimed") for row in rows),
        exclusive=stamp.exclusive > 0,
    )


def lasting_until(claim: WorkClaim, expires_at_ms: int) -> WorkClaim:
    """Return the same claim with another end."""
    replace = msgspec.structs.replace
    batches = tuple(replace(batch, claim_expires_at_ms=expires_at_ms) for batch in claim.batches)
    return replace(claim, expires_at_ms=expires_at_ms, batches=batches)


def stamp_of(row: BatchRow) -> ClaimStamp:
    """Return the claim that a batch carries."""
    return ClaimStamp(
        claim_id=row.claim_id or "",
        owner_id=row.claim_owner or "",
        token_hash=row.claim_token_hash or "",
        fence=row.claim_fence,
        claimed_at_ms=row.claimed_at_ms or 0,
        expires_at_ms=row.claim_expires_at_ms or 0,
        exclusive=row.claim_exclusive,
        size=row.claim_size,
        slot=row.claim_slot,
    )


def check_claim(field: str, value: object, limits: Limits) -> WorkCompletion:
    """Check the values of a claim or its completion."""
    given = checks.instance(field, value, (WorkClaim, WorkCompletion))
    if isinstance(given, WorkClaim):
        for index, batch in enumerate(checks.sequence(f"{field}.batches", given.batches, most=limits.page)):
            checks.instance(f"{field}.batches[{index}]", batch, WorkBatch)
    completion = given.completion() if isinstance(given, WorkClaim) else given
    ids = checks.sequence(f"{field}.batch_ids", completion.batch_ids, most=limits.page)
    return WorkCompletion(
        session_id=checks.identifier(f"{field}.session_id", completion.session_id, limits),
        claim_id=checks.identifier(f"{field}.claim_id", completion.claim_id, limits),
        token=checks.token(f"{field}.token", completion.token),
        fence=checks.whole(f"{field}.fence", completion.fence),
        batch_ids=tuple(checks.identifier(f"{field}.batch_ids[{index}]", one, limits) for index, one in enumerate(ids)),
    )


def check_completions(value: object, session_id: str, limits: Limits) -> tuple[WorkCompletion, ...]:
    """Check the claims that a commit of the session settles, each once."""
    if value is checks.LEFT_OUT:
        return ()
    completions: list[WorkCompletion] = []
    for index, claim in enumerate(checks.sequence("completes", value, most=limits.commit_items)):
        completion = check_claim(f"completes[{index}]", claim, limits)
        if completion.session_id != session_id:
            raise ClaimLost(completion.session_id, completion.claim_id)
        if any(completion.claim_id == earlier.claim_id for earlier in completions):
            raise InvalidRequest(f"completes[{index}]", "names a claim twice")
        completions.append(completion)
    return tuple(completions)


def proof_of(completion: WorkCompletion) -> ClaimProof:
    """Return the proof by which a database recognises a claim."""
    return ClaimProof(
        completion.session_id,
        completion.claim_id,
        leases.hash_token(completion.token),
        completion.fence,
        completion.batch_ids,
    )


def proof_of_rows(session_id: str, rows: Sequence[BatchRow]) -> ClaimProof:
    """Return the proof of the claim that holds these batches, all of one claim."""
    stamp = stamp_of(rows[0])
    return ClaimProof(session_id, stamp.claim_id, stamp.token_hash, stamp.fence, tuple(row.batch_id for row in rows))


def require_claim(completion: WorkCompletion, rows: Sequence[BatchRow], now_ms: int) -> list[BatchRow]:
    """Return all batches of the claim, each proven by token, fence and expiry, or raise `ClaimLost`.

    `rows` are the rows of the named batches, and may belong to other claims, too.
    """
    named = set(completion.batch_ids)
    held = _proven(completion, [row for row in rows if row.batch_id in named], now_ms)
    if any(row.claim_size > len(held) or row.claim_fence > completion.fence for row in held):
        raise ClaimLost(completion.session_id, completion.claim_id, widened=True)
    if any(row.claim_size < len(held) for row in held):
        raise ClaimLost(completion.session_id, completion.claim_id)
    return held


def require_whole_claim(completion: WorkCompletion, rows: Sequence[BatchRow], now_ms: int) -> list[BatchRow]:
    """Return all batches of the claim, including those that joined it after this proof was given out.

    `rows` are the unsettled batches that carry its id.
    """
    held = _proven(completion, rows, now_ms)
    if any(row.claim_size != len(held) for row in held):
        raise ClaimLost(completion.session_id, completion.claim_id)
    return held


def _proven(completion: WorkCompletion, rows: Sequence[BatchRow], now_ms: int) -> list[BatchRow]:
    """Return those of the rows that carry the claim. Raise `ClaimLost` unless all that it names are among them."""
    held = [row for row in rows if row.claim_id == completion.claim_id]
    named = set(completion.batch_ids)
    proven = (
        0 < len(named) == len(completion.batch_ids)
        and named <= {row.batch_id for row in held}
        and all(row.is_claimed(now_ms) and row.claim_fence >= completion.fence for row in held)
        and _token_matches(completion, held)
    )
    if not proven:
        raise ClaimLost(completion.session_id, completion.claim_id)
    return held


def settled_before(completion: WorkCompletion, rows: Sequence[BatchRow]) -> WorkReceipt | None:
    """Return the receipt of a claim that was completed before, by a commit or otherwise; None if it was not."""
    named = set(completion.batch_ids)
    claimed = [row for row in rows if row.batch_id in named and row.claim_id == completion.claim_id]
    done = len(claimed) == len(completion.batch_ids) and all(
        row.settled_state == "completed" and row.claim_fence == completion.fence and row.claim_size == len(claimed)
        for row in claimed
    )
    if not claimed or not done or not _token_matches(completion, claimed):
        return None
    return receipt_of(completion, claimed[0].settled_at_ms or 0, claimed[0].settled_revision)


def receipt_of(completion: WorkCompletion, settled_at_ms: int, revision: int | None) -> WorkReceipt:
    """Return the receipt of a settled claim."""
    return WorkReceipt(completion.session_id, completion.claim_id, completion.batch_ids, settled_at_ms, revision)


def _token_matches(completion: WorkCompletion, rows: Sequence[BatchRow]) -> bool:
    return all(leases.token_matches(completion.token, hash) for hash in {row.claim_token_hash for row in rows})


def held_by(completion: WorkCompletion, rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Return the batches that carry this claim, expired or not, including those that joined it later."""
    return [
        row
        for row in rows
        if row.settled_state is None
        and row.claim_id == completion.claim_id
        and row.claim_fence >= completion.fence
        and leases.token_matches(completion.token, row.claim_token_hash)
    ]


def renewed(stamp_rows: Sequence[BatchRow], *, ttl_ms: int, now_ms: int) -> ClaimStamp:
    """Return the same claim with a later end."""
    stamp = stamp_of(stamp_rows[0])
    ends_at_ms = leases.renewed_end(stamp.expires_at_ms, ttl_ms=ttl_ms, now_ms=now_ms)
    return msgspec.structs.replace(stamp, expires_at_ms=ends_at_ms)
