"""Manage subscriptions, occurrences and deliveries. Each occurrence reaches each subscription once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast import codec, columns
from holdfast.columns import weight
from holdfast.errors import Corrupt, UnknownDelivery, UnknownOccurrence, UnknownProcess
from holdfast.operations import sessions
from holdfast.operations.pages import may_follow, page_of
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.common import Page
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.processes import Originator
from holdfast.records.triggers import Occurrence, Subscription, TriggerDelivery
from holdfast.rows import DeliveryRow, OccurrenceRow, SubscriptionFilter, SubscriptionRow
from holdfast.rules import processes
from holdfast.rules import triggers as rules
from holdfast.schedule_rows import MatchRow

MATCH_PAGE = 1_000
DELIVERIES = "deliveries"
"""The listing of an occurrence's deliveries, which a long emission continues in."""
FAILED = "failed deliveries"

NEW_RUNS = "delivered runs"
"""The topic of waiters for deliveries that start a run."""


async def subscribe(tx: Transaction, intent: rules.SubscriptionIntent) -> Subscription:
    """Create a subscription. Return the existing one if the same key was subscribed alike."""
    draft = intent.draft
    session_id, frame_id = processes.session_of(draft.registrant), rules.frame_of(draft.registrant)
    if session_id is not None:
        await sessions.find(tx, (session_id, None))  # a deleted session registers nothing
    if draft.key is not None:
        existing = await tx.find_subscription_key(session_id, frame_id, draft.key)
        if existing is not None:
            return rules.subscription_of(rules.same_subscription(intent, existing))
    return rules.subscription_of(await tx.insert_subscription(rules.new_subscription(intent, now_ms=tx.now_ms)))


async def list_page(tx: Transaction, filter: SubscriptionFilter) -> Page[Subscription]:
    """Return one page of subscriptions."""
    rows = await tx.list_subscriptions(msgspec.structs.replace(filter, limit=filter.limit + 1))
    return page_of(
        rows, filter.limit, rules.subscription_of, listing="subscriptions", place=lambda row: (row.sequence,)
    )


async def cancel(tx: Transaction, registrant: Originator, sequence: int) -> bool:
    """Disable a subscription of the registrant. Return False if it has no such enabled one."""
    row = await tx.find_subscription(sequence)
    if row is None or not rules.may_cancel(row, registrant):
        return False
    disabled = msgspec.structs.replace(row, enabled=0, updated_at_ms=tx.now_ms)
    expect_rows(await tx.save_subscription(disabled), "subscriptions", row.sequence)
    return True


async def forget_session(tx: Transaction, session_id: str) -> int:
    """Delete the subscriptions of a session and all its frames."""
    return await tx.drop_session_subscriptions(session_id)


async def record(tx: Transaction, intent: rules.OccurrenceIntent) -> tuple[OccurrenceRow, bool]:
    """Record an occurrence, if it is new. Return it, and whether it was recorded before."""
    existing = await tx.find_occurrence(intent.occurrence_id)
    if existing is not None:
        return rules.same_occurrence(intent, existing), True
    row = rules.new_occurrence(intent, now_ms=tx.now_ms)
    await tx.insert_occurrence(row)
    return row, False


async def record_only(tx: Transaction, intent: rules.OccurrenceIntent) -> Occurrence:
    """Record an occurrence without reserving anything."""
    row, _ = await record(tx, intent)
    return rules.occurrence_of(row)


async def reserve(tx: Transaction, occurrence_id: str) -> rules.Reservations:
    """Reserve the deliveries of an occurrence that are not reserved yet, and return those."""
    occurrence = await tx.find_occurrence(occurrence_id)
    if occurrence is None:
        raise UnknownOccurrence(occurrence_id)
    return await _reserve(tx, occurrence, replayed=True)


async def _reserve(tx: Transaction, occurrence: OccurrenceRow, *, replayed: bool) -> rules.Reservations:
    """Reserve a delivery for every subscription, and return those that one page has room for."""
    source = occurrence.source_type, occurrence.source_key
    filter = SubscriptionFilter(MATCH_PAGE, source_type=source[0], source_key=source[1], enabled=1)
    found = await tx.list_subscriptions(filter)
    page = found[: columns.fitting(weight(msgspec.structs.astuple(row)) for row in found)]
    matching = {row.sequence: row for row in page}
    inserted = await _insert_deliveries(tx, occurrence, page)
    new = tuple((row, matching[row.subscription_sequence]) for row in inserted)
    if len(page) == len(found) and not may_follow(page, MATCH_PAGE):
        return rules.Reservations(occurrence, new, replayed)
    # Bodies of subscriptions may be large: the others are reserved by their numbers alone.
    last = shown = page[-1].sequence
    further = False
    while True:
        others = await tx.matching_subscriptions(*source, after=last, limit=MATCH_PAGE)
        further |= bool(await _insert_deliveries(tx, occurrence, others))
        if len(others) < MATCH_PAGE:
            break
        last = others[-1].sequence
    cursor = codec.encode_cursor(DELIVERIES, (shown,)) if further else None
    return rules.Reservations(occurrence, new, replayed, cursor)


async def _insert_deliveries(
    tx: Transaction, occurrence: OccurrenceRow, subscriptions: Sequence[SubscriptionRow | MatchRow]
) -> Sequence[DeliveryRow]:
    """Reserve a delivery for each of these subscriptions that has none. Return the new ones."""
    drafts = [rules.new_delivery(occurrence, row, now_ms=tx.now_ms) for row in subscriptions]
    new = await tx.insert_deliveries(drafts) if drafts else []
    if any(row.run_kind is not None for row in new):
        tx.notify(NEW_RUNS)
    return new


async def emit(tx: Transaction, intent: rules.OccurrenceIntent) -> rules.Reservations:
    """Record an occurrence and reserve its deliveries, in one transaction."""
    row, replayed = await record(tx, intent)
    return await _reserve(tx, row, replayed=replayed)


async def undelivered(
    tx: Transaction,
    *,
    reserved_until_ms: int,
    runs_only: bool,
    session_id: str | None,
    after: tuple[int, str, int] | None,
    limit: int,
) -> Page[TriggerDelivery]:
    """Return one page of reserved deliveries whose process was never registered.

    With `runs_only`, damaged ones are passed over as long as there are others: they must not keep those back.
    """
    rows = await tx.list_undelivered(
        reserved_until_ms=reserved_until_ms, runs_only=runs_only, after=after, limit=limit + 1, session_id=session_id
    )
    whole = await (_sound_rows if runs_only else _whole_rows)(tx, rows[:limit])
    return _deliveries_by_age(rows, whole, limit, "undelivered")


async def failed_page(
    tx: Transaction, session_id: str | None, *, after: tuple[int, str, int] | None, limit: int
) -> Page[TriggerDelivery]:
    """Return one page of deliveries whose process could not be started, of one session's subscriptions or of all."""
    rows = await tx.list_failed_deliveries(session_id, after=after, limit=limit + 1)
    return _deliveries_by_age(rows, await _whole_rows(tx, rows[:limit]), limit, FAILED)


def _deliveries_by_age(
    rows: Sequence[DeliveryRow],
    whole: Sequence[tuple[DeliveryRow, Occurrence, SubscriptionRow]],
    limit: int,
    listing: str,
) -> Page[TriggerDelivery]:
    return page_of(
        whole,
        limit,
        lambda parts: rules.delivery_of(*parts),
        listing=listing,
        place=lambda parts: (parts[0].reserved_at_ms, parts[0].occurrence_id, parts[0].subscription_sequence),
        more=len(rows) > len(whole),
    )


async def delivery_of_process(tx: Transaction, process_id: str) -> TriggerDelivery:
    """Return the delivery that starts this process. Raises UnknownProcess if none does."""
    row = await tx.find_process_delivery(process_id)
    if row is None:
        raise UnknownProcess(process_id)
    [parts] = await _whole_rows(tx, [row])
    return rules.delivery_of(*parts)


async def has_undelivered_run(tx: Transaction) -> bool:
    """Return whether a delivery that starts a run has not started it."""
    return bool(await tx.list_undelivered(reserved_until_ms=LARGEST_INTEGER, runs_only=True, after=None, limit=1))


async def occurrences_page(tx: Transaction, *, after: str, limit: int) -> Page[Occurrence]:
    """Return one page of occurrences."""
    rows = await tx.list_occurrences(after=after, limit=limit + 1)
    return page_of(rows, limit, rules.occurrence_of, listing="occurrences", place=lambda row: (row.occurrence_id,))


async def deliveries_page(tx: Transaction, occurrence_id: str, *, after: int, limit: int) -> Page[TriggerDelivery]:
    """Return one page of the deliveries of an occurrence, which must have been recorded."""
    if await tx.find_occurrence(occurrence_id) is None:
        raise UnknownOccurrence(occurrence_id)
    rows = await tx.list_deliveries(occurrence_id, after=after, limit=limit + 1)
    whole = await _whole_rows(tx, rows[:limit])
    return page_of(
        whole,
        limit,
        lambda parts: rules.delivery_of(*parts),
        listing=DELIVERIES,
        place=lambda parts: (parts[0].subscription_sequence,),
        more=len(rows) > len(whole),
    )


async def _whole_rows(
    tx: Transaction, rows: Sequence[DeliveryRow]
) -> list[tuple[DeliveryRow, Occurrence, SubscriptionRow]]:
    """Return the deliveries with their occurrences and subscriptions, up to a page.

    Reads and decodes the occurrence of adjacent deliveries once.
    """
    whole: list[tuple[DeliveryRow, Occurrence, SubscriptionRow]] = []
    total = 0
    for row in rows:
        if whole and whole[-1][0].occurrence_id == row.occurrence_id:
            occurrence = whole[-1][1]
        else:
            found = await _occurrence_of(tx, row)
            total += weight(msgspec.structs.astuple(found))
            occurrence = rules.occurrence_of(found)
        subscription = await _subscription_of(tx, row)
        total += weight(msgspec.structs.astuple(subscription))
        whole.append((row, occurrence, subscription))
        if total >= columns.PAGE_BYTES:
            break
    return whole


async def _sound_rows(
    tx: Transaction, rows: Sequence[DeliveryRow]
) -> list[tuple[DeliveryRow, Occurrence, SubscriptionRow]]:
    """Return the deliveries that are not damaged. Raises Corrupt if there are only damaged ones."""
    try:
        whole = await _whole_rows(tx, rows)
        for parts in whole:
            rules.delivery_of(*parts)
    except Corrupt:
        sound: list[tuple[DeliveryRow, Occurrence, SubscriptionRow]] = []
        for row in rows:
            with suppress(Corrupt):
                [parts] = await _whole_rows(tx, [row])
                rules.delivery_of(*parts)
                sound.append(parts)
        if not sound:
            raise
        return sound
    return whole


async def _occurrence_of(tx: Transaction, row: DeliveryRow) -> OccurrenceRow:
    found = await tx.find_occurrence(row.occurrence_id)
    if found is None:
        raise Corrupt("deliveries", row.process_id, "its occurrence is missing")
    return found


async def _subscription_of(tx: Transaction, row: DeliveryRow) -> SubscriptionRow:
    found = await tx.find_subscription(row.subscription_sequence)
    if found is None:
        raise Corrupt("deliveries", row.process_id, "its subscription is missing")
    return found


async def move(
    tx: Transaction, occurrence_id: str, sequence: int | None, subscription_id: str, state: str, failure: str | None
) -> TriggerDelivery:
    """Record the new state of a delivery."""
    row = None if sequence is None else await tx.find_delivery(occurrence_id, sequence)
    if row is None:
        raise UnknownDelivery(occurrence_id, subscription_id)
    after = rules.moved(row, state, failure=failure, now_ms=tx.now_ms)
    if after != row:
        expect_rows(await tx.save_delivery(after), "deliveries", after.process_id)
    occurrence = rules.occurrence_of(await _occurrence_of(tx, after))
    return rules.delivery_of(after, occurrence, await _subscription_of(tx, after))


async def note_started(tx: Transaction, process_id: str) -> None:
    """Mark the delivery of a registered process as started, whichever caller registered it."""
    if not process_id.startswith(rules.DELIVERY_PROCESS_PREFIX):
        return
    row = await tx.find_process_delivery(process_id)
    if row is not None:
        expect_rows(await tx.save_delivery(rules.moved(row, "started", now_ms=tx.now_ms)), "deliveries", process_id)
