"""Decide whether an event may be appended, whether it ends its process, and which session it wakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import msgspec

from holdfast import codec
from holdfast.errors import AlreadyTerminal, Corrupt, InvalidRequest, ReplayConflict
from holdfast.next_step import NextStep
from holdfast.records.common import Document, Scope
from holdfast.records.events import (
    EventType,
    Payload,
    Pointer,
    Present,
    ProcessEvent,
    TerminalRule,
    Wake,
    WakeRule,
    WakeSignal,
)
from holdfast.records.limits import LARGEST_INTEGER, Limits
from holdfast.records.processes import (
    Abandoned,
    Cancelled,
    Completed,
    Failed,
    FailureClass,
    Process,
    ProcessOutcome,
    Run,
    TerminalState,
)
from holdfast.records.queue import WAKE_PREFIX, WorkDraft
from holdfast.rows import EventRow
from holdfast.rules import checks, runs, schemas, wakes
from holdfast.rules.schemas import PATTERN_STATES, SUBSCHEMAS
from holdfast.rules.selectors import Remaining, Room, as_text, check_selector, most_values, select

_STATE_OF: dict[type[ProcessOutcome], TerminalState] = {
    Completed: "completed",
    Failed: "failed",
    Cancelled: "cancelled",
    Abandoned: "abandoned",
}
STATES: tuple[TerminalState, ...] = get_args(TerminalState)
LIGHT_BYTES = 64 * 1024
"""An event that is judged inside the transaction is no larger than this, has no schema and fills no template."""
LIGHT_SELECTORS = (Payload, Pointer, Present)
CANCEL_REQUESTED = runs.CANCEL_REQUESTED
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
CONTINUED_TYPE = EventType(runs.CONTINUED, terminal=TerminalRule("completed", Pointer("/await_output")))


class EventIntent(msgspec.Struct, frozen=True):
    """A checked event."""

    process_id: str
    type: str
    payload: Document
    encoded: bytes
    payload_hash: str
    replay_key: str | None
    wake_target: Scope | None
    dedupe_bytes: int = LARGEST_INTEGER
    """Longest dedupe key of a wake. The key of a stored event is not checked again."""


class Judgement(msgspec.Struct, frozen=True):
    """The meaning of an event by the declarations of its process, wherever in the log it will stand.

    It is valid for one registration. `refusal` is the error if the event cannot be appended at all.
    """

    registration_hash: str
    refusal: InvalidRequest | None = None
    after_terminal: bool = False
    outcome: ProcessOutcome | None = None
    outcome_record: bytes | None = None
    wake_input: str | None = None
    dedupe_key: str | None = None


class EventPlan(msgspec.Struct, frozen=True):
    """The writes of an accepted event, and its outcome, also in stored form, if it ends its process."""

    row: EventRow
    wake: WakeSignal | None
    outcome: ProcessOutcome | None
    outcome_record: bytes | None = None


class Declared(msgspec.Struct):
    """The total size of several declarations."""

    bytes: int = 0
    subschemas: int = 0
    states: int = 0
    """Size of the compiled patterns of their schemas."""


# Declarations.


def check_event_type(field: str, value: object, limits: Limits, sum_of: Declared | None = None) -> EventType:
    """Check a declaration: it is named, and has a usable schema and well-formed selectors."""
    sum_of = Declared() if sum_of is None else sum_of
    declared = checks.instance(field, value, EventType)
    checks.identifier(f"{field}.name", declared.name, limits)
    checks.flag(f"{field}.after_terminal", declared.after_terminal)
    size = schemas.check_schema(f"{field}.schema", declared.schema, limits)
    sum_of.bytes += size.bytes
    sum_of.subschemas += size.subschemas
    sum_of.states += size.states
    left = Remaining()
    if declared.terminal is not None:
        rule = checks.instance(f"{field}.terminal", declared.terminal, TerminalRule)
        checks.one_of(f"{field}.terminal.state", rule.state, STATES)
        if rule.outcome is not None:
            sum_of.bytes += check_selector(f"{field}.terminal.outcome", rule.outcome, limits, left)
        elif rule.state != "completed":
            raise InvalidRequest(f"{field}.terminal.outcome", f"a {rule.state} event must say where its outcome is")
    if declared.wake is not None:
        wake = checks.instance(f"{field}.wake", declared.wake, WakeRule)
        sum_of.bytes += check_selector(f"{field}.wake.input", wake.input, limits, left)
        for name, selector in (("when", wake.when), ("dedupe", wake.dedupe)):
            if selector is not None:
                sum_of.bytes += check_selector(f"{field}.wake.{name}", selector, limits, left)
    return declared


def wakes_once(event_types: Sequence[EventType]) -> dict[str, int]:
    """Return the types whose wakes have a limited number of dedupe keys, with that number.

    Each key wakes a session once and never again.
    """
    found: dict[str, int] = {}
    for declared in event_types:
        dedupe = None if declared.wake is None else declared.wake.dedupe
        keys = None if dedupe is None else most_values(dedupe)
        if keys is not None:
            found[declared.name] = keys
    return found


def check_sum(field: str, sum_of: Declared, limits: Limits) -> None:
    """Refuse declarations that are too large together. `field` names the one that exceeded the limit."""
    if sum_of.bytes > limits.document_bytes:
        problem = f"with it the event types take {sum_of.bytes} bytes, the limit is {limits.document_bytes}"
        raise InvalidRequest(field, problem, limit=limits.document_bytes)
    if sum_of.subschemas > SUBSCHEMAS:
        problem = f"with it the schemas consist of {sum_of.subschemas} schemas, the limit is {SUBSCHEMAS}"
        raise InvalidRequest(f"{field}.schema", problem, limit=SUBSCHEMAS)
    if sum_of.states > PATTERN_STATES:
        problem = f"with it the patterns take {sum_of.states} states when compiled, the limit is {PATTERN_STATES}"
        raise InvalidRequest(f"{field}.schema", problem, limit=PATTERN_STATES)


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
    """Return the intent of an append."""
    name = checks.identifier("type", type, limits)
    encoded = checks.document("payload", payload, limits, wrapped=wrapped)
    # A copy: the caller may change its own objects while the call is under way.
    own = codec.decode_document(encoded, table="payload", key=name)
    return EventIntent(
        process_id=process_id,
        type=name,
        payload=own,
        encoded=encoded,
        payload_hash=event_hash(name, own),
        replay_key=_check_replay_key(process_id, name, replay_key, limits),
        wake_target=None if wake_target is None else checks.scope("wake_target", wake_target, limits),
        dedupe_bytes=limits.text_bytes,
    )


def event_hash(type: str, payload: Document) -> str:
    """Return the hash that two events under one replay key must share."""
    return codec.stable_hash([type, payload])


def _check_replay_key(process_id: str, type: str, value: object, limits: Limits) -> str | None:
    """Check a replay key. A key that names the process's end, or a request to cancel it, is reserved for that event."""
    if not isinstance(value, str) or not value.startswith(f"process:{process_id}:"):
        return checks.optional_identifier("replay_key", value, limits)
    # The process id has its own limit: a key that contains it may be longer than any other key.
    prefix = f"process:{process_id}:"
    rest = checks.identifier("replay_key", value[len(prefix) :], limits)
    role, _, name = rest.partition(":")
    owner = {"terminal": name, "cancel_requested": CANCEL_REQUESTED}.get(role, type)
    if owner != type:
        raise InvalidRequest("replay_key", f"belongs to the event {owner!r} of this process: use another key")
    return prefix + rest


def replayed(intent: EventIntent, stored: EventRow | None) -> EventRow | None:
    """Return the event that this replay key made before. Other content under the key is `ReplayConflict`."""
    if stored is not None and stored.payload_hash != intent.payload_hash:
        raise ReplayConflict(intent.process_id, intent.replay_key or "")
    return stored


def is_light(intent: EventIntent, process: Process) -> bool:
    """Return True if judging an event is so little work that it may be done inside the transaction."""
    declared = _declared(intent, process)
    if declared is None:
        return True
    selectors: list[object] = [] if declared.terminal is None else [declared.terminal.outcome]
    if declared.wake is not None:
        selectors += [declared.wake.input, declared.wake.when, declared.wake.dedupe]
    return (
        schemas.is_trivial(declared.schema)
        and len(intent.encoded) <= LIGHT_BYTES
        and all(selector is None or isinstance(selector, LIGHT_SELECTORS) for selector in selectors)
    )


def _declared(intent: EventIntent, process: Process) -> EventType | None:
    """Return the declaration of an event's type: that of the process, or of the core for types that every run has."""
    declared = next((one for one in process.event_types if one.name == intent.type), None)
    if declared is None and isinstance(process.input, Run) and runs.is_run_type(intent.type):
        return CONTINUED_TYPE if intent.type == runs.CONTINUED else EventType(intent.type)
    return declared


def judge(intent: EventIntent, process: Process) -> Judgement:
    """Judge an event by the declarations of its process: declared, keyed where it must be, and valid.

    This may be much work, to be done outside a transaction.
    """
    try:
        return _judge(intent, process)
    except InvalidRequest as refusal:
        # Raised later, by `plan`: a replay is found before that, and needs no judgement.
        return Judgement(process.registration_hash, refusal)


def _judge(intent: EventIntent, process: Process) -> Judgement:
    declared = _declared(intent, process)
    if declared is None:
        problem = f"process {process.id!r} emitted undeclared event type {intent.type!r}"
        declare = NextStep("declare it in", "event_types")
        raise InvalidRequest("type", problem, declare, NextStep("use one that it declares"))
    if intent.replay_key is None and (declared.terminal is not None or intent.type == CANCEL_REQUESTED):
        raise InvalidRequest(
            "replay_key",
            f"{intent.type!r} requires a deterministic replay key: pass replay_key=, the same one with each retry",
        )
    if intent.type == runs.DECLARED and isinstance(process.input, Run):
        runs.check_declared(intent.payload)
    # Validate the encoded payload, which is stored, and not the caller's own objects.
    schemas.require_valid("payload", intent.encoded, declared.schema)
    room = Room()
    outcome = _outcome(declared.terminal, intent.payload, room)
    wake_input, dedupe_key = _wake(declared.wake, intent, room)
    return Judgement(
        process.registration_hash,
        after_terminal=declared.terminal is None and declared.after_terminal,
        outcome=outcome,
        outcome_record=None if outcome is None else codec.encode_record(outcome),
        wake_input=wake_input,
        dedupe_key=dedupe_key,
    )


def plan(intent: EventIntent, process: Process, *, now_ms: int, judgement: Judgement | None = None) -> EventPlan:
    """Return the event as it is appended now: judged by these declarations, and not after the process ended."""
    judged = judge(intent, process) if judgement is None else judgement
    if judged.refusal is not None:
        raise judged.refusal
    if process.is_terminal and not judged.after_terminal:
        raise AlreadyTerminal(process.id, process.status)
    return plan_on(intent, process, judged, now_ms=now_ms)


def plan_on(intent: EventIntent, process: Process, judged: Judgement, *, now_ms: int) -> EventPlan:
    """Return the event that follows the existing ones. The caller has judged that it may be appended."""
    sequence = process.event_count + 1
    wake = None
    if judged.wake_input is not None:
        own_key = f"{intent.process_id}:{sequence}"
        wake = WakeSignal(judged.wake_input, own_key if judged.dedupe_key is None else judged.dedupe_key)
    row = EventRow(
        process_id=process.id,
        sequence=sequence,
        type=intent.type,
        payload_hash=intent.payload_hash,
        replay_key=intent.replay_key,
        terminal_state=None if judged.outcome is None else state_of(judged.outcome),
        wake=None if wake is None else codec.encode_record(wake),
        acked=0,
        occurred_at_ms=now_ms,
        payload=intent.encoded,
    )
    return EventPlan(row, wake, judged.outcome, judged.outcome_record)


def _outcome(rule: TerminalRule | None, payload: Document, room: Room) -> ProcessOutcome | None:
    """Return the outcome by this event: the selected value, wrapped unless it is already such an outcome."""
    if rule is None:
        return None
    if rule.outcome is None:
        return Completed(payload)
    value = select("payload", rule.outcome, payload, room)
    given = _as_outcome(value)
    if given is not None and state_of(given) == rule.state:
        return given
    if rule.state == "completed":
        return Completed(value)
    if rule.state == "failed":
        return Failed(as_text(value), raw=value)
    if rule.state == "abandoned":
        return Abandoned(as_text(value), evidence=value)
    return Cancelled(as_text(value), raw=value)


# Built at import, by one thread: on first use of a type, msgspec shows other threads its half-built decoder.
msgspec.json.Decoder(ProcessOutcome)


def _as_outcome(value: Document) -> ProcessOutcome | None:
    try:
        outcome: ProcessOutcome = msgspec.convert(value, ProcessOutcome)
    except msgspec.ValidationError:
        return None
    return outcome


def state_of(outcome: ProcessOutcome) -> TerminalState:
    """Return the state that an outcome leaves its process in."""
    return _STATE_OF[type(outcome)]


def _wake(rule: WakeRule | None, intent: EventIntent, room: Room) -> tuple[str | None, str | None]:
    """Return the text and the dedupe key of a wake; both None without a wake."""
    payload = intent.payload
    if rule is None or (rule.when is not None and not select("payload", rule.when, payload, room)):
        return None, None
    dedupe = None if rule.dedupe is None else as_text(select("payload", rule.dedupe, payload, room))
    if dedupe is not None and (size := len(dedupe.encode())) > intent.dedupe_bytes:
        problem = f"makes a dedupe key of {size} bytes, the limit is {intent.dedupe_bytes}: select a shorter part of it"
        raise InvalidRequest("payload", problem, limit=intent.dedupe_bytes)
    return as_text(select("payload", rule.input, payload, room)), dedupe


# Wakes.


def wake_signal_of(row: EventRow) -> WakeSignal | None:
    """Return the signal that a stored event carries."""
    if row.wake is None:
        return None
    return codec.decode_record(WakeSignal, row.wake, table="events", key=f"{row.process_id}/{row.sequence}")


def wake_of(row: EventRow, signal: WakeSignal | None, target: Scope | None, caused_by: Document | None) -> Wake | None:
    """Return the wake of an event for a target; None without a signal or without a target."""
    if signal is None or target is None:
        return None
    return Wake(
        wake_id=wake_id(target, signal.dedupe_key),
        target=target,
        process_id=row.process_id,
        sequence=row.sequence,
        event_type=row.type,
        dedupe_key=signal.dedupe_key,
        input=signal.input,
        created_at_ms=row.occurred_at_ms,
        caused_by=caused_by,
    )


def wake_id(target: Scope, dedupe_key: str) -> str:
    """Return the id of a wake: that of the work which delivers it, too."""
    return WAKE_PREFIX + codec.stable_hash([target.session_id, target.frame_id, dedupe_key])


def wake_draft(wake: Wake) -> WorkDraft:
    """Return the work that delivers a wake: once per wake id, at the earliest safe boundary, alone.

    The wake's time is left out: the batch has the time at which it was enqueued, by the clock of the database.
    """
    document = cast("dict[str, Document]", codec.document_of(wake))
    del document["created_at_ms"]
    return WorkDraft(
        session_id=wake.target.session_id,
        source_key=wake.wake_id,
        slot="exclusive",
        kind=wakes.kind_of(wake),
        payloads=[{"type": "process_wake", "wake": document}],
    )


def event_of(row: EventRow) -> ProcessEvent:
    """Return the event of a row."""
    key = f"{row.process_id}/{row.sequence}"
    return with_payload(row, codec.decode_document(row.payload, table="events", key=key))


def with_payload(row: EventRow, payload: Document) -> ProcessEvent:
    """Return the event of a row whose payload is decoded already."""
    return ProcessEvent(
        process_id=row.process_id,
        sequence=row.sequence,
        type=row.type,
        payload=payload,
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
    """Return the event that completes a process. A repeated completion replays it; another outcome conflicts."""
    checked = _check_outcome(outcome, limits)
    name = TERMINAL_TYPES[state_of(checked)]
    payload = {"await_output": codec.document_of(checked)}
    key = terminal_key(process_id, name)
    return check_event(process_id, name, payload, replay_key=key, wake_target=None, limits=limits, wrapped=2)


def terminal_key(process_id: str, event_type: str) -> str:
    """Return the replay key of a process's completion. It is the text that lash uses, so that a re-append replays."""
    return f"process:{process_id}:terminal:{event_type}"


def cancel_key(process_id: str, payload: Document) -> str:
    """Return the replay key of a request to cancel. The same reason again is the same request."""
    return f"process:{process_id}:cancel_requested:{event_hash(CANCEL_REQUESTED, payload)}"


def _check_outcome(value: object, limits: Limits) -> ProcessOutcome:
    outcome = checks.instance("outcome", value, (Completed, Failed, Cancelled, Abandoned))
    if isinstance(outcome, Completed):
        checks.document("outcome.value", outcome.value, limits)
    else:
        checks.document("outcome.message", outcome.message, limits)
        checks.instance("outcome.message", outcome.message, str)
    if isinstance(outcome, Abandoned):
        checks.optional_document("outcome.evidence", outcome.evidence, limits)
        return outcome
    if not isinstance(outcome, Completed):
        checks.optional_document("outcome.raw", outcome.raw, limits)
    if isinstance(outcome, Failed):
        checks.identifier("outcome.code", outcome.code, limits)
        checks.one_of("outcome.failure_class", outcome.failure_class, FAILURE_CLASSES)
    checks.optional_document("outcome.control", outcome.control, limits)
    return outcome
