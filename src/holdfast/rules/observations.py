"""Derive the outcome and the subject of an operation from its arguments and the error that its caller got."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.errors import Corrupt, HoldfastError, Incompatible, Unavailable, WaitTimeout
from holdfast.records.leases import Lease
from holdfast.records.observations import OperationOutcome
from holdfast.records.processes import Process, ProcessRegistration

LONGEST_ID = 512
"""Longest id that an observer gets: a refused argument may be of any length."""


def outcome_of(error: BaseException | None) -> OperationOutcome:
    """Classify an error: a refusal is an answer, a failure is not. Cancelling and interrupting are the caller's."""
    if error is None:
        return "ok"
    if not isinstance(error, Exception):
        return "cancelled"
    if isinstance(error, WaitTimeout):
        return "refused"
    if not isinstance(error, HoldfastError) or isinstance(error, Unavailable | Incompatible | Corrupt):
        return "failed"
    return "refused"


def subject_of(arguments: Iterable[tuple[str, object]]) -> tuple[str | None, str | None]:
    """Return the session and the process that a call names, by id or inside a record; None if it names none."""
    session_id = process_id = None
    for name, given in arguments:
        value = given.resource if isinstance(given, Lease) else given
        if isinstance(value, ProcessRegistration | Process):
            process_id = process_id or _id(value.id)
        elif isinstance(value, str):
            # Matched by name, because a payload may be any text.
            session_id = session_id or (_id(value) if name in {"session_id", "into"} else None)
            process_id = process_id or (_id(value) if name == "process_id" else None)
        elif isinstance(value, msgspec.Struct):
            session_id = session_id or _id(getattr(value, "session_id", None))
            process_id = process_id or _id(getattr(value, "process_id", None))
    return session_id, process_id


def _id(value: object) -> str | None:
    return value[:LONGEST_ID] if isinstance(value, str) else None
