"""Emitted values in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.memory.tables import Tables, starting_with
from holdfast.stream_rows import StreamRow


class MemoryStreams:
    """Implements `ports.StreamTables`."""

    tables: Tables

    async def find_batch_states(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        wanted = frozenset(batch_ids)
        found = self.tables.batches.scan(lambda row: row.session_key == session_key and row.batch_id in wanted)
        return [msgspec.structs.replace(row, payloads=b"") for row in found]

    async def save_blocks(self, rows: Sequence[StreamRow]) -> None:
        for row in rows:
            self.tables.stream_blocks.put((row.family, row.session_key, row.claim_id, row.block), row)

    async def find_blocks(
        self, family: int, session_key: int, claim_id: str, *, first: int, limit: int
    ) -> list[StreamRow]:
        found = self.tables.stream_blocks.between(*starting_with(family, session_key, claim_id))
        return [row for row in found if row.block >= first][:limit]

    async def first_block(self, family: int, session_key: int) -> StreamRow | None:
        return next(self.tables.stream_blocks.between(*starting_with(family, session_key)), None)

    async def drop_blocks(self, family: int, session_key: int, claim_id: str, *, of_others: bool) -> int:
        found = list(self.tables.stream_blocks.between(*starting_with(family, session_key)))
        return sum(
            self.tables.stream_blocks.drop((row.family, row.session_key, row.claim_id, row.block))
            for row in found
            if (row.claim_id != claim_id) == of_others
        )

    async def drop_old_blocks(self, begun_until_ms: int, limit: int) -> int:
        found = self.tables.stream_blocks.scan(lambda row: row.begun_at_ms <= begun_until_ms)
        oldest = sorted(found, key=lambda row: row.begun_at_ms)[:limit]
        return sum(
            self.tables.stream_blocks.drop((row.family, row.session_key, row.claim_id, row.block)) for row in oldest
        )
