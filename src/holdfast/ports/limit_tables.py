"""Tables of limits: their declarations, the slots that claims hold, and the keys that sessions wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.limit_rows import LimitRow, LimitState, SlotRow, WaitingKeyRow
from holdfast.rows import BatchRow


class Obstacles(msgspec.Struct, frozen=True):
    """The facts that may keep a claim out of a session.

    Another claim lives there, an exclusive one does, the session is paused, or some kind of work has a limit.
    """

    claimed: bool
    exclusively: bool
    paused: bool
    any_limits: bool


class ReadySession(msgspec.Struct, frozen=True):
    """A session with work that no claim holds: since when, the kind of the first such batch, and its pause."""

    session_id: str
    since_ms: int
    kind: str
    is_paused: bool


class LimitTables(Protocol):
    """Limits of kinds, as declared and as used."""

    async def exclude_claims(self) -> None:
        """Block new claims until the transaction ends, and wait for those in progress."""
        ...

    async def find_limit(self, kind: str) -> LimitRow | None:
        """Return the row of a kind."""
        ...

    async def list_limits(self, *, after: str, limit: int) -> list[LimitRow]:
        """Return rows by kind, greater than `after`."""
        ...

    async def save_limit(self, row: LimitRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_limit(self, kind: str) -> None:
        """Delete the row of a kind."""
        ...

    async def mark_slots(self, kind: str, now_ms: int) -> list[BatchRow]:
        """Set `claim_slot` of the batches of a kind that live claims hold. Return them, perhaps without payloads."""
        ...

    async def insert_slots(self, rows: Sequence[SlotRow]) -> None:
        """Insert."""
        ...

    async def clear_slots(self, kind: str) -> None:
        """Delete all slots of a kind."""
        ...

    async def open_keys(self, kind: str) -> None:
        """Let every waiting key of a kind be open."""
        ...

    async def clear_keys(self, kind: str) -> None:
        """Delete the waiting keys of a kind, and let the ready rows of the sessions that wait for one be due."""
        ...

    async def limit_state(self, kind: str, limit_key: str, now_ms: int) -> LimitState | None:
        """Return the limit of a kind with the live slots (`expires_at_ms > now_ms`) of the kind and the key."""
        ...

    async def slots_of(self, session_key: int) -> list[SlotRow]:
        """Return the slots of claims in a session, expired or not."""
        ...

    async def first_slot(self, kind: str, limit_key: str | None, now_ms: int) -> SlotRow | None:
        """Return the live slot of a kind that ends first, then the least by session and claim; of one key or of all."""
        ...

    async def list_paused(self, *, after: int, limit: int) -> list[tuple[int, str]]:
        """Return paused sessions, (key, id) by key, greater than `after`."""
        ...

    async def queue_depths(
        self, now_ms: int, *, after: str, limit: int
    ) -> list[tuple[str, int, int, int, int, int | None]]:
        """Return the fields of `records.queue.QueueDepth`, by kind, greater than `after`."""
        ...


class SlotTables(Protocol):
    """Slots and waiting keys, in a database whose operations maintain them."""

    async def drop_slot(self, row: SlotRow) -> int:
        """Delete a slot. Return the count."""
        ...

    async def extend_slot(self, row: SlotRow) -> int:
        """Overwrite the end of a slot. Return the count."""
        ...

    async def drop_expired_slots(self, kind: str, limit_key: str | None, now_ms: int) -> int:
        """Delete the slots of a kind, of one key or all, that are not live. Return the count."""
        ...

    async def move_kind(self, kind: str, opens_at_ms: int) -> None:
        """Overwrite `opens_at_ms` of a kind, if there is a row."""
        ...

    async def save_waiting_key(self, row: WaitingKeyRow) -> None:
        """Insert or overwrite."""
        ...

    async def move_key(self, row: WaitingKeyRow) -> None:
        """Overwrite `opens_at_ms` of a waiting key, if there is a row. Delete it if no session waits for the key."""
        ...
