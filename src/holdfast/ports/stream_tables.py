"""The table of emitted values that a database must provide. See `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.rows import BatchRow
from holdfast.stream_rows import StreamRow


class StreamTables(Protocol):
    """Blocks of emitted values."""

    async def find_batch_states(self, session_key: int, batch_ids: Sequence[str]) -> list[BatchRow]:
        """Return batches without their payloads, locked for a writer, but not the session's queue."""
        ...

    async def save_blocks(self, rows: Sequence[StreamRow]) -> None:
        """Insert, or overwrite number and body of values."""
        ...

    async def find_blocks(
        self, family: int, session_key: int, claim_id: str, *, first: int, limit: int
    ) -> list[StreamRow]:
        """Return blocks of a claim in order, from number `first` on."""
        ...

    async def first_block(self, family: int, session_key: int) -> StreamRow | None:
        """Return the first block of the session, of whichever claim."""
        ...

    async def drop_blocks(self, family: int, session_key: int, claim_id: str, *, of_others: bool) -> int:
        """Delete the blocks of a claim, or those of all other claims of the session. Return the count."""
        ...

    async def drop_old_blocks(self, begun_until_ms: int, limit: int) -> int:
        """Delete up to `limit` blocks that were begun until then, the oldest first. Return the count."""
        ...
