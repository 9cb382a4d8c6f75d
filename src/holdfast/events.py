"""Values of `store.events`: types of events, the rules of their wakes and ends, and the selectors in those rules."""

from holdfast.records.events import (
    AppendReceipt,
    Const,
    EventDraft,
    EventType,
    Payload,
    Pointer,
    Present,
    ProcessEvent,
    Selector,
    Template,
    TerminalRule,
    Wake,
    WakeRule,
    WakeSignal,
    WakesOnceWarning,
)

__all__ = [
    "AppendReceipt",
    "Const",
    "EventDraft",
    "EventType",
    "Payload",
    "Pointer",
    "Present",
    "ProcessEvent",
    "Selector",
    "Template",
    "TerminalRule",
    "Wake",
    "WakeRule",
    "WakeSignal",
    "WakesOnceWarning",
]
