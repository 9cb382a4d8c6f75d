"""A grant is a scope's handle on a process."""

from __future__ import annotations

from holdfast.records.common import Record, Scope
from holdfast.records.processes import Process


class HandleDescriptor(Record, frozen=True):
    """How the scope sees the process."""

    kind: str | None = None
    label: str | None = None


class Grant(Record, frozen=True):
    """A process handle that a scope holds."""

    scope: Scope
    process_id: str
    descriptor: HandleDescriptor = HandleDescriptor()


class GrantedProcess(Record, frozen=True):
    """A grant and the process behind it."""

    grant: Grant
    process: Process
