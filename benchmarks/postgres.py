"""One private, durable PostgreSQL server for a run. Each contender has a database of its own in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Any

from tests.postgres_server import SETTINGS, Administrator, Database, Server

DURABLE = SETTINGS | {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "deadlock_timeout": "1s",
    # A checkpoint in the middle of one contender's round would be charged to it alone.
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
}


class Postgres:
    """The server, started when it is first needed."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._databases: list[Database] = []

    @property
    def server(self) -> Server:
        """Return the running server."""
        if self._server is None:
            self._server = Server(settings=DURABLE)
        return self._server

    def database(self) -> str:
        """Return the URL of a new, empty database."""
        made = Database(self.server.url)
        self._databases.append(made)
        made.administrator.close()
        return made.url

    def size(self, url: str) -> int:
        """Return the size of a database on disk, after a checkpoint."""
        administrator = Administrator(url)
        try:
            administrator.run("CHECKPOINT")
            return int(administrator.rows("SELECT pg_database_size(current_database())")[0][0])
        finally:
            administrator.close()

    def close(self) -> None:
        """Remove the server and all its databases."""
        if self._server is not None:
            self._server.remove()


class Wire:
    """A network between a client and the server: it delays the client's messages, and counts the trips.

    A trip begins whenever the client sends after the server has answered.
    """

    def __init__(self, folder: str, delay_ms: float = 0.0) -> None:
        self._socket = f"{folder}/.s.PGSQL.5432"
        self._delay_s = delay_ms / 1000
        self.trips = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Wire:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._join, "127.0.0.1", 0), self._loop
        ).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(10)

    def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    def url(self, database_url: str) -> str:
        """Return the URL of the database through this wire."""
        name = database_url.partition("?")[0].rpartition("/")[2]
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        state = {"answered": True}
        for source, target, asks in ((reader, server_writer, True), (server_reader, writer, False)):
            task = asyncio.create_task(self._carry(source, target, state, asks=asks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, state: dict[str, bool], *, asks: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(262_144):
                if asks and state["answered"]:
                    self.trips += 1
                state["answered"] = not asks
                if asks and self._delay_s:
                    # Chunks keep their order, because the delay is the same for all.
                    self._loop.call_later(self._delay_s, target.write, chunk)
                else:
                    target.write(chunk)
            target.close()
