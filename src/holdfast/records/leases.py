"""Leases: the right of one owner to act on a session or a process until it expires, with a fence."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records.common import Record, Token


class OnSession(Record, frozen=True, tag="session"):
    """The right to be the one writer of a session."""

    session_id: str


class OnProcess(Record, frozen=True, tag="process"):
    """The right to run a process."""

    process_id: str


Resource: TypeAlias = OnSession | OnProcess
"""The session or the process that a lease is held on."""


class Lease(Record, frozen=True):
    """A lease as its holder keeps it. A later holder always has a higher fence."""

    resource: Resource
    owner_id: str
    token: Token
    fence: int
    claimed_at_ms: int
    expires_at_ms: int


class LeaseHolder(Record, frozen=True):
    """The holder of a live lease, without its token."""

    resource: Resource
    owner_id: str
    fence: int
    claimed_at_ms: int
    expires_at_ms: int
