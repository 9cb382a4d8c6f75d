"""Verify processes with their logs and handles, and triggers: each row alone, and against the rows it refers to."""

from __future__ import annotations

from holdfast.errors import Corrupt
from holdfast.operations.verification_pages import Tally, in_parts, known, note_orphans
from holdfast.ports import Transaction
from holdfast.records.processes import Process
from holdfast.rows import DeliveryRow, EventRow, GrantRow, OccurrenceRow, ProcessRow, SubscriptionRow
from holdfast.rules import processes
from holdfast.rules import verification as rules
from holdfast.table_catalog import Key, name_of


async def check_processes(tx: Transaction, rows: list[ProcessRow], tally: Tally) -> None:
    """Check processes against the counts of their logs."""
    for row in rows:
        await tally.attempt("processes", row.process_id, _check_process(tx, row, tally))


async def _check_process(tx: Transaction, row: ProcessRow, tally: Tally) -> None:
    log = await tx.span(EventRow, row.process_id)
    endings = await tx.count_endings(row.process_id)
    tally.check("processes", row.process_id, rules.process(row, log, endings))


async def check_events(tx: Transaction, rows: list[EventRow], tally: Tally) -> None:
    """Check events by the declarations of their processes."""
    for ids in in_parts(dict.fromkeys(row.process_id for row in rows)):
        owners = await known(tx, ProcessRow, [(process_id,) for process_id in ids])
        of_these = [row for row in rows if row.process_id in ids]
        orphans = [(row, name_of(row), row.process_id) for row in of_these if not owners.has(row.process_id)]
        note_orphans(tally, orphans, "process")
        read = {key: _readable(row) for key, row in owners.rows.items()}
        for row in of_these:
            tally.check("events", name_of(row), rules.event(row, read.get((row.process_id,))))


def _readable(row: ProcessRow) -> Process | None:
    """Return the process, None if it does not decode: the check of processes reports that."""
    try:
        return processes.process_of(row)
    except Corrupt:
        return None


async def check_grants(tx: Transaction, rows: list[GrantRow], tally: Tally) -> None:
    """Check that handles are on processes that exist."""
    present = await tx.present_keys(ProcessRow, [(row.process_id,) for row in rows])
    orphans = [(row, name_of(row), row.process_id) for row in rows if (row.process_id,) not in present]
    note_orphans(tally, orphans, "process")
    for row in rows:
        tally.check("grants", name_of(row), rules.grant(row))


async def check_deliveries(tx: Transaction, rows: list[DeliveryRow], tally: Tally) -> None:
    """Check that the occurrences and subscriptions of deliveries exist."""
    occurrences: set[Key] = await tx.present_keys(OccurrenceRow, [(row.occurrence_id,) for row in rows])
    subscriptions: set[Key] = await tx.present_keys(SubscriptionRow, [(row.subscription_sequence,) for row in rows])
    for row in rows:
        if (row.occurrence_id,) not in occurrences:
            note_orphans(tally, [(row, name_of(row), row.occurrence_id)], "occurrence")
        if (row.subscription_sequence,) not in subscriptions:
            note_orphans(tally, [(row, name_of(row), row.subscription_sequence)], "subscription")
        tally.check("deliveries", name_of(row), rules.delivery(row))
