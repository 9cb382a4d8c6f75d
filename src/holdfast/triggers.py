"""Values of `store.triggers`."""

from holdfast.records.triggers import (
    Binding,
    Emission,
    EventPayload,
    Fixed,
    Occurrence,
    Subscription,
    SubscriptionDraft,
    TriggerDelivery,
)
from holdfast.rules.triggers import registration_for

__all__ = [
    "Binding",
    "Emission",
    "EventPayload",
    "Fixed",
    "Occurrence",
    "Subscription",
    "SubscriptionDraft",
    "TriggerDelivery",
    "registration_for",
]
