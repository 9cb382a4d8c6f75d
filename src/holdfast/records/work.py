"""Work waits in a session's queue in batches, and is claimed for a time by one owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from holdfast.records.common import Document, Record, Token

Delivery: TypeAlias = Literal["earliest_safe_boundary", "after_current_turn_commit"]
Slot: TypeAlias = Literal["join", "exclusive"]
Boundary: TypeAlias = Literal["active_turn_checkpoint", "idle"]
"""Where a worker stands when it claims: inside a turn, or between turns."""
WorkState: TypeAlias = Literal["pending", "claimed", "completed", "cancelled"]
"""What became of a batch."""


class Group(Record, frozen=True):
    """A merge key of the caller's: adjacent batches of one group may be claimed together."""

    name: str


MergeKey: TypeAlias = Literal["never", "payload_default"] | Group
"""Which adjacent batches may be claimed together."""


class WorkDraft(Record, frozen=True, kw_only=True):
    """Work to be enqueued. With a source key it is enqueued once, however often it is sent.

    >>> draft = holdfast.WorkDraft(
    ...     session_id="chat", payloads=[{"type": "turn_input", "text": "hi"}], source_key="msg-1"
    ... )
    >>> draft.delivery, draft.slot, draft.merge_key
    ('earliest_safe_boundary', 'join', 'never')
    """

    payloads: Sequence[Document]
    session_id: str | None = None
    source_key: str | None = None
    delivery: Delivery = "earliest_safe_boundary"
    slot: Slot = "join"
    merge_key: MergeKey = "never"
    available_at_ms: int = 0

    @classmethod
    def command(cls, session_id: str, kind: str, *, idempotency_key: str, reason: str | None = None) -> WorkDraft:
        """A session command (say, "refresh_tool_catalog"): claimed alone, once per idempotency key."""
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
    """Enqueued work. A batch that was completed or cancelled is remembered while it has a source key."""

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


class WorkCompletion(Record, frozen=True):
    """What settles a claim inside a commit: exactly its batches, proven by token and fence."""

    session_id: str
    claim_id: str
    token: Token
    fence: int
    batch_ids: tuple[str, ...]


class WorkClaim(Record, frozen=True):
    """Batches that one owner may work on until `expires_at_ms`."""

    session_id: str
    claim_id: str
    owner_id: str
    token: Token
    fence: int
    claimed_at_ms: int
    expires_at_ms: int
    batches: tuple[WorkBatch, ...]

    def completion(self) -> WorkCompletion:
        """The proof to hand to a commit that settles this claim."""
        return WorkCompletion(
            self.session_id, self.claim_id, self.token, self.fence, tuple(batch.batch_id for batch in self.batches)
        )
