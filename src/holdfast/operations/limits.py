"""Limits of kinds: declare, list and remove them, pause kinds and sessions, and count claims by slots.

A claim takes its slot in its own transaction, and every operation that ends a claim frees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.limit_rows import LimitRow, LimitState, SlotRow, WaitingKeyRow
from holdfast.operations import ready, sessions
from holdfast.operations.pages import page_of
from holdfast.operations.topics import ANY_RUN, ENDED_CLAIM
from holdfast.ports import Transaction
from holdfast.ports.limit_tables import SlotTables
from holdfast.records.common import Page
from holdfast.records.queue import KindLimit, QueueDepth
from holdfast.rows import BatchRow
from holdfast.rules import limits as rules

# Declarations.


async def declare(
    tx: Transaction, kind: str, *, at_once: int | None, per_key: int | None, keep: bool = False
) -> KindLimit:
    """Set the limits of a kind. Claims that live already count, and keep living."""
    declared = partial(rules.declared, kind=kind, at_once=at_once, per_key=per_key, keep=keep, now_ms=tx.now_ms)
    before = await tx.find_limit(kind)
    after = declared(before)
    if after != before:
        await tx.exclude_claims()
        before = await tx.find_limit(kind)  # another declaration or a pause may have come meanwhile
        after = declared(before)
        await _replace(tx, before, after)
    return rules.limit_of(after)


async def remove(tx: Transaction, kind: str) -> bool:
    """Take the limits of a kind away. Return False if it has none."""
    if not rules.counts(await tx.find_limit(kind)):
        return False
    await tx.exclude_claims()
    before = await tx.find_limit(kind)
    if before is None or not rules.counts(before):
        return False  # pragma: no cover - a race
    await _replace(tx, before, rules.removed(before), kind=kind)
    return True


async def pause(tx: Transaction, kind: str) -> bool:
    """Pause a kind. Return False if it is paused already."""
    before = await tx.find_limit(kind)
    if before is not None and before.paused:
        return False
    await tx.exclude_claims()
    before = await tx.find_limit(kind)
    await _replace(tx, before, rules.paused(before, kind, now_ms=tx.now_ms))
    return True


async def resume(tx: Transaction, kind: str) -> bool:
    """Resume a kind, and wake the waiters. Return False if it is not paused."""
    before = await tx.find_limit(kind)
    if before is None or not before.paused:
        return False
    await tx.exclude_claims()
    before = await tx.find_limit(kind)
    if before is None or not before.paused:
        return False  # pragma: no cover - a race
    await _replace(tx, before, rules.resumed(before), kind=kind)
    return True


async def _replace(tx: Transaction, before: LimitRow | None, after: LimitRow | None, *, kind: str = "") -> None:
    """Store another row of a kind, and let slots, waiting keys and waiting sessions follow it."""
    named = kind if after is None else after.kind
    if after is None:
        await tx.drop_limit(named)
    else:
        await tx.save_limit(after)
    if rules.counts(after) and not rules.counts(before):
        slots = {rules.slot_of(row) for row in await tx.mark_slots(named, tx.now_ms)}
        await tx.insert_slots(sorted(slots, key=_place))
    if rules.counts(before) and not rules.counts(after):
        await tx.clear_slots(named)
    if before is not None and before.per_key is not None:
        if after is None or after.per_key is None:
            await tx.clear_keys(named)
        else:
            await tx.open_keys(named)
    tx.notify(ready.ANY_QUEUE)
    tx.notify(ENDED_CLAIM)
    if before is not None and before.paused and (after is None or not after.paused):
        tx.notify(ANY_RUN)


def _place(slot: SlotRow) -> tuple[str, int, str]:
    return slot.limit_key, slot.session_key, slot.claim_id


async def list_page(tx: Transaction, *, after: str, limit: int) -> Page[KindLimit]:
    """Return one page of the kinds that have limits or are paused."""
    rows = await tx.list_limits(after=after, limit=limit + 1)
    return page_of(rows, limit, rules.limit_of, listing="limits", place=lambda row: (row.kind,))


async def depths_page(tx: Transaction, *, after: str, limit: int) -> Page[QueueDepth]:
    """Return one page of the kinds that have unsettled work or dead letters."""
    rows = await tx.queue_depths(tx.now_ms, after=after, limit=limit + 1)
    return page_of(rows, limit, lambda row: QueueDepth(*row), listing="depths", place=lambda row: (row[0],))


# Pauses of sessions.


async def pause_session(tx: Transaction, address: sessions.Address, *, paused: bool) -> bool:
    """Pause or resume the queue of a session. Return False if that changes nothing.

    Raises `UnknownSession` if it was never made: a wrong id must not look like a pause.
    """
    session = await sessions.require(tx, address)
    changed = await ready.pause(tx, session.session_key, session.family, paused=paused)
    if changed:
        ready.notify(tx, session.session_id)
    return changed


async def paused_page(tx: Transaction, *, after: int, limit: int) -> Page[str]:
    """Return one page of the sessions that are paused."""
    found = await tx.list_paused(after=after, limit=limit + 1)
    return page_of(found, limit, lambda one: one[1], listing="paused sessions", place=lambda one: (one[0],))


# Slots.


async def admit(tx: Transaction, row: BatchRow) -> tuple[rules.Admission, LimitState | None]:
    """Return whether a claim that begins with this batch may be made, and the facts behind that."""
    state = await tx.limit_state(row.kind, row.limit_key or "", tx.now_ms)
    return rules.admission(state, row.limit_key), state


async def refuse(
    tx: Transaction, tables: SlotTables, session_key: int, row: BatchRow, answer: rules.Admission, state: LimitState
) -> None:
    """Note that a claim must wait: its kind is closed for now, or its session waits for the key."""
    if state.limit.paused:
        return
    await _drop_expired(tx, tables, state, row)
    opens_at_ms = rules.admits_at_ms(state, answer) or 0
    if answer == "closed":
        await tables.move_kind(row.kind, opens_at_ms)
        return
    await ready.wait_for_key(tx, session_key)
    await tables.save_waiting_key(WaitingKeyRow(row.kind, row.limit_key or "", opens_at_ms))


async def take(tx: Transaction, tables: SlotTables, state: LimitState, row: BatchRow) -> None:
    """Take the slot of a new claim, which this batch carries."""
    slot = rules.slot_of(row)
    await _drop_expired(tx, tables, state, row)
    await tx.insert_slots([slot])
    kind_opens_at_ms, key_opens_at_ms = rules.taken(state, slot)
    if kind_opens_at_ms != state.limit.opens_at_ms:
        await tables.move_kind(row.kind, kind_opens_at_ms)
    if slot.limit_key and state.limit.per_key is not None:
        await tables.move_key(WaitingKeyRow(row.kind, slot.limit_key, key_opens_at_ms or tx.now_ms))


async def _drop_expired(tx: Transaction, tables: SlotTables, state: LimitState, row: BatchRow) -> None:
    """Delete the expired slots among those that were counted: of the kind, or of the key alone."""
    one_key = (row.limit_key or "") if state.limit.at_once is None else None
    await tables.drop_expired_slots(row.kind, one_key, tx.now_ms)


async def extend(tx: Transaction, row: BatchRow) -> None:
    """Let the slot of a renewed claim, which this batch carries, last as long as the claim."""
    tables = tx.ready_tables
    assert tables is not None, "a database without ready tables renews by itself"
    if row.claim_slot:
        await tables.extend_slot(rules.slot_of(row))


async def free(tx: Transaction, rows: Iterable[BatchRow]) -> None:
    """Free the slots of claims that ended. `rows` are their batches as they were before."""
    await free_slots(tx, {rules.slot_of(row) for row in rows if row.claim_slot and row.claim_id is not None})


async def free_slots(tx: Transaction, slots: Iterable[SlotRow]) -> None:
    """Free slots, and open their kinds and keys."""
    tables = tx.ready_tables
    for slot in sorted(slots, key=_place):
        if tables is None:
            await tx.free_slot(slot)
        elif await tables.drop_slot(slot):
            await tables.move_kind(slot.kind, 0)
            if slot.limit_key:
                await tables.move_key(WaitingKeyRow(slot.kind, slot.limit_key, tx.now_ms))
