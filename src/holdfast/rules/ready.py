"""Derive a session's ready row, its offer to `claim_next`, from its queue, its lease and one clock reading.

Work that can be claimed is always offered. A row may also offer work that can no longer be claimed: the claim that
finds none corrects the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.records.queue import TURN
from holdfast.rows import BatchRow, LeaseRow, ReadyRow

NOTHING, SHARED, ANY = 0, 1, 2
"""The claims that a session offers work to: none, those that share it, or exclusive ones, too."""


def ready_row(
    before: ReadyRow, front: Sequence[BatchRow], lease: LeaseRow | None, *, now_ms: int, is_full: bool = False
) -> ReadyRow | None:
    """Return the row that a session has now, None if it has no unsettled work and is not paused.

    `front` holds the unsettled batches in order: up to the first that is ready, and the last with a claim.
    `is_full` says that the key of the next batch has no free slot: the session waits for one and offers nothing.
    """
    if not front:
        return _idle(before) if before.paused else None
    blocked_until_ms = 0 if lease is None or not lease.is_live(now_ms) else lease.expires_at_ms
    for row in front:
        if row.claim_exclusive and row.is_claimed(now_ms):
            blocked_until_ms = max(blocked_until_ms, row.claim_expires_at_ms or 0)
    place = next((place for place, row in enumerate(front) if row.ready_at_ms(now_ms) <= now_ms), None)
    passed = front[:place]
    head = front[0 if place is None else place]
    due_at_ms: int | None = blocked_until_ms
    if blocked_until_ms > now_ms:
        level = NOTHING
    else:
        in_back_off = any(row.retry_at_ms > now_ms for row in passed)
        level = NOTHING if place is None else SHARED if in_back_off else ANY
        due_at_ms = min((row.ready_at_ms(now_ms) for row in passed), default=None)
    waits_for = head.limit_key if is_full and level > NOTHING and not before.paused else None
    return msgspec.structs.replace(
        before,
        level=NOTHING if before.paused or waits_for is not None else level,
        kind=head.kind,
        priority=head.priority,
        due_at_ms=None if before.paused else due_at_ms,
        waits_for=waits_for,
    )


def _idle(before: ReadyRow) -> ReadyRow:
    """Return the row of a paused session without work."""
    return msgspec.structs.replace(before, level=NOTHING, kind=before.kind or TURN, due_at_ms=None, waits_for=None)


def arrives(before: ReadyRow, after: ReadyRow) -> bool:
    """Return True if the session begins to offer work, and so joins the end of the waiting sessions.

    One that waited for a slot keeps its place.
    """
    return before.level == NOTHING and before.waits_for is None and after.level > NOTHING


def levels(*, exclusive: bool) -> tuple[int, ...]:
    """Return the levels that offer work to a claim."""
    return (ANY,) if exclusive else (SHARED, ANY)


def new_row(session_key: int, family: int) -> ReadyRow:
    """Return the row of a session that offers nothing yet."""
    return ReadyRow(session_key, family, NOTHING, "", 0, 0, None, 0)
