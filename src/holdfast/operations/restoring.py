"""Insert rows of another store, unchanged. Idempotent: rows that exist already stay as they are."""

from __future__ import annotations

from itertools import takewhile

import msgspec

from holdfast.errors import SubscriptionConflict, UnknownDelivery
from holdfast.operations import sessions
from holdfast.operations.positions import stamped
from holdfast.operations.topics import process_topic
from holdfast.operations.triggers import NEW_RUNS
from holdfast.operations.writes import expect_rows
from holdfast.ports import Transaction
from holdfast.records.restoring import RestoreReceipt
from holdfast.rows import DeliveryRow, OccurrenceRow, ProcessRow, SubscriptionRow
from holdfast.rules import processes, triggers
from holdfast.rules import restoring as rules


async def process(tx: Transaction, restored: rules.RestoredProcess) -> RestoreReceipt:
    """Insert a process with its log and without a lease. Its wakes, delivered in the other store, are not repeated."""
    first = restored.registered
    existing = await tx.find_process(first.process_id)
    if existing is not None:
        rules.same_process(existing, restored)
        return await stamped(tx, RestoreReceipt(replayed=True))
    target = None if first.wake_session_id is None else await tx.find_session(first.wake_session_id, key_only=True)

    def here(row: ProcessRow) -> ProcessRow:
        return processes.without_dead_target(row, target)

    await tx.insert_process(here(first))
    together = list(takewhile(lambda write: write.event.terminal_state is None, restored.writes))
    reached = together[-1].process if together else first
    await tx.append_events([write.event for write in together], here(reached))
    for write in restored.writes[len(together) :]:
        await tx.apply_event(msgspec.structs.replace(write, process=here(write.process)))
    expect_rows(await tx.save_process(here(restored.final)), "processes", first.process_id)
    tx.notify(process_topic(first.process_id))
    return await stamped(tx, RestoreReceipt(replayed=False))


async def subscription(tx: Transaction, row: SubscriptionRow) -> RestoreReceipt:
    """Insert a subscription under its own number, which the names of the processes that it starts contain."""
    existing = await tx.find_subscription(row.sequence)
    if existing is not None:
        rules.same_subscription(existing, row)
        return await stamped(tx, RestoreReceipt(replayed=True))
    if row.session_id is not None:
        await sessions.find(tx, (row.session_id, None))  # a deleted session registers nothing
    if row.key is not None and row.enabled:
        other = await tx.find_subscription_key(row.session_id, row.frame_id, row.key)
        if other is not None:
            raise SubscriptionConflict(row.key)
    await tx.restore_subscription(row)
    return await stamped(tx, RestoreReceipt(replayed=False))


async def occurrence(tx: Transaction, row: OccurrenceRow, deliveries: tuple[DeliveryRow, ...]) -> RestoreReceipt:
    """Insert an occurrence, and its deliveries in the state that they had."""
    existing = await tx.find_occurrence(row.occurrence_id)
    if existing is None:
        await tx.insert_occurrence(row)
    else:
        rules.same_occurrence(existing, row)
    for delivery in deliveries:
        if await tx.find_subscription(delivery.subscription_sequence) is None:
            raise UnknownDelivery(row.occurrence_id, triggers.subscription_id(delivery.subscription_sequence))
    new = await tx.insert_deliveries(deliveries) if deliveries else []
    if any(delivery.run_kind is not None for delivery in new):
        tx.notify(NEW_RUNS)
    return await stamped(tx, RestoreReceipt(replayed=existing is not None and not new))
