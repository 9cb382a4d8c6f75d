"""Table of emitted values."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.queue import Queue
from holdfast.stream_rows import StreamRow


class Streams(Queue):
    """Blocks of emitted values."""

    __slots__ = ()

    async def find_batch_states(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        return self._find_batches(session_key, batch_ids, with_payloads=False)

    async def save_blocks(self, rows: Sequence[StreamRow]) -> None:
        for row in rows:
            self._store("save_block", row)

    async def find_blocks(
        self, family: int, session_key: int, claim_id: str, *, first: int, limit: int
    ) -> list[StreamRow]:
        return self._all(StreamRow, "find_blocks", (family, session_key, claim_id, first, limit))

    async def first_block(self, family: int, session_key: int) -> StreamRow | None:
        return self._one(StreamRow, "first_block", (family, session_key))

    async def drop_blocks(self, family: int, session_key: int, claim_id: str, *, of_others: bool) -> int:
        return self._run("drop_blocks", (family, session_key, claim_id, of_others))

    async def drop_old_blocks(self, begun_until_ms: int, limit: int) -> int:
        return self._run("drop_old_blocks", (begun_until_ms, limit))
