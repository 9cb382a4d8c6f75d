"""One form of calls for blocking stores and for stores of tasks, so that the adapter's logic exists once."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, cast

import holdfast
from holdfast.sessions import (
    ActivePath,
    Child,
    CommitReceipt,
    IdRange,
    NodesReceipt,
    Relation,
    SessionSummary,
    SessionView,
)

T = TypeVar("T")


class Port(Protocol):
    """The calls of a store that the adapter makes. A session id names a session at each call."""

    async def load(self, session_id: str, *, at: str | None, last: int) -> SessionView | None:
        """Return a snapshot."""
        ...

    async def load_many(self, session_id: str, at: Sequence[str]) -> list[SessionView]:
        """Return snapshots without messages."""
        ...

    async def nodes(
        self,
        session_id: str,
        *,
        ids: IdRange | None,
        kind: str | None = None,
        after: str | None = None,
        newest_first: bool = False,
        limit: int = 1_000,
    ) -> holdfast.Page[holdfast.Node]:
        """Return one page of nodes."""
        ...

    async def commit(self, session_id: str, commit: holdfast.Commit) -> CommitReceipt:
        """Commit."""
        ...

    async def add_nodes(
        self, session_id: str, nodes: Sequence[holdfast.Node], *, on_conflict: Literal["refuse", "keep"]
    ) -> NodesReceipt:
        """Add nodes outside the path."""
        ...

    async def tombstone(self, session_id: str, node_ids: Sequence[str]) -> int:
        """Hide nodes."""
        ...

    async def now_ms(self) -> int:
        """Return the time of the store's clock."""
        ...

    async def create(self, session_id: str, *, name: str, parent: str | None) -> None:
        """Create a session if it is absent."""
        ...

    async def delete(self, session_id: str) -> None:
        """Erase a session."""
        ...

    async def children(self, parent: str | None, after: str | None) -> holdfast.Page[SessionSummary]:
        """Return one page of sessions, of a parent or all."""
        ...

    def transaction(self) -> contextlib.AbstractAsyncContextManager[Port]:
        """Run a block as one transaction."""
        ...


def _relation(parent: str | None) -> Relation:
    return holdfast.sessions.Root() if parent is None else Child(parent)


class TaskPort:
    """Calls on a store that was opened for tasks."""

    def __init__(self, store: holdfast.Store) -> None:
        self._store = store

    async def load(self, session_id: str, *, at: str | None, last: int) -> SessionView | None:
        """Return a snapshot."""
        return await self._store.sessions.handle(session_id).load(ActivePath(last=last), at=at)

    async def load_many(self, session_id: str, at: Sequence[str]) -> list[SessionView]:
        """Return snapshots without messages."""
        return await self._store.sessions.handle(session_id).load_many(at, last=0)

    async def nodes(
        self,
        session_id: str,
        *,
        ids: IdRange | None,
        kind: str | None = None,
        after: str | None = None,
        newest_first: bool = False,
        limit: int = 1_000,
    ) -> holdfast.Page[holdfast.Node]:
        """Return one page of nodes."""
        session = self._store.sessions.handle(session_id)
        return await session.nodes(ids=ids, kind=kind, after=after, newest_first=newest_first, limit=limit)

    async def commit(self, session_id: str, commit: holdfast.Commit) -> CommitReceipt:
        """Commit."""
        return await self._store.sessions.handle(session_id).commit(commit)

    async def add_nodes(
        self, session_id: str, nodes: Sequence[holdfast.Node], *, on_conflict: Literal["refuse", "keep"]
    ) -> NodesReceipt:
        """Add nodes outside the path."""
        return await self._store.sessions.handle(session_id).add_nodes(nodes, on_conflict=on_conflict)

    async def tombstone(self, session_id: str, node_ids: Sequence[str]) -> int:
        """Hide nodes."""
        return await self._store.sessions.handle(session_id).tombstone(node_ids)

    async def now_ms(self) -> int:
        """Return the time of the store's clock."""
        return await self._store.now_ms()

    async def create(self, session_id: str, *, name: str, parent: str | None) -> None:
        """Create a session if it is absent."""
        await self._store.sessions.create(session_id, name=name, relation=_relation(parent))

    async def delete(self, session_id: str) -> None:
        """Erase a session."""
        await self._store.sessions.delete(session_id)

    async def children(self, parent: str | None, after: str | None) -> holdfast.Page[SessionSummary]:
        """Return one page of sessions, of a parent or all."""
        return await self._store.sessions.list(parent=parent, after=after, limit=1_000)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Port]:
        """Run a block as one transaction."""
        async with self._store.transaction() as transaction:
            yield TaskPort(transaction)


class ThreadPort:
    """Calls on a blocking store. Its methods never suspend."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store

    async def load(self, session_id: str, *, at: str | None, last: int) -> SessionView | None:
        """Return a snapshot."""
        return self._store.sessions.handle(session_id).load(ActivePath(last=last), at=at)

    async def load_many(self, session_id: str, at: Sequence[str]) -> list[SessionView]:
        """Return snapshots without messages."""
        return self._store.sessions.handle(session_id).load_many(at, last=0)

    async def nodes(
        self,
        session_id: str,
        *,
        ids: IdRange | None,
        kind: str | None = None,
        after: str | None = None,
        newest_first: bool = False,
        limit: int = 1_000,
    ) -> holdfast.Page[holdfast.Node]:
        """Return one page of nodes."""
        session = self._store.sessions.handle(session_id)
        return session.nodes(ids=ids, kind=kind, after=after, newest_first=newest_first, limit=limit)

    async def commit(self, session_id: str, commit: holdfast.Commit) -> CommitReceipt:
        """Commit."""
        return self._store.sessions.handle(session_id).commit(commit)

    async def add_nodes(
        self, session_id: str, nodes: Sequence[holdfast.Node], *, on_conflict: Literal["refuse", "keep"]
    ) -> NodesReceipt:
        """Add nodes outside the path."""
        return self._store.sessions.handle(session_id).add_nodes(nodes, on_conflict=on_conflict)

    async def tombstone(self, session_id: str, node_ids: Sequence[str]) -> int:
        """Hide nodes."""
        return self._store.sessions.handle(session_id).tombstone(node_ids)

    async def now_ms(self) -> int:
        """Return the time of the store's clock."""
        return self._store.now_ms()

    async def create(self, session_id: str, *, name: str, parent: str | None) -> None:
        """Create a session if it is absent."""
        self._store.sessions.create(session_id, name=name, relation=_relation(parent))

    async def delete(self, session_id: str) -> None:
        """Erase a session."""
        self._store.sessions.delete(session_id)

    async def children(self, parent: str | None, after: str | None) -> holdfast.Page[SessionSummary]:
        """Return one page of sessions, of a parent or all."""
        return self._store.sessions.list(parent=parent, after=after, limit=1_000)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Port]:
        """Run a block as one transaction."""
        with self._store.transaction() as transaction:
            yield ThreadPort(transaction)


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return cast("T", stopped.value)
    coroutine.close()
    raise RuntimeError("a call on a blocking store suspended")


class Driver:
    """Runs the adapter's coroutines for threads and for tasks, on the store that it was given or has opened.

    A store that was given stays the caller's. One that was opened by its URL is closed with `close`, or when the last
    saver that uses it is collected. `field_of` gives the caller's name of a field that the store refuses.
    """

    def __init__(
        self,
        store: str | holdfast.BlockingStore | holdfast.Store,
        field_of: Callable[[str], str] = str,
    ) -> None:
        self._field_of = field_of
        self.close: Callable[[], object] = _nothing
        self._blocking: ThreadPort | None = None
        self._tasks: TaskPort | None = None
        if isinstance(store, holdfast.Store):
            self._tasks = TaskPort(store)
            return
        if not isinstance(store, holdfast.BlockingStore):
            store = holdfast.open_blocking(store)
            self.close = weakref.finalize(self, store.close)
        self._blocking = ThreadPort(store)

    def run(self, call: Callable[[Port], Coroutine[Any, Any, T]]) -> T:
        """Run a call for a thread."""
        if self._blocking is None:
            raise holdfast.InvalidRequest(
                "store",
                "was opened for tasks with holdfast.open: use the async methods of the graph, or give a URL or a store "
                "of holdfast.open_blocking",
            )
        return finished(self._naming(call, self._blocking))

    def start(self, call: Callable[[Port], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Run a call for a task. Once it has begun it continues to its end, even if the task is cancelled."""
        if self._tasks is not None:
            return asyncio.shield(asyncio.ensure_future(self._naming(call, self._tasks)))
        loop = asyncio.get_running_loop()
        return asyncio.shield(loop.run_in_executor(None, partial(self.run, call)))

    async def _naming(self, call: Callable[[Port], Coroutine[Any, Any, T]], port: Port) -> T:
        """Run a call, and name the caller's field in a refusal."""
        try:
            return await call(port)
        except holdfast.InvalidRequest as error:
            field = self._field_of(error.field)
            if field == error.field:
                raise
            raise holdfast.InvalidRequest(field, error.problem, limit=error.limit) from error


def _nothing() -> None:
    """Close nothing: the store is the caller's."""
