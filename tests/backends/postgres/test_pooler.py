"""Behind a transaction pooler, nothing of ours outlives a transaction.

The pooler here is the strictest there can be: after every transaction the client gets another server connection, and
the one that it had is used for the next client.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.postgres import PostgresOptions
from holdfast.testing.contract.bench import at_once

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
    """A transaction pooler on a socket of its own."""

    def __init__(self, server_socket: str, socket: str, user: str, database: str) -> None:
        self._server_socket = server_socket
        self._socket = socket
        self._startup = b"".join(
            part.encode() + b"\0" for part in ("user", user, "database", database, "client_encoding", "UTF8")
        )
        self._idle: deque[Upstream] = deque()
        self._free = asyncio.Semaphore(0)
        self._greeting = b""
        self.handed_out = 0

    async def serve(self) -> asyncio.Server:
        for _ in range(SERVERS):
            self._idle.append(await self._connect())
            self._greeting = self._idle[-1].greeting
            self._free.release()
        return await asyncio.start_unix_server(self._client, self._socket)

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
                    # The client has its whole answer only now, and says nothing before.
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
        for upstream in self._idle:
            upstream.writer.close()
            await upstream.writer.wait_closed()


@pytest.fixture
def pooler(clean_postgres_url: str, postgres_database: Any, tmp_path: Path) -> Iterator[tuple[Pooler, str]]:
    if "host=" not in clean_postgres_url:
        pytest.skip("the pooler speaks over a socket in the file system")
    server_folder = clean_postgres_url.partition("host=")[2]
    socket = tmp_path / ".s.PGSQL.5432"
    made = Pooler(f"{server_folder}/.s.PGSQL.5432", str(socket), "postgres", postgres_database.name)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(made.serve(), loop).result(30)
    yield made, clean_postgres_url.replace(server_folder, str(tmp_path))

    async def stop() -> None:
        server.close()
        await server.wait_closed()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await made.close()

    asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def work_on(store: Any, name: str) -> None:
    handle = store.sessions.handle(name)
    for number in range(5):
        handle.commit(
            holdfast.Commit(
                turn_id=f"t{number}",
                graph=holdfast.Append([holdfast.Node(f"n{number}", payload=number)]),
                enqueues=[holdfast.WorkDraft(payloads=[number])],
            )
        )
        claim = store.queue.claim(name, owner_id="me")
        handle.commit(holdfast.Commit(completes=[claim]))
    assert handle.load(holdfast.FullGraph()).node_count == 5


def test_a_store_works_behind_a_transaction_pooler(pooler: tuple[Pooler, str], clean_postgres_url: str) -> None:
    made, url = pooler
    options = PostgresOptions(pooler="transaction", max_connections=8, listen_url=clean_postgres_url)
    with holdfast.open_blocking(url, options=options) as store:
        outcomes = at_once(*(lambda name=f"chat-{n}": work_on(store, name) for n in range(6)))
        assert outcomes == [None] * 6
        assert store.maintenance.verify().findings == ()
        assert made.handed_out > 100
    with holdfast.open_blocking(url, options=PostgresOptions(pooler="transaction", migrate=False)) as store:
        assert store.maintenance.stats().sessions == 6


def test_behind_a_pooler_no_setting_statement_or_listening_stays_on_a_server_connection(
    pooler: tuple[Pooler, str], administrator: Any
) -> None:
    _, url = pooler
    options = PostgresOptions(pooler="transaction", lock_timeout_ms=777, statement_timeout_ms=20_777)
    with holdfast.open_blocking(url, options=options) as store:
        work_on(store, "chat")
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=1_500)
    import asyncpg

    async def look() -> list[tuple[Any, ...]]:
        seen = []
        for _ in range(SERVERS):
            connection = await asyncpg.connect(url, statement_cache_size=0)
            async with connection.transaction():
                seen.append(
                    tuple(
                        await connection.fetchrow(
                            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "
                            "(SELECT count(*) FROM pg_prepared_statements WHERE name <> ''), "
                            "(SELECT count(*) FROM pg_listening_channels())"
                        )
                    )
                )
            await connection.close()
        return seen

    assert set(asyncio.run(look())) == {("0", "0", 0, 0)}
