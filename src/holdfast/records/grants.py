"""Grants: the handles on processes that scopes hold."""

from __future__ import annotations

from holdfast.records.common import Record, Scope
from holdfast.records.processes import Process


class HandleDescriptor(Record, frozen=True):
    """The kind and label under which the scope knows the process."""

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
