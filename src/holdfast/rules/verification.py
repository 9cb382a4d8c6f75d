"""Invariants inside a row and between rows that refer to each other. Each rule yields a finding for each violation.

A rule may also raise `Corrupt` if a row does not decode. Rows that are compared come from one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.label_rows import LabelRow
from holdfast.limit_rows import LimitRow, SlotRow
from holdfast.next_step import sentence
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.records.maintenance import Finding
from holdfast.records.processes import Process
from holdfast.records.queue import SETTLED, WorkDraft
from holdfast.rows import (
    ArtifactRow,
    AttachmentRow,
    BatchRow,
    BlobRow,
    DeliveryRow,
    EventRow,
    GrantRow,
    LeaseRow,
    ObjectRow,
    OccurrenceRow,
    ProcessRow,
    ReadyRow,
    Row,
    SessionRow,
    SubscriptionRow,
)
from holdfast.rules import (
    artifacts,
    attachments,
    deltas,
    events,
    grants,
    limits,
    processes,
    queue,
    runs,
    schedules,
    streams,
    triggers,
    workers,
)
from holdfast.rules.ready import ANY
from holdfast.schedule_rows import ScheduleRow
from holdfast.stream_rows import StreamRow
from holdfast.worker_rows import WorkerRow

UNBOUNDED = Limits(
    id_bytes=LARGEST_INTEGER, document_bytes=LARGEST_INTEGER, document_depth=1 << 10, batch_items=LARGEST_INTEGER
)
"""For stored data, which was accepted once, whatever the limits were then."""

MAY_BE_BLANK: dict[type[Row], tuple[str, ...]] = {
    SessionRow: ("name", "model", "cwd"),
    AttachmentRow: ("label",),
    SubscriptionRow: ("name",),
    DeliveryRow: ("failure",),
    GrantRow: ("frame_id",),
    SlotRow: ("limit_key",),
    LabelRow: ("value",),
}
"""Columns of free text, the frame id of a session, and the key of work without one. Any other text is never blank."""


def columns(row: Row, table: str, key: str) -> Iterator[Finding]:
    """No name is blank."""
    free = MAY_BE_BLANK.get(type(row), ())
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, str) and not value.strip() and name not in free:
            yield Finding(table, key, f"{name} is blank")


# Contents.


def blob(row: BlobRow, key_frames: Iterable[BlobRow] = ()) -> Iterator[Finding]:
    """A content is what its ref says, and a delta has a key frame that is whole."""
    deltas.prove(row, key_frames)
    yield from ()


def counter(key: str, owner: SessionRow | None) -> Iterator[Finding]:
    """A deleted session has no ledger."""
    if owner is not None and owner.deleted_at_ms is not None:
        yield Finding("usage", key, "its session is deleted")


def attachment(row: AttachmentRow, owner: SessionRow | None) -> Iterator[Finding]:
    """A manifest row is in the family of a session that lives."""
    key = f"{row.session_key}/{row.attachment_id}"
    if owner is not None and owner.deleted_at_ms is not None:
        yield Finding("attachments", key, "its session is deleted")
    elif owner is not None and row.family != owner.family:
        yield Finding("attachments", key, f"it is in family {row.family}, its session in {owner.family}")
    if attachments.is_kept_here(row) == (row.stored_in == attachments.CALLER):
        yield Finding("attachments", key, f"its bytes are stored in {row.stored_in!r}, which contradicts its uri")
    elif row.committed_at_ms is not None and row.stored_in is None:
        yield Finding("attachments", key, "is committed, but its bytes were never stored")


def is_missing(row: AttachmentRow) -> Iterator[Finding]:
    """A permanent reference whose bytes were stored in the database has them there."""
    if row.stored_in == attachments.DATABASE:
        yield Finding("attachment_objects", row.attachment_id, sentence(*attachments.MISSING[row.stored_in]))


def bytes_outside(row: AttachmentRow, data: bytes | None) -> Iterator[Finding]:
    """The bytes of a permanent reference are in their place, unchanged."""
    attachments.attachment_of(row, data)
    yield from ()


def attachment_object(attachment_id: str, row: ObjectRow) -> Iterator[Finding]:
    """Attachment bytes are named by their hash."""
    if row.hash != attachment_id or not attachments.is_content_id(attachment_id):
        yield Finding("attachment_objects", attachment_id, f"is not the hash of its bytes, {row.hash!r}")
    attachments.prove(row)


def object_deletion(family: int, attachment_id: str) -> Iterator[Finding]:
    """Only bytes kept by this store are ever noted for deletion, and their names are hashes."""
    if not attachments.is_content_id(attachment_id):
        yield Finding("object_deletions", f"{family}/{attachment_id}", "is not the hash of any bytes")


def artifact(row: ArtifactRow) -> Iterator[Finding]:
    """An artifact whose ref names its content has that content."""
    artifacts.prove(row)
    minted = artifacts.minted_ref(row.kind, row.hash)
    if row.ref.startswith(f"{row.kind}:sha256:") and row.ref != minted:
        yield Finding("artifacts", f"{row.kind}/{row.ref}", f"its content is that of {minted!r}")


def label(row: LabelRow, owner: SessionRow | None) -> Iterator[Finding]:
    """A label belongs to a session of the family that lives and was given metadata."""
    key = f"{row.family}/{row.session_key}/{row.key}"
    if owner is None:
        return
    if owner.family != row.family:
        yield Finding("session_labels", key, f"its session is of family {owner.family}")
    if owner.deleted_at_ms is not None:
        yield Finding("session_labels", key, "its session is deleted")
    elif owner.created_at_ms is None:
        yield Finding("session_labels", key, "its session was never created")


def stream(row: StreamRow, owner: SessionRow | None) -> Iterator[Finding]:
    """Emitted values can be read, are as many as their row says, and belong to a turn of a session of the family."""
    streams.values_of(row)
    key = f"{row.family}/{row.session_key}/{row.claim_id}/{row.block}"
    if owner is not None and owner.family != row.family:
        yield Finding("stream_blocks", key, f"its session is of family {owner.family}")
    if not row.claim_id or not row.turn_id:
        yield Finding("stream_blocks", key, "names no claim or no turn")


def worker(row: WorkerRow) -> Iterator[Finding]:
    """The report of a worker can be read, and is its own."""
    workers.worker_of(row)
    yield from ()


# Work and leases.


def batch(row: BatchRow, owner: SessionRow | None) -> Iterator[Finding]:
    """Check a batch alone, and against its session (None if that cannot be read)."""
    key = str(row.enqueue_seq)
    if owner is not None and owner.deleted_at_ms is not None:
        yield Finding("batches", key, "its session is deleted")
    elif owner is not None and row.family != owner.family:
        yield Finding("batches", key, f"it is in family {row.family}, its session in {owner.family}")
    yield from _settlement(row, key)
    yield from _claim(row, key)
    seen = queue.batch_of("-", row)
    draft = WorkDraft(
        session_id="-",
        payloads=[item.payload for item in seen.items],
        delivery=seen.delivery,
        slot=seen.slot,
        merge_key=seen.merge_key,
        kind=seen.kind,
    )
    yield from _agrees("batches", key, row.draft_hash, queue.check_draft("draft", draft, UNBOUNDED).draft_hash)


def _settlement(row: BatchRow, key: str) -> Iterator[Finding]:
    if (row.settled_state is None) != (row.settled_at_ms is None):
        yield Finding("batches", key, "is settled without a time, or the other way round")
    if row.settled_state not in (None, *SETTLED):
        yield Finding("batches", key, f"is settled as {row.settled_state!r}")
    if row.settled_revision is not None and row.settled_state != "completed":
        yield Finding("batches", key, f"revision {row.settled_revision} settled it, but it is not completed")
    if row.settled_state == "dead" and (row.claim_id is None or row.last_error is None):
        yield Finding("batches", key, "is dead without a claim and an error")


def _claim(row: BatchRow, key: str) -> Iterator[Finding]:
    parts = [row.claim_id, row.claim_owner, row.claim_token_hash, row.claimed_at_ms, row.claim_expires_at_ms]
    given = [part for part in parts if part is not None]
    if given and len(given) < len(parts):
        yield Finding("batches", key, "has half a claim")
    if (row.claim_size > 0) != bool(given) or (given and row.attempts < 1):
        yield Finding("batches", key, f"has a claim of {row.claim_size} batches after {row.attempts} attempts")
    if row.claim_slot not in (0, 1) or (row.claim_slot and not given):
        yield Finding("batches", key, f"its claim has {row.claim_slot} slots")
    if row.claim_exclusive not in (0, 1) or (row.claim_exclusive and not given and row.attempts < 1):
        yield Finding("batches", key, f"its claim is exclusive {row.claim_exclusive} times")
    if row.claim_id is None:
        return
    # A claim is named after its first batch and its fence.
    name, _, fence = row.claim_id.rpartition(":")
    first = name.removeprefix("claim:")
    named = _is_number(first) and int(first) <= row.enqueue_seq and name != first
    # A widened claim has a higher fence than its name says.
    fenced = _is_number(fence) and 1 <= int(fence) <= row.claim_fence
    if not named or not fenced:
        yield Finding("batches", key, f"its claim {row.claim_id!r} is not one of fence {row.claim_fence}")
    if not _is_hash(row.claim_token_hash or ""):
        yield Finding("batches", key, "its claim's token is not hashed")


def offered_batch(row: BatchRow, offer: ReadyRow) -> Iterator[Finding]:
    """Check an unsettled batch against the ready row of its session."""
    if row.claim_id is not None and row.enqueue_seq > offer.claimed_upto:
        yield Finding(
            "batches", str(row.enqueue_seq), f"is claimed, but claims are known up to {offer.claimed_upto} only"
        )


def ready(row: ReadyRow, owner: SessionRow | None) -> Iterator[Finding]:
    """Check a ready row alone, and against its session (None if that cannot be read)."""
    key = str(row.session_key)
    if owner is not None and owner.deleted_at_ms is not None:
        yield Finding("ready", key, "its session is deleted")
    elif owner is not None and row.family != owner.family:
        yield Finding("ready", key, f"it is in family {row.family}, its session in {owner.family}")
    if row.level > ANY:
        yield Finding("ready", key, f"offers work at level {row.level}")
    if row.level == 0 and row.due_at_ms is None and row.waits_for is None and not row.paused:
        yield Finding("ready", key, "offers nothing, and never will")
    if row.paused > 1 or (row.level > 0 and (row.paused or row.waits_for is not None)):
        yield Finding("ready", key, f"offers work at level {row.level}, but is paused or waits for a key")


def limit(row: LimitRow) -> Iterator[Finding]:
    """Check the limits of a kind."""
    if 0 in (row.at_once, row.per_key):
        yield Finding("limits", row.kind, "has a limit of zero")
    if row.paused > 1:
        yield Finding("limits", row.kind, f"is paused {row.paused} times")
    if not row.paused and not limits.counts(row):
        yield Finding("limits", row.kind, "has neither limits nor a pause")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _is_hash(text: str) -> bool:
    return attachments.is_content_id(text)


def lease(row: LeaseRow) -> Iterator[Finding]:
    """A lease has an owner and a token, or neither; its fence began at one."""
    key = f"{row.kind}/{row.resource}"
    if row.kind not in ("session", "process"):
        yield Finding("leases", key, f"is a lease on a {row.kind!r}")
    if (row.owner_id is None) != (row.token_hash is None):
        yield Finding("leases", key, "has half a holder")
    if row.token_hash is not None and not _is_hash(row.token_hash):
        yield Finding("leases", key, "its token is not hashed")
    if row.fence < 1:
        yield Finding("leases", key, f"its fence is {row.fence}")


def leased_session(row: LeaseRow) -> int | None:
    """Return the key of the session that a lease is on, None if it names none."""
    return int(row.resource) if row.kind == "session" and _is_number(row.resource) else None


def lease_on_process(row: LeaseRow, status: str) -> Iterator[Finding]:
    """The end of a process also ends its lease."""
    if row.token_hash is not None and status != "running":
        yield Finding("leases", f"{row.kind}/{row.resource}", f"is held, but the process is {status}")


# Processes.


def process(row: ProcessRow, log: tuple[int, int, int], endings: int) -> Iterator[Finding]:
    """The columns agree with the registration, the log has no gap, and an ended process has exactly one end in it."""
    key = row.process_id
    record = processes.process_of(row)
    registered = codec.decode_record(processes.Registered, row.body, table="processes", key=key)
    expected = processes.new_process(registered, now_ms=row.created_at_ms)
    for name in ("process_id", "registration_hash", "definition_hash", "originator_session_id"):
        yield from _agrees("processes", key, getattr(row, name), getattr(expected, name), name)
    target = (row.wake_session_id, row.wake_frame_id)
    if target not in ((None, None), (expected.wake_session_id, expected.wake_frame_id)):
        yield Finding("processes", key, "wakes a target that its registration does not name")
    for name in ("run_kind", "run_version", "recovery"):
        yield from _agrees("processes", key, getattr(row, name), getattr(expected, name), name)
    if not runs.is_sound(row):
        columns = (row.due_at_ms, row.claimable_at_ms, row.claim_fence, row.attempt, row.suspended)
        yield Finding("processes", key, f"its columns of runs do not agree with each other: {columns}")
    if row.waiting != int(record.wait is not None) or (record.wait is not None and record.is_terminal):
        yield Finding("processes", key, f"waits {row.waiting} times, for {record.wait}")
    if log != ((1, row.event_count, row.event_count) if row.event_count else (0, 0, 0)):
        yield Finding("processes", key, f"counts {row.event_count} events, the log has {log[2]} up to {log[1]}")
    if endings != int(record.is_terminal):
        yield Finding("processes", key, f"is {row.status}, and ended {endings} times in its log")


def _agrees(table: str, key: str, found: object, expected: object, name: str = "hash") -> Iterator[Finding]:
    if found != expected:
        yield Finding(table, key, f"{name} is not what the content says")


def event(row: EventRow, owner: Process | None) -> Iterator[Finding]:
    """Check an event alone, and as its process would append it again (None if that cannot be read)."""
    key = f"{row.process_id}/{row.sequence}"
    seen = events.event_of(row)
    yield from _agrees("events", key, row.payload_hash, events.event_hash(row.type, seen.payload))
    if row.acked not in (0, 1) or (row.acked and row.wake is None):
        yield Finding("events", key, f"was acknowledged {row.acked} times")
    if owner is None:
        return
    if row.sequence > owner.event_count:
        yield Finding("events", key, f"comes after the {owner.event_count} events of its process")
    try:
        again = events.plan(_intent_of(row, seen.payload), _when_it_came(owner, row.sequence), now_ms=0)
    except InvalidRequest as refusal:
        yield Finding("events", key, f"would be refused now: {refusal.text}")
        return
    if again.row.terminal_state != row.terminal_state:
        yield Finding("events", key, f"terminal state is {row.terminal_state}, its type's {again.row.terminal_state}")
    if again.wake != seen.wake:
        yield Finding("events", key, "its wake is not what its type makes of its payload")
    if again.outcome is not None and again.outcome != owner.outcome:
        yield Finding("processes", owner.id, f"its outcome is not that of event {row.sequence}")


def _intent_of(row: EventRow, payload: object) -> events.EventIntent:
    return events.EventIntent(row.process_id, row.type, payload, row.payload, row.payload_hash, row.replay_key, None)


def _when_it_came(owner: Process, sequence: int) -> Process:
    """Return the process before an event, accepting any payload: validators differ between versions."""
    accepting = tuple(msgspec.structs.replace(one, schema={}) for one in owner.event_types)
    return msgspec.structs.replace(owner, event_types=accepting, event_count=sequence - 1, status="running")


def grant(row: GrantRow) -> Iterator[Finding]:
    """A grant decodes. Nothing else can be checked of it alone."""
    grants.grant_of(row)
    yield from ()


# Triggers.


def subscription(row: SubscriptionRow) -> Iterator[Finding]:
    """The columns agree with the draft."""
    key = str(row.sequence)
    draft = triggers.subscription_of(row).draft
    identity = draft.target_identity or processes.derive_identity(draft.target)
    intent = triggers.SubscriptionIntent(
        draft=draft,
        source_key=draft.source_key or triggers.default_source_key(draft.source_type, draft.source),
        definition_hash=codec.stable_hash(msgspec.structs.replace(draft, key=None)),
        target_hash=processes.definition_hash(identity.definition),
    )
    expected = triggers.new_subscription(intent, now_ms=row.created_at_ms)
    for name in (
        "session_id", "frame_id", "key", "definition_hash", "name", "source_type", "source_key", "target_hash",
        "run_kind",
    ):  # fmt: skip
        yield from _agrees("subscriptions", key, getattr(row, name), getattr(expected, name), name)
    if row.enabled not in (0, 1):
        yield Finding("subscriptions", key, f"is enabled {row.enabled} times")


def occurrence(row: OccurrenceRow) -> Iterator[Finding]:
    """An occurrence has the id and the hash that its content gives it."""
    key = row.occurrence_id
    seen = triggers.occurrence_of(row)
    try:
        again = triggers.check_occurrence(
            row.source_type, row.source_key, row.idempotency_key, seen.payload, seen.source, UNBOUNDED
        )
    except InvalidRequest as refusal:
        yield Finding("occurrences", key, f"would be refused now: {refusal.text}")
        return
    yield from _agrees("occurrences", key, row.occurrence_id, again.occurrence_id, "occurrence_id")
    yield from _agrees("occurrences", key, row.request_hash, again.request_hash, "request_hash")


def delivery(row: DeliveryRow) -> Iterator[Finding]:
    """A delivery names the one process that it can start, and has a failure exactly if it failed."""
    key = f"{row.occurrence_id}/{row.subscription_sequence}"
    name = triggers.subscription_id(row.subscription_sequence)
    process_id = triggers.delivery_process_id(row.occurrence_id, name)
    yield from _agrees("deliveries", key, row.process_id, process_id, "process_id")
    if row.state not in triggers.DELIVERY_STATES:
        yield Finding("deliveries", key, f"state is {row.state!r}")
    elif (row.state == "failed") != (row.failure is not None):
        yield Finding("deliveries", key, f"is {row.state}, and its failure is {row.failure!r}")


def schedule(row: ScheduleRow) -> Iterator[Finding]:
    """A schedule's target decodes, and its next tick is one that it has not seen. Ticks need a library to check."""
    schedules.target_of(row)
    if not schedules.is_sound(row):
        yield Finding("schedules", row.name, f"is paused {row.paused} times, and due at {row.due_at_ms}")


def orphan(table: str, key: str, parent: str, parent_key: object, others: int) -> Finding:
    """Return the finding for a row whose parent is missing, also on behalf of `others` like it."""
    also = f", as for {others} more rows here" if others else ""
    return Finding(table, key, f"its {parent} {parent_key!r} is missing{also}")


def missing_blob(ref: str, needed_by: str) -> Finding:
    """Return the finding for a missing content that a revision needs."""
    return Finding("blobs", ref, f"is missing, but revision {needed_by} needs it")
