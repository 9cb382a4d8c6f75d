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
from holdfast.ports.queries import GroupQuery, PrefetchQuery, ViewQuery
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.table_catalog import all_fetched, fetched

PATH_NODES: Final = 5_000
"""The longest path of a prefetched view, whose rows are checked in one go. A longer one is read in a transaction."""

VIEW_COLUMNS: Final = 5
"""The arrays of a view. The next column says if the path takes a transaction, and the others are those of a node."""


class PrefetchedView:
    """Prefetched rows of one session's newest view. Any other read raises NeedsTransaction."""

    def __init__(self, found: Sequence[Sequence[Any]], path: Sequence[Sequence[Any]], last: int | None) -> None:
        sessions, heads, turns, blobs, ledger = found
        self.session = fetched(r.SessionRow, sessions[0]) if sessions else None
        self.head = fetched(r.RevisionRow, heads[0]) if heads else None
        self._turn = fetched(r.RevisionRow, turns[0]) if turns else None
        # A parent has a smaller key than its child.
        self._path = proven_path(sorted(all_fetched(r.NodeRow, path), key=_node_key, reverse=True))
        self._blobs = all_fetched(r.BlobRow, blobs)
        self._ledger = all_fetched(r.UsageRow, ledger)
        self._last = last
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

    async def load_blobs(self, family: int, hashes: Sequence[str]) -> list[r.BlobRow]:
        return self._blobs

    async def read_ledger(self, session_key: int) -> list[r.UsageRow]:
        return self._ledger

    async def read_path(self, leaf_key: int, last: int | None) -> list[r.NodeRow]:
        if self.head is None or leaf_key != self.head.leaf_key or last != self._last:
            raise NeedsTransaction("another path")
        if not self._path and last != 0:
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


async def prefetch(
    runner: StatementRunner, query: PrefetchQuery, cache: RowCache
) -> PrefetchedView | PrefetchedGroup | PrefetchedLog:
    """Fetch the rows of a query."""
    match query:
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
        last = LARGEST_INTEGER if query.last is None else query.last
        asked = query.session_id, last, columns.PAGE_BYTES, query.turn_id, PATH_NODES
        [view, *path] = await runner.all("gather_view", *asked)
    except DriverFailure as failure:
        if state_of(failure.cause) in DAMAGED_TEXT:
            raise NeedsTransaction("refs that do not decode") from failure.cause
        raise
    if view[VIEW_COLUMNS]:
        raise NeedsTransaction("a path that is too large for one statement, or damaged")
    first = VIEW_COLUMNS + 1
    prefetched = PrefetchedView(view[:VIEW_COLUMNS], [node[first:] for node in path], query.last)
    await runner.before_unpacking(prefetched.unpacked_bytes)
    if prefetched.session is not None:
        cache.learn_head(prefetched.session, prefetched.head)
    return prefetched


def _node_key(row: r.NodeRow) -> int:
    return row.node_key
