"""Answers of a database that judges an operation itself, in one trip.

A verdict is a word; `rules.verdicts` turns the words that refuse into errors.
"""

from __future__ import annotations

import msgspec

from holdfast import rows as r
from holdfast.ports.fast_path_params import Head


class QueueVerdict(msgspec.Struct, frozen=True):
    """Enqueued, known or claimed, with the batches by sequence number; or a refusal without any.

    For a claim on work of any session, `session_id` is the session that was chosen.
    """

    verdict: str
    rows: tuple[r.BatchRow, ...] = ()
    session_id: str = ""


class RenewalVerdict(msgspec.Struct, frozen=True):
    """Renewed, with the new end of the claim; or a refusal."""

    verdict: str
    expires_at_ms: int = 0


class HeartbeatVerdict(msgspec.Struct, frozen=True):
    """The end of each claim and then of each lease that was to be renewed; None for each that is lost."""

    expires_at_ms: tuple[int | None, ...]


class SettlementVerdict(msgspec.Struct, frozen=True):
    """Completed, with the time and, if a commit settled the claim, the revision; or a refusal."""

    verdict: str
    settled_at_ms: int = 0
    revision: int | None = None


class TurnVerdict(msgspec.Struct, frozen=True):
    """Committed at `now_ms`; replayed, with the turn's revision; moved, with the newest head; or a refusal.

    `detail` names what was refused. For an absent session, `session_key` is the key that it may be made with.
    """

    verdict: str
    detail: str = ""
    now_ms: int = 0
    head: Head | None = None
    turn: r.RevisionRow | None = None
    session_key: int = 0


class RunVerdict(msgspec.Struct, frozen=True):
    """Claimed, with the run and its lease; or the reason why not."""

    verdict: str
    process: r.ProcessRow | None = None
    lease: r.LeaseRow | None = None


class EventVerdict(msgspec.Struct, frozen=True):
    """Appended, with place and time; replayed, with the stored event; moved, with the process; or a refusal.

    An event that ends its process or makes it due comes with the process. `batch_id` is that of the wake's batch, which
    is new if `is_enqueued` is True.
    """

    verdict: str
    now_ms: int = 0
    sequence: int = 0
    batch_id: str | None = None
    is_enqueued: bool = False
    process: r.ProcessRow | None = None
    event: r.EventRow | None = None
    status: str | None = None
    following: RunVerdict | None = None
    """The verdict on the claim that was asked for with it; None if the event is not in the log."""


class LeaseVerdict(msgspec.Struct, frozen=True):
    """Taken or renewed, with the lease; held, with the other owner's; or ended, with the status of the process."""

    verdict: str
    row: r.LeaseRow | None = None
    process_status: str | None = None
