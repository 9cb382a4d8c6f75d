"""Prefetch the rows that an operation declares it will read, by one statement and so in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.driver_errors import DAMAGED_TEXT, DriverFailure, state_of
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.single_trip import NeedsTransaction, missing
from holdfast.backends.postgres.transaction.base import unpacked_bytes
from holdfast.backends.postgres.transaction.graph import proven_path
from holdfast.ports.queries import GroupQuery, PrefetchQuery, ViewQuery, WorkersQuery
from holdfast.table_catalog import all_fetched, fetched
from holdfast.worker_rows import WorkerRow

PATH_NODES: Final = 5_000
"""The longest path of a prefetched view, whose rows are checked in one go. A longer one is read in a transaction."""

VIEW_COLUMNS: Final = 5
"""The arrays of a view. The other columns are those of a node, and one of the view's."""

NODE_KEY, NODE_ID, PARENT_KEY = map(r.NodeRow.__struct_fields__.index, ("node_key", "node_id", "parent_key"))


class PrefetchedView:
    """Prefetched rows of one session's newest view. Any other read raises NeedsTransaction."""

    def __init__(
        self, found: Sequence[Sequence[Any]], path: Sequence[Sequence[Any]], last: int | None, *, claimed_upto: int
    ) -> None:
        sessions, heads, turns, blobs, ledger = found
        self.session = fetched(r.SessionRow, sessions[0]) if sessions else None
        self.head = fetched(r.RevisionRow, heads[0]) if heads else None
        self._turn = fetched(r.RevisionRow, turns[0]) if turns else None
        self._path = proven_path(all_fetched(r.NodeRow, path))
        self._blobs = all_fetched(r.BlobRow, blobs)
        self._ledger = all_fetched(r.UsageRow, ledger)
        self._last = last
        self._claimed_upto = claimed_upto
        self.unpacked_bytes = unpacked_bytes(self._blobs)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        return self.session

    async def find_revision(self, session_key: int, revision: int) -> r.RevisionRow | None:
        if self.session is None or revision != self.session.revision:
            raise NeedsTransaction("another revision")
        return self.head

    async def find_turn(self, session: r.SessionRow, turn_id: str) -> r.RevisionRow | None:
        return self._turn

    async def may_be_claimed(self, session_key: int) -> bool:
        return self._claimed_upto > 0

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        return self._blobs

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        return self._ledger

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        if self.head is None or leaf_key != self.head.leaf_key or last != self._last:
            raise NeedsTransaction("another path")
        if last != 0 and (not self._path or self._path[0].node_key != leaf_key):
            raise NeedsTransaction("a leaf that is hidden or missing")
        return self._path


class PrefetchedGroup:
    """Prefetched rows of a session's nodes with ids in a range. Any other read raises NeedsTransaction."""

    def __init__(self, found: Sequence[Sequence[Sequence[object]]], query: GroupQuery) -> None:
        sessions, nodes = found
        self._query = query
        self._session = fetched(r.SessionRow, sessions[0]) if sessions else None
        self._nodes = all_fetched(r.NodeRow, nodes)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    async def find_session(self, session_id: str, *, key_only: bool = False) -> r.SessionRow | None:
        return self._session

    async def read_nodes_by_id(
        self, segment: r.Segment, *, kind: str | None, first: str, before: str | None, descending: bool, limit: int
    ) -> list[r.NodeRow]:
        asked = GroupQuery(self._query.session_id, first, before, kind, limit)
        if descending or asked != self._query or self._session is None:
            raise NeedsTransaction("another page")
        if segment.session_key != self._session.session_key:
            raise NeedsTransaction("inherited nodes")
        return self._nodes


class PrefetchedLog:
    """Prefetched rows of one page of a process's log. Any other read raises NeedsTransaction."""

    def __init__(self, found: Sequence[Sequence[Sequence[object]]], filter: r.EventFilter) -> None:
        processes, events = found
        self._filter = filter
        self.process = fetched(r.ProcessRow, processes[0]) if processes else None
        self._events = all_fetched(r.EventRow, events)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    async def find_process(self, process_id: str) -> r.ProcessRow | None:
        return self.process

    async def list_events(self, filter: r.EventFilter) -> list[r.EventRow]:
        if filter != self._filter:
            raise NeedsTransaction("another page")
        return self._events


class PrefetchedWorkers:
    """Prefetched rows of one page of the live workers. Any other read raises NeedsTransaction."""

    def __init__(self, now_ms: int, found: Sequence[Sequence[object]], query: WorkersQuery) -> None:
        self.now_ms = now_ms
        self._query = query
        self._workers = all_fetched(WorkerRow, found)

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)

    async def list_workers(self, alive_at_ms: int, *, after: str, limit: int) -> list[WorkerRow]:
        if alive_at_ms != self.now_ms or WorkersQuery(after, limit) != self._query:
            raise NeedsTransaction("another page")
        return self._workers


async def prefetch(
    runner: StatementRunner, query: PrefetchQuery, cache: RowCache, *, test_ms: int | None
) -> PrefetchedView | PrefetchedGroup | PrefetchedWorkers | PrefetchedLog:
    """Fetch the rows of a query. `test_ms` is the time of a test's clock, None for the server's."""
    match query:
        case WorkersQuery():
            [(now_ms, workers)] = await runner.all("gather_workers", test_ms, query.after, query.limit)
            return PrefetchedWorkers(now_ms, workers, query)
        case r.EventFilter():
            return await _log(runner, query, cache)
        case GroupQuery():
            asked = query.session_id, query.first, query.before, query.kind, query.limit, columns.PAGE_BYTES
            [found] = await runner.all("gather_group", *asked)
            return PrefetchedGroup(found, query)
        case _:
            return await _view(runner, query, cache)


async def _log(runner: StatementRunner, query: r.EventFilter, cache: RowCache) -> PrefetchedLog:
    of_type = () if query.type is None else (query.type,)
    # Only a lookup of all events uses the primary key: see schema.sql.
    which = "some+" if of_type or query.pending_wakes else "all+"
    name = "gather_events+" + which + "type+" * len(of_type) + "wakes+" * query.pending_wakes
    [found] = await runner.all(name, query.process_id, query.after, query.limit, columns.PAGE_BYTES, *of_type)
    prefetched = PrefetchedLog(found, query)
    if prefetched.process is not None and cache.processes.get(query.process_id) is None:
        # Do not replace a row that an append of this store has seen since: that is newer.
        cache.learn_process(prefetched.process)
    return prefetched


async def _view(runner: StatementRunner, query: ViewQuery, cache: RowCache) -> PrefetchedView:
    try:
        found = await runner.all(*_asked(query))
    except DriverFailure as failure:
        if state_of(failure.cause) in DAMAGED_TEXT:
            raise NeedsTransaction("refs that do not decode") from failure.cause
        raise
    view, *path = found
    if len(path) > PATH_NODES:
        raise NeedsTransaction("a path that is too large for one statement")
    claimed_upto = view[-1] if query.with_claims else None
    prefetched = PrefetchedView(view[:VIEW_COLUMNS], _with_parents(path), query.last, claimed_upto=claimed_upto or 0)
    await runner.before_unpacking(prefetched.unpacked_bytes)
    if prefetched.session is not None:
        cache.learn_head(prefetched.session, prefetched.head)
    return prefetched


def _asked(query: ViewQuery) -> tuple[Any, ...]:
    """Return the statement of a view and its arguments. Without a path, and with its leaf alone, it has fewer parts."""
    claims = "claims+" if query.with_claims else ""
    match query.last:
        case 0:
            return f"gather_view+{claims}", query.session_id, query.turn_id
        case 1:
            return f"gather_view+leaf+{claims}", query.session_id, query.turn_id
        case last:
            most = PATH_NODES + 1 if last is None else min(last, PATH_NODES + 1)
            return f"gather_view+path+{claims}", query.session_id, query.turn_id, most, columns.PAGE_BYTES


def _with_parents(path: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the nodes of a path from the leaf back. A parent's id is that of the next node, unless it was fetched."""
    # A parent has a smaller key than its child.
    rows: list[Sequence[Any]] = []
    key: object = None
    id: object = None
    for node in sorted(path, key=_node_key):
        values = node[VIEW_COLUMNS:-2]
        parent_id = id if values[PARENT_KEY] == key and key is not None else node[-2]
        rows.append((*values, parent_id))
        key, id = values[NODE_KEY], values[NODE_ID]
    rows.reverse()
    return rows


def _node_key(row: Sequence[Any]) -> int:
    key: int = row[VIEW_COLUMNS]
    return key
