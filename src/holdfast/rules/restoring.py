"""Accept data of another store only if the rules would have made it at the times that it carries.

The events of a log run again, one by one, through the rule that appends; a delivery must have the process id that
follows from its occurrence and its subscription. So nothing can be restored that could not have been written.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import Conflict, InvalidRequest, OccurrenceConflict, RegistrationConflict
from holdfast.records.events import ProcessEvent
from holdfast.records.limits import Limits
from holdfast.records.processes import Process, ProcessRegistration
from holdfast.records.triggers import Occurrence, Subscription, SubscriptionDraft, TriggerDelivery
from holdfast.rows import DeliveryRow, EventWrite, OccurrenceRow, ProcessRow, SubscriptionRow
from holdfast.rules import checks, events, processes, runs, triggers

ENVELOPE = 2
"""In the event that completes a process, the outcome is nested two levels deeper than the caller wrote it."""


HIGHEST_ATTEMPT = 1_000_000_000
"""The highest attempt of a restored run, far below the largest number that a database can count up to."""

HIGHEST_NUMBER = 10_000_000
"""The highest number of a restored subscription. A database may have to count up to it."""


class RestoredProcess(msgspec.Struct, frozen=True):
    """A process at its registration, after each of its events, and in its final state."""

    registered: ProcessRow
    writes: tuple[EventWrite, ...]
    final: ProcessRow


def check_process(value: object, log: object, limits: Limits) -> RestoredProcess:
    """Return a process with its whole log, or raise the reason why the rules would not have made it."""
    given = checks.instance("process", value, Process)
    registration = ProcessRegistration(
        id=given.id,
        input=given.input,
        identity=given.identity,
        event_types=given.event_types,
        provenance=given.provenance,
        env_ref=given.env_ref,
        wake_target=given.wake_target,
        recovery=given.recovery,
    )
    registered = processes.check_registration(registration, limits)
    created_at_ms = checks.whole("process.created_at_ms", given.created_at_ms)
    first = row = processes.new_process(registered, now_ms=created_at_ms)
    writes: list[EventWrite] = []
    for index, one in enumerate(checks.sequence("events", log, most=limits.commit_items)):
        write = _event(f"events[{index}]", one, row, limits)
        row = write.process
        writes.append(write)
    if given.external_ref is not None:
        row = processes.with_external_ref(row, processes.check_external_ref(given.external_ref, limits), now_ms=0)
    if given.wait is not None:
        row = processes.with_wait(row, processes.check_wait(given.wait, limits), now_ms=0)
    row = _as_run(given, row, limits)
    row = msgspec.structs.replace(row, updated_at_ms=checks.whole("process.updated_at_ms", given.updated_at_ms))
    # The original registration is unknown if its wake target was deleted since; such a process is restored without one.
    if processes.process_of(row) != msgspec.structs.replace(given, registration_hash=row.registration_hash):
        raise InvalidRequest("process", "is not what its registration and its events make of it")
    return RestoredProcess(first, tuple(writes), row)


def _as_run(given: Process, row: ProcessRow, limits: Limits) -> ProcessRow:
    """Return a run with its due time, attempt and errors, without the claim that it may have had. Others stay."""
    if row.run_kind is None:
        return row
    attempted = msgspec.structs.replace(
        row,
        attempt=checks.whole("process.attempt", given.attempt, most=HIGHEST_ATTEMPT),
        suspended=int(checks.flag("process.suspended", given.suspended)),
        lost_owner=checks.optional_identifier("process.lost_owner_id", given.lost_owner_id, limits),
        last_error=checks.optional_text("process.last_error", given.last_error, limits),
    )
    if given.suspended:
        attempted = processes.with_waits(attempted, processes.check_waits("process.waits", given.waits, limits))
    due_at_ms = checks.optional_whole("process.due_at_ms", given.due_at_ms)
    restored = runs.due_from(attempted, due_at_ms)
    if not runs.is_sound(restored):
        raise InvalidRequest("process", "is due or suspended as no run can be")
    return restored


def _event(field: str, value: object, row: ProcessRow, limits: Limits) -> EventWrite:
    given = checks.instance(field, value, ProcessEvent)
    at_ms = checks.whole(f"{field}.occurred_at_ms", given.occurred_at_ms)
    intent = events.check_event(
        row.process_id,
        given.type,
        given.payload,
        replay_key=given.replay_key,
        wake_target=None,
        limits=limits,
        wrapped=ENVELOPE if given.type in events.TERMINAL_TYPES.values() else 0,
    )
    plan = events.plan(intent, processes.process_of(row), now_ms=at_ms)
    acked = checks.flag(f"{field}.acknowledged", given.acknowledged)
    written = msgspec.structs.replace(plan.row, acked=int(acked))
    if events.event_of(written) != given or (acked and plan.wake is None):
        raise InvalidRequest(field, "is not what its type and its payload make of it, in its place in the log")
    return EventWrite(written, processes.with_event(row, plan.outcome, now_ms=at_ms))


def same_process(existing: ProcessRow, restored: RestoredProcess) -> None:
    """Raise unless the existing process is this one and is at least as far."""
    final = restored.final
    if existing.registration_hash != final.registration_hash:
        raise RegistrationConflict(final.process_id, existing.registration_hash, final.registration_hash)
    if existing.created_at_ms != final.created_at_ms or existing.event_count < final.event_count:
        raise Conflict(
            f"process {final.process_id!r} is here already in another state: it was registered here by itself, or has "
            "continued where it came from"
        )


def check_subscription(value: object, limits: Limits) -> SubscriptionRow:
    """Return a subscription with its own number, enabled or not."""
    given = checks.instance("subscription", value, Subscription)
    intent = triggers.check_subscription(given.draft, limits)
    sequence = triggers.sequence_of("subscription.subscription_id", given.subscription_id, "subscription:", limits)
    row = msgspec.structs.replace(
        triggers.new_subscription(intent, now_ms=checks.whole("subscription.created_at_ms", given.created_at_ms)),
        sequence=sequence or 0,
        enabled=int(checks.flag("subscription.enabled", given.enabled)),
        updated_at_ms=checks.whole("subscription.updated_at_ms", given.updated_at_ms),
    )
    if not sequence or sequence > HIGHEST_NUMBER or triggers.subscription_of(row) != given:
        raise InvalidRequest("subscription", "is not what its draft and its number make of it")
    return row


def same_subscription(existing: SubscriptionRow, row: SubscriptionRow) -> None:
    """Raise `Conflict` unless the existing subscription is this one."""
    if (existing.definition_hash, existing.created_at_ms) != (row.definition_hash, row.created_at_ms):
        raise Conflict(
            f"{triggers.subscription_id(row.sequence)} is here already and is another one: restore into a store that "
            "has no subscriptions of its own"
        )


def check_occurrence(
    value: object, deliveries: object, limits: Limits
) -> tuple[OccurrenceRow, tuple[DeliveryRow, ...]]:
    """Return an occurrence with its deliveries."""
    given = checks.instance("occurrence", value, Occurrence)
    intent = triggers.check_occurrence(
        given.source_type, given.source_key, given.idempotency_key, given.payload, given.source, limits
    )
    row = triggers.new_occurrence(intent, now_ms=checks.whole("occurrence.occurred_at_ms", given.occurred_at_ms))
    if triggers.occurrence_of(row) != given:
        raise InvalidRequest("occurrence", "is not what its source and its key make of it")
    log: Sequence[object] = checks.sequence("deliveries", deliveries, most=limits.commit_items)
    return row, tuple(_delivery(f"deliveries[{index}]", one, row, limits) for index, one in enumerate(log))


def same_occurrence(existing: OccurrenceRow, row: OccurrenceRow) -> None:
    """Raise `OccurrenceConflict` unless the existing occurrence is this one."""
    if existing.request_hash != row.request_hash:
        raise OccurrenceConflict(row.source_type, row.source_key, row.idempotency_key)


def _delivery(field: str, value: object, occurrence: OccurrenceRow, limits: Limits) -> DeliveryRow:
    given = checks.instance(field, value, TriggerDelivery)
    subscription = checks.instance(f"{field}.subscription", given.subscription, Subscription)
    name = f"{field}.subscription.subscription_id"
    sequence = triggers.sequence_of(name, subscription.subscription_id, "subscription:", limits) or 0
    at_ms = checks.whole(f"{field}.reserved_at_ms", given.reserved_at_ms)
    state = checks.one_of(f"{field}.state", given.state, triggers.DELIVERY_STATES)
    process_id = triggers.delivery_process_id(occurrence.occurrence_id, triggers.subscription_id(sequence))
    failure = checks.optional_text(f"{field}.failure", given.failure, limits)
    theirs = checks.instance(f"{field}.occurrence", given.occurrence, Occurrence)
    if not sequence or theirs.occurrence_id != occurrence.occurrence_id or given.process_id != process_id:
        raise InvalidRequest(field, "is not of this occurrence, or has another process")
    if (failure is not None) != (state == "failed"):
        raise InvalidRequest(f"{field}.failure", "is there exactly if the delivery has failed")
    draft = checks.instance(f"{field}.subscription.draft", subscription.draft, SubscriptionDraft)
    kind = checks.optional_identifier(f"{field}.subscription.draft.target.kind", triggers.run_kind(draft), limits)
    return DeliveryRow(occurrence.occurrence_id, sequence, process_id, state, at_ms, at_ms, failure, kind)
