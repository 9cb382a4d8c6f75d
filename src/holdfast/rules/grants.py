"""Grants: each belongs to exactly one scope. A session and its frames are different scopes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import codec
from holdfast.errors import InvalidRequest
from holdfast.records.common import Scope
from holdfast.records.grants import Grant, GrantedProcess, HandleDescriptor
from holdfast.records.limits import Limits
from holdfast.rows import GrantRow, ProcessRow
from holdfast.rules import checks, processes


def check_descriptor(value: object, limits: Limits) -> HandleDescriptor:
    """Check the kind and label under which a scope knows a process."""
    descriptor = checks.instance("descriptor", value, HandleDescriptor)
    checks.optional_text("descriptor.kind", descriptor.kind, limits)
    checks.optional_text("descriptor.label", descriptor.label, limits)
    return descriptor


def require_distinct(process_ids: Sequence[str]) -> None:
    """Refuse a list that names a process twice: the second handle to move would not exist."""
    seen: dict[str, int] = {}
    for index, process_id in enumerate(process_ids):
        first = seen.setdefault(process_id, index)
        if first != index:
            raise InvalidRequest(
                f"process_ids[{index}]", f"repeats process_ids[{first}], {process_id!r}: name each process once"
            )


def place(scope: Scope) -> tuple[str, str]:
    """Return the scope as a key. The session itself has the empty frame id, which no frame can have."""
    return scope.session_id, scope.frame_id or ""


def row_of(scope: Scope, process_id: str, descriptor: HandleDescriptor) -> GrantRow:
    """Return the row of a grant."""
    return GrantRow(*place(scope), process_id, codec.encode_record(descriptor))


def grant_of(row: GrantRow) -> Grant:
    """Return the grant of a row."""
    key = f"{row.session_id}/{row.frame_id}/{row.process_id}"
    descriptor = codec.decode_record(HandleDescriptor, row.descriptor, table="grants", key=key)
    return Grant(Scope(row.session_id, row.frame_id or None), row.process_id, descriptor)


def granted(row: GrantRow, process: ProcessRow) -> GrantedProcess:
    """Return the grant and the process behind it."""
    return GrantedProcess(grant_of(row), processes.process_of(process))
