"""A primary and its streaming replicas, whose replay can be paused: real servers, each in its own folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import asyncpg

import holdfast
from holdfast.store import Store
from holdfast.torture.failover import REPLICATED
from holdfast.torture.servers import Server

T = TypeVar("T")

TIMEOUT_S = 60.0
PROMPT = {
    **REPLICATED,
    "wal_receiver_status_interval": "1s",
    "hot_standby_feedback": "off",
    "autovacuum": "off",
}


class Replicated:
    """A primary with one or more replicas."""

    def __init__(self, replicas: int = 1) -> None:
        self.servers: list[Server] = []
        try:
            self.primary = self._add(Server(PROMPT))
            self.replicas = [self._add(Server(PROMPT, copy_of=self.primary)) for _ in range(replicas)]
        except BaseException:
            self.remove()
            raise

    def _add(self, server: Server) -> Server:
        self.servers.append(server)
        server.start()
        return server

    @property
    def replica(self) -> Server:
        return self.replicas[0]

    def remove(self) -> None:
        for server in reversed(self.servers):
            server.remove()

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Store]:
        """Open a store that reads from the replica, once the replica has the schema."""
        chosen = holdfast.PostgresOptions(**{"read_url": self.replica.url, **options})
        async with holdfast.open(self.primary.url, options=chosen) as store:
            await self.catch_up()
            yield store

    async def catch_up(self, server: Server | None = None) -> None:
        """Return once the replica has replayed what the primary has written."""
        async with connected(self.primary) as there, connected(server or self.replica) as here:
            position = await there.fetchval("SELECT pg_current_wal_insert_lsn()::text")
            await until(lambda: here.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position))

    @asynccontextmanager
    async def impatient(self) -> AsyncIterator[None]:
        """Let the replica cancel at once every query that delays its replay."""
        async with connected(self.replica) as here:
            # The startup process reads its settings before it waits for a reader.
            await here.execute("ALTER SYSTEM SET max_standby_streaming_delay = 0")
            await here.execute("SELECT pg_reload_conf()")
            try:
                yield
            finally:
                async with connected(self.replica) as again:
                    await again.execute("ALTER SYSTEM RESET max_standby_streaming_delay")
                    await again.execute("SELECT pg_reload_conf()")

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Pause replay on the replica for the length of the block."""
        async with connected(self.replica) as here:
            await until(lambda: here.fetchval("SELECT pg_wal_replay_pause() IS NOT NULL"))
            await until(lambda: here.fetchval("SELECT pg_get_wal_replay_pause_state() = 'paused'"))

            async def resume() -> None:
                await until(lambda: here.fetchval("SELECT pg_wal_replay_resume() IS NOT NULL"))

            try:
                yield resume
            finally:
                await resume()


@contextmanager
def replicated(replicas: int = 1) -> Iterator[Replicated]:
    made = Replicated(replicas)
    try:
        yield made
    finally:
        made.remove()


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(server.url)
    try:
        yield connection
    finally:
        await connection.close()


async def until(look: Callable[[], Awaitable[Any]]) -> None:
    """Poll until the condition holds. Replay may cancel a poll of a replica."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(asyncpg.SerializationError):
                if await look():
                    return
            await asyncio.sleep(0.005)
