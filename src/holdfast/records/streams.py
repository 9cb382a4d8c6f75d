"""Items that a follower of a session sees: values of a turn in progress, their end, and the committed turn."""

from __future__ import annotations

from typing import Any, TypeAlias

from holdfast.records.common import Record


class StreamDelta(Record, frozen=True):
    """A value that a turn in progress emitted. It counts until a `StreamVoid` or the `StreamCommit` of the turn."""

    turn_id: str
    value: Any
    cursor: str


class StreamVoid(Record, frozen=True):
    """The deltas of a turn, as far as they were seen, are void: remove them.

    `reason` is `restarted` if the turn is tried again, else the state that its work ended in: `interrupted`, `dead`,
    `cancelled` or `completed`.
    """

    turn_id: str
    reason: str
    cursor: str


class StreamCommit(Record, frozen=True):
    """A committed turn, with the messages that it added to the conversation. They replace its deltas."""

    turn_id: str | None
    revision: int
    messages: tuple[Any, ...]
    cursor: str


StreamItem: TypeAlias = StreamDelta | StreamVoid | StreamCommit
"""One thing that a follower sees, with the cursor to continue after it."""
