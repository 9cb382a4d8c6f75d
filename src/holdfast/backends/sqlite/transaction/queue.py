"""The table of batches. A batch keeps its place in its queue, by sequence, until it is settled."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.backends.sqlite.transaction.leases import Leases
from holdfast.ports.limit_tables import Obstacles, ReadySession


class Queue(Leases):
    """The queue."""

    __slots__ = ()

    async def find_sources(self, pairs: Sequence[tuple[int, str]]) -> list[r.BatchRow]:
        return self._find_sources(pairs, with_payloads=True)

    def _find_sources(self, pairs: Sequence[tuple[int, str]], *, with_payloads: bool) -> list[r.BatchRow]:
        if not pairs:
            return []
        # Each pair once: a repeated pair is still one batch.
        return self._all(r.BatchRow, "find_sources", (json_list(list(dict.fromkeys(pairs))), with_payloads))

    async def insert_batches(self, batches: Sequence[r.BatchRow]) -> list[r.BatchRow]:
        return self._store_all(r.BatchRow, "insert_batch", batches)

    async def ready_batches(
        self, session_key: int, now_ms: int, limit: int, *, with_back_off: bool
    ) -> list[r.BatchRow]:
        bindings = {"session_key": session_key, "now_ms": now_ms, "with_back_off": with_back_off, "limit": limit}
        return self._page(r.BatchRow, "ready_batches", bindings)

    async def sessions_with_ready(self, now_ms: int, *, after: int, limit: int) -> list[tuple[int, str]]:
        bindings = {"now_ms": now_ms, "after": after, "limit": limit}
        return [(key, session_id) for key, session_id in self._values("sessions_with_ready", bindings)]

    async def oldest_ready(self, now_ms: int, limit: int) -> list[ReadySession]:
        found = self._values("oldest_ready", {"now_ms": now_ms, "limit": limit})
        return [ReadySession(id, since_ms, kind, bool(paused)) for id, since_ms, kind, paused in found]

    async def obstacles(self, session_key: int, claim_id: str, now_ms: int) -> Obstacles:
        [found] = self._values("obstacles", (session_key, claim_id, now_ms))
        return Obstacles(*map(bool, found))

    async def may_be_claimed(self, session_key: int) -> bool:
        return bool(self._values("may_be_claimed", (session_key,)))

    async def find_batches(self, session_key: int, batch_ids: Sequence[str]) -> list[r.BatchRow]:
        return self._find_batches(session_key, batch_ids, with_payloads=True)

    def _find_batches(self, session_key: int, batch_ids: Sequence[str], *, with_payloads: bool) -> list[r.BatchRow]:
        if not batch_ids:
            return []
        return self._all(r.BatchRow, "find_batches", (session_key, json_list(batch_ids), with_payloads))

    async def find_claimed(self, session_key: int, claim_id: str) -> list[r.BatchRow]:
        return self._all(r.BatchRow, "find_claimed", (session_key, claim_id))

    async def save_batches(self, rows: Sequence[r.BatchRow]) -> int:
        return len(self._runner.run_many("save_batch", (msgspec.structs.astuple(row) for row in rows)))

    async def list_dead(self, session_key: int | None, kind: str | None, *, after: int, limit: int) -> list[r.BatchRow]:
        bindings = {"session_key": session_key, "kind": kind, "after": after, "limit": limit}
        return self._page(r.BatchRow, "list_dead", bindings)

    async def list_batches(
        self, session_key: int, *, pending_at_ms: int | None, after: int, limit: int
    ) -> list[r.BatchRow]:
        bindings = {"session_key": session_key, "pending_at_ms": pending_at_ms, "after": after, "limit": limit}
        return self._page(r.BatchRow, "list_batches", bindings)

    async def next_due_ms(self, session_key: int, now_ms: int) -> int | None:
        [(due_ms,)] = self._values("next_due_ms", (session_key, now_ms))
        return None if due_ms is None else int(due_ms)

    async def drop_settled_batches(self, *, settled_until_ms: int, limit: int, dry_run: bool) -> int:
        seqs = [seq for (seq,) in self._numbers("settled_batches", (settled_until_ms, limit))]
        if seqs and not dry_run:
            self._run("drop_batches", (json_list(seqs),))
        return len(seqs)
