"""Check the runs that a commit starts, once and in its transaction, and recognise the work that reports their end."""

from __future__ import annotations

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Document, Scope
from holdfast.records.limits import Limits
from holdfast.records.processes import BySession, ProcessOutcome, Provenance, Run, RunDraft, RunEnded, part_of_id
from holdfast.records.queue import WorkBatch
from holdfast.rules import checks, events, processes, wakes
from holdfast.run_chains import first_of_chain


class StartIntent(msgspec.Struct, frozen=True):
    """A run to be registered, in its stored form."""

    registered: processes.Registered
    due_at_ms: int | None
    size: int

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.registered.id

    @property
    def content(self) -> list[str | int | None]:
        """The values that two commits of one turn share."""
        return [processes.registration_hash(self.registered), self.due_at_ms]


def default_id(session_id: str, turn: str, index: int) -> str:
    """Return the id of a run that a turn starts without naming it. No other turn, of any session, has the same."""
    return f"{session_id}/{part_of_id(turn)}/run-{index}"


def check_starts(value: object, session_id: str, turn: str, limits: Limits) -> tuple[StartIntent, ...]:
    """Return the runs that a commit starts. `turn` is the id of the turn, or a name that no other commit has."""
    if value is checks.LEFT_OUT:
        return ()
    drafts = checks.sequence("starts", value, most=limits.commit_items)
    starts = tuple(
        _check(f"starts[{index}]", draft, session_id, default_id(session_id, turn, index), limits)
        for index, draft in enumerate(drafts)
    )
    ids = [start.id for start in starts]
    for index, id in enumerate(ids):
        if id in ids[:index]:
            raise InvalidRequest(f"starts[{index}].id", f"{id!r} is started twice")
    return starts


def _check(field: str, value: object, session_id: str, default: str, limits: Limits) -> StartIntent:
    draft = checks.instance(field, value, RunDraft)
    run = Run(
        checks.identifier(f"{field}.kind", draft.kind, limits),
        checks.identifier(f"{field}.version", draft.version, limits),
        _arguments(f"{field}.args", draft.args, limits),
    )
    recovery = processes.check_recovery(f"{field}.recovery", draft.recovery, run)
    wake_kind = checks.identifier(f"{field}.wake_kind", draft.wake_kind, limits)
    registered = processes.check_start(
        run,
        checks.identifier(f"{field}.id", default if draft.id is None else draft.id, limits),
        wake_target=Scope(session_id) if checks.flag(f"{field}.wake", draft.wake) else None,
        # Without the turn: the same run under the same id, started by a later turn, is not a conflict.
        provenance=Provenance(BySession(Scope(session_id)), wakes.starting_cause(session_id, wake_kind)),
        recovery=recovery,
        limits=limits,
    )
    due_at_ms = checks.optional_whole(f"{field}.due_at_ms", draft.due_at_ms)
    return StartIntent(registered, due_at_ms, len(codec.encode_record(registered)))


def _arguments(field: str, value: Document, limits: Limits) -> Document:
    """Return the arguments of a run as a document. Structs, dataclasses and models become documents."""
    try:
        checks.document(field, value, limits)
    except InvalidRequest:
        from holdfast import typed_values  # slow to load, and rarely needed

        documents: Document = typed_values.documents_of(value, field)
        if documents is None:
            raise
        checks.document(field, documents, limits)
        return documents
    return value


class _WakePayload(msgspec.Struct):
    wake_id: str
    target: Scope
    process_id: str
    dedupe_key: str
    input: str
    caused_by: Document | None = None


class _WakeMessage(msgspec.Struct, tag="process_wake"):
    wake: _WakePayload


def ended_run(batch: WorkBatch) -> RunEnded | None:
    """Return the run whose end this batch reports, None if it reports something else.

    The payload alone proves nothing: a user may have sent it. A batch that the store made carries the wake's id as its
    source key, and is claimed alone, as no message of a user is.
    """
    if batch.slot != "exclusive" or len(batch.items) != 1:
        return None
    try:
        wake = msgspec.convert(batch.items[0].payload, _WakeMessage).wake
        outcome = msgspec.json.decode(wake.input, type=ProcessOutcome)
    except codec.UNDECODABLE:
        return None
    ids = {batch.source_key, wake.wake_id, events.wake_id(wake.target, wake.dedupe_key)}
    if len(ids) > 1:
        return None
    first = first_of_chain(wake.process_id, wake.caused_by)
    return RunEnded(wake.process_id, outcome) if first is None else RunEnded(first, outcome, wake.process_id)
