"""Tables of processes and events. Dropping a process drops its events, grants and lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import columns_of, portions
from holdfast.backends.postgres.transaction.leases import PROCESS_LEASE
from holdfast.backends.postgres.transaction.queue import Queue
from holdfast.backends.postgres.transaction.run_functions import kinds_of
from holdfast.limit_rows import RunLimit

EVENT_COLUMNS: Final = len(r.EventRow.__struct_fields__)


class Processes(Queue):
    """Processes and their events."""

    __slots__ = ()

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        return await self._locked(r.ProcessRow, "find_process", process_id)

    async def hinted_process(self, process_id: str) -> r.ProcessRow | None:
        """Return the process, locked."""
        return await self.find_process(process_id)

    async def insert_process(self, row: r.ProcessRow) -> None:
        await self._store("insert_process", row)
        self.seen.processes.append(row)

    async def save_process(self, row: r.ProcessRow) -> int:
        return await self._store("save_process", row)

    async def list_processes(self, filter: r.ProcessFilter) -> list[r.ProcessRow]:
        bindings = (
            filter.after or "",
            filter.limit,
            filter.waiting,
            filter.status,
            filter.definition_hash,
            filter.originator_session_id,
        )
        # The most selective given filter chooses the index; the filters after it in `bindings` are not given.
        if filter.originator_session_id is not None:
            return await self._all(r.ProcessRow, "list_processes_of_originator", *bindings, columns.PAGE_BYTES)
        if filter.definition_hash is not None:
            return await self._all(r.ProcessRow, "list_processes_of_definition", *bindings[:5], columns.PAGE_BYTES)
        if filter.status is not None:
            return await self._all(r.ProcessRow, "list_processes_of_status", *bindings[:4], columns.PAGE_BYTES)
        return await self._all(r.ProcessRow, "list_processes", *bindings[:3], columns.PAGE_BYTES)

    async def run_limits(self, kinds: Sequence[str] | None, now_ms: int) -> list[RunLimit]:
        if self._by_family:
            return []  # no limits can be declared there
        wanted = None if kinds is None else list(kinds)
        return [RunLimit(*values) for values in await self._values("run_limits", wanted, now_ms)]

    async def first_claimable(
        self, kinds: Sequence[tuple[str, str | None]] | None, closed: Sequence[str] = ()
    ) -> tuple[str, int] | None:
        found = await self._values("first_claimable", *kinds_of(kinds), list(closed))
        return None if not found else (found[0][0], found[0][1])

    async def oldest_due_runs(self, now_ms: int, limit: int) -> list[tuple[str, int]]:
        found = sorted((at_ms, process_id) for process_id, at_ms in await self._values("oldest_due_runs", now_ms))
        return [(process_id, at_ms) for at_ms, process_id in found[:limit]]

    async def put_off_run(self, process_id: str, claimable_at_ms: int) -> None:
        await self._run("put_off_run", process_id, claimable_at_ms)

    async def list_ended_processes(self, after: tuple[int, str], limit: int) -> list[r.ProcessRow]:
        return await self._all(r.ProcessRow, "list_ended_processes", *after, limit, columns.PAGE_BYTES)

    async def clear_wake_targets(self, session_id: str, now_ms: int) -> int:
        return await self._run("clear_wake_targets", session_id, now_ms)

    async def find_event(self, process_id: str, sequence: int) -> r.EventRow | None:
        return await self._one(r.EventRow, "find_event", process_id, sequence)

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        return await self._one(r.EventRow, "find_replay", process_id, replay_key)

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        await self._store("insert_event", write.event)
        await self.save_process(write.process)
        self.seen.processes.append(write.process)
        if write.event.terminal_state is not None:
            await self._run("release_lease", *await self._lease_place(PROCESS_LEASE, write.process.process_id))
        if write.batch is None:
            return write
        [batch] = await self.insert_batches([write.batch])
        return msgspec.structs.replace(write, batch=batch)

    async def find_replays(self, process_id: str, replay_keys: Sequence[str]) -> list[r.EventRow]:
        return await self._all(r.EventRow, "find_replays", process_id, list(replay_keys))

    async def append_events(self, events: Sequence[r.EventRow], process: r.ProcessRow) -> None:
        for portion in portions(events):
            await self._run("insert_events", *columns_of(portion, EVENT_COLUMNS))
        await self.save_process(process)
        self.seen.processes.append(process)

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        bindings = (filter.process_id, filter.after, filter.limit)
        if filter.pending_wakes:
            return await self._all(r.EventRow, "list_pending_wakes", *bindings, filter.type, columns.PAGE_BYTES)
        if filter.type is not None:
            return await self._all(r.EventRow, "list_events_of_type", *bindings, filter.type, columns.PAGE_BYTES)
        return await self._all(r.EventRow, "list_events", *bindings, columns.PAGE_BYTES)

    async def recent_events(self, process_id: str, limit: int) -> list[r.EventRow]:
        newest_first = await self._all(r.EventRow, "recent_events", process_id, limit, columns.PAGE_BYTES)
        return newest_first[::-1]

    async def count_events(self, process_id: str, type: str, through: int) -> int:
        return await self._number("count_events", process_id, type, through)

    async def ack_wake(self, process_id: str, sequence: int) -> int:
        return await self._run("ack_wake", process_id, sequence)

    async def drop_terminal_processes(
        self, process_ids: Sequence[str], *, updated_until_ms: int, dry_run: bool
    ) -> tuple[int, int]:
        by_family = self._by_family
        locks = self._writes and not dry_run
        name = "lock_ended_processes" if locks and not by_family else "ended_processes"
        asked = await self._values(name, list(process_ids), updated_until_ms)
        ended = [process_id for (process_id,) in asked]
        if locks and by_family:
            # Rows on several nodes are locked one by one. An ended process stays ended.
            for process_id in sorted(ended):
                await self.find_process(process_id)
        if not ended:
            return 0, 0
        if dry_run:
            return len(ended), await self._number("count_events_of_processes", ended)
        events = await self._run("drop_events_of_processes", ended)
        await self._run("drop_grants_of_processes", ended)
        await self._drop_leases(PROCESS_LEASE, ended)
        return await self._run("drop_processes", ended), events
