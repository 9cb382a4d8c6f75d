"""Turns and events as an operation hands them to a database that judges them itself."""

from __future__ import annotations

import msgspec

from holdfast.rows import (
    BatchRow,
    ClaimProof,
    CommitPlan,
    EventRow,
    LeaseProof,
    ProcessRow,
    RevisionRow,
    Segment,
    SessionRow,
)

UNTIMED = -1
"""The time in a row that the database will stamp with its own clock when it writes the row."""


class TurnPlan(CommitPlan, frozen=True):
    """A plan for a database that judges again when it writes.

    It has what shows that claims and lease are held, the stored nodes that must be live (`rests_on`), where new node
    ids must be free, and the session of each new batch.
    """

    claims: tuple[ClaimProof, ...] = ()
    lease: LeaseProof | None = None
    rests_on: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    targets: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True):
    """A session and the revision that is its head; None while it has no revision."""

    session: SessionRow
    revision: RevisionRow | None


class TurnAsk(msgspec.Struct, frozen=True):
    """A turn that was planned on a head, which the database has to prove; without a plan, only a look at the head.

    `is_new` asks for the session to be made with the turn. `draws_key` asks for the key of a session that is not there.
    """

    session_id: str
    turn_id: str | None
    head: Head | None = None
    plan: TurnPlan | None = None
    is_new: bool = False
    draws_key: bool = False


class EventAsk(msgspec.Struct, frozen=True):
    """An event that was planned on a process as it is remembered, and the batch that carries its wake to a session.

    The event's sequence is the next one; with a wake it must be that of the row, because the wake names it.
    """

    event: EventRow
    process: ProcessRow
    after_terminal: bool
    outcome: bytes | None = None
    lease: LeaseProof | None = None
    target_session_id: str | None = None
    batch: BatchRow | None = None
