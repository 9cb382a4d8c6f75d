"""Decide which runs can be retried, what the new run is, and which events of the old one it begins with.

Results are copied, failures are not: a failed attempt, the outcome of a child without a result, a wait for a signal
that timed out and a signal that was rejected are asked for again.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.errors import InvalidRequest, NotRetryable
from holdfast.records.common import Document
from holdfast.records.processes import CHILD_ENDED, Process, ProcessRegistration, Provenance, Run
from holdfast.rows import EventRow
from holdfast.rules import events, runs
from holdfast.run_chains import next_in_chain, retrying_cause
from holdfast.step_names import (
    COPIED,
    FAILED,
    HANDED_OVER,
    HELD,
    REJECTED,
    RESULT,
    RETRIED,
    STARTED,
    WAITED,
    replay_key,
)

STEP = "step"
SPILLED = "spilled"
"""The field of a step with the refs of its result, if that is stored as artifacts."""
MOST_RUNS = 1_000
"""Runs that one call retries: the run itself, and the runs below it that ended without a result."""


def registration_of(process: Process) -> ProcessRegistration:
    """Return the run that retries this one. Raises `NotRetryable` if it has not ended, or has a result."""
    if not isinstance(process.input, Run):
        problem = f"process {process.id!r} is not a run, and no worker runs it: register it again under another id"
        raise InvalidRequest("process_id", problem)
    if not process.is_retryable:
        raise NotRetryable(process.id, process.status, process.continued_as)
    cause = retrying_cause(process.id, process.provenance.caused_by)
    return ProcessRegistration(
        id=next_in_chain(process.id),
        input=process.input,
        identity=process.identity,
        event_types=process.event_types,
        provenance=Provenance(process.provenance.originator, cause),
        wake_target=process.wake_target,
        recovery=process.recovery,
    )


def payload_of(row: EventRow) -> dict[str, Any]:
    """Return the payload of a recorded step, and nothing for another event."""
    if row.type != STEP:
        return {}
    payload = codec.decode_document(row.payload, table="events", key=f"{row.process_id}/{row.sequence}")
    return cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}


def is_copied(row: EventRow, step: dict[str, Any]) -> bool:
    """Return True for an event that the new run begins with: a result of a step, or a signal that was sent."""
    if row.type != STEP:
        return runs.is_signal(row.type) and row.type != f"{runs.SIGNAL}{CHILD_ENDED}"
    name = str(step.get("name", ""))
    if name.startswith((RETRIED, FAILED, WAITED, HELD, REJECTED)) or name in (COPIED, HANDED_OVER):
        return False
    return not name.startswith(RESULT) or has_result(step)


def has_result(step: dict[str, Any]) -> bool:
    """Return True if the recorded outcome of a child is a result. Only that of a success is large enough to spill."""
    outcome = step.get("value")
    return SPILLED in step or (isinstance(outcome, dict) and cast("dict[str, Any]", outcome).get("type") == "success")


def child_in(step: dict[str, Any]) -> str | None:
    """Return the child that this step started or asked for, None if it did neither."""
    name = str(step.get("name", ""))
    if name.startswith(STARTED):
        return name.removeprefix(STARTED)
    return name.removeprefix(RESULT) if name.startswith(RESULT) else None


def retries_with_parent(child: Process) -> bool:
    """Return True if a child is retried with its parent. An abandoned one is not: its effects are unknown."""
    return child.is_retryable and child.status != "abandoned"


def copy_of(row: EventRow, new: Process, step: dict[str, Any], refs: list[str] | None, *, now_ms: int) -> EventRow:
    """Return an event as the next of the new run. `refs` are the places to which its spilled result was copied."""
    if refs is None:
        return _appended(new, row.type, row.payload, row.payload_hash, row.replay_key, now_ms)
    return _recorded(new, {**step, SPILLED: refs}, row.replay_key, now_ms)


def end_of_copy(old_id: str, new: Process, *, now_ms: int) -> EventRow:
    """Return the event after the copied ones. It says from where they come."""
    return _recorded(new, {"name": COPIED, "value": old_id}, replay_key(COPIED), now_ms)


def _recorded(new: Process, step: Document, key: str | None, now_ms: int) -> EventRow:
    return _appended(new, STEP, codec.encode_document(step), events.event_hash(STEP, step), key, now_ms)


def _appended(new: Process, type: str, encoded: bytes, hashed: str, key: str | None, now_ms: int) -> EventRow:
    payload = codec.decode_document(encoded, table="payload", key=type)
    intent = events.EventIntent(new.id, type, payload, encoded, hashed, key, None)
    plan = events.plan(intent, new, now_ms=now_ms)
    # Its wake was delivered when the event first came.
    return plan.row if plan.wake is None else msgspec.structs.replace(plan.row, acked=1)
