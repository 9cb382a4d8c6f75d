"""A process and a subscription with every field set, with the kind of value that each of their parts takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.events import Const, EventType, Pointer, Present, Template, TerminalRule, WakeRule
from holdfast.processes import BySession, Engine, ProcessIdentity, ProcessInput, Provenance
from holdfast.testing.contract.hostile_world import World, parts
from holdfast.triggers import Fixed, SubscriptionDraft

SCOPE = "session_id:id frame_id:frame?"
TYPES = " ".join(
    [
        ":sequence [0]:record [0].name:id [0].schema:schema [0].after_terminal:flag [0].terminal:record?",
        "[0].terminal.state:word [0].terminal.outcome:record [0].terminal.outcome.path:pointer [0].wake:record?",
        "[0].wake.input:record [0].wake.input.template:text [0].wake.input.fields:mapping",
        "[0].wake.input.fields.a:record [0].wake.input.fields.a.value:document [0].wake.when:record?",
        "[0].wake.when.path:pointer [0].wake.dedupe:record?",
    ]
)


def event_types() -> list[EventType]:
    """Return one type with every field set."""
    wake = WakeRule(
        input=Template("{a}", {"a": Const(1)}),
        when=Present("/a"),
        dedupe=Pointer("/a"),
    )
    rule = TerminalRule("failed", Pointer("/a"))
    return [EventType("done", schema={"type": "object"}, terminal=rule, wake=wake)]


def registration(input: ProcessInput, **fields: Any) -> Mapping[str, Any]:
    """Return a registration with every field set."""
    return {
        "registration": holdfast.ProcessRegistration(
            "other",
            input,
            identity=ProcessIdentity("kind", "label", {}),
            event_types=event_types(),
            provenance=Provenance(BySession(holdfast.Scope("chat", "f")), {}),
            wake_target=holdfast.Scope("chat", "f"),
            **fields,
        )
    }


REGISTRATION = " ".join(
    [
        parts("registration", ":record id:id input:record input.metadata:document identity:record? identity.kind:id"),
        parts("registration", "identity.label:text? identity.definition:document? provenance:record"),
        parts("registration.event_types", TYPES),
        parts("registration.provenance", "originator:record originator.scope:record caused_by:document?"),
        parts("registration.provenance.originator.scope", SCOPE),
        parts("registration.wake_target", ":record?", SCOPE),
    ]
)


def subscription(_: World) -> Mapping[str, Any]:
    """Return a subscription with every field set."""
    return {
        "draft": SubscriptionDraft(
            source_type="cron",
            target=Engine("lua", {}),
            source={},
            source_key="daily",
            registrant=BySession(holdfast.Scope("chat", "f")),
            key="key",
            name="name",
            payload_schema={"type": "object"},
            target_identity=ProcessIdentity("kind", "label", {}),
            target_label="label",
            event_types=event_types(),
            input_template={"a": Fixed(1)},
            env_ref="env",
            wake_target=holdfast.Scope("chat", "f"),
        )
    }


SUBSCRIPTION = " ".join(
    [
        parts("draft", ":record source_type:id target:record target.kind:id target.payload:document source:document"),
        parts("draft", "source_key:id? key:id? name:text? payload_schema:schema target_identity:record?"),
        parts(
            "draft", "target_identity.kind:id target_label:text? env_ref:id? registrant:record registrant.scope:record"
        ),
        parts("draft", "input_template:mapping input_template.a:record input_template.a.value:document"),
        parts("draft.registrant.scope", SCOPE),
        parts("draft.wake_target", ":record?", SCOPE),
        parts("draft.event_types", TYPES),
    ]
)
