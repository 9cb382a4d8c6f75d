"""The floor of events: a small insert, a bare LISTEN, and on SQLite a poll of `data_version` each millisecond."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import apsw
import asyncpg

from benchmarks import child
from benchmarks.drivers import durable

PAYLOAD = '{"percent": 50, "text": "' + "x" * 180 + '"}'
POLL_S = 0.001


class Postgres:
    """A connection for each writer."""

    async def open(self, url: str) -> dict[str, Any]:
        self.url = url
        self.connections: list[Any] = [await asyncpg.connect(url)]
        await self.connections[0].execute("CREATE TABLE IF NOT EXISTS events (id BIGSERIAL PRIMARY KEY, payload TEXT)")
        return {"durable": await self.connections[0].fetchval("SHOW fsync") == "on"}

    async def append(self, writers: int, events: int) -> dict[str, Any]:
        while len(self.connections) < writers:
            self.connections.append(await asyncpg.connect(self.url))
        return await child.at_once([[each] * events for each in self.connections[:writers]], self._append)

    async def _append(self, connection: Any) -> None:
        await connection.execute("INSERT INTO events (payload) VALUES ($1)", PAYLOAD)

    async def wait(self, count: int) -> list[int]:
        seen: list[int] = []
        done = asyncio.Event()

        def received(*_: object) -> None:
            seen.append(time.monotonic_ns())
            if len(seen) == count:
                done.set()

        await self.connections[0].add_listener("bench", received)
        await asyncio.wait_for(done.wait(), 60)
        await self.connections[0].remove_listener("bench", received)
        return seen

    async def wake(self, count: int, pause_ms: float) -> list[int]:
        asked: list[int] = []
        for _ in range(count):
            await asyncio.sleep(pause_ms / 1000)
            asked.append(time.monotonic_ns())
            async with self.connections[0].transaction():
                await self._append(self.connections[0])
                await self.connections[0].execute("NOTIFY bench")
        return asked


class Sqlite:
    """One connection."""

    def open(self, path: str) -> dict[str, Any]:
        self.connection = apsw.Connection(path)
        self.connection.set_busy_timeout(5000)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, payload TEXT)")
        return durable.of_connection(self.connection)

    def append(self, writers: int, events: int) -> dict[str, Any]:
        return child.one_after_another([None] * (writers * events), self._append)

    def _append(self, _: None) -> None:
        self.connection.execute("INSERT INTO events (payload) VALUES (?)", (PAYLOAD,))

    def wait(self, count: int) -> list[int]:
        seen: list[int] = []
        known = self._last()
        version = self.connection.execute("PRAGMA data_version").fetchone()
        while len(seen) < count:
            time.sleep(POLL_S)
            now = self.connection.execute("PRAGMA data_version").fetchone()
            if now != version:
                version, at = now, time.monotonic_ns()
                # A delayed waiter sees two events at one poll: both count as seen now.
                last = self._last()
                seen += [at] * (last - known)
                known = last
        return seen

    def _last(self) -> int:
        (last,) = self.connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return int(last)

    def wake(self, count: int, pause_ms: float) -> list[int]:
        asked: list[int] = []
        for _ in range(count):
            time.sleep(pause_ms / 1000)
            asked.append(time.monotonic_ns())
            self._append(None)
        return asked


class Either:
    """The driver for the requested database."""

    def open(self, url: str) -> Any:
        self.inner: Any = Postgres() if url.startswith("postgresql") else Sqlite()
        return self.inner.open(url)

    def __getattr__(self, name: str) -> Any:
        if name == "shut":
            raise AttributeError(name)
        return getattr(self.inner, name)


if __name__ == "__main__":
    child.serve(Either())
