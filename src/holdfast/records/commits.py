"""Commits: a turn is one commit, accepted as a whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.checkpoints import Checkpoint, CheckpointManifest
from holdfast.records.common import Document, KeywordRecord, Receipt, Record
from holdfast.records.graph import AgentFrame, Graph, GraphDelta, Unchanged
from holdfast.records.leases import Lease
from holdfast.records.processes import RunDraft
from holdfast.records.queue import WorkClaim, WorkCompletion, WorkDraft


class Usage(Record, frozen=True):
    """Tokens spent, by source and model. `total` excludes cached input tokens. An entry of zeros is not recorded."""

    source: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total(self) -> int:
        """Input, output and reasoning tokens."""
        return self.input_tokens + self.output_tokens + self.reasoning_tokens


class Commit(KeywordRecord, frozen=True, kw_only=True):
    """Everything that a turn changes. A field that is left out leaves its part of the session as it is.

    `expected_revision=None` means "on the current revision, whichever it is" and never conflicts. The same `turn_id`
    with the same content returns the same receipt and has no second effect.

    `tombstones` are the ids of nodes that the turn hides, by the rules of `session.tombstone`: its graph is judged as
    if they had been hidden just before. If one of them is the head's leaf, name the new leaf.
    """

    session_id: str | None = None
    turn_id: str | None = None
    fingerprint: str | None = None
    expected_revision: int | None = None
    graph: GraphDelta = Unchanged()
    checkpoint: Checkpoint | None = None
    config: Document | None = None
    frames: Sequence[AgentFrame] | None = None
    current_frame_id: str | None = None
    usage: Sequence[Usage] = ()
    completes: Sequence[WorkClaim | WorkCompletion] = ()
    attachments: Sequence[str] = ()
    enqueues: Sequence[WorkDraft] = ()
    starts: Sequence[RunDraft] = ()
    tombstones: Sequence[str] = ()
    lease: Lease | None = None


class CommitReceipt(Receipt, frozen=True):
    """An accepted turn. `enqueued` are the batch ids of its follow-up work, `started` the ids of its runs.

    `replayed` marks a retry.
    `leaf` is the node that the active path ends in after the turn, None if there is no path. `tombstoned` counts the
    nodes that it hid.
    """

    session_id: str
    revision: int
    checkpoint_ref: str | None
    manifest: CheckpointManifest
    enqueued: tuple[str, ...] = ()
    replayed: bool = False
    leaf: str | None = None
    started: tuple[str, ...] = ()
    tombstoned: int = 0


class NodesReceipt(Receipt, frozen=True):
    """Nodes that now stand outside the path. Equal nodes that were stored already count as `replayed`.

    `kept` counts nodes with other content that stayed as they were, by `on_conflict="keep"`.
    """

    session_id: str
    added: int
    replayed: int
    kept: int = 0


class SessionView(Record, frozen=True):
    """One consistent snapshot of a session.

    `node_count` counts every node of the graph, inherited and tombstoned ones included.
    """

    session_id: str
    revision: int
    graph: Graph
    node_count: int
    config: Document | None
    frames: tuple[AgentFrame, ...]
    current_frame_id: str | None
    checkpoint_ref: str | None
    manifest: CheckpointManifest
    checkpoint: Checkpoint | None
    ledger: tuple[Usage, ...]


class Revision(Record, frozen=True):
    """One entry of a session's history."""

    revision: int
    turn_id: str | None
    leaf: str | None
    checkpoint_ref: str | None
    usage: tuple[Usage, ...]
    committed_at_ms: int
