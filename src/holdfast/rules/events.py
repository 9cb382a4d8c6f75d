"""What an event means: whether it may be appended, whether it ends its process, and whom it wakes."""

from __future__ import annotations

import re
from typing import Any, cast, get_args

import msgspec

from holdfast import codec
from holdfast.errors import AlreadyTerminal, Corrupt, InvalidRequest, ReplayConflict
from holdfast.records.common import Document, Scope
from holdfast.records.events import (
    Const,
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
)
from holdfast.records.limits import MIB, Limits
from holdfast.records.processes import (
    Cancelled,
    Completed,
    Failed,
    FailureClass,
    Process,
    ProcessOutcome,
    TerminalState,
)
from holdfast.records.work import WorkDraft
from holdfast.rows import EventRow
from holdfast.rules import checks, schemas

SELECTORS = (Payload, Pointer, Const, Template, Present)
STATES: tuple[TerminalState, ...] = get_args(TerminalState)
FIELD = re.compile(r"\{([^{}]*)\}")
LONGEST_TEXT = 16 * MIB
CANCEL_REQUESTED = "process.cancel_requested"
TERMINAL_TYPES: dict[TerminalState, str] = {state: f"process.{state}" for state in STATES}

FAILURE_CLASSES: tuple[str, ...] = get_args(FailureClass)

CORE_EVENT_TYPES = (
    EventType(CANCEL_REQUESTED),
    EventType("process.waiting"),
    EventType("process.resumed"),
    *(
        EventType(name, terminal=TerminalRule(state, Pointer("/await_output")))
        for state, name in TERMINAL_TYPES.items()
    ),
)
"""The types that every process has."""


class EventIntent(msgspec.Struct, frozen=True):
    """A checked event."""

    process_id: str
    type: str
    payload: Document
    encoded: bytes
    payload_hash: str
    replay_key: str | None
    wake_target: Scope | None


class EventPlan(msgspec.Struct, frozen=True):
    """What an accepted event writes, and the outcome if it ends its process."""

    row: EventRow
    wake: WakeSignal | None
    outcome: ProcessOutcome | None


# Declarations.


def check_event_type(field: str, value: object, limits: Limits) -> EventType:
    """A declaration that can be kept: named, with a usable schema and well-formed selectors."""
    declared = checks.instance(field, value, EventType)
    checks.identifier(f"{field}.name", declared.name, limits)
    checks.flag(f"{field}.after_terminal", declared.after_terminal)
    schemas.check_schema(f"{field}.schema", declared.schema, limits)
    if declared.terminal is not None:
        rule = checks.instance(f"{field}.terminal", declared.terminal, TerminalRule)
        checks.one_of(f"{field}.terminal.state", rule.state, STATES)
        if rule.outcome is not None:
            _check_selector(f"{field}.terminal.outcome", rule.outcome, limits)
        elif rule.state != "completed":
            raise InvalidRequest(f"{field}.terminal.outcome", f"a {rule.state} event must say where its outcome is")
    if declared.wake is not None:
        wake = checks.instance(f"{field}.wake", declared.wake, WakeRule)
        _check_selector(f"{field}.wake.input", wake.input, limits)
        for name, selector in (("when", wake.when), ("dedupe", wake.dedupe)):
            if selector is not None:
                _check_selector(f"{field}.wake.{name}", selector, limits)
    return declared


def _check_selector(field: str, value: object, limits: Limits, depth: int = 0) -> None:
    selector = checks.instance(field, value, SELECTORS)
    if depth > limits.document_depth:
        raise InvalidRequest(
            field, f"is nested deeper than {limits.document_depth} levels", limit=limits.document_depth
        )
    if isinstance(selector, Pointer | Present):
        path = checks.text(f"{field}.path", selector.path, limits)
        if path and not path.startswith("/"):
            raise InvalidRequest(f"{field}.path", "a JSON pointer is empty or starts with /")
    elif isinstance(selector, Const):
        checks.document(f"{field}.value", selector.value, limits)
    elif isinstance(selector, Template):
        checks.text(f"{field}.template", selector.template, limits)
        for name, inner in checks.mapping(f"{field}.fields", selector.fields, most=limits.batch_items).items():
            if "{" in checks.identifier(f"{field}.fields", name, limits) or "}" in name:
                raise InvalidRequest(f"{field}.fields", f"the name {name!r} must not contain braces")
            _check_selector(f"{field}.fields.{name}", inner, limits, depth + 1)


# Selection.


def select(field: str, selector: Selector, payload: Document) -> Document:
    """The value that a selector takes out of a payload."""
    if isinstance(selector, Payload):
        return payload
    if isinstance(selector, Const):
        return selector.value
    if isinstance(selector, Present):
        return _resolve(selector.path, payload)[0]
    if isinstance(selector, Pointer):
        found, value = _resolve(selector.path, payload)
        if not found:
            raise InvalidRequest(field, f"payload pointer {selector.path!r} did not match")
        return value
    return _fill(field, selector, payload)


def _resolve(path: str, payload: Document) -> tuple[bool, Any]:
    value: Any = payload
    for part in path.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found, value = _step(value, key)
        if not found:
            return False, None
    return True, value


def _step(value: Any, key: str) -> tuple[bool, Any]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return key in members, members.get(key)
    if isinstance(value, list):
        items: list[Any] = cast("Any", value)
        if _is_index(key) and int(key) < len(items):
            return True, items[int(key)]
    return False, None


def _is_index(key: str) -> bool:
    """An array index as JSON pointers write it: digits, no leading zero, of sane length."""
    return key.isascii() and key.isdigit() and len(key) < 10 and (key == "0" or not key.startswith("0"))


def _fill(field: str, template: Template, payload: Document) -> str:
    """The template with its fields put in, in one pass: what was put in is text and is not read again."""
    values = {name: as_text(select(field, inner, payload)) for name, inner in template.fields.items()}
    length = len(template.template)

    def put_in(place: re.Match[str]) -> str:
        nonlocal length
        value = values.get(place[1], place[0])
        length += len(value)
        if length > LONGEST_TEXT:
            raise InvalidRequest(
                field, f"fills a template with more than {LONGEST_TEXT} characters", limit=LONGEST_TEXT
            )
        return value

    return FIELD.sub(put_in, template.template)


def as_text(value: Document) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else codec.encode_document(value).decode()


# Appending.


def check_event(
    process_id: str,
    type: object,
    payload: Document,
    *,
    replay_key: object,
    wake_target: object,
    limits: Limits,
    wrapped: int = 0,
) -> EventIntent:
    """The intent of an append."""
    name = checks.identifier("type", type, limits)
    encoded = checks.document("payload", payload, limits, wrapped=wrapped)
    return EventIntent(
        process_id=process_id,
        type=name,
        # The caller may go on changing its own objects while the call is under way.
        payload=codec.decode_document(encoded, table="payload", key=name),
        encoded=encoded,
        payload_hash=event_hash(name, payload),
        replay_key=_check_replay_key(process_id, name, replay_key, limits),
        wake_target=None if wake_target is None else checks.scope("wake_target", wake_target, limits),
    )


def event_hash(type: str, payload: Document) -> str:
    """What two events under one replay key must have in common."""
    return codec.stable_hash([type, payload])


def _check_replay_key(process_id: str, type: str, value: object, limits: Limits) -> str | None:
    """A replay key. One that names the process's end or a request to cancel it belongs to that event alone."""
    if not isinstance(value, str) or not value.startswith(f"process:{process_id}:"):
        return checks.optional_identifier("replay_key", value, limits)
    # The process id has its own limit: a key that contains it may be longer than another one.
    prefix = f"process:{process_id}:"
    rest = checks.identifier("replay_key", value[len(prefix) :], limits)
    role, _, name = rest.partition(":")
    owner = {"terminal": name, "cancel_requested": CANCEL_REQUESTED}.get(role, type)
    if owner != type:
        raise InvalidRequest("replay_key", f"belongs to the event {owner!r} of this process: use another key")
    return prefix + rest


def replayed(intent: EventIntent, stored: EventRow | None) -> EventRow | None:
    """The event that this replay key made before; other content under the key is refused."""
    if stored is not None and stored.payload_hash != intent.payload_hash:
        raise ReplayConflict(intent.process_id, intent.replay_key or "")
    return stored


def plan(intent: EventIntent, process: Process, *, now_ms: int) -> EventPlan:
    """The event as it is appended now: declared, keyed where it must be, valid, and not after the end."""
    declared = next((one for one in process.event_types if one.name == intent.type), None)
    if declared is None:
        problem = f"process {process.id!r} emitted undeclared event type {intent.type!r}: declare it in event_types"
        raise InvalidRequest("type", problem)
    if intent.replay_key is None and (declared.terminal is not None or intent.type == CANCEL_REQUESTED):
        raise InvalidRequest("replay_key", f"{intent.type!r} requires a deterministic replay key")
    # What is stored is what is validated, and not the caller's own objects.
    schemas.require_valid("payload", intent.encoded, declared.schema)
    sequence = process.event_count + 1
    outcome = _outcome(declared.terminal, intent.payload)
    wake = _wake_signal(declared.wake, intent, sequence)
    if process.is_terminal and (declared.terminal is not None or not declared.after_terminal):
        raise AlreadyTerminal(process.id, process.status)
    row = EventRow(
        process_id=process.id,
        sequence=sequence,
        type=intent.type,
        payload_hash=intent.payload_hash,
        replay_key=intent.replay_key,
        terminal_state=None if outcome is None else state_of(outcome),
        wake=None if wake is None else codec.encode_record(wake),
        acked=0,
        occurred_at_ms=now_ms,
        payload=intent.encoded,
    )
    return EventPlan(row, wake, outcome)


def _outcome(rule: TerminalRule | None, payload: Document) -> ProcessOutcome | None:
    """How the process ends by this event: with the selected value, wrapped unless it is an outcome of that kind."""
    if rule is None:
        return None
    if rule.outcome is None:
        return Completed(payload)
    value = select("payload", rule.outcome, payload)
    given = _as_outcome(value)
    if given is not None and state_of(given) == rule.state:
        return given
    if rule.state == "completed":
        return Completed(value)
    if rule.state == "failed":
        return Failed(as_text(value), raw=value)
    return Cancelled(as_text(value), raw=value)


# Built now, by one thread: msgspec shows other threads what it has half built when it first meets a type.
msgspec.json.Decoder(ProcessOutcome)


def _as_outcome(value: Document) -> ProcessOutcome | None:
    try:
        outcome: ProcessOutcome = msgspec.convert(value, ProcessOutcome)
    except msgspec.ValidationError:
        return None
    return outcome


def state_of(outcome: ProcessOutcome) -> TerminalState:
    """The state that an outcome leaves its process in."""
    if isinstance(outcome, Completed):
        return "completed"
    return "failed" if isinstance(outcome, Failed) else "cancelled"


def _wake_signal(rule: WakeRule | None, intent: EventIntent, sequence: int) -> WakeSignal | None:
    if rule is None or (rule.when is not None and not select("payload", rule.when, intent.payload)):
        return None
    dedupe_key = f"{intent.process_id}:{sequence}"
    if rule.dedupe is not None:
        dedupe_key = as_text(select("payload", rule.dedupe, intent.payload))
    return WakeSignal(as_text(select("payload", rule.input, intent.payload)), dedupe_key)


# Wakes.


def wake_signal_of(row: EventRow) -> WakeSignal | None:
    """The signal that a stored event carries."""
    if row.wake is None:
        return None
    return codec.decode_record(WakeSignal, row.wake, table="events", key=f"{row.process_id}/{row.sequence}")


def wake_of(row: EventRow, signal: WakeSignal | None, target: Scope | None, caused_by: Document | None) -> Wake | None:
    """The wake of an event for a target; none without a signal or without a target."""
    if signal is None or target is None:
        return None
    return Wake(
        wake_id="wake:" + codec.stable_hash([target.session_id, target.frame_id, signal.dedupe_key]),
        target=target,
        process_id=row.process_id,
        sequence=row.sequence,
        event_type=row.type,
        dedupe_key=signal.dedupe_key,
        input=signal.input,
        created_at_ms=row.occurred_at_ms,
        caused_by=caused_by,
    )


def wake_draft(wake: Wake) -> WorkDraft:
    """The work that delivers a wake: once per wake id, at the earliest safe boundary, alone."""
    return WorkDraft(
        session_id=wake.target.session_id,
        source_key=wake.wake_id,
        slot="exclusive",
        payloads=[{"type": "process_wake", "wake": codec.document_of(wake)}],
    )


def event_of(row: EventRow) -> ProcessEvent:
    """The event that a row holds."""
    key = f"{row.process_id}/{row.sequence}"
    return ProcessEvent(
        process_id=row.process_id,
        sequence=row.sequence,
        type=row.type,
        payload=codec.decode_document(row.payload, table="events", key=key),
        occurred_at_ms=row.occurred_at_ms,
        replay_key=row.replay_key,
        terminal_state=_terminal_state(row),
        wake=wake_signal_of(row),
        acknowledged=bool(row.acked),
    )


def _terminal_state(row: EventRow) -> TerminalState | None:
    if row.terminal_state is None:
        return None
    for state in STATES:
        if row.terminal_state == state:
            return state
    raise Corrupt("events", f"{row.process_id}/{row.sequence}", f"terminal state is {row.terminal_state!r}")


def completion_event(process_id: str, outcome: ProcessOutcome, limits: Limits) -> EventIntent:
    """The event that completes a process: a repeated completion replays it, another outcome conflicts with it."""
    checked = _check_outcome(outcome, limits)
    name = TERMINAL_TYPES[state_of(checked)]
    payload = {"await_output": codec.document_of(checked)}
    key = terminal_key(process_id, name)
    return check_event(process_id, name, payload, replay_key=key, wake_target=None, limits=limits, wrapped=2)


def terminal_key(process_id: str, event_type: str) -> str:
    """The replay key of a process's completion: the text that lash gives it, so that a re-append under it replays."""
    return f"process:{process_id}:terminal:{event_type}"


def cancel_key(process_id: str, payload: Document) -> str:
    """The replay key of a request to cancel: the same reason again is the same request."""
    return f"process:{process_id}:cancel_requested:{event_hash(CANCEL_REQUESTED, payload)}"


def _check_outcome(value: object, limits: Limits) -> ProcessOutcome:
    outcome = checks.instance("outcome", value, (Completed, Failed, Cancelled))
    if isinstance(outcome, Completed):
        checks.document("outcome.value", outcome.value, limits)
    else:
        checks.document("outcome.message", outcome.message, limits)
        checks.instance("outcome.message", outcome.message, str)
        checks.optional_document("outcome.raw", outcome.raw, limits)
    if isinstance(outcome, Failed):
        checks.identifier("outcome.code", outcome.code, limits)
        checks.one_of("outcome.failure_class", outcome.failure_class, FAILURE_CLASSES)
    checks.optional_document("outcome.control", outcome.control, limits)
    return outcome
