"""Decide what may be registered as a process, and how its row changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast, get_args

import msgspec

from holdfast import codec
from holdfast.errors import AlreadyTerminal, Corrupt, InvalidRequest, RegistrationConflict
from holdfast.records.common import Document, Scope
from holdfast.records.events import EventType, Pointer, WakeRule
from holdfast.records.limits import Limits
from holdfast.records.processes import (
    SIGNAL_NAME,
    BySession,
    Engine,
    External,
    ExternalRef,
    Host,
    Originator,
    Process,
    ProcessIdentity,
    ProcessInput,
    ProcessOutcome,
    ProcessRegistration,
    ProcessStatus,
    Provenance,
    Recovery,
    Run,
    RunWait,
    SessionTurn,
    SignalWait,
    ToolCall,
    WaitKind,
)
from holdfast.rows import ProcessRow, SessionRow
from holdfast.rules import checks, events, runs

T = TypeVar("T")

INPUTS = (ToolCall, Engine, SessionTurn, External, Run)
STATUSES: tuple[ProcessStatus, ...] = get_args(ProcessStatus)
_STATUS_OF: dict[str, ProcessStatus] = {word: word for word in STATUSES}
RECOVERIES: tuple[Recovery, ...] = get_args(Recovery)
_RECOVERY_OF: dict[str, Recovery] = {word: word for word in RECOVERIES}
ASLEEP: tuple[WaitKind, ...] = ("signal", "child", "sleep", "step retry")
"""The waits of a suspended run."""


class Registered(msgspec.Struct, frozen=True):
    """A registration in its stored form: every default filled in."""

    id: str
    input: ProcessInput
    identity: ProcessIdentity
    event_types: tuple[EventType, ...]
    provenance: Provenance
    env_ref: str | None
    wake_target: Scope | None
    recovery: Recovery


class SeveralWaits(msgspec.Struct, frozen=True, tag="several", tag_field="kind"):
    """The stored form of a wait that is more than one for a signal."""

    signal: SignalWait | None
    waits: tuple[RunWait, ...]


# Registration.


def check_registration(value: object, limits: Limits) -> Registered:
    """Return the registration with core event types and identity filled in, or raise what is wrong with it."""
    given = checks.instance("registration", value, ProcessRegistration)
    process_id = checks.identifier("id", given.id, limits)
    process_input = check_input("input", given.input, limits)
    env_ref = checks.optional_identifier("env_ref", given.env_ref, limits)
    needs_environment = isinstance(process_input, ToolCall | Engine)
    if needs_environment and env_ref is None:
        raise InvalidRequest("env_ref", "is required: this kind of process runs in an execution environment")
    if not needs_environment and env_ref is not None:
        raise InvalidRequest("env_ref", "is not allowed: this kind of process has no execution environment")
    identity = derive_identity(process_input) if given.identity is None else given.identity
    registered = Registered(
        id=process_id,
        input=process_input,
        identity=check_identity("identity", identity, limits),
        event_types=check_event_types("event_types", given.event_types, limits),
        provenance=check_provenance("provenance", given.provenance, limits),
        env_ref=env_ref,
        wake_target=None if given.wake_target is None else checks.scope("wake_target", given.wake_target, limits),
        recovery=check_recovery("recovery", given.recovery, process_input),
    )
    return codec.own_copy(Registered, registered)


def check_start(
    run: Run,
    process_id: str,
    *,
    wake_target: Scope | None,
    provenance: Provenance,
    recovery: Recovery | None,
    limits: Limits,
) -> Registered:
    """Return the registration of a run. Its end wakes the target, if there is one."""
    checks.identifier("kind", run.kind, limits)
    checks.identifier("version", run.version, limits)
    checks.document("args", run.args, limits)
    registration = ProcessRegistration(
        id=process_id,
        input=run,
        event_types=() if wake_target is None else waking_ends(),
        provenance=provenance,
        wake_target=wake_target,
        recovery=recovery,
    )
    return check_registration(registration, limits)


def waking_ends() -> tuple[EventType, ...]:
    """Return the ends of a run as events that wake its target with the outcome."""
    wake = WakeRule(Pointer("/await_output"))
    ends = (core for core in events.CORE_EVENT_TYPES if core.terminal is not None)
    return tuple(msgspec.structs.replace(core, wake=wake) for core in ends)


def check_input(field: str, value: object, limits: Limits) -> ProcessInput:
    """Check the work of a process."""
    given = checks.instance(field, value, INPUTS)
    if isinstance(given, ToolCall):
        for name in ("call_id", "tool_id", "tool_name"):
            checks.identifier(f"{field}.{name}", getattr(given, name), limits)
    elif isinstance(given, Engine | Run):
        checks.identifier(f"{field}.kind", given.kind, limits)
    if isinstance(given, Run):
        checks.identifier(f"{field}.version", given.version, limits)
    for name in given.__struct_fields__:
        checks.document(f"{field}.{name}", getattr(given, name), limits)
    return given


def check_recovery(field: str, value: object, process_input: ProcessInput) -> Recovery:
    """Return how a process continues after its holder died, the default of its input if that is not given."""
    if value is None:
        return "external" if isinstance(process_input, External) else "rerunnable"
    return _RECOVERY_OF[checks.one_of(field, value, RECOVERIES)]


def derive_identity(process_input: ProcessInput) -> ProcessIdentity:
    """Return the default identity of a process."""
    if isinstance(process_input, ToolCall):
        return ProcessIdentity("tool", process_input.tool_name)
    if isinstance(process_input, Engine | Run):
        return ProcessIdentity(process_input.kind)
    if isinstance(process_input, SessionTurn):
        return ProcessIdentity("session_turn", _session_turn_label(process_input.create_request))
    metadata = _members(process_input.metadata)
    label = next((metadata[name] for name in ("label", "name", "title") if name in metadata), None)
    return ProcessIdentity("external", label if isinstance(label, str) else None)


def _members(value: Document) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _session_turn_label(request: Document) -> str | None:
    """Return the subagent's capability, else the usage source, else the requested session id."""
    asked = _members(request)
    capability = _members(asked.get("subagent")).get("capability")
    for label in (capability, asked.get("usage_source"), asked.get("session_id")):
        if isinstance(label, str):
            return label
    return None


def check_identity(field: str, value: object, limits: Limits) -> ProcessIdentity:
    """Check the kind and label of a process."""
    identity = checks.instance(field, value, ProcessIdentity)
    checks.identifier(f"{field}.kind", identity.kind, limits)
    checks.optional_text(f"{field}.label", identity.label, limits)
    checks.optional_document(f"{field}.definition", identity.definition, limits)
    return identity


def check_event_types(field: str, value: object, limits: Limits) -> tuple[EventType, ...]:
    """Return the declared types, each once, and the core types that are missing."""
    given = checks.sequence(field, value, most=limits.batch_items)
    sum_of = events.Declared()
    declared: list[EventType] = []
    for index, one in enumerate(given):
        declared.append(events.check_event_type(f"{field}[{index}]", one, limits, sum_of))
        events.check_sum(f"{field}[{index}]", sum_of, limits)
    for index, one in enumerate(declared):
        core = next((core for core in events.CORE_EVENT_TYPES if core.name == one.name), None)
        if core is not None and one.terminal != core.terminal:
            raise InvalidRequest(f"{field}[{index}].terminal", f"{one.name!r} must end a process as the core type does")
    names = [one.name for one in declared]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"{field}[{index}].name", f"{name!r} is declared twice")
    return (*declared, *(core for core in events.CORE_EVENT_TYPES if core.name not in names))


def check_provenance(field: str, value: object, limits: Limits) -> Provenance:
    """Check the originator and cause of a process."""
    provenance = checks.instance(field, value, Provenance)
    checks.optional_document(f"{field}.caused_by", provenance.caused_by, limits)
    originator = check_originator(f"{field}.originator", provenance.originator, limits)
    return Provenance(originator, provenance.caused_by)


def check_originator(field: str, value: object, limits: Limits) -> Originator:
    """Check the host, or a session with or without a frame."""
    originator = checks.instance(field, value, (Host, BySession))
    if isinstance(originator, BySession):
        return BySession(checks.scope(f"{field}.scope", originator.scope, limits))
    return originator


def session_of(originator: Originator) -> str | None:
    """Return the session that an originator belongs to, whatever its frame."""
    return originator.scope.session_id if isinstance(originator, BySession) else None


def registration_hash(registered: Registered) -> str:
    """Return the hash that equal registrations share."""
    return codec.stable_hash(registered)


def same_registration(registered: Registered, existing: ProcessRow) -> ProcessRow:
    """Return the existing process if its registration is equal, or raise `RegistrationConflict`."""
    new_hash = registration_hash(registered)
    if existing.registration_hash != new_hash:
        hashes = existing.registration_hash, new_hash
        raise RegistrationConflict(registered.id, *hashes, _differing(registered, process_of(existing)))
    return existing


def _differing(registered: Registered, existing: Process) -> str:
    """Return the fields that differ: those of a run by the names that its start gives them."""
    fields = ["input", "identity", "event_types", "provenance", "env_ref", "wake_target", "recovery"]
    differs = [name for name in fields if _differs(getattr(registered, name), getattr(existing, name))]
    new, old = registered.input, existing.input
    if isinstance(new, Run) and isinstance(old, Run) and "input" in differs:
        of_run = [name for name in ("kind", "version", "args") if _differs(getattr(new, name), getattr(old, name))]
        differs = of_run + [name for name in differs if name not in ("input", "identity")]
    return ", ".join(differs) or "its fields"


def _differs(one: object, other: object) -> bool:
    """Return whether two values differ as documents, in which True is not 1."""
    return codec.encode_canonical(one) != codec.encode_canonical(other)


def new_process(registered: Registered, *, now_ms: int, due_at_ms: int | None = None) -> ProcessRow:
    """Return the row of a newly registered process. A run is due at once unless a time is given."""
    target = registered.wake_target
    run = registered.input if isinstance(registered.input, Run) else None
    row = ProcessRow(
        process_id=registered.id,
        registration_hash=registration_hash(registered),
        status="running",
        waiting=0,
        definition_hash=definition_hash(registered.identity.definition),
        originator_session_id=session_of(registered.provenance.originator),
        wake_session_id=None if target is None else target.session_id,
        wake_frame_id=None if target is None else target.frame_id,
        event_count=0,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        body=codec.encode_record(registered),
        run_kind=None if run is None else run.kind,
        run_version=None if run is None else run.version,
        recovery=registered.recovery,
    )
    return row if run is None else runs.due_from(row, now_ms if due_at_ms is None else due_at_ms)


def without_dead_target(row: ProcessRow, target: SessionRow | None) -> ProcessRow:
    """Return the process without its wake target if that session is deleted, as the deletion would have left it."""
    if target is None or target.deleted_at_ms is None:
        return row
    return msgspec.structs.replace(row, wake_session_id=None, wake_frame_id=None)


def definition_hash(definition: Document | None) -> str | None:
    """Return a definition in a form that an index can compare."""
    return None if definition is None else codec.stable_hash(definition)


# The row.


_WAITS: Final[Any] = SignalWait | SeveralWaits
_OUTCOMES: Final[Any] = ProcessOutcome


def process_of(row: ProcessRow) -> Process:
    """Return the process of a row."""
    key = row.process_id
    registered = codec.decode_record(Registered, row.body, table="processes", key=key)
    status = _STATUS_OF.get(row.status)
    if status is None:
        raise Corrupt("processes", key, f"status is {row.status!r}")
    outcome: ProcessOutcome | None = _part(_OUTCOMES, row.outcome, key)
    wait: SignalWait | SeveralWaits | None = _part(_WAITS, row.wait, key)
    if status != ("running" if outcome is None else events.state_of(outcome)):
        raise Corrupt("processes", key, "status and outcome do not agree")
    return Process(
        id=row.process_id,
        registration_hash=row.registration_hash,
        input=registered.input,
        identity=registered.identity,
        event_types=registered.event_types,
        provenance=registered.provenance,
        env_ref=registered.env_ref,
        wake_target=None if row.wake_session_id is None else Scope(row.wake_session_id, row.wake_frame_id),
        created_at_ms=row.created_at_ms,
        updated_at_ms=row.updated_at_ms,
        event_count=row.event_count,
        external_ref=_part(ExternalRef, row.external_ref, key),
        wait=wait.signal if isinstance(wait, SeveralWaits) else wait,
        status=status,
        outcome=outcome,
        recovery=registered.recovery,
        due_at_ms=row.due_at_ms,
        attempt=row.attempt,
        suspended=bool(row.suspended),
        lost_owner_id=row.lost_owner,
        last_error=row.last_error,
        waits=wait.waits if isinstance(wait, SeveralWaits) else (),
    )


def _part(kind: type[T], data: bytes | None, key: str) -> T | None:
    return None if data is None else codec.decode_record(kind, data, table="processes", key=key)


def with_event(
    row: ProcessRow, outcome: ProcessOutcome | None, *, now_ms: int, record: bytes | None = None
) -> ProcessRow:
    """Return the process after one more event. An outcome ends it and any wait; `record` is its stored form."""
    counted = msgspec.structs.replace(row, event_count=row.event_count + 1, updated_at_ms=now_ms)
    if outcome is None:
        return counted
    stored = codec.encode_record(outcome) if record is None else record
    return runs.ended(
        msgspec.structs.replace(counted, status=events.state_of(outcome), outcome=stored, wait=None, waiting=0)
    )


def check_external_ref(value: object, limits: Limits) -> ExternalRef:
    """Check the reference to the place where work actually runs."""
    ref = checks.instance("ref", value, ExternalRef)
    checks.identifier("ref.backend", ref.backend, limits)
    checks.identifier("ref.id", ref.id, limits)
    checks.optional_document("ref.metadata", ref.metadata, limits)
    return codec.own_copy(ExternalRef, ref)


def with_external_ref(row: ProcessRow, ref: ExternalRef, *, now_ms: int) -> ProcessRow:
    """Return the process with its external ref."""
    return msgspec.structs.replace(row, external_ref=codec.encode_record(ref), updated_at_ms=now_ms)


def signal_type(field: str, name: object, limits: Limits) -> str:
    """Return the event type of a signal, after checking its name."""
    checked = checks.identifier(field, name, limits)
    if not SIGNAL_NAME.fullmatch(checked):
        raise InvalidRequest(field, "a signal name consists of letters, digits, - and _")
    return SignalWait(checked, 1).event_type


def check_wait(value: object, limits: Limits) -> SignalWait:
    """Check a wait for a signal."""
    wait = checks.instance("wait", value, SignalWait)
    signal_type("wait.name", wait.name, limits)
    checks.whole("wait.ordinal", wait.ordinal, least=1)
    checks.optional_whole("wait.since_ms", wait.since_ms)
    return wait


def with_wait(row: ProcessRow, wait: SignalWait, *, now_ms: int) -> ProcessRow:
    """Return the process while it waits. A process that has ended cannot."""
    if row.status != "running":
        raise AlreadyTerminal(row.process_id, row.status)
    since = msgspec.structs.replace(wait, since_ms=now_ms if wait.since_ms is None else wait.since_ms)
    return msgspec.structs.replace(row, wait=codec.encode_record(since), waiting=1, updated_at_ms=now_ms)


def check_waits(field: str, value: object, limits: Limits) -> tuple[RunWait, ...]:
    """Check the list of what a suspended run waits for."""
    given = checks.sequence(field, value, most=limits.batch_items)
    for index, one in enumerate(given):
        wait = checks.instance(f"{field}[{index}]", one, RunWait)
        checks.one_of(f"{field}[{index}].kind", wait.kind, ASLEEP)
        checks.optional_text(f"{field}[{index}].name", wait.name, limits)
        checks.optional_whole(f"{field}[{index}].until_ms", wait.until_ms)
    return tuple(cast("Sequence[RunWait]", given))


def with_waits(row: ProcessRow, waits: tuple[RunWait, ...]) -> ProcessRow:
    """Return a process with the list of its waits, in addition to the signal that it may wait for."""
    if not waits:
        return row
    signal = _part(SignalWait, row.wait, row.process_id)
    return msgspec.structs.replace(row, wait=codec.encode_record(SeveralWaits(signal, waits)))


def without_wait(row: ProcessRow, *, now_ms: int) -> ProcessRow:
    """Return the process after its wait."""
    return msgspec.structs.replace(row, wait=None, waiting=0, updated_at_ms=now_ms)
