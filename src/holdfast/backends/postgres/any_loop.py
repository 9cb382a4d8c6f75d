"""The PostgreSQL backend of an async store: tasks of any event loop may use it.

Tasks of the loop that opened it use its own connections, as before. All others share the connections of a second
backend on a background loop (see `other_loops`). A caller's pool has no second set: its loop does the work of all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, Unpack

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.postgres.loop_thread import LoopThread
from holdfast.backends.postgres.other_loops import OtherLoops, Undo, on_loop
from holdfast.errors import InvalidRequest
from holdfast.open_transaction import refuse_inside
from holdfast.ports import Backend, Begun, Clock, IsLeft, Operation, OperationFlags
from holdfast.ports.queries import Freshness, PrefetchQuery
from holdfast.read_only import ReadingBackend
from holdfast.records.options import PostgresOptions

T = TypeVar("T")

CLOSE_OPENER_S = 10.0
"""Longest wait for the loop that opened a store, if a task of another loop closes it."""


class AnyLoopPostgres(PostgresBackend):
    """Implements `ports.Backend` for tasks of any event loop."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._others: OtherLoops[PostgresBackend] | None = None
        self._loop_end = self._until_loop_ends()

    @classmethod
    async def open(
        cls, url: Any, options: PostgresOptions, clock: Clock | None, thread: LoopThread | None = None
    ) -> AnyLoopPostgres:
        """Connect, and create or migrate the schema if needed. Without a clock, use the server's."""
        opened = await super().open(url, options, clock, thread)
        assert isinstance(opened, AnyLoopPostgres)
        await anext(opened._loop_end)
        if opened._address.caller_pool is None:
            opened._others = OtherLoops(partial(PostgresBackend.open, url, options, clock))
        return opened

    async def _until_loop_ends(self) -> AsyncGenerator[None]:
        """Close the connections when their loop ends: `asyncio.run` closes every generator that was begun on it."""
        try:
            yield
        finally:
            await self.close_here()

    @property
    def _is_own_loop(self) -> bool:
        """True if the caller runs on the loop of the connections."""
        return asyncio.get_running_loop() is self._loop

    async def _elsewhere(self, call: Callable[[PostgresBackend], Awaitable[T]], undo: Undo[T] | None = None) -> T:
        """Run a call for a task of another loop."""
        self._check_usable(anywhere=True)
        if self._others is not None:
            return await self._others.run(call, undo)
        if not self._loop.is_running():
            raise InvalidRequest("store", "has a pool of an event loop that does not run: open the store with a URL")
        return await on_loop(self._loop, partial(call, self), undo)

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in a transaction and return once it is durable. An operation that raises leaves no trace."""
        if self._is_own_loop:
            return await super().write(operation, **flags)
        refuse_inside(self, "this write")
        return await self._elsewhere(lambda other: other.write(operation, **flags))

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in one snapshot."""
        if self._is_own_loop:
            return await super().read(operation, view=view)
        return await self._elsewhere(lambda other: other.read(operation, view=view))

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None, outer: Backend | None = None) -> Begun:
        """Begin a transaction for several operations, on a connection of its own."""
        if self._is_own_loop:
            return await super().begin(timeout_ms, is_left, outer)
        return await self._elsewhere(lambda other: other.begin(timeout_ms, is_left, outer or self), _undone)

    def reader(self, freshness: Freshness) -> Backend:
        """Return this store for reads only, by the replica if there is one and it has reached the position."""
        here = super().reader(freshness)

        async def read(operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
            if self._is_own_loop:
                return await here.read(operation, view=view)
            return await self._elsewhere(lambda other: other.reader(freshness).read(operation, view=view))

        return ReadingBackend(self, read)

    def watch(self, topic: str) -> Future[None]:
        """Return a future that is done at the next change of the topic, in any process."""
        if self._others is None or self._is_own_loop:
            return super().watch(topic)
        self._check_usable(anywhere=True)
        return self._others.watch(topic)

    async def close(self) -> None:
        """Finish accepted calls, refuse later ones, and close all connections. A repeated call waits for the first."""
        if os.getpid() != self._process_id:
            return
        refuse_inside(self, "the close")
        self._closed = True
        if self._others is not None:
            await self._others.close()
        if self._is_own_loop:
            await self.close_here()
        elif self._loop.is_running():
            with suppress(TimeoutError):
                await asyncio.wait_for(on_loop(self._loop, self.close_here), CLOSE_OPENER_S)
        elif not self._loop.is_closed():
            # It is paused. Its connections are closed when it continues, or when it ends.
            self._loop.call_soon_threadsafe(self.begin_closing)


async def _undone(begun: Begun) -> None:
    """Roll back a transaction whose caller was cancelled when it had just begun."""
    await begun.ending.roll_back()
