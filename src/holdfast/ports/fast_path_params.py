"""Requests of an operation to a database that judges turns, events, claims and leases itself."""

from __future__ import annotations

import msgspec

from holdfast.records.checkpoints import CheckpointManifest
from holdfast.rows import (
    BatchRow,
    CommitPlan,
    EventRow,
    NodeRow,
    ProcessRow,
    RevisionRow,
    Segment,
    SessionRow,
)

UNTIMED = -1
"""The time in a row that the database will stamp with its own clock when it writes the row."""


class LeaseParams(msgspec.Struct, frozen=True):
    """A request for the lease of a session or, if there is no session, of a process."""

    session_id: str | None
    process_id: str | None
    owner_id: str
    token_hash: str
    ttl_ms: int


class LeaseProof(msgspec.Struct, frozen=True):
    """Proof that a lease is held."""

    session_id: str | None
    process_id: str | None
    token_hash: str
    fence: int


class ClaimParams(msgspec.Struct, frozen=True):
    """A request for a session's next work. `lease` proves its lease; `holding` a claim that the work is added to."""

    session_id: str
    owner_id: str
    boundary: str
    ttl_ms: int
    most: int
    most_bytes: int
    exclusive: bool
    token_hash: str
    exactly: tuple[str, ...] | None
    lease: LeaseProof | None
    holding: ClaimProof | None = None


class ClaimNextParams(msgspec.Struct, frozen=True):
    """A request for work of any session. Without a token, nothing is claimed: the answer only tells if it could be."""

    owner_id: str
    kinds: tuple[str, ...] | None
    ttl_ms: int
    most: int
    most_bytes: int
    exclusive: bool
    token_hash: str | None
    was_busy: bool = False
    """An earlier call has found all such work locked by other transactions."""


class ClaimRunParams(msgspec.Struct, frozen=True):
    """A request for a run of these kinds and versions. Without a token, nothing is claimed."""

    owner_id: str
    kinds: tuple[tuple[str, str | None], ...] | None
    ttl_ms: int
    token_hash: str | None
    waits: bool = True
    """False: do not wait for other transactions, because this one holds locks. The verdict is `busy` then."""


class ClaimProof(msgspec.Struct, frozen=True):
    """Proof that a claim is held: exactly these batches, by token and fence."""

    session_id: str
    claim_id: str
    token_hash: str
    fence: int
    batch_ids: tuple[str, ...]


class HeartbeatParams(msgspec.Struct, frozen=True):
    """Everything that a worker renews, and its report. Without a worker id, there is no report."""

    worker_id: str | None
    report: bytes | None
    claims: tuple[ClaimProof, ...]
    leases: tuple[LeaseProof, ...]
    ttl_ms: int
    forgotten_ms: int


class TurnPlan(CommitPlan, frozen=True):
    """A plan for a database that judges again when it writes.

    It has the proofs of claims and lease, the stored nodes that must be live (`live_node_keys`), the segments in which
    new node ids must be free, the session of each new batch, and the parts of the receipt that the revision encodes.
    A plan that hides nodes (`hidden`, their keys) is never given to such a database.
    """

    claims: tuple[ClaimProof, ...] = ()
    lease: LeaseProof | None = None
    live_node_keys: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    targets: tuple[str, ...] = ()
    manifest: CheckpointManifest | None = None
    enqueued: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    tombstoned: int = 0
    hidden: tuple[int, ...] = ()


class Head(msgspec.Struct, frozen=True):
    """A session and the revision that is its head; None while it has no revision."""

    session: SessionRow
    revision: RevisionRow | None


class TurnParams(msgspec.Struct, frozen=True):
    """A turn that was planned on a head, which the database has to prove; without a plan, only a read of the head.

    `is_new` asks to create the session with the turn. `draws_key` asks for a new session key if the session does not
    exist.
    """

    session_id: str
    turn_id: str | None
    head: Head | None = None
    plan: TurnPlan | None = None
    is_new: bool = False
    draws_key: bool = False


class NodesParams(msgspec.Struct, frozen=True):
    """Nodes outside the path, planned on a head, which the database has to prove.

    The database places them after the session's last node. So the rows have keys from 1 on, in their order. The key of
    a parent is that of a row before, or below 0: -1 is the first of `anchors`, the ids of stored nodes that must be
    live. In `segments` new ids must be free. `follows_head`: one of the anchors is the head's leaf.
    """

    head: Head
    rows: tuple[NodeRow, ...]
    anchors: tuple[str, ...]
    segments: tuple[Segment, ...]
    follows_head: bool


class EventParams(msgspec.Struct, frozen=True):
    """An event that was planned on a cached process row, and the batch that carries its wake to a session.

    The event gets the next sequence; with a wake, that must be the one of the row, because the wake names it.
    """

    event: EventRow
    process: ProcessRow
    after_terminal: bool
    outcome: bytes | None = None
    lease: LeaseProof | None = None
    target_session_id: str | None = None
    batch: BatchRow | None = None
