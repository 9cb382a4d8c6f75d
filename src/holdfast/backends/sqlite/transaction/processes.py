"""Tables of processes and events. Dropping a process drops its events, grants and lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast import rows as r
from holdfast.backends.sqlite.transaction.base import json_list
from holdfast.backends.sqlite.transaction.leases import PROCESS_LEASE
from holdfast.backends.sqlite.transaction.queue import Queue
from holdfast.limit_rows import RunLimit


class Processes(Queue):
    """Processes and their events."""

    __slots__ = ()

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        self._found_process = self._one(r.ProcessRow, "find_process", (process_id,))
        return self._found_process

    async def insert_process(self, row: r.ProcessRow) -> None:
        self._store("insert_process", row)

    async def save_process(self, row: r.ProcessRow) -> int:
        before = self._found_process
        in_place = before is not None and before.process_id == row.process_id and _indexed(before) == _indexed(row)
        self._found_process = row
        return self._store("save_process+" if in_place else "save_process", row)

    async def list_processes(self, filter: r.ProcessFilter) -> list[r.ProcessRow]:
        bindings = msgspec.structs.asdict(filter) | {"after": filter.after or ""}
        # The most selective given filter chooses the index.
        if filter.originator_session_id is not None:
            name = "list_processes_of_originator"
        elif filter.definition_hash is not None:
            name = "list_processes_of_definition"
        elif filter.status is not None:
            name = "list_processes_of_status"
        else:
            name = "list_processes"
        return self._page(r.ProcessRow, name, bindings)

    async def run_limits(self, kinds: Sequence[str] | None, now_ms: int) -> list[RunLimit]:
        wanted = dict.fromkeys(kind for kind, _ in self._run_versions(None)) if kinds is None else kinds
        return [RunLimit(*values) for values in self._values("run_limits", (json_list(list(wanted)), now_ms))]

    async def first_claimable(
        self, kinds: Sequence[tuple[str, str | None]] | None, closed: Sequence[str] = ()
    ) -> tuple[str, int] | None:
        found = [
            (at_ms, process_id)
            for place in self._run_versions(kinds)
            if place[0] not in closed
            for process_id, at_ms in self._values("first_claimable", place)
        ]
        return None if not found else min(found)[::-1]

    async def oldest_due_runs(self, now_ms: int, limit: int) -> list[tuple[str, int]]:
        found = [
            (at_ms, process_id)
            for place in self._run_versions(None)
            for process_id, at_ms in self._values("oldest_due_run", (*place, now_ms))
        ]
        return [(process_id, at_ms) for at_ms, process_id in sorted(found)[:limit]]

    async def put_off_run(self, process_id: str, claimable_at_ms: int) -> None:
        self._found_process = None
        self._run("put_off_run", (process_id, claimable_at_ms))

    def _run_versions(self, kinds: Sequence[tuple[str, str | None]] | None) -> Iterator[tuple[str, str]]:
        """Yield the kinds and versions of runs that may be claimed at some time, each found by one look-up."""
        if kinds is None:
            place: tuple[str, str] = ("", "")
            while found := self._values("next_run_kind", place):
                [place] = found
                yield place
            return
        for kind, version in kinds:
            if version is not None:
                yield kind, version
                continue
            after = ""
            while found := self._values("next_run_version", (kind, after)):
                [(after,)] = found
                yield kind, after

    async def list_ended_processes(self, after: tuple[int, str], limit: int) -> list[r.ProcessRow]:
        return self._page(r.ProcessRow, "list_ended_processes", (*after, limit))

    async def clear_wake_targets(self, session_id: str, now_ms: int) -> int:
        self._found_process = None
        return self._run("clear_wake_targets", (session_id, now_ms))

    async def find_event(self, process_id: str, sequence: int) -> r.EventRow | None:
        return self._one(r.EventRow, "find_event", (process_id, sequence))

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        return self._one(r.EventRow, "find_replay", (process_id, replay_key))

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        self._store("insert_event", write.event)
        await self.save_process(write.process)
        if write.event.terminal_state is not None:
            self._run("release_lease", (PROCESS_LEASE, write.process.process_id))
        if write.batch is None:
            return write
        [batch] = await self.insert_batches([write.batch])
        return msgspec.structs.replace(write, batch=batch)

    async def find_replays(self, process_id: str, replay_keys: Sequence[str]) -> list[r.EventRow]:
        return self._all(r.EventRow, "find_replays", (process_id, json_list(replay_keys)))

    async def append_events(self, events: Sequence[r.EventRow], process: r.ProcessRow) -> None:
        self._runner.run_many("insert_event", (msgspec.structs.astuple(event) for event in events))
        await self.save_process(process)

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        bindings = msgspec.structs.asdict(filter)
        if filter.pending_wakes:
            name = "list_pending_wakes"
        else:
            name = "list_events" if filter.type is None else "list_events_of_type"
        return self._page(r.EventRow, name, bindings)

    async def recent_events(self, process_id: str, limit: int) -> list[r.EventRow]:
        newest_first = self._page(r.EventRow, "recent_events", (process_id, limit))
        return newest_first[::-1]

    async def count_events(self, process_id: str, type: str, through: int) -> int:
        return self._number("count_events", (process_id, type, through))

    async def ack_wake(self, process_id: str, sequence: int) -> int:
        return self._run("ack_wake", (process_id, sequence))

    async def drop_terminal_processes(
        self, process_ids: Sequence[str], *, updated_until_ms: int, dry_run: bool
    ) -> tuple[int, int]:
        asked = (json_list(process_ids), updated_until_ms)
        ended = [process_id for (process_id,) in self._values("ended_processes", asked)]
        listed = json_list(ended)
        if not ended:
            return 0, 0
        if dry_run:
            return len(ended), self._number("count_events_of_processes", (listed,))
        events = self._run("drop_events_of_processes", (listed,))
        self._run("drop_grants_of_processes", (listed,))
        self._drop_leases(PROCESS_LEASE, ended)
        return self._run("drop_processes", (listed,)), events


def _indexed(row: r.ProcessRow) -> tuple[str | int | None, ...]:
    """Return the columns that are in an index: those of the part `indexed` of `save_process`."""
    return (
        row.status,
        row.definition_hash,
        row.originator_session_id,
        row.wake_session_id,
        row.run_kind,
        row.run_version,
        row.claimable_at_ms,
    )
