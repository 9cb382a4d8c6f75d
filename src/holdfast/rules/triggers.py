"""Triggers: check subscriptions and occurrences, derive their ids, and build the process that a delivery starts."""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast import codec
from holdfast.errors import Corrupt, InvalidRequest, OccurrenceConflict, SubscriptionConflict
from holdfast.records.common import Document
from holdfast.records.limits import Limits
from holdfast.records.processes import (
    BySession,
    Engine,
    Originator,
    ProcessIdentity,
    ProcessRegistration,
    Provenance,
    Run,
)
from holdfast.records.triggers import (
    DeliveryState,
    Emission,
    EventPayload,
    Fixed,
    Occurrence,
    Subscription,
    SubscriptionDraft,
    TriggerDelivery,
)
from holdfast.rows import DeliveryRow, OccurrenceRow, SubscriptionRow
from holdfast.rules import checks, processes, schemas
from holdfast.schedule_rows import MatchRow

DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
_STATE_OF: dict[str, DeliveryState] = {word: word for word in DELIVERY_STATES}
DELIVERY_PROCESS_PREFIX = "process:trigger:"


class SubscriptionIntent(msgspec.Struct, frozen=True):
    """A checked subscription."""

    draft: SubscriptionDraft
    source_key: str
    definition_hash: str
    target_hash: str | None


class OccurrenceIntent(msgspec.Struct, frozen=True):
    """A checked occurrence with its id."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    payload: bytes
    source: bytes | None
    request_hash: str


class Reservations(msgspec.Struct, frozen=True):
    """The rows of an occurrence and of its newly reserved deliveries, each with its subscription.

    If these are not all, `next` is the place in the listing of its deliveries behind which the others are.
    """

    occurrence: OccurrenceRow
    deliveries: tuple[tuple[DeliveryRow, SubscriptionRow], ...]
    replayed: bool
    next: str | None = None


# Ids.


def default_source_key(source_type: str, source: Document) -> str:
    """Return the key of a source that has no name of its own, derived from its type and document."""
    named: Document = {} if source is None else source
    return f"source:{source_type}:sha256:{codec.stable_hash([source_type, named])}"


def delivery_process_id(occurrence_id: str, subscription_id: str) -> str:
    """Return the id of the process that a delivery starts: always the same, so that starting it twice is harmless."""
    return DELIVERY_PROCESS_PREFIX + codec.stable_hash([occurrence_id, subscription_id])


def subscription_id(sequence: int) -> str:
    """Return the subscription's id."""
    return f"subscription:{sequence}"


def handle(sequence: int) -> str:
    """Return the name by which its registrant cancels it."""
    return f"trigger:{sequence}"


def sequence_of(field: str, value: object, prefix: str, limits: Limits) -> int | None:
    """Return the number in a subscription id or handle, None if it is not such a name."""
    name = checks.identifier(field, value, limits)
    digits = name.removeprefix(prefix)
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19) or name != f"{prefix}{int(digits)}":
        return None
    return int(digits)


# Subscriptions.


def check_subscription(value: object, limits: Limits) -> SubscriptionIntent:
    """Check a subscription, and fill in its source key."""
    draft = checks.instance("draft", value, SubscriptionDraft)
    source_type = checks.identifier("source_type", draft.source_type, limits)
    checks.document("source", draft.source, limits)
    source_key = checks.optional_identifier("source_key", draft.source_key, limits)
    schemas.check_schema("payload_schema", draft.payload_schema, limits)
    target = processes.check_input("target", draft.target, limits)
    for name, binding in checks.mapping("input_template", draft.input_template, most=limits.batch_items).items():
        checks.identifier("input_template", name, limits)
        bound = checks.instance(f"input_template.{name}", binding, (EventPayload, Fixed))
        if isinstance(bound, Fixed):
            checks.document(f"input_template.{name}.value", bound.value, limits)
    members = target.payload if isinstance(target, Engine) else target.args if isinstance(target, Run) else ()
    if draft.input_template and not isinstance(members, dict | None):
        problem = "needs an engine target whose payload is an object, or a run whose args are one"
        raise InvalidRequest("input_template", problem)
    processes.check_event_types("event_types", draft.event_types, limits)
    identity = processes.derive_identity(target) if draft.target_identity is None else draft.target_identity
    processes.check_identity("target_identity", identity, limits)
    label = checks.optional_text("target_label", draft.target_label, limits)
    if label is not None and identity.label is not None and label != identity.label:
        raise InvalidRequest("target_label", f"target_label must match the identity's label {identity.label!r}")
    changed = msgspec.structs.replace(
        draft,
        registrant=processes.check_originator("registrant", draft.registrant, limits),
        key=checks.optional_identifier("key", draft.key, limits),
        name=checks.optional_text("name", draft.name, limits),
        target_identity=identity,
        env_ref=checks.optional_identifier("env_ref", draft.env_ref, limits),
        wake_target=None if draft.wake_target is None else checks.scope("wake_target", draft.wake_target, limits),
    )
    checked = codec.own_copy(SubscriptionDraft, changed)
    # A delivery registers this process later: refuse now what registration would refuse then.
    processes.check_registration(ProcessRegistration("delivery", target, identity, env_ref=checked.env_ref), limits)
    return SubscriptionIntent(
        draft=checked,
        source_key=source_key or default_source_key(source_type, draft.source),
        definition_hash=codec.stable_hash(msgspec.structs.replace(checked, key=None)),
        target_hash=processes.definition_hash(identity.definition),
    )


def new_subscription(intent: SubscriptionIntent, *, now_ms: int) -> SubscriptionRow:
    """Return the row of a new subscription. The database assigns its sequence."""
    registrant = intent.draft.registrant
    return SubscriptionRow(
        sequence=0,
        session_id=processes.session_of(registrant),
        frame_id=frame_of(registrant),
        key=intent.draft.key,
        definition_hash=intent.definition_hash,
        name=intent.draft.name,
        source_type=intent.draft.source_type,
        source_key=intent.source_key,
        target_hash=intent.target_hash,
        enabled=1,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        body=codec.encode_record(intent.draft),
        run_kind=run_kind(intent.draft),
    )


def frame_of(registrant: Originator) -> str | None:
    """Return the frame of a registrant, None if it is not a frame."""
    return registrant.scope.frame_id if isinstance(registrant, BySession) else None


def same_subscription(intent: SubscriptionIntent, existing: SubscriptionRow) -> SubscriptionRow:
    """Return the subscription that this key made before, or raise `SubscriptionConflict` if it differs."""
    if existing.definition_hash != intent.definition_hash:
        raise SubscriptionConflict(intent.draft.key or "")
    return existing


def subscription_of(row: SubscriptionRow) -> Subscription:
    """Return the subscription of a row."""
    return Subscription(
        subscription_id=subscription_id(row.sequence),
        handle=handle(row.sequence),
        draft=codec.decode_record(SubscriptionDraft, row.body, table="subscriptions", key=row.sequence),
        source_key=row.source_key,
        enabled=bool(row.enabled),
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
    )


def may_cancel(row: SubscriptionRow | None, registrant: Originator) -> bool:
    """Return True if it is still enabled and belongs to the registrant: to any frame of its session, or to the host."""
    return row is not None and bool(row.enabled) and row.session_id == processes.session_of(registrant)


# Occurrences and deliveries.


def check_occurrence(
    source_type: object, source_key: object, idempotency_key: object, payload: Document, source: Document | None,
    limits: Limits,
) -> OccurrenceIntent:  # fmt: skip
    """Check an occurrence, and derive its id: the same source and key give the same one."""
    names = (
        checks.identifier("source_type", source_type, limits),
        checks.identifier("source_key", source_key, limits),
        checks.identifier("idempotency_key", idempotency_key, limits),
    )
    encoded = checks.document("payload", payload, limits)
    encoded_source = checks.optional_document("source", source, limits)
    return OccurrenceIntent(
        occurrence_id="trigger:" + codec.stable_hash(names),
        source_type=names[0],
        source_key=names[1],
        idempotency_key=names[2],
        payload=encoded,
        source=encoded_source,
        request_hash=request_hash(*names[:2], encoded, encoded_source),
    )


def request_hash(source_type: str, source_key: str, payload: bytes, source: bytes | None) -> str:
    """Return the hash that two occurrences of one id must share.

    Reads the stored bytes: the caller may change its own objects.
    """
    documents = [
        None if one is None else codec.decode_document(one, table="occurrences", key="") for one in (payload, source)
    ]
    return codec.stable_hash([source_type, source_key, *documents])


def same_occurrence(intent: OccurrenceIntent, existing: OccurrenceRow) -> OccurrenceRow:
    """Return the occurrence that this key recorded before, or raise `OccurrenceConflict` if it differs."""
    if existing.request_hash != intent.request_hash:
        raise OccurrenceConflict(intent.source_type, intent.source_key, intent.idempotency_key)
    return existing


def new_occurrence(intent: OccurrenceIntent, *, now_ms: int) -> OccurrenceRow:
    """Return the row of a new occurrence."""
    return OccurrenceRow(
        occurrence_id=intent.occurrence_id,
        source_type=intent.source_type,
        source_key=intent.source_key,
        idempotency_key=intent.idempotency_key,
        request_hash=intent.request_hash,
        occurred_at_ms=now_ms,
        payload=intent.payload,
        source=intent.source,
    )


def occurrence_of(row: OccurrenceRow) -> Occurrence:
    """Return the occurrence of a row."""
    key = row.occurrence_id
    return Occurrence(
        occurrence_id=key,
        source_type=row.source_type,
        source_key=row.source_key,
        idempotency_key=row.idempotency_key,
        payload=codec.decode_document(row.payload, table="occurrences", key=key),
        source=None if row.source is None else codec.decode_document(row.source, table="occurrences", key=key),
        occurred_at_ms=row.occurred_at_ms,
    )


def new_delivery(occurrence: OccurrenceRow, subscription: SubscriptionRow | MatchRow, *, now_ms: int) -> DeliveryRow:
    """Return the reservation of one occurrence for one subscription."""
    sequence, kind = subscription.sequence, subscription.run_kind
    process_id = delivery_process_id(occurrence.occurrence_id, subscription_id(sequence))
    return DeliveryRow(occurrence.occurrence_id, sequence, process_id, "reserved", now_ms, now_ms, run_kind=kind)


def run_kind(draft: SubscriptionDraft) -> str | None:
    """Return the kind of the run that a subscription starts, None if its processes are not runs."""
    return draft.target.kind if isinstance(draft.target, Run) else None


def moved(row: DeliveryRow, state: str, *, failure: str | None = None, now_ms: int) -> DeliveryRow:
    """Return the delivery in another state. A started delivery stays started."""
    if row.state == "started":
        return row
    return msgspec.structs.replace(row, state=state, failure=failure, updated_at_ms=now_ms)


def emission_of(reserved: Reservations) -> Emission:
    """Return the emission of these rows. All its deliveries share one decoded occurrence."""
    occurrence = occurrence_of(reserved.occurrence)
    deliveries = tuple(delivery_of(row, occurrence, subscription) for row, subscription in reserved.deliveries)
    return Emission(occurrence, deliveries, reserved.replayed, reserved.next)


def delivery_of(row: DeliveryRow, occurrence: Occurrence, subscription: SubscriptionRow) -> TriggerDelivery:
    """Return the delivery of a row. The occurrence may be shared with other deliveries."""
    state = _STATE_OF.get(row.state)
    if state is None:
        raise Corrupt("deliveries", row.process_id, f"state is {row.state!r}")
    return TriggerDelivery(
        occurrence=occurrence,
        subscription=subscription_of(subscription),
        process_id=row.process_id,
        state=state,
        reserved_at_ms=row.reserved_at_ms,
        failure=row.failure,
    )


def registration_for(delivery: TriggerDelivery) -> ProcessRegistration:
    """Return the registration of the process that a delivery starts: the target with arguments from the occurrence.

    A payload that does not fit the subscription's schema is `InvalidRequest`: mark the delivery failed. The end of a
    run wakes the subscription's target, unless the subscription declares event types of its own.
    """
    draft, occurrence = delivery.subscription.draft, delivery.occurrence
    schemas.require_valid("payload", codec.encode_document(occurrence.payload), draft.payload_schema)
    target = draft.target
    args = {
        name: binding.value if isinstance(binding, Fixed) else occurrence.payload
        for name, binding in draft.input_template.items()
    }
    if args and isinstance(target, Run):
        target = Run(target.kind, target.version, {**(target.args or {}), **args})
    elif args and isinstance(target, Engine):
        target = Engine(target.kind, {**(target.payload or {}), "args": args})
    identity: ProcessIdentity | None = draft.target_identity
    event_types = draft.event_types
    if isinstance(target, Run) and draft.wake_target is not None and not event_types:
        event_types = processes.waking_ends()
    return ProcessRegistration(
        id=delivery.process_id,
        input=target,
        identity=identity,
        event_types=event_types,
        provenance=Provenance(
            draft.registrant, {"type": "trigger_occurrence", "occurrence_id": occurrence.occurrence_id}
        ),
        env_ref=draft.env_ref,
        wake_target=draft.wake_target,
    )
