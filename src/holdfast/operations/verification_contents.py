"""Verify work, leases, attachments and artifacts: each row alone, and against the row that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.limit_rows import LimitRow, SlotRow, WaitingKeyRow
from holdfast.operations.verification_pages import Tally, in_parts, known, note_orphans, owners_of
from holdfast.ports import Transaction
from holdfast.records.maintenance import Finding
from holdfast.rows import (
    AttachmentRow,
    BatchRow,
    LeaseRow,
    ObjectRow,
    ProcessRow,
    ReadyRow,
    SessionRow,
)
from holdfast.rules import attachments as attachment_rules
from holdfast.rules import verification as rules
from holdfast.table_catalog import ObjectDeletion, Setting, StoredObject, name_of, table_of


async def check_batches(tx: Transaction, rows: list[BatchRow], tally: Tally) -> None:
    """Check batches, also settled ones, against their sessions and ready rows."""
    owners = await owners_of(tx, rows, tally)
    offers = await known(tx, ReadyRow, [(row.session_key,) for row in rows if row.settled_state is None])
    for row in rows:
        tally.check("batches", name_of(row), rules.batch(row, owners.get(row.session_key)))
        if row.settled_state is None and (offer := offers.get(row.session_key)) is not None:
            tally.check("batches", name_of(row), rules.offered_batch(row, offer))
        elif row.settled_state is None and owners.has(row.session_key) and not offers.has(row.session_key):
            tally.note(Finding("batches", name_of(row), "waits, but its session has no ready row: no worker finds it"))


async def check_ready(tx: Transaction, rows: list[ReadyRow], tally: Tally) -> None:
    """Check ready rows against their sessions."""
    owners = await owners_of(tx, rows, tally)
    for row in rows:
        tally.check("ready", name_of(row), rules.ready(row, owners.get(row.session_key)))
    # A row that is due is found by time.
    waiting = {(row.kind, row.waits_for): row for row in rows if row.waits_for is not None and row.due_at_ms is None}
    present = await tx.present_keys(WaitingKeyRow, list(waiting))
    for place, row in waiting.items():
        if place not in present:
            tally.note(Finding("ready", name_of(row), f"waits for the key {row.waits_for!r}, which never opens"))


async def check_limits(_tx: Transaction, rows: list[LimitRow], tally: Tally) -> None:
    """Check limits alone."""
    for row in rows:
        tally.check("limits", name_of(row), rules.limit(row))


async def check_slots(tx: Transaction, rows: list[SlotRow], tally: Tally) -> None:
    """Check slots against the limits of their kinds."""
    await _check_kinds(tx, rows, tally)


async def check_waiting_keys(tx: Transaction, rows: list[WaitingKeyRow], tally: Tally) -> None:
    """Check waiting keys against the limits of their kinds."""
    await _check_kinds(tx, rows, tally)


async def _check_kinds(tx: Transaction, rows: Sequence[SlotRow | WaitingKeyRow], tally: Tally) -> None:
    present = await tx.present_keys(LimitRow, [(row.kind,) for row in rows])
    for row in rows:
        if (row.kind,) not in present:
            tally.note(Finding(table_of(type(row)), name_of(row), "its kind has no limits"))


async def check_leases(tx: Transaction, rows: list[LeaseRow], tally: Tally) -> None:
    """Check leases against their sessions and processes."""
    for part in in_parts(rows):
        await _check_leases(tx, part, tally)


async def _check_leases(tx: Transaction, rows: Sequence[LeaseRow], tally: Tally) -> None:
    keys = [key for row in rows if (key := rules.leased_session(row)) is not None]
    owners = await known(tx, SessionRow, [(key,) for key in keys])
    runs = await known(tx, ProcessRow, [(row.resource,) for row in rows if row.kind == "process"])
    for row in rows:
        tally.check("leases", name_of(row), rules.lease(row))
        if row.kind == "process":
            if not runs.has(row.resource):
                note_orphans(tally, [(row, name_of(row), row.resource)], "process")
            process = runs.get(row.resource)
            if process is not None:
                tally.check("leases", name_of(row), rules.lease_on_process(row, process.status))
        else:
            key = rules.leased_session(row)
            owner = None if key is None else owners.get(key)
            gone = key is None or not owners.has(key) or (owner is not None and owner.deleted_at_ms is not None)
            if gone:
                note_orphans(tally, [(row, name_of(row), row.resource)], "session")


async def check_attachments(tx: Transaction, rows: list[AttachmentRow], tally: Tally) -> None:
    """Check the manifest, and the bytes of every permanent reference whose bytes the store keeps.

    Bytes in the database are checked with their own table. Those outside are left to the caller, which reads them with
    no transaction open.
    """
    owners = await owners_of(tx, rows, tally)
    stored = await tx.present_keys(StoredObject, [(row.family, row.attachment_id) for row in rows])
    for row in rows:
        tally.check("attachments", name_of(row), rules.attachment(row, owners.get(row.session_key)))
        if row.committed_at_ms is None or (row.family, row.attachment_id) in stored:
            continue
        if not attachment_rules.is_kept_here(row):
            tally.checked("foreign attachments", 1)
        elif row.stored_in == attachment_rules.OUTSIDE:
            tally.outside.append(row)
        else:
            tally.check("attachment_objects", row.attachment_id, rules.is_missing(row))


async def check_objects(tx: Transaction, rows: list[StoredObject], tally: Tally) -> None:
    """Check attachment bytes in the database, and that a manifest row refers to them."""
    for row in rows:
        if not await tx.attachment_is_referenced(row.family, row.attachment_id):
            note_orphans(tally, [(row, name_of(row), row.attachment_id)], "manifest row")
        content = ObjectRow(row.hash, row.encoding, row.size, row.body)
        tally.check("attachment_objects", name_of(row), rules.attachment_object(row.attachment_id, content))


async def check_object_deletions(tx: Transaction, rows: list[ObjectDeletion], tally: Tally) -> None:
    """Check that notes of bytes to be deleted name an existing family."""
    founders = await known(tx, SessionRow, [(row.family,) for row in rows])
    note_orphans(tally, [(row, name_of(row), row.family) for row in rows if not founders.has(row.family)], "family")
    for row in rows:
        tally.check("object_deletions", name_of(row), rules.object_deletion(row.family, row.attachment_id))


async def check_settings(_tx: Transaction, _rows: list[Setting], _tally: Tally) -> None:
    """Check nothing: a setting has been read, and there is nothing to compare it with."""
