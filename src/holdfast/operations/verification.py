"""Verify every row of every table. Changes nothing; damage is returned and never raised.

Each step reads one page of one table, and everything that its rows are compared with, in one snapshot of its own, so
that concurrent writes are never reported as damage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from holdfast.errors import Corrupt
from holdfast.label_rows import LabelRow
from holdfast.limit_rows import LimitRow, SlotRow, WaitingKeyRow
from holdfast.operations import verification_contents as contents
from holdfast.operations import verification_processes as processes
from holdfast.operations import verification_sessions as sessions
from holdfast.operations.verification_pages import START, Place, Tally, alone, next_rows, of_session
from holdfast.ports import Transaction
from holdfast.ports.verification import Endless
from holdfast.records.maintenance import Finding
from holdfast.rows import (
    ArtifactRow,
    AttachmentRow,
    BatchRow,
    DeliveryRow,
    EventRow,
    GrantRow,
    LeaseRow,
    NodeRow,
    OccurrenceRow,
    ProcessRow,
    ReadyRow,
    RevisionRow,
    Row,
    SessionRow,
    SubscriptionRow,
)
from holdfast.rules import verification as rules
from holdfast.schedule_rows import ScheduleRow
from holdfast.stream_rows import StreamRow
from holdfast.table_catalog import ObjectDeletion, Setting, StoredBlob, StoredObject, StoredUsage, name_of, table_of
from holdfast.worker_rows import WorkerRow

Check: TypeAlias = Callable[[Transaction, list[Any], Tally], Awaitable[None]]

CHECKS: Final[dict[type[Row], Check]] = {
    SessionRow: sessions.check_sessions,
    RevisionRow: sessions.check_revisions,
    NodeRow: sessions.check_nodes,
    StoredUsage: of_session(lambda row, owner: rules.counter(name_of(row), owner)),
    StoredBlob: sessions.check_blobs,
    BatchRow: contents.check_batches,
    ReadyRow: contents.check_ready,
    LimitRow: contents.check_limits,
    SlotRow: contents.check_slots,
    WaitingKeyRow: contents.check_waiting_keys,
    LeaseRow: contents.check_leases,
    AttachmentRow: contents.check_attachments,
    StoredObject: contents.check_objects,
    ObjectDeletion: contents.check_object_deletions,
    ProcessRow: processes.check_processes,
    EventRow: processes.check_events,
    GrantRow: processes.check_grants,
    SubscriptionRow: alone(rules.subscription),
    OccurrenceRow: alone(rules.occurrence),
    DeliveryRow: processes.check_deliveries,
    ScheduleRow: alone(rules.schedule),
    ArtifactRow: alone(rules.artifact),
    WorkerRow: alone(rules.worker),
    StreamRow: of_session(rules.stream),
    LabelRow: of_session(rules.label),
    Setting: contents.check_settings,
}
"""The check for the rows of each table."""


async def verify_structures(tx: Transaction) -> Tally:
    """Return the database's own findings. An index that lost an entry hides a row from every lookup through it."""
    tally = Tally({}, [])
    for problem in await tx.check_structures():
        tally.note(Finding("database", "structures", problem))
    return tally


async def verify_page(tx: Transaction, kind: type[Row], place: Place) -> tuple[Tally, Place | None]:
    """Verify one page of a table. Return its tally, and the place of the next page."""
    tally = Tally({}, [])
    rows, behind = await next_rows(tx, kind, place, tally)
    tally.checked(table_of(kind), len(rows))
    for row in rows:
        tally.check(table_of(kind), name_of(row), rules.columns(row, table_of(kind), name_of(row)))
    try:
        await CHECKS[kind](tx, rows, tally)
    except Endless as error:
        # Comparing the other rows of the table would take as long, for each of them.
        tally.damage(table_of(kind), "*", error)
        return tally, None
    except Corrupt as error:
        tally.damage(table_of(kind), "*", error)
    return tally, behind


async def is_kept_outside(tx: Transaction, row: AttachmentRow) -> bool:
    """Return whether a reference still needs bytes outside that were found missing or damaged: it may have changed."""
    if await tx.find_attachment(row.session_key, row.attachment_id) != row:
        return False
    return not await tx.present_keys(StoredObject, [(row.family, row.attachment_id)])


__all__ = ["CHECKS", "START", "Place", "Tally", "is_kept_outside", "verify_page", "verify_structures"]
