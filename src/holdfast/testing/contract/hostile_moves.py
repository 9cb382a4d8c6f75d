"""The right calls that move a store, with the kinds of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.testing.contract.hostile_calls import PAGE, always
from holdfast.testing.contract.hostile_world import Call, World, parts


def a_process(_: World) -> Mapping[str, Any]:
    """Return a process of another store, with its log."""
    with holdfast.open_blocking("memory:") as other:
        kinds = [holdfast.events.EventType("note")]
        other.processes.register(
            holdfast.ProcessRegistration("moved", holdfast.processes.External(), event_types=kinds)
        )
        other.events.append("moved", "note", "one")
        return {"process": other.processes.get("moved"), "events": list(other.events.after("moved"))}


def a_subscription(world: World) -> Mapping[str, Any]:
    """Return the subscription of the world."""
    return {"subscription": world.delivery.subscription}


def an_occurrence(world: World) -> Mapping[str, Any]:
    """Return an occurrence of another store, with its delivery to a subscription that is here, too."""
    draft = world.delivery.subscription.draft
    with holdfast.open_blocking("memory:") as other:
        other.triggers.subscribe(draft)
        (delivery,) = other.triggers.emit("cron", "daily", idempotency_key="tuesday").deliveries
    return {"occurrence": delivery.occurrence, "deliveries": [delivery]}


MOVES = [
    Call(
        "processes.restore",
        a_process,
        parts(
            "process",
            ":record id=id:id input=input:record identity=identity:record? event_types=event_types:sequence",
            "provenance=provenance:record env_ref=env_ref:id? wake_target=wake_target:record? created_at_ms:whole",
            "updated_at_ms:whole external_ref=ref:record? wait=wait:record?",
        )
        + " events:sequence "
        + parts(
            "events[0]",
            ":record type=type:id payload=payload:document replay_key=replay_key:id? occurred_at_ms:whole",
            "acknowledged:flag",
        ),
    ),
    Call(
        "triggers.restore",
        a_subscription,
        parts("subscription", ":record subscription_id:id draft=draft:record enabled:flag"),
    ),
    Call(
        "triggers.restore",
        a_subscription,
        parts("subscription", "created_at_ms:whole updated_at_ms:whole"),
        variant=" with its times",
    ),
    Call(
        "triggers.restore_occurrence",
        an_occurrence,
        parts(
            "occurrence",
            ":record source_type=source_type:id source_key=source_key:id idempotency_key=idempotency_key:id",
            "payload=payload:document source=source:document? occurred_at_ms:whole",
        )
        + " deliveries:sequence "
        + parts(
            "deliveries[0]",
            ":record occurrence:record subscription:record subscription.subscription_id:id reserved_at_ms:whole",
            "state:word failure:text?",
        ),
    ),
    Call("triggers.occurrences", always(limit=1), PAGE),
    Call(
        "triggers.deliveries",
        lambda w: {"occurrence_id": w.delivery.occurrence.occurrence_id, "limit": 1},
        f"occurrence_id:id {PAGE}",
    ),
    Call("artifacts.list", always(kind="k", prefix="r", limit=1), f"kind:id? prefix:text {PAGE}"),
    Call("artifacts.get_many", always(kind="k", prefix="r", limit=1), f"kind:id prefix:text {PAGE}"),
]
