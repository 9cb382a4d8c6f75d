"""Connection pools. A connection serves one operation at a time and is dropped when in doubt or too old."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from holdfast.backends.postgres.connection import Connection, cut_off, statements_of
from holdfast.backends.postgres.driver_errors import DRIVER_ERRORS, DriverFailure
from holdfast.backends.postgres.pooler_check import check_caller_pool
from holdfast.errors import HoldfastError, PoolTimeout, StoreClosed
from holdfast.next_step import RETRY, NextStep
from holdfast.records.options import PostgresOptions

CLOSE_TIMEOUT_S = 2.0
"""Graceful-close timeout before a connection is terminated."""

LABEL = "PostgreSQL"
"""Name in messages for a database that is reached through a caller's pool."""

CLEANUP_LEAST_S, CLEANUP_MOST_S = 0.02, 30.0
"""Bounds of the interval at which idle connections are checked."""


class Connections(Protocol):
    """Source of connections for operations."""

    async def acquire(self) -> Connection:
        """Return a connection for exclusive use; `PoolTimeout` if none becomes free in time."""
        ...

    async def release(self, connection: Connection) -> None:
        """Give back a connection that is in no transaction."""
        ...

    async def discard(self, connection: Connection) -> None:
        """Drop a connection whose state is in doubt."""
        ...

    async def discard_idle(self) -> None:
        """Drop every idle connection: the server may be gone, and they with it."""
        ...

    async def close(self) -> None:
        """Close all own connections."""
        ...


class PooledConnection:
    """A pooled connection and its age."""

    __slots__ = ("connection", "idle_since_s", "opened_s")

    def __init__(self, connection: Connection, now_s: float) -> None:
        self.connection = connection
        self.opened_s = now_s
        self.idle_since_s = now_s


class Pool:
    """Implements `Connections` with connections of its own. Belongs to one event loop."""

    def __init__(self, connect: Callable[[float], Awaitable[Connection]], options: PostgresOptions) -> None:
        self._connect = connect
        self._most = options.max_connections
        self._least = min(options.min_connections, options.max_connections)
        self._acquire_s = options.acquire_timeout_ms / 1000
        self._idle_s = seconds_of(options.idle_timeout_ms)
        self._lifetime_s = seconds_of(options.max_lifetime_ms)
        self._idle: list[PooledConnection] = []
        self._used: dict[Connection, PooledConnection] = {}
        self._opening = 0
        self._waiters: deque[asyncio.Future[PooledConnection | None]] = deque()
        self._cleanup: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self.identify_server: Callable[[Connection, float], Awaitable[bool]] | None = None
        """Identifies the server behind each new connection. Returns whether it is another one than before."""

    @property
    def size(self) -> int:
        """Number of connections, including those being opened."""
        return len(self._idle) + len(self._used) + self._opening

    async def fill(self) -> None:
        """Open connections up to the minimum."""
        while self.size < self._least and not self._closed:
            self._opening += 1
            pooled = await self._open(time.monotonic() + self._acquire_s)
            self._used[pooled.connection] = pooled
            await self.release(pooled.connection)

    async def acquire(self) -> Connection:
        """Return the most recently used connection, a new one, or the next that is released. FIFO among waiters."""
        deadline_s = time.monotonic() + self._acquire_s
        pooled: PooledConnection | None = None
        if self._closed:
            raise StoreClosed
        if not self._waiters:
            pooled = self._take_idle()
        if pooled is None:
            if not self._waiters and self.size < self._most:
                self._opening += 1
            else:
                pooled = await self._wait(deadline_s)
            if pooled is None:
                pooled = await self._open(deadline_s)
        self._used[pooled.connection] = pooled
        return pooled.connection

    def _take_idle(self) -> PooledConnection | None:
        while self._idle:
            pooled = self._idle.pop()
            if not pooled.connection.is_closed() and not self._expired(pooled):
                return pooled
            self._close_later(pooled.connection)
        return None

    def _expired(self, pooled: PooledConnection) -> bool:
        return time.monotonic() - pooled.opened_s >= self._lifetime_s

    async def _wait(self, deadline_s: float) -> PooledConnection | None:
        """Return the next connection that is released, or None: the caller may open one."""
        waiter: asyncio.Future[PooledConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            # Not wait_for, which in Python 3.11 loses a cancellation that coincides with the result.
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                return await waiter
        except TimeoutError:
            self._give_up(waiter)
            raise self._too_late() from None
        except BaseException:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: asyncio.Future[PooledConnection | None]) -> None:
        with suppress(ValueError):
            self._waiters.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            # It was served at the same moment: pass that on.
            pooled = waiter.result()
            if pooled is None:
                self._opening -= 1
                self._offer_room()
            else:
                self._offer(self._used.pop(pooled.connection))

    def _too_late(self) -> PoolTimeout:
        return PoolTimeout(
            f"none of the {self._most} connections became free within {int(self._acquire_s * 1000)} ms",
            RETRY,
            NextStep("raise", "options.max_connections"),
            NextStep("raise", "options.acquire_timeout_ms"),
        )

    async def _open(self, deadline_s: float) -> PooledConnection:
        """Open a connection, for which the caller has reserved a place in `_opening`."""
        try:
            connection = await self._connect_and_check(max(0.001, deadline_s - time.monotonic()))
        except BaseException as error:
            self._opening -= 1
            self._offer_room()
            if isinstance(error, DRIVER_ERRORS):
                raise DriverFailure(error) from error
            raise
        self._opening -= 1
        pooled = PooledConnection(connection, time.monotonic())
        if self._closed:
            self._close_later(connection)
            raise StoreClosed
        return pooled

    async def _connect_and_check(self, timeout_s: float) -> Connection:
        connection = await self._connect(timeout_s)
        try:
            if self.identify_server is not None and await self.identify_server(connection, timeout_s):
                await self.discard_idle()
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def release(self, connection: Connection) -> None:
        """Give the connection to the next waiter, or keep it idle."""
        pooled = self._used.pop(connection)
        if self._closed or connection.is_closed() or self._expired(pooled):
            self._close_later(connection)
            self._offer_room()
        else:
            pooled.idle_since_s = time.monotonic()
            self._offer(pooled)

    def _offer(self, pooled: PooledConnection) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                # In use from now on: until the waiter runs, a newcomer would take the connection's place for free.
                self._used[pooled.connection] = pooled
                waiter.set_result(pooled)
                return
        self._idle.append(pooled)
        self._schedule_cleanup()

    def _offer_room(self) -> None:
        """Let the next waiter open a connection in place of one that is gone."""
        while self._waiters and self.size < self._most:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._opening += 1
                waiter.set_result(None)
                return

    async def discard(self, connection: Connection) -> None:
        """Terminate the connection in the background. Its place is free once it is gone, and its statement with it."""
        self._run_in_background(self._cut_off(connection), connection)

    async def _cut_off(self, connection: Connection) -> None:
        # Closing cancels the statement in the server first; after a mere disconnect it would continue there.
        await close_gracefully(connection)
        self._used.pop(connection, None)
        self._offer_room()

    async def discard_idle(self) -> None:
        """Terminate every idle connection."""
        unused, self._idle = self._idle, []
        for pooled in unused:
            pooled.connection.terminate()
        self._offer_room()

    def _close_later(self, connection: Connection) -> None:
        """Close the connection gracefully, in the background."""
        if not connection.is_closed():
            self._run_in_background(close_gracefully(connection), connection)

    def _run_in_background(self, work: Coroutine[Any, Any, None], connection: Connection | None = None) -> None:
        """Run work in the background. `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        if connection is not None:
            # A task that is cancelled before it begins must not leave the connection open.
            task.add_done_callback(lambda _: cut_off(connection))

    # Tidying.

    def _schedule_cleanup(self) -> None:
        if self._cleanup is None and not self._closed:
            every_s = min(max(min(self._idle_s, self._lifetime_s) / 2, CLEANUP_LEAST_S), CLEANUP_MOST_S)
            self._cleanup = asyncio.get_running_loop().call_later(every_s, self._clean_up)

    def _clean_up(self) -> None:
        """Close connections that are too old, or idle for too long and above the minimum."""
        self._cleanup = None
        now_s = time.monotonic()
        kept: list[PooledConnection] = []
        spare = self.size - self._least
        for pooled in self._idle:
            idle = now_s - pooled.idle_since_s >= self._idle_s and spare > 0
            if idle or self._expired(pooled) or pooled.connection.is_closed():
                spare -= 1
                self._close_later(pooled.connection)
            else:
                kept.append(pooled)
        self._idle = kept
        if self.size < self._least:
            self._run_in_background(self._refill())
        if self._idle:
            self._schedule_cleanup()

    async def _refill(self) -> None:
        with suppress(DriverFailure, StoreClosed):
            await self.fill()

    async def close(self) -> None:
        """Refuse all waiters and close idle connections. Those in use are closed when they are released."""
        self._closed = True
        if self._cleanup is not None:
            self._cleanup.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(StoreClosed())
        unused, self._idle = self._idle, []
        for pooled in unused:
            self._close_later(pooled.connection)
        if self._background:
            await asyncio.wait(self._background)


class CallerPool:
    """Implements `Connections` with a caller's pool, which the caller keeps and closes."""

    def __init__(self, pool: Any, options: PostgresOptions) -> None:
        self._pool = pool
        self._acquire_ms = options.acquire_timeout_ms
        self._texts = statements_of(options.schema)
        self._pooler = options.pooler
        self._checked: WeakSet[object] = WeakSet()
        self._background: set[asyncio.Task[None]] = set()

    async def acquire(self) -> Connection:
        """Return one of its connections, each checked for a pooler the first time."""
        connection = await self._acquire()
        # The pool hands out a new proxy each time; the connection behind it stays the same.
        behind: object = getattr(connection, "_con", connection)
        if behind not in self._checked:
            try:
                await check_caller_pool(connection, self._texts, LABEL, self._pooler)
            except HoldfastError:
                await self.release(connection)
                raise
            except BaseException:
                await self.discard(connection)
                raise
            self._checked.add(behind)
        return connection

    async def _acquire(self) -> Connection:
        try:
            connection: Connection = await self._pool.acquire(timeout=self._acquire_ms / 1000)
        except TimeoutError as error:
            raise PoolTimeout(f"no connection of the pool became free within {self._acquire_ms} ms: retry") from error
        except DRIVER_ERRORS as error:
            raise DriverFailure(error) from error
        return connection

    async def release(self, connection: Connection) -> None:
        """Give the connection back."""
        try:
            await self._pool.release(connection)
        except DRIVER_ERRORS:
            # The pool notices by itself that the connection is broken.
            cut_off(connection)

    async def discard(self, connection: Connection) -> None:
        """Terminate the connection in the background. The caller's pool opens another one when it needs one."""
        task = asyncio.get_running_loop().create_task(self._cut_off(connection))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _cut_off(self, connection: Connection) -> None:
        await close_gracefully(connection)
        with suppress(*DRIVER_ERRORS):
            await self._pool.release(connection)

    async def discard_idle(self) -> None:
        """Expire all connections: the caller's pool replaces each when it is next acquired."""
        with suppress(*DRIVER_ERRORS):
            await self._pool.expire_connections()

    async def close(self) -> None:
        """Wait until all connections are given back. The pool stays open."""
        if self._background:
            await asyncio.wait(self._background)


def seconds_of(limit_ms: int | None) -> float:
    """Return a limit in seconds; None means no limit."""
    return math.inf if limit_ms is None else limit_ms / 1000


async def close_gracefully(connection: Connection) -> None:
    """Close a connection gracefully, or terminate it on failure."""
    try:
        await connection.close(timeout=CLOSE_TIMEOUT_S)
    except DRIVER_ERRORS:
        cut_off(connection)
