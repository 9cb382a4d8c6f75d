"""Verification reads every row of every table and changes nothing; damage is an answer and never an error.

Each step is one page of one table in a snapshot of its own, together with everything that its rows are compared with:
writers may go on meanwhile, and nothing that they do looks like damage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from holdfast.errors import Corrupt
from holdfast.inventory import DoomedObject, Setting, StoredBlob, StoredObject, StoredUsage, name_of, table_of
from holdfast.operations import verification_contents as contents
from holdfast.operations import verification_processes as processes
from holdfast.operations import verification_sessions as sessions
from holdfast.operations.verification_pages import START, Place, Tally, next_rows
from holdfast.ports import Transaction
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
    RevisionRow,
    Row,
    SessionRow,
    SubscriptionRow,
)
from holdfast.rules import verification as rules

Check: TypeAlias = Callable[[Transaction, list[Any], Tally], Awaitable[None]]

CHECKS: Final[dict[type[Row], Check]] = {
    SessionRow: sessions.check_sessions,
    RevisionRow: sessions.check_revisions,
    NodeRow: sessions.check_nodes,
    StoredUsage: sessions.check_usage,
    StoredBlob: sessions.check_blobs,
    BatchRow: contents.check_work,
    LeaseRow: contents.check_leases,
    AttachmentRow: contents.check_attachments,
    StoredObject: contents.check_objects,
    DoomedObject: contents.check_doomed,
    ProcessRow: processes.check_processes,
    EventRow: processes.check_events,
    GrantRow: processes.check_grants,
    SubscriptionRow: processes.check_subscriptions,
    OccurrenceRow: processes.check_occurrences,
    DeliveryRow: processes.check_deliveries,
    ArtifactRow: contents.check_artifacts,
    Setting: contents.check_settings,
}
"""How the rows of each table are checked."""


async def verify_structures(tx: Transaction) -> Tally:
    """What the database itself says: an index that lost an entry hides a row from those who look it up."""
    tally = Tally({}, [])
    for problem in await tx.check_structures():
        tally.note(Finding("database", "structures", problem))
    return tally


async def verify_page(tx: Transaction, kind: type[Row], place: Place) -> tuple[Tally, Place | None]:
    """One page of a table, and where the next one begins."""
    tally = Tally({}, [])
    rows, behind = await next_rows(tx, kind, place, tally)
    tally.checked(table_of(kind), len(rows))
    for row in rows:
        tally.look(table_of(kind), name_of(row), rules.columns(row, table_of(kind), name_of(row)))
    try:
        await CHECKS[kind](tx, rows, tally)
    except Corrupt as error:
        tally.damage(table_of(kind), "*", error)
    return tally, behind


async def is_kept_outside(tx: Transaction, row: AttachmentRow) -> bool:
    """Whether a reference still needs the bytes outside that were found wanting: others may have changed it since."""
    if await tx.find_attachment(row.session_key, row.attachment_id) != row:
        return False
    return not await tx.present_keys(StoredObject, [(row.family, row.attachment_id)])


__all__ = ["CHECKS", "START", "Place", "Tally", "is_kept_outside", "verify_page", "verify_structures"]
