"""A lease says who may act on a process or a session, until when, and with which fence."""

from __future__ import annotations

from typing import TypeAlias

from holdfast.records.common import Record, Token


class OnSession(Record, frozen=True, tag="session"):
    """The one-writer lane of a session."""

    session_id: str


class OnProcess(Record, frozen=True, tag="process"):
    """The right to run a process."""

    process_id: str


Resource: TypeAlias = OnSession | OnProcess
"""What a lease is held on: a session or a process."""


class Lease(Record, frozen=True):
    """A lease as its holder keeps it. A later holder always has a higher fence."""

    resource: Resource
    owner_id: str
    token: Token
    fence: int
    claimed_at_ms: int
    expires_at_ms: int


class LeaseHolder(Record, frozen=True):
    """Who holds a live lease, without the token."""

    resource: Resource
    owner_id: str
    fence: int
    claimed_at_ms: int
    expires_at_ms: int
