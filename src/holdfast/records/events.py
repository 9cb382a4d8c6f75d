"""Events: the ordered log of a process. A declared type says which events end the process and which wake a session."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.records.common import Document, Receipt, Record, Scope

# Selectors take a value out of an event's payload.


class Payload(Record, frozen=True, tag="payload"):
    """The whole payload."""


class Pointer(Record, frozen=True, tag="pointer"):
    """The value at a JSON pointer. An event without that value is refused."""

    path: str


class Const(Record, frozen=True, tag="const"):
    """Always this value."""

    value: Document


class Template(Record, frozen=True, tag="template"):
    """Text in which each `{name}` is replaced by the text of that field.

    A field that the text does not name is ignored. All templates of one event together produce at most 16 MiB of
    characters; more is `InvalidRequest`.
    """

    template: str
    fields: dict[str, Selector] = {}


class Present(Record, frozen=True, tag="present"):
    """True if the JSON pointer resolves."""

    path: str


Selector: TypeAlias = Payload | Pointer | Const | Template | Present
"""An expression that takes a value out of an event's payload."""


class TerminalRule(Record, frozen=True):
    """An event of this type ends the process. Without `outcome`, the payload itself is the result."""

    state: Literal["completed", "failed", "cancelled", "abandoned"]
    outcome: Selector | None = None


class WakeRule(Record, frozen=True):
    """An event of this type wakes the target session, unless `when` is given and false.

    `dedupe` selects the key that makes two wakes the same one, at most `Limits.text_bytes` long; by default each event
    is its own. Equal keys wake a session once, whichever process they come from, until retention forgets the wake. A
    constant key therefore wakes a session once and never again, and `Present`, which is true or false, wakes it twice:
    take the key from the payload (`Pointer("/file")`), or leave it out. `processes.register` and `triggers.subscribe`
    warn of such a key (`WakesOnceWarning`).
    """

    input: Selector
    when: Selector | None = None
    dedupe: Selector | None = None


class WakesOnceWarning(UserWarning):
    """A `dedupe` that yields one or a few values: the wake happens once for each of them, and never again.

    If that is intended, turn the warning off: `warnings.simplefilter("ignore", holdfast.events.WakesOnceWarning)`.
    """


class EventType(Record, frozen=True):
    """A kind of event that a process may emit. `schema` is JSON Schema; the empty one accepts anything."""

    name: str
    schema: Document = {}
    terminal: TerminalRule | None = None
    wake: WakeRule | None = None
    after_terminal: bool = False


class WakeSignal(Record, frozen=True):
    """The message of an event to the session that it wakes."""

    input: str
    dedupe_key: str


class ProcessEvent(Record, frozen=True):
    """One entry of a process's log. Sequences start at 1 and have no gaps."""

    process_id: str
    sequence: int
    type: str
    payload: Document
    occurred_at_ms: int
    replay_key: str | None = None
    terminal_state: Literal["completed", "failed", "cancelled", "abandoned"] | None = None
    wake: WakeSignal | None = None
    acknowledged: bool = False

    @property
    def cursor(self) -> str:
        """The place after this event, for a reader of a run that reconnects: see `RunHandle.follow`."""
        return f"{self.sequence}@{self.process_id}"

    @property
    def invocation(self) -> Document:
        """The event's place in the chain of causes."""
        return {
            "scope": {"session_id": "runtime"},
            "subject": {
                "type": "process_event",
                "process_id": self.process_id,
                "sequence": self.sequence,
                "event_type": self.type,
            },
            "caused_by": {"type": "process", "process_id": self.process_id},
            "replay": None if self.replay_key is None else {"key": self.replay_key},
        }


class Wake(Record, frozen=True):
    """A wake on its way to a session. Equal dedupe keys for one target share one wake id."""

    wake_id: str
    target: Scope
    process_id: str
    sequence: int
    event_type: str
    dedupe_key: str
    input: str
    created_at_ms: int
    caused_by: Document | None = None

    @property
    def text(self) -> str:
        """The wake as a model reads it."""
        return (
            "A background process reports an event.\n"
            f"Process: {self.process_id}\n"
            f"Event: {self.event_type} #{self.sequence}\n"
            f"Message: {self.input}"
        )


class EventDraft(Record, frozen=True):
    """An event to append together with others."""

    type: str
    payload: Document = None
    replay_key: str | None = None


class AppendReceipt(Receipt, frozen=True):
    """An accepted event. `batch_id` is the queue batch that carries its wake, if it has a target."""

    event: ProcessEvent
    wake: Wake | None = None
    batch_id: str | None = None
    replayed: bool = False
