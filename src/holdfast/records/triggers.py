"""Triggers: a subscription turns each occurrence of a source into one process, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from holdfast.records.common import Document, KeywordRecord, Record, Scope
from holdfast.records.events import EventType
from holdfast.records.processes import Host, Originator, ProcessIdentity, ProcessInput

DeliveryState: TypeAlias = Literal["reserved", "started", "failed"]


class EventPayload(Record, frozen=True, tag="event", tag_field="type"):
    """Binds an argument to the occurrence's whole payload."""


class Fixed(Record, frozen=True, tag="fixed", tag_field="type"):
    """Binds an argument to a constant."""

    value: Document


Binding: TypeAlias = EventPayload | Fixed
"""The source of an argument of a started process."""


class SubscriptionDraft(KeywordRecord, frozen=True, kw_only=True):
    """The process to start when a source fires. Without `source_key`, one is derived from `source`."""

    source_type: str
    target: ProcessInput
    source: Document = None
    source_key: str | None = None
    registrant: Originator = Host()
    key: str | None = None
    name: str | None = None
    payload_schema: Document = {}
    target_identity: ProcessIdentity | None = None
    target_label: str | None = None
    event_types: Sequence[EventType] = ()
    input_template: dict[str, Binding] = {}
    env_ref: str | None = None
    wake_target: Scope | None = None


class Subscription(Record, frozen=True):
    """A registered subscription. A cancelled one stays listed, disabled."""

    subscription_id: str
    handle: str
    draft: SubscriptionDraft
    source_key: str
    enabled: bool
    created_at_ms: int
    updated_at_ms: int


class Occurrence(Record, frozen=True):
    """One firing of a source, recorded once per idempotency key."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    payload: Document
    source: Document | None
    occurred_at_ms: int


class TriggerDelivery(Record, frozen=True):
    """One occurrence on its way to one subscription. Its `process_id` is fixed in advance."""

    occurrence: Occurrence
    subscription: Subscription
    process_id: str
    state: DeliveryState
    reserved_at_ms: int
    failure: str | None = None


class Emission(Record, frozen=True):
    """A recorded occurrence and the deliveries that it newly reserved.

    At most a page of deliveries. If there are more, `next` is not None: pass it
    to `triggers.deliveries(occurrence_id, after=next)` for the others.
    """

    occurrence: Occurrence
    deliveries: tuple[TriggerDelivery, ...]
    replayed: bool = False
    next: str | None = None
