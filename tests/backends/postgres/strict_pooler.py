"""The strictest possible transaction pooler, made for tests.

After every transaction the client gets another server connection, and its old one is used for the next client.
Startup parameters of a client reach no server.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IDLE = b"I"
SERVERS = 4


class Upstream:
    """One connection to the server, past its startup."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = greeting


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    size = await reader.readexactly(4)
    body = await reader.readexactly(struct.unpack("!I", size)[0] - 4)
    return kind, kind + size + body


class Pooler:
    """A transaction pooler that listens on its own socket."""

    def __init__(self, server_socket: str, socket: str, user: str, database: str) -> None:
        self._server_socket = server_socket
        self._socket = socket
        self._startup = b"".join(
            part.encode() + b"\0" for part in ("user", user, "database", database, "client_encoding", "UTF8")
        )
        self._idle: deque[Upstream] = deque()
        self._free = asyncio.Semaphore(0)
        self._greeting = b""
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self.handed_out = 0

    async def serve(self) -> asyncio.Server:
        for _ in range(SERVERS):
            self._idle.append(await self._connect())
            self._greeting = self._idle[-1].greeting
            self._free.release()
        return await asyncio.start_unix_server(self._accept, self._socket)

    async def _connect(self) -> Upstream:
        reader, writer = await asyncio.open_unix_connection(self._server_socket)
        body = struct.pack("!I", 196608) + self._startup + b"\0"
        writer.write(struct.pack("!I", len(body) + 4) + body)
        greeting = b""
        while True:
            kind, whole = await message(reader)
            assert kind != b"E", whole
            greeting += whole
            if kind == b"Z":
                return Upstream(reader, writer, greeting)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Registered before the task starts: a task cancelled before then would leave its socket open.
        self._clients[writer] = asyncio.ensure_future(self._client(reader, writer))

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            size = struct.unpack("!I", await reader.readexactly(4))[0]
            startup = await reader.readexactly(size - 4)
            if startup[:2] == b"\0\3":  # not a request to cancel something
                writer.write(self._greeting)
                while True:
                    first = await message(reader)
                    if first[0] == b"X":
                        break
                    await self._transaction(first, reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _transaction(
        self, first: tuple[bytes, bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._free.acquire()
        upstream = self._idle.popleft()
        self.handed_out += 1
        asked = answered = 0

        async def ask() -> None:
            nonlocal asked
            kind, whole = first
            while True:
                asked += kind in (b"Q", b"S")
                upstream.writer.write(whole)
                kind, whole = await message(reader)

        asking = asyncio.ensure_future(ask())
        try:
            while True:
                kind, whole = await message(upstream.reader)
                answered += kind == b"Z"
                if kind == b"Z" and whole[-1:] == IDLE and asked == answered:
                    # The client has its whole answer only now, and sends nothing before.
                    asking.cancel()
                    await asyncio.wait([asking])
                    writer.write(whole)
                    break
                writer.write(whole)
        finally:
            asking.cancel()
            self._idle.append(upstream)
            self._free.release()

    async def close(self) -> None:
        for writer in (*self._clients, *(upstream.writer for upstream in self._idle)):
            writer.close()
            # A task that was cancelled while it waited for the same end has cancelled that end.
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


@contextmanager
def strict_pooler(url: str, database: str, folder: Path) -> Iterator[tuple[Pooler, str]]:
    """Run a pooler in front of the server; yield it with its URL."""
    server_folder = url.partition("host=")[2]
    made = Pooler(f"{server_folder}/.s.PGSQL.5432", str(folder / ".s.PGSQL.5432"), "postgres", database)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(made.serve(), loop).result(30)

    async def stop() -> None:
        server.close()
        await server.wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await made.close()

    try:
        yield made, url.replace(server_folder, str(folder))
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
