"""A proxy between a store and its server that counts each trip by its statement, and can fail at any of them.

It can cut a connection, or silence it: a silent connection accepts everything and never answers, not even with a close.
The proxy understands just enough of PostgreSQL's protocol to know which statement a message runs, and when its answer
is complete. A trip is one wait of the client: everything up to a Sync or a simple query.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit, urlunsplit

from holdfast.testing.contract.bench import EventLoop

Cut = Literal["before", "after"]
SOCKET = ".s.PGSQL.5432"
ASIDE = ("notify", "prepare notify", "find_pooler")
"""Trips that only tell other stores of what has happened already, or belong to connecting."""


class Wire:
    """Listens on its own socket and forwards everything."""

    def __init__(self, url: str, texts: Mapping[str, str], loop: EventLoop) -> None:
        parts = urlsplit(url)
        self._server = str(Path(parse_qs(parts.query)["host"][0]) / SOCKET)
        self._texts = texts
        self._loop = loop
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-wire-"))
        self.url = urlunsplit(parts._replace(query=f"host={self.folder}"))
        self.trips: list[str] = []
        self._cuts: dict[str, Cut] = {}
        self._lasting: set[str] = set()
        self._silences: dict[str, Cut] = {}
        self.cut_done: list[str] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Runs once, after the server is done and before the client finds its connection cut."""
        self.silent_done: list[str] = []
        self.silent_passages = 0
        self.all_silent = False
        self._pipes: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server = loop.drive(self._listen())

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, str(self.folder / SOCKET))

    def close(self) -> None:
        self._loop.drive(self._close())
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _close(self) -> None:
        self._listening.close()
        pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
        # Once more around the loop: an aborted transport closes its socket there.
        await asyncio.sleep(0)

    def take(self) -> list[str]:
        """Return the trips since the last call, without those that no call waits for."""
        found, self.trips = [name for name in self.trips if name not in ASIDE], []
        return found

    def cut(self, statement: str, when: Cut, *, for_ever: bool = False) -> None:
        """Cut the next connection that runs the statement, or each: before the server gets it, or after it is done."""
        self._cuts[statement] = when
        if for_ever:
            self._lasting.add(statement)

    def cut_at(self, statement: str) -> Cut | None:
        """Return when to cut the connection that runs this statement, or None."""
        when = self._cuts.get(statement)
        if when is not None:
            self.cut_done.append(statement)
            if statement not in self._lasting:
                del self._cuts[statement]
        return when

    def fall_silent(self, statement: str, when: Cut) -> None:
        """Silence the next connection that runs the statement, for good."""
        self._silences[statement] = when

    def silent_at(self, statement: str) -> Cut | None:
        """Return when to silence the connection that runs this statement, or None."""
        if self.all_silent:
            return "before"
        when = self._silences.pop(statement, None)
        if when is not None:
            self.silent_done.append(statement)
        return when

    async def swallow(self, from_client: asyncio.StreamReader) -> None:
        """Read and drop what a client sends, until it disconnects."""
        self.silent_passages += 1
        try:
            while await from_client.read(1 << 16):
                pass
        finally:
            self.silent_passages -= 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        try:
            if self.all_silent:
                await self.swallow(reader)
                writer.transport.abort()
                return
            await Passage(self, reader, writer, *await asyncio.open_unix_connection(self._server)).run()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()

    def name_of(self, text: str) -> str:
        """Return the name of a statement; of an unknown one, its first two words."""
        if "pg_backend_pid() <>" in text:
            # The only statement that ends in a number which differs between connections.
            return "find_pooler"
        names = (name.partition("+")[0] for name, known in self._texts.items() if known == text)
        return next(names, " ".join(text.split()[:2]))


class Passage:
    """One proxied connection."""

    def __init__(
        self,
        wire: Wire,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._wire = wire
        self._from_client, self._to_client = from_client, to_client
        self._from_server, self._to_server = from_server, to_server
        self._prepared: dict[bytes, str] = {}
        self._parsing: list[str] = []
        self._answer_is_cut = False
        self._silent = False

    async def run(self) -> None:
        """Forward in both directions until one side disconnects."""
        ways = [asyncio.ensure_future(way) for way in (self._ask(), self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for writer in (self._to_server, self._to_client):
                writer.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self) -> None:
        # The first message has no type byte; later ones begin with it and their length.
        size = await self._from_client.readexactly(4)
        self._to_server.write(size + await self._from_client.readexactly(int.from_bytes(size) - 4))
        pending, name = b"", ""
        while True:
            head = await self._from_client.readexactly(5)
            body = await self._from_client.readexactly(int.from_bytes(head[1:]) - 4)
            pending += head + body
            match head[:1]:
                case b"P":
                    statement, text = body.split(b"\0", 2)[:2]
                    self._prepared[statement] = self._wire.name_of(text.decode())
                    name = f"prepare {self._prepared[statement]}"
                case b"B":
                    name = self._prepared.get(body.split(b"\0", 2)[1], "?")
                case b"Q":
                    name = self._wire.name_of(body[:-1].decode())
                case _:
                    pass
            if head[:1] in b"SQXH":
                if name:
                    self._wire.trips.append(name)
                    cut = self._wire.cut_at(name)
                    if cut == "before":
                        return
                    self._answer_is_cut = cut == "after"
                    silent = self._wire.silent_at(name)
                    if silent is not None:
                        self._silent = True
                        if silent == "after":
                            self._to_server.write(pending)
                        await self._wire.swallow(self._from_client)
                        return
                self._to_server.write(pending)
                await self._to_server.drain()
                pending, name = b"", ""

    async def _answer(self) -> None:
        try:
            await self._pass_answers()
        except asyncio.IncompleteReadError:
            if self._silent:
                # The client does not notice when the server closes, either.
                await asyncio.Event().wait()

    async def _pass_answers(self) -> None:
        while True:
            head = await self._from_server.readexactly(5)
            body = await self._from_server.readexactly(int.from_bytes(head[1:]) - 4)
            if self._silent:
                continue
            if self._answer_is_cut:
                # The server has finished and is ready for the next query; the client never receives that.
                if head[:1] == b"Z":
                    meanwhile, self._wire.meanwhile = self._wire.meanwhile, None
                    if meanwhile is not None:
                        await meanwhile()
                    return
                continue
            self._to_client.write(head + body)
            if head[:1] == b"Z":
                await self._to_client.drain()
