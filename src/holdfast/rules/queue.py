"""Work: check drafts, and derive the rows of batches as they are enqueued, fail, are retried and settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import msgspec

from holdfast import codec
from holdfast.columns import SMALL
from holdfast.errors import Corrupt, InvalidRequest, SessionDeleted, SourceKeyConflict
from holdfast.records.limits import Limits
from holdfast.records.queue import (
    TURN,
    WAKE_PREFIX,
    Boundary,
    Delivery,
    Group,
    MergeKey,
    Slot,
    WorkBatch,
    WorkDraft,
    WorkItem,
    WorkState,
)
from holdfast.rows import BatchRow, SessionRow
from holdfast.rules import checks, leases

DELIVERIES: tuple[str, ...] = get_args(Delivery)
SLOTS: tuple[str, ...] = get_args(Slot)
BOUNDARIES: tuple[str, ...] = get_args(Boundary)
STATES: tuple[str, ...] = get_args(WorkState)
GROUP_PREFIX = "group:"


class BatchIntent(msgspec.Struct, frozen=True):
    """Checked work with its encoded payloads."""

    session_id: str
    source_key: str | None
    delivery: str
    slot: str
    merge_key: str
    kind: str
    priority: int
    available_at_ms: int
    payloads: bytes
    draft_hash: str
    limit_key: str | None = None


def check_draft(
    field: str, value: object, limits: Limits, *, session_id: str | None = None, restores: bool = False
) -> BatchIntent:
    """Check a draft, for its own session or else for the given one. Errors name its parts alone if `field` is empty."""
    draft = checks.instance(field, value, WorkDraft)
    of = f"{field}." if field else ""
    target = session_id if draft.session_id is None else draft.session_id
    payloads = checks.sequence(f"{of}payloads", draft.payloads, most=limits.batch_items)
    for index, payload in enumerate(payloads):
        checks.document(f"{of}payloads[{index}]", payload, limits)
    encoded = checks.document(f"{of}payloads", list(payloads), limits, wrapped=1)
    # The hash reads the stored bytes: the caller may change its own objects.
    own = codec.decode_document(encoded, table="batches", key=field)
    delivery = checks.one_of(f"{of}delivery", draft.delivery, DELIVERIES)
    slot = checks.one_of(f"{of}slot", draft.slot, SLOTS)
    merge_key = _check_merge_key(f"{of}merge_key", draft.merge_key, limits)
    available_at_ms = checks.whole(f"{of}available_at_ms", draft.available_at_ms)
    kind = checks.identifier(f"{of}kind", draft.kind, limits)
    return BatchIntent(
        session_id=_target(f"{of}session_id", target, limits),
        source_key=_check_source_key(f"{of}source_key", draft.source_key, limits, restores=restores),
        delivery=delivery,
        slot=slot,
        merge_key=merge_key,
        kind=kind,
        priority=checks.whole(f"{of}priority", draft.priority, least=-SMALL, most=SMALL - 1),
        available_at_ms=available_at_ms,
        payloads=encoded,
        draft_hash=codec.stable_hash([own, delivery, slot, merge_key, kind]),
        limit_key=checks.optional_identifier(f"{of}key", draft.key, limits),
    )


def check_drafts(value: object, session_id: str, limits: Limits) -> tuple[BatchIntent, ...]:
    """Check the follow-up work of a commit, which is for its session unless a draft names another."""
    if value is checks.LEFT_OUT:
        return ()
    drafts = checks.sequence("enqueues", value, most=limits.commit_items)
    places = [f"enqueues[{index}]" for index in range(len(drafts))]
    return tuple(check_draft(*each, limits, session_id=session_id) for each in zip(places, drafts, strict=True))


def own_draft(draft: WorkDraft) -> BatchIntent:
    """Return the intent of a draft that the store itself makes.

    Its parts were checked when they came in, so that their sum is not refused.
    """
    assert draft.session_id is not None
    merge_key = GROUP_PREFIX + draft.merge_key.name if isinstance(draft.merge_key, Group) else draft.merge_key
    payloads = list(draft.payloads)
    return BatchIntent(
        session_id=draft.session_id,
        source_key=draft.source_key,
        delivery=draft.delivery,
        slot=draft.slot,
        merge_key=merge_key,
        kind=draft.kind,
        priority=draft.priority,
        available_at_ms=draft.available_at_ms,
        payloads=codec.encode_document(payloads),
        draft_hash=codec.stable_hash([payloads, draft.delivery, draft.slot, merge_key, draft.kind]),
        limit_key=draft.key,
    )


def _check_source_key(field: str, value: object, limits: Limits, *, restores: bool) -> str | None:
    """Check a source key. That of a wake is the store's own: it proves that the work is about a process."""
    key = checks.optional_identifier(field, value, limits)
    if key is not None and key.startswith(WAKE_PREFIX) and not restores:
        raise InvalidRequest(field, f"begins with {WAKE_PREFIX!r}, which names wakes of processes: use another key")
    return key


def _target(field: str, session_id: object, limits: Limits) -> str:
    if session_id is None:
        raise InvalidRequest(field, "is required here: name the session that the work is for")
    return checks.identifier(field, session_id, limits)


def _check_merge_key(field: str, value: object, limits: Limits) -> str:
    if isinstance(value, Group):
        return GROUP_PREFIX + checks.identifier(f"{field}.name", value.name, limits)
    return checks.one_of(field, value, ("never", "payload_default"))


def new_batch(intent: BatchIntent, *, batch_id: str, session_key: int, family: int, now_ms: int) -> BatchRow:
    """Return the row of newly enqueued work."""
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
        kind=intent.kind,
        priority=intent.priority,
        available_at_ms=intent.available_at_ms,
        enqueued_at_ms=now_ms,
        payloads=intent.payloads,
        limit_key=intent.limit_key,
    )


def same_batch(intent: BatchIntent, existing: BatchRow) -> BatchRow:
    """Return the batch that this source key made before, or raise `SourceKeyConflict` if it differs.

    Time, priority and key may differ.
    """
    if existing.draft_hash != intent.draft_hash:
        raise SourceKeyConflict(intent.session_id, intent.source_key or "")
    return existing


def place_drafts(
    drafts: Sequence[BatchIntent],
    sources: Sequence[BatchRow],
    targets: Mapping[str, SessionRow],
    batch_ids: Sequence[str],
    now_ms: int,
) -> tuple[tuple[BatchRow, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the new batches, the ids of all batches, and the session ids of the new ones.

    A source key that was used before stands for the batch that it made. A session that is not known is left to the
    database.
    """
    if not drafts:
        return (), (), ()
    names = {row.session_key: session_id for session_id, row in targets.items()}
    known = {(names[row.session_key], row.source_key): row for row in sources}
    fresh: list[BatchRow] = []
    ids: list[str] = []
    new_for: list[str] = []
    for draft, batch_id in zip(drafts, batch_ids, strict=True):
        target = targets.get(draft.session_id)
        if target is not None and target.deleted_at_ms is not None:
            raise SessionDeleted(draft.session_id)
        place = (draft.session_id, draft.source_key)
        existing = known.get(place) if draft.source_key is not None else None
        if existing is not None:
            ids.append(same_batch(draft, existing).batch_id)
            continue
        session_key, family = (0, 0) if target is None else (target.session_key, target.family)
        row = new_batch(draft, batch_id=batch_id, session_key=session_key, family=family, now_ms=now_ms)
        known[place] = row
        fresh.append(row)
        ids.append(batch_id)
        new_for.append(draft.session_id)
    return tuple(fresh), tuple(ids), tuple(new_for)


def given_back(row: BatchRow) -> BatchRow:
    """Return the batch without its claim, which does not count as an attempt. The fence stays used."""
    attempts = max(0, row.attempts - 1)
    return msgspec.structs.replace(
        _unclaimed(row), attempts=attempts, claim_exclusive=row.claim_exclusive if attempts else 0
    )


def _unclaimed(row: BatchRow) -> BatchRow:
    return msgspec.structs.replace(
        row,
        claim_id=None,
        claim_owner=None,
        claim_token_hash=None,
        claimed_at_ms=None,
        claim_expires_at_ms=None,
        claim_exclusive=0,
        claim_size=0,
        claim_slot=0,
    )


def failed(row: BatchRow, error: str, *, retry_in_ms: int | None, max_attempts: int | None, now_ms: int) -> BatchRow:
    """Return the batch after a failure: in back-off at its old place, or dead if that was its last attempt."""
    last = retry_in_ms is None or (max_attempts is not None and row.attempts >= max_attempts)
    if last:
        return msgspec.structs.replace(row, settled_state="dead", settled_at_ms=now_ms, last_error=error)
    retry_at_ms = leases.expiry(now_ms, retry_in_ms or 0)
    # Keep the mark of an exclusive claim: until the next attempt, the turn can be interrupted.
    return msgspec.structs.replace(
        _unclaimed(row), retry_at_ms=retry_at_ms, last_error=error, claim_exclusive=row.claim_exclusive
    )


def retried(row: BatchRow) -> BatchRow:
    """Return a dead batch that waits again, at its old place and with no attempts counted."""
    return msgspec.structs.replace(_unclaimed(row), settled_state=None, settled_at_ms=None, attempts=0, retry_at_ms=0)


def settled(row: BatchRow, state: WorkState, *, now_ms: int) -> BatchRow:
    """Return the batch settled without a commit."""
    return msgspec.structs.replace(row, settled_state=state, settled_at_ms=now_ms)


def is_in_progress(row: BatchRow) -> bool:
    """Return True if a turn that answers the batch has begun and not ended: it runs, or waits for its next attempt.

    A job is not a turn: its claim is not exclusive, and its kind is its own.
    """
    if row.settled_state is not None or row.attempts < 1:
        return False
    return row.kind == TURN or row.claim_exclusive > 0


def interrupted(row: BatchRow, reason: str, *, now_ms: int) -> BatchRow:
    """Return the batch of a turn that a person ended. It keeps its claim, which no longer proves anything."""
    return msgspec.structs.replace(settled(row, "interrupted", now_ms=now_ms), last_error=reason)


def is_dead(row: BatchRow) -> bool:
    """Return True if a batch failed at its last attempt."""
    return row.settled_state == "dead"


def may_cancel(row: BatchRow, now_ms: int) -> bool:
    """Return True if a batch is waiting and unclaimed."""
    return row.settled_state is None and not row.is_claimed(now_ms)


def batch_of(session_id: str, row: BatchRow, *, state: WorkState | None = None, now_ms: int = 0) -> WorkBatch:
    """Return the batch of a row. Its state is the given one, or else that of the row at this time."""
    payloads = codec.decode_document(row.payloads, table="batches", key=row.batch_id)
    if not isinstance(payloads, list):
        raise Corrupt("batches", row.batch_id, "the payloads are not a list")
    if not row.kind or row.kind.isspace():
        raise Corrupt("batches", row.batch_id, "its kind is blank")
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
        settled_revision=row.settled_revision,
        kind=row.kind,
        priority=row.priority,
        attempts=row.attempts,
        last_error=row.last_error,
        retry_at_ms=row.retry_at_ms,
        claimed_by=row.claim_owner if seen == "claimed" else None,
        claim_expires_at_ms=row.claim_expires_at_ms if seen == "claimed" else None,
        key=row.limit_key,
    )


def _word(row: BatchRow, column: str, value: str, words: Sequence[str]) -> str:
    if value not in words:
        raise Corrupt("batches", row.batch_id, f"{column} is {value!r}")
    return value


def _merge_key_of(row: BatchRow) -> MergeKey:
    if row.merge_key.startswith(GROUP_PREFIX):
        return Group(row.merge_key.removeprefix(GROUP_PREFIX))
    return cast("MergeKey", _word(row, "merge_key", row.merge_key, ("never", "payload_default")))


def check_batch_ids(value: object, limits: Limits) -> tuple[str, ...]:
    """Check batch ids to be claimed exactly, in this order."""
    ids = checks.sequence("batch_ids", value, most=limits.page)
    checked = tuple(checks.identifier(f"batch_ids[{index}]", one, limits) for index, one in enumerate(ids))
    if len(set(checked)) != len(checked):
        raise InvalidRequest("batch_ids", "names a batch twice")
    return checked


def check_kinds(value: object, limits: Limits) -> tuple[str, ...] | None:
    """Check the requested kinds of work, and list each once; None stands for all."""
    if value is None:
        return None
    kinds = checks.sequence("kinds", value, most=limits.page)
    if not kinds:
        raise InvalidRequest("kinds", "names no kind: leave it out to ask for every kind")
    return tuple(dict.fromkeys(checks.identifier(f"kinds[{index}]", kind, limits) for index, kind in enumerate(kinds)))
