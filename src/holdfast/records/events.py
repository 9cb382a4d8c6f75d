"""Events tell a process's story in order; a declared type says which of them end it and which wake a session."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.records.common import Document, Record, Scope

# Selectors: how a value is taken out of an event's payload.


class Payload(Record, frozen=True, tag="payload"):
    """The whole payload."""


class Pointer(Record, frozen=True, tag="pointer"):
    """The value at a JSON pointer; an event without it is refused."""

    path: str


class Const(Record, frozen=True, tag="const"):
    """Always this value."""

    value: Document


class Template(Record, frozen=True, tag="template"):
    """Text in which each `{name}` is replaced by that field's text.

    A field that the text does not name is not looked at. All templates of one event together are filled with at most
    16 MiB of characters; more is `InvalidRequest`.
    """

    template: str
    fields: dict[str, Selector] = {}


class Present(Record, frozen=True, tag="present"):
    """Whether a JSON pointer resolves."""

    path: str


Selector: TypeAlias = Payload | Pointer | Const | Template | Present
"""How a value is taken out of an event's payload."""


class TerminalRule(Record, frozen=True):
    """An event of this type ends the process. Without `outcome`, the payload itself is the result."""

    state: Literal["completed", "failed", "cancelled"]
    outcome: Selector | None = None


class WakeRule(Record, frozen=True):
    """An event of this type wakes the target session, unless `when` is given and false.

    `dedupe` names what makes two wakes the same one; by default each event is its own. Equal keys wake a session once,
    whichever process they come from, until retention forgets the wake. So a key that is constant wakes a session once
    and never again: take it from the payload (`Pointer("/file")`), or leave it out. `processes.register` and
    `triggers.subscribe` warn of one (`WakesOnceWarning`).
    """

    input: Selector
    when: Selector | None = None
    dedupe: Selector | None = None


class WakesOnceWarning(UserWarning):
    """A wake was declared with a constant `dedupe`: it wakes its session once and never again.

    If that is meant, turn the warning off: `warnings.simplefilter("ignore", holdfast.WakesOnceWarning)`.
    """


class EventType(Record, frozen=True):
    """A kind of event that a process may emit. `schema` is JSON Schema; the empty one accepts anything."""

    name: str
    schema: Document = {}
    terminal: TerminalRule | None = None
    wake: WakeRule | None = None
    after_terminal: bool = False


class WakeSignal(Record, frozen=True):
    """What an event says to the session that it wakes."""

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
    terminal_state: Literal["completed", "failed", "cancelled"] | None = None
    wake: WakeSignal | None = None
    acknowledged: bool = False

    @property
    def invocation(self) -> Document:
        """Where the event stands in the chain of causes."""
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
            "A background process has news.\n"
            f"Process: {self.process_id}\n"
            f"Event: {self.event_type} #{self.sequence}\n"
            f"Message: {self.input}"
        )


class AppendReceipt(Record, frozen=True):
    """An accepted event. `batch_id` is the queue batch that carries its wake, if it has a target."""

    event: ProcessEvent
    wake: Wake | None = None
    batch_id: str | None = None
    replayed: bool = False
