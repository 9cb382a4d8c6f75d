"""A TCP proxy that can hold answers back, and cut a connection at a given byte."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

T = TypeVar("T")

Direction: TypeAlias = Literal["asking", "answering"]
SOCKET = ".s.PGSQL.{port}"
PORT = 5432
CHUNK_BYTES = 65_536
QUIET_S = 0.1


class Unreachable(Exception):
    """The proxy cannot stand before the server that this URL names."""


def target_of(url: str) -> tuple[str | None, str, int]:
    """Return the target of a URL: a socket's path or None, a host and a port."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    hosts = parts.netloc.rpartition("@")[2]
    if "," in hosts:
        raise Unreachable("the URL names several hosts")
    if query.get("sslmode", [""])[0] in {"verify-ca", "verify-full"}:
        raise Unreachable("the URL wants the server's certificate verified, which names another host")
    port = parts.port or int(query.get("port", [str(PORT)])[0])
    host = parts.hostname or query.get("host", ["localhost"])[0]
    if host.startswith("/"):
        return str(Path(host) / SOCKET.format(port=port)), "", 0
    return None, host, port


def through(url: str, port: int) -> str:
    """Return the URL that leads through the proxy."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    kept = {name: values[0] for name, values in parse_qs(parts.query).items() if name not in {"host", "port"}}
    netloc = f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}"
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(kept)))


class Proxy:
    """Listens on this machine, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._target = target_of(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-proxy", daemon=True)
        self._thread.start()
        self._pipes: set[asyncio.Task[None]] = set()
        self.passed: dict[Direction, int] = {"asking": 0, "answering": 0}
        self.seen: dict[Direction, int] = {"asking": 0, "answering": 0}
        """Bytes that had passed when the last count ended."""
        self._cut: tuple[Direction, int] | None = None
        self.cuts = 0
        self._free = asyncio.Event()
        self._free.set()
        self._holds = threading.Event()
        self._listening = self._do(self._listen())
        self.url = through(url, self._listening.sockets[0].getsockname()[1])

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def measure(self) -> None:
        """Restart the count."""
        self.seen = self.passed
        self.passed = {"asking": 0, "answering": 0}
        self._cut = None

    def settle(self) -> None:
        """Wait until no bytes pass, such as notifications that a store sends after a call."""
        before: dict[Direction, int] | None = None
        while before != self.passed:
            before = dict(self.passed)
            time.sleep(QUIET_S)

    def cut(self, direction: Direction, after: int) -> None:
        """Cut once: the connection that passes the next byte in this direction after this many."""
        self.measure()
        self._cut = (direction, after)

    def hold(self) -> None:
        """Hold every answer back from now on."""
        self._do(self._hold())

    async def _hold(self) -> None:
        self._holds.clear()
        self._free.clear()

    def await_answer(self, timeout_s: float) -> bool:
        """Wait until an answer is held back. The server has then answered the client."""
        return self._holds.wait(timeout_s)

    def release(self) -> None:
        """Pass on the held bytes, and everything after them."""
        self._loop.call_soon_threadsafe(self._free.set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)
        path, host, port = self._target
        try:
            theirs = await (asyncio.open_unix_connection(path) if path else asyncio.open_connection(host, port))
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(self._pass("asking", reader, theirs[1])),
            asyncio.ensure_future(self._pass("answering", theirs[0], writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            # The server gets all bytes that were sent, and then the end of the stream. The client's connection is
            # aborted.
            theirs[1].close()
            writer.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if direction == "answering" and not self._free.is_set():
                self._holds.set()
                await self._free.wait()
            before = self.passed[direction]
            self.passed[direction] = before + len(data)
            if self._cut is not None and self._cut[0] == direction and before + len(data) > self._cut[1]:
                data = data[: self._cut[1] - before]
                self._cut = None
                self.cuts += 1
                writer.write(data)
                await writer.drain()
                return
            writer.write(data)
            await writer.drain()

    def close(self) -> None:
        """Cut all connections, and stop listening."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _close(self) -> None:
        self._listening.close()
        pipes = list(self._pipes)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
        await asyncio.sleep(0)
