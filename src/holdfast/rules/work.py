"""What may be enqueued, which ready batches one claim takes, and when a claim still holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args

import msgspec

from holdfast import codec
from holdfast.errors import ClaimLost, Corrupt, InvalidRequest, SourceKeyConflict
from holdfast.records.common import Token
from holdfast.records.limits import Limits
from holdfast.records.work import (
    Boundary,
    Delivery,
    Group,
    MergeKey,
    Slot,
    WorkBatch,
    WorkClaim,
    WorkCompletion,
    WorkDraft,
    WorkItem,
    WorkState,
)
from holdfast.rows import BatchRow, ClaimProof, ClaimStamp, LeaseRow
from holdfast.rules import checks, leases

DELIVERIES: tuple[str, ...] = get_args(Delivery)
SLOTS: tuple[str, ...] = get_args(Slot)
BOUNDARIES: tuple[str, ...] = get_args(Boundary)
STATES: tuple[str, ...] = get_args(WorkState)
GROUP_PREFIX = "group:"


class WorkIntent(msgspec.Struct, frozen=True):
    """Checked work with its encoded payloads."""

    session_id: str
    source_key: str | None
    delivery: str
    slot: str
    merge_key: str
    available_at_ms: int
    payloads: bytes
    draft_hash: str


def check_draft(field: str, value: object, limits: Limits, *, session_id: str | None = None) -> WorkIntent:
    """A draft, for its own session or else for the given one."""
    draft = checks.instance(field, value, WorkDraft)
    target = session_id if draft.session_id is None else draft.session_id
    payloads = checks.sequence(f"{field}.payloads", draft.payloads, most=limits.batch_items)
    for index, payload in enumerate(payloads):
        checks.document(f"{field}.payloads[{index}]", payload, limits)
    encoded = checks.document(f"{field}.payloads", list(payloads), limits, wrapped=1)
    delivery = checks.one_of(f"{field}.delivery", draft.delivery, DELIVERIES)
    slot = checks.one_of(f"{field}.slot", draft.slot, SLOTS)
    merge_key = _check_merge_key(f"{field}.merge_key", draft.merge_key, limits)
    available_at_ms = checks.whole(f"{field}.available_at_ms", draft.available_at_ms)
    return WorkIntent(
        session_id=_target(f"{field}.session_id", target, limits),
        source_key=checks.optional_identifier(f"{field}.source_key", draft.source_key, limits),
        delivery=delivery,
        slot=slot,
        merge_key=merge_key,
        available_at_ms=available_at_ms,
        payloads=encoded,
        draft_hash=codec.stable_hash([list(payloads), delivery, slot, merge_key]),
    )


def own_draft(draft: WorkDraft) -> WorkIntent:
    """A draft that the store itself makes, of parts that were checked when they came in: not refused for their sum."""
    assert draft.session_id is not None
    assert not isinstance(draft.merge_key, Group)
    payloads = list(draft.payloads)
    return WorkIntent(
        session_id=draft.session_id,
        source_key=draft.source_key,
        delivery=draft.delivery,
        slot=draft.slot,
        merge_key=draft.merge_key,
        available_at_ms=draft.available_at_ms,
        payloads=codec.encode_document(payloads),
        draft_hash=codec.stable_hash([payloads, draft.delivery, draft.slot, draft.merge_key]),
    )


def _target(field: str, session_id: object, limits: Limits) -> str:
    if session_id is None:
        raise InvalidRequest(field, "is required here: name the session that the work is for")
    return checks.identifier(field, session_id, limits)


def _check_merge_key(field: str, value: object, limits: Limits) -> str:
    if isinstance(value, Group):
        return GROUP_PREFIX + checks.identifier(f"{field}.name", value.name, limits)
    return checks.one_of(field, value, ("never", "payload_default"))


def new_batch(intent: WorkIntent, *, batch_id: str, session_key: int, family: int, now_ms: int) -> BatchRow:
    """The row of work that is enqueued now."""
    return BatchRow(
        enqueue_seq=0,
        batch_id=batch_id,
        session_key=session_key,
        family=family,
        source_key=intent.source_key,
        draft_hash=intent.draft_hash,
        delivery=intent.delivery,
        slot=intent.slot,
        merge_key=intent.merge_key,
        available_at_ms=intent.available_at_ms,
        enqueued_at_ms=now_ms,
        payloads=intent.payloads,
    )


def same_work(intent: WorkIntent, existing: BatchRow) -> BatchRow:
    """The batch that this source key made before, if it was this work; only when it becomes available may differ."""
    if existing.draft_hash != intent.draft_hash:
        raise SourceKeyConflict(intent.session_id, intent.source_key or "")
    return existing


def may_claim(
    lease: LeaseRow | None, others: tuple[bool, bool], *, owner_id: str, exclusive: bool, now_ms: int
) -> bool:
    """Return whether an owner may claim in a session at all.

    It may not while another owner holds the session's lease, or while any other claim there is exclusive; an exclusive
    claim excludes every other one. Claims of the same owner count, too: an owner id does not prove who asks. `others`
    says whether another claim lives, and whether an exclusive one does.
    """
    claimed, exclusively = others
    if lease is not None and lease.is_live(now_ms) and lease.owner_id != owner_id:
        return False
    return not exclusively and not (exclusive and claimed)


def due_in_ms(next_due_ms: int | None, lease: LeaseRow | None, now_ms: int) -> int | None:
    """In how many milliseconds time alone may let somebody claim: work becomes due, or a lease ends."""
    times = [] if next_due_ms is None else [next_due_ms]
    if lease is not None and lease.is_live(now_ms):
        times.append(lease.expires_at_ms)
    return min(times) - now_ms if times else None


def claim_prefix(candidates: Sequence[BatchRow], boundary: Boundary, most: int) -> int:
    """How many of the ready batches, which come in order, one claim takes.

    At a checkpoint inside a turn, work that waits for the turn's end holds the queue. Only adjacent `join` batches
    with the same delivery and the same merge key go together, and a batch that never merges goes alone.
    """
    if most < 1 or not candidates:
        return 0
    first = candidates[0]
    if boundary == "active_turn_checkpoint" and first.delivery != "earliest_safe_boundary":
        return 0
    if first.slot != "join" or first.merge_key == "never":
        return 1
    taken = 1
    for row in candidates[1:most]:
        if (row.slot, row.delivery, row.merge_key) != (first.slot, first.delivery, first.merge_key):
            break
        taken += 1
    return taken


def new_claim(
    rows: Sequence[BatchRow], *, owner_id: str, token: Token, exclusive: bool, ttl_ms: int, now_ms: int
) -> ClaimStamp:
    """The claim on these batches: its fence is above any that one of them ever had."""
    fence = max(row.claim_fence for row in rows) + 1
    return ClaimStamp(
        claim_id=f"claim:{rows[0].enqueue_seq}:{fence}",
        owner_id=owner_id,
        token_hash=leases.hash_token(token),
        fence=fence,
        claimed_at_ms=now_ms,
        expires_at_ms=leases.expiry(now_ms, ttl_ms),
        exclusive=int(exclusive),
    )


def widened(stamp: ClaimStamp, held: Sequence[BatchRow]) -> ClaimStamp:
    """The held claim after it took in the batches of a new one: same id, token and start, no earlier end."""
    before = stamp_of(held[0])
    return msgspec.structs.replace(
        before,
        fence=max(before.fence, stamp.fence),
        expires_at_ms=max(before.expires_at_ms, stamp.expires_at_ms),
        exclusive=max(before.exclusive, stamp.exclusive),
    )


def claim_of(session_id: str, stamp: ClaimStamp, token: Token, rows: Sequence[BatchRow]) -> WorkClaim:
    """The claim as its owner gets it."""
    return WorkClaim(
        session_id=session_id,
        claim_id=stamp.claim_id,
        owner_id=stamp.owner_id,
        token=token,
        fence=stamp.fence,
        claimed_at_ms=stamp.claimed_at_ms,
        expires_at_ms=stamp.expires_at_ms,
        batches=tuple(batch_of(session_id, row, state="claimed") for row in rows),
    )


def claim_from(session_id: str, token: Token, rows: Sequence[BatchRow]) -> WorkClaim:
    """The claim that these batches bear, as its owner gets it."""
    return claim_of(session_id, stamp_of(rows[0]), token, rows)


def stamp_of(row: BatchRow) -> ClaimStamp:
    """The claim that a batch bears."""
    return ClaimStamp(
        claim_id=row.claim_id or "",
        owner_id=row.claim_owner or "",
        token_hash=row.claim_token_hash or "",
        fence=row.claim_fence,
        claimed_at_ms=row.claimed_at_ms or 0,
        expires_at_ms=row.claim_expires_at_ms or 0,
        exclusive=row.claim_exclusive,
    )


def check_claim(field: str, value: object, limits: Limits) -> WorkCompletion:
    """A claim or its completion, as it was handed out."""
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


def proof_of(completion: WorkCompletion) -> ClaimProof:
    """What shows a database that a claim is held."""
    return ClaimProof(
        completion.session_id,
        completion.claim_id,
        leases.hash_token(completion.token),
        completion.fence,
        completion.batch_ids,
    )


def require_claim(completion: WorkCompletion, rows: Sequence[BatchRow], now_ms: int) -> tuple[int, ...]:
    """The batches that the claim holds: exactly those named, each by token, fence and expiry. Otherwise it is lost."""
    held = {row.batch_id: row for row in rows if row.claim_id == completion.claim_id}
    exact = len(set(completion.batch_ids)) == len(completion.batch_ids) and set(completion.batch_ids) == set(held)
    proven = all(row.is_claimed(now_ms) and row.claim_fence == completion.fence for row in held.values()) and all(
        leases.token_matches(completion.token, token_hash)
        for token_hash in {row.claim_token_hash for row in held.values()}
    )
    if not held or not exact or not proven:
        raise ClaimLost(completion.session_id, completion.claim_id)
    return tuple(row.enqueue_seq for row in held.values())


def held_by(completion: WorkCompletion, rows: Sequence[BatchRow]) -> tuple[int, ...]:
    """The batches that bear exactly this claim, expired or not."""
    return tuple(
        row.enqueue_seq
        for row in rows
        if row.claim_fence == completion.fence and leases.token_matches(completion.token, row.claim_token_hash)
    )


def may_cancel(row: BatchRow, now_ms: int) -> bool:
    """Whether a batch is still waiting and in nobody's hands."""
    return row.settled_state is None and not row.is_claimed(now_ms)


def renewed(stamp_rows: Sequence[BatchRow], *, ttl_ms: int, now_ms: int) -> ClaimStamp:
    """The same claim with a later end; it never ends earlier than before."""
    stamp = stamp_of(stamp_rows[0])
    return msgspec.structs.replace(stamp, expires_at_ms=max(leases.expiry(now_ms, ttl_ms), stamp.expires_at_ms))


def batch_of(session_id: str, row: BatchRow, *, state: WorkState | None = None, now_ms: int = 0) -> WorkBatch:
    """The batch that a row holds; its state is the given one, or else what the row says at this time."""
    payloads = codec.decode_document(row.payloads, table="work", key=row.batch_id)
    if not isinstance(payloads, list):
        raise Corrupt("work", row.batch_id, "the payloads are not a list")
    items: list[Any] = cast("Any", payloads)
    seen: str = state or row.settled_state or ("claimed" if row.is_claimed(now_ms) else "pending")
    return WorkBatch(
        batch_id=row.batch_id,
        session_id=session_id,
        enqueue_seq=row.enqueue_seq,
        source_key=row.source_key,
        delivery=cast("Delivery", _word(row, "delivery", row.delivery, DELIVERIES)),
        slot=cast("Slot", _word(row, "slot", row.slot, SLOTS)),
        merge_key=_merge_key_of(row),
        available_at_ms=row.available_at_ms,
        enqueued_at_ms=row.enqueued_at_ms,
        items=tuple(WorkItem(f"{row.batch_id}:item:{index}", payload) for index, payload in enumerate(items)),
        state=cast("WorkState", _word(row, "state", seen, STATES)),
        settled_at_ms=row.settled_at_ms,
    )


def _word(row: BatchRow, column: str, value: str, words: Sequence[str]) -> str:
    if value not in words:
        raise Corrupt("work", row.batch_id, f"{column} is {value!r}")
    return value


def _merge_key_of(row: BatchRow) -> MergeKey:
    if row.merge_key.startswith(GROUP_PREFIX):
        return Group(row.merge_key.removeprefix(GROUP_PREFIX))
    return cast("MergeKey", _word(row, "merge_key", row.merge_key, ("never", "payload_default")))


def check_batch_ids(value: object, limits: Limits) -> tuple[str, ...]:
    """Batch ids to be claimed exactly, in this order."""
    ids = checks.sequence("batch_ids", value, most=limits.page)
    checked = tuple(checks.identifier(f"batch_ids[{index}]", one, limits) for index, one in enumerate(ids))
    if len(set(checked)) != len(checked):
        raise InvalidRequest("batch_ids", "names a batch twice")
    return checked
