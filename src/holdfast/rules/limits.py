"""Limits on claims that live at once, for a kind of work and for each key of it; and the pause of a kind.

A claim of a limited kind holds one slot until it is settled, given back or expired. The number of slots never exceeds
what was declared when the last one was taken. A claim of a run has no slot: its lease is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.limit_rows import LimitRow, LimitState, RunLimit, SlotRow
from holdfast.records.queue import KindLimit
from holdfast.rows import BatchRow
from holdfast.rules import checks

Admission: TypeAlias = Literal["free", "open", "closed", "full"]
"""The answer to a claim: its kind has no limit; there is a slot; the kind has none or is paused; its key has none."""

MOST_AT_ONCE = 1_000_000


def check_limit(field: str, value: object) -> int | None:
    """Check a limit: None means without one. Zero is refused: use a pause instead."""
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise InvalidRequest(field, f"is {value}, so that nothing could run: pause the kind instead (`queue.pause`)")
    return checks.optional_whole(field, value, least=1, most=MOST_AT_ONCE)


def check_limits(at_once: object, per_key: object) -> tuple[int | None, int | None]:
    """Check the two limits of a kind, of which at least one is given."""
    checked = check_limit("at_once", at_once), check_limit("per_key", per_key)
    if checked == (None, None):
        raise InvalidRequest("at_once", "or per_key is required: use `remove_limit` to take a limit away")
    return checked


def admission(state: LimitState | None, limit_key: str | None) -> Admission:
    """Return whether one more claim of this kind and key may live."""
    if state is None:
        return "free"
    limit = state.limit
    if limit.paused or (limit.at_once is not None and state.used >= limit.at_once):
        return "closed"
    if limit_key is not None and limit.per_key is not None and state.used_by_key >= limit.per_key:
        return "full"
    return "open"


def full_kinds(states: Iterable[RunLimit]) -> tuple[list[str], int | None]:
    """Return the kinds of which no more runs may be claimed, and when time alone may change that for the first."""
    full = [state for state in states if state.held >= state.at_once]
    ends_ms = [state.first_end_ms for state in full if state.first_end_ms is not None]
    return [state.kind for state in full], min(ends_ms, default=None)


def admits_at_ms(state: LimitState, answer: Admission) -> int | None:
    """Return the time at which a refused claim may be admitted, None if time alone changes nothing."""
    if state.limit.paused:
        return None
    return state.first_end_ms if answer == "closed" else state.first_end_of_key_ms


def taken(state: LimitState, slot: SlotRow) -> tuple[int, int]:
    """Return the times at which the kind and the key have a free slot again, after one more was taken; 0 means now."""
    limit = state.limit
    kind_is_full = limit.at_once is not None and state.used + 1 >= limit.at_once
    key_is_full = limit.per_key is not None and bool(slot.limit_key) and state.used_by_key + 1 >= limit.per_key
    end_ms = slot.expires_at_ms
    return (
        min(end_ms, end_ms if state.first_end_ms is None else state.first_end_ms) if kind_is_full else 0,
        min(end_ms, end_ms if state.first_end_of_key_ms is None else state.first_end_of_key_ms) if key_is_full else 0,
    )


def slot_of(row: BatchRow) -> SlotRow:
    """Return the slot of the claim that a batch carries."""
    return SlotRow(row.kind, row.limit_key or "", row.session_key, row.claim_id or "", row.claim_expires_at_ms or 0)


def declared(
    before: LimitRow | None, kind: str, *, at_once: int | None, per_key: int | None, keep: bool = False, now_ms: int
) -> LimitRow:
    """Return the row of a kind with these limits. A pause stays. Equal limits keep the row as it is.

    With `keep`, a limit that is not given stays, too.
    """
    if before is None:
        return LimitRow(kind, at_once, per_key, 0, now_ms, 0)
    if keep:
        at_once = before.at_once if at_once is None else at_once
        per_key = before.per_key if per_key is None else per_key
    if (before.at_once, before.per_key) == (at_once, per_key):
        return before
    # Open until a claim counts: the new limit may have room.
    return msgspec.structs.replace(before, at_once=at_once, per_key=per_key, declared_at_ms=now_ms, opens_at_ms=0)


def paused(before: LimitRow | None, kind: str, *, now_ms: int) -> LimitRow:
    """Return the row of a kind that is paused."""
    if before is None:
        return LimitRow(kind, None, None, 1, now_ms, 0)
    return msgspec.structs.replace(before, paused=1)


def resumed(before: LimitRow) -> LimitRow | None:
    """Return the row of a kind that is not paused, None if it has no limits either."""
    row = msgspec.structs.replace(before, paused=0)
    return row if counts(row) else None


def removed(before: LimitRow) -> LimitRow | None:
    """Return the row of a kind without limits, None if it is not paused either."""
    row = msgspec.structs.replace(before, at_once=None, per_key=None, opens_at_ms=0)
    return row if row.paused else None


def counts(row: LimitRow | None) -> bool:
    """Return True if claims of the kind take slots."""
    return row is not None and (row.at_once is not None or row.per_key is not None)


def limit_of(row: LimitRow) -> KindLimit:
    """Return the limits of a kind, as listed."""
    return KindLimit(row.kind, row.at_once, row.per_key, row.paused > 0, row.declared_at_ms)
