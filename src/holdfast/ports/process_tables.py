"""The tables of processes, events and grants that a database must provide. See `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast import rows as r
from holdfast.limit_rows import RunLimit


class ProcessTables(Protocol):
    """Processes, their events and grants."""

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        """Return one process."""
        ...

    async def insert_process(self, row: r.ProcessRow) -> None:
        """Insert."""
        ...

    async def save_process(self, row: r.ProcessRow) -> int:
        """Overwrite. Return the count."""
        ...

    async def list_processes(self, filter: r.ProcessFilter) -> list[r.ProcessRow]:
        """Return matching processes by id."""
        ...

    async def run_limits(self, kinds: Sequence[str] | None, now_ms: int) -> list[RunLimit]:
        """Return the limits `at_once` of these kinds, None being all of runs, with the live leases of claimed runs."""
        ...

    async def first_claimable(
        self, kinds: Sequence[tuple[str, str | None]] | None, closed: Sequence[str] = ()
    ) -> tuple[str, int] | None:
        """Return (process id, `claimable_at_ms`) of the run with the least, by id among equals.

        Of these kinds and versions; None is every version, or every kind. Leaves out kinds in `closed` and
        those whose `LimitRow` is paused. Reads an index, one entry for each version.
        """
        ...

    async def oldest_due_runs(self, now_ms: int, limit: int) -> list[tuple[str, int]]:
        """Return (process id, `claimable_at_ms`) of the oldest due run of each kind and version, oldest first.

        Paused kinds, too. For a role that may only read tables. Reads an index.
        """
        ...

    async def put_off_run(self, process_id: str, claimable_at_ms: int) -> None:
        """Set the time from which a run can be claimed, without reading its other columns: they may be damaged."""
        ...

    async def list_ended_processes(self, after: tuple[int, str], limit: int) -> list[r.ProcessRow]:
        """Return processes that have ended, by (updated_at_ms, process_id), beyond `after`."""
        ...

    async def clear_wake_targets(self, session_id: str, now_ms: int) -> int:
        """Remove wake targets in any frame of this session from processes; touch `updated_at_ms`. Return the count."""
        ...

    async def find_event(self, process_id: str, sequence: int) -> r.EventRow | None:
        """Return one event."""
        ...

    async def find_replay(self, process_id: str, replay_key: str) -> r.EventRow | None:
        """Return the event with this replay key."""
        ...

    async def apply_event(self, write: r.EventWrite) -> r.EventWrite:
        """Insert the event and its batch, save the process and, if it ended, release its lease. Return the writes.

        The release empties owner and token; the fence stays. The batch gets a new sequence number.
        """
        ...

    async def find_replays(self, process_id: str, replay_keys: Sequence[str]) -> list[r.EventRow]:
        """Return the events with these replay keys."""
        ...

    async def append_events(self, events: Sequence[r.EventRow], process: r.ProcessRow) -> None:
        """Insert any number of events that neither end their process nor enqueue work, and save the process."""
        ...

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        """Return matching events, ascending."""
        ...

    async def recent_events(self, process_id: str, limit: int) -> list[r.EventRow]:
        """Return the last events, ascending."""
        ...

    async def count_events(self, process_id: str, type: str, through: int) -> int:
        """Count the events of the type with `sequence <= through`."""
        ...

    async def ack_wake(self, process_id: str, sequence: int) -> int:
        """Mark a wake event acknowledged. Return the count."""
        ...

    async def drop_terminal_processes(
        self, process_ids: Sequence[str], *, updated_until_ms: int, dry_run: bool
    ) -> tuple[int, int]:
        """Delete, or only count, those of the processes that have ended, with their events: (processes, events).

        Leaves out those with `updated_at_ms >` the bound. Deletes their grants, too, and their leases as in
        `drop_lease`.
        """
        ...


class GrantTables(Protocol):
    """Handles on processes."""

    async def find_grant(self, session_id: str, frame_id: str, process_id: str) -> r.GrantRow | None:
        """Return one grant."""
        ...

    async def save_grant(self, row: r.GrantRow) -> None:
        """Insert or overwrite."""
        ...

    async def drop_grant(self, session_id: str, frame_id: str, process_id: str) -> int:
        """Delete. Return the count."""
        ...

    async def list_grants(
        self, session_id: str, frame_id: str, *, running_only: bool, after: str, limit: int
    ) -> list[tuple[r.GrantRow, r.ProcessRow]]:
        """Return grants of exactly this scope with their processes, by process id, greater than `after`."""
        ...

    async def grants_of_process(
        self, process_id: str, *, after: tuple[str, str] | None, limit: int
    ) -> list[r.GrantRow]:
        """Return grants of a process, by (session_id, frame_id)."""
        ...

    async def count_grants(self, session_id: str) -> list[tuple[str, str, int]]:
        """Return (process id, status, grants held by others) of each process granted to any frame of the session."""
        ...

    async def drop_session_grants(self, session_id: str) -> int:
        """Delete the grants of every frame of a session. Return the count."""
        ...
