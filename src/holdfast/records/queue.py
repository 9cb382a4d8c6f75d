"""Work waits in a session's queue in batches; one owner at a time claims it until the claim expires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from holdfast.records.common import Document, KeywordRecord, Receipt, Record, Token

Delivery: TypeAlias = Literal["earliest_safe_boundary", "after_current_turn_commit"]
Slot: TypeAlias = Literal["join", "exclusive"]
Boundary: TypeAlias = Literal["active_turn_checkpoint", "idle"]
"""The point at which a worker claims: inside a turn, or between turns."""
WorkState: TypeAlias = Literal["pending", "claimed", "completed", "cancelled", "interrupted", "dead"]
"""The state of a batch. The last four are settled.

The turn of an `interrupted` batch was stopped. A `dead` batch failed at its last attempt; it can be retried.
"""
SETTLED: tuple[WorkState, ...] = ("completed", "cancelled", "interrupted", "dead")

TURN = "turn"
"""The kind of work that does not name one."""
WAKE_PREFIX = "wake:"
"""The beginning of the source keys of wakes. Only the store makes such work, so that the key proves a wake."""


class Group(Record, frozen=True):
    """A merge key of the caller's: adjacent batches of one group may be claimed together."""

    name: str


MergeKey: TypeAlias = Literal["never", "payload_default"] | Group
"""Decides which adjacent batches may be claimed together."""


class WorkDraft(KeywordRecord, frozen=True, kw_only=True):
    """Work to be enqueued. With a source key, it is enqueued once, however often it is sent.

    `kind` selects the workers that want it. `priority` is a small number: among waiting sessions, the one whose next
    batch has the highest is served first. Inside a session the order of enqueueing stays. `key` names what the limit
    `per_key` of the kind counts by, such as a user: see `queue.set_limit`.

    >>> draft = holdfast.WorkDraft(
    ...     session_id="chat", payloads=[{"type": "turn_input", "text": "hi"}], source_key="msg-1"
    ... )
    >>> draft.delivery, draft.slot, draft.merge_key
    ('earliest_safe_boundary', 'join', 'never')
    >>> draft.kind, draft.priority
    ('turn', 0)
    """

    payloads: Sequence[Document]
    session_id: str | None = None
    source_key: str | None = None
    delivery: Delivery = "earliest_safe_boundary"
    slot: Slot = "join"
    merge_key: MergeKey = "never"
    available_at_ms: int = 0
    kind: str = TURN
    priority: int = 0
    key: str | None = None

    @classmethod
    def command(cls, session_id: str, kind: str, *, idempotency_key: str, reason: str | None = None) -> WorkDraft:
        """Draft a session command (say, "refresh_tool_catalog"): claimed alone, once per idempotency key."""
        return cls(
            session_id=session_id,
            payloads=[{"type": "session_command", "command": {"kind": kind, "reason": reason}}],
            source_key=f"command:{kind}:{idempotency_key}",
            delivery="after_current_turn_commit",
            slot="exclusive",
        )


class WorkItem(Record, frozen=True):
    """One payload of a batch."""

    item_id: str
    payload: Document


class WorkBatch(Record, frozen=True):
    """Enqueued work. A settled batch is kept until retention removes it.

    `attempts` counts the claims on it that were not given back, and `last_error` is the text of the last failure, after
    which it waits until `retry_at_ms`. While it is claimed, `claimed_by` holds it until `claim_expires_at_ms`.
    `settled_revision` is the revision of the commit that settled it, None if no commit did.
    """

    batch_id: str
    session_id: str
    enqueue_seq: int
    source_key: str | None
    delivery: Delivery
    slot: Slot
    merge_key: MergeKey
    available_at_ms: int
    enqueued_at_ms: int
    items: tuple[WorkItem, ...]
    state: WorkState = "pending"
    settled_at_ms: int | None = None
    settled_revision: int | None = None
    kind: str = TURN
    priority: int = 0
    attempts: int = 0
    last_error: str | None = None
    retry_at_ms: int = 0
    claimed_by: str | None = None
    claim_expires_at_ms: int | None = None
    key: str | None = None


class KindLimit(Record, frozen=True):
    """The limits of one kind of work: claims that live `at_once`, and those of one key. None means unlimited.

    While the kind is `paused`, nothing of it is claimed.
    """

    kind: str
    at_once: int | None
    per_key: int | None
    paused: bool
    declared_at_ms: int


class QueueDepth(Record, frozen=True):
    """The unsettled work of one kind, in batches, and its dead letters.

    `ready` can be claimed now as far as the batch alone decides; `delayed` waits for its time or for its next attempt.
    `oldest_ready_at_ms` is the time since which the oldest ready batch has been ready.
    """

    kind: str
    ready: int
    delayed: int
    claimed: int
    dead: int
    oldest_ready_at_ms: int | None


class WorkReceipt(Receipt, frozen=True):
    """Proof that a claim was settled. `revision` is that of the commit that settled it, None if no commit did."""

    session_id: str
    claim_id: str
    batch_ids: tuple[str, ...]
    settled_at_ms: int
    revision: int | None = None


class WorkCompletion(Record, frozen=True):
    """Settles a claim inside a commit: exactly its batches, proven by token and fence."""

    session_id: str
    claim_id: str
    token: Token
    fence: int
    batch_ids: tuple[str, ...]


class WorkClaim(Record, frozen=True):
    """Batches that one owner may work on until `expires_at_ms`.

    While an `exclusive` claim lives, no other claim on the session's queue is given out.
    """

    session_id: str
    claim_id: str
    owner_id: str
    token: Token
    fence: int
    claimed_at_ms: int
    expires_at_ms: int
    batches: tuple[WorkBatch, ...]
    exclusive: bool = False

    def completion(self) -> WorkCompletion:
        """Return the proof that settles this claim as part of a commit."""
        return WorkCompletion(
            self.session_id, self.claim_id, self.token, self.fence, tuple(batch.batch_id for batch in self.batches)
        )
