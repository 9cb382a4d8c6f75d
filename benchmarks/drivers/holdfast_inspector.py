"""The inspector over a large store: whole pages, from the request to the last byte, without a network."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import holdfast
from benchmarks import child, work
from benchmarks.drivers import durable
from holdfast.inspector import inspector

CHUNK = 500
FILLERS = 2
TURNS = 50
TEXT = work.text("node", 500)
LONG = "long"


class Pages:
    """Filled once, asked in each round."""

    async def open(self, url: str, sessions: int, nodes: int) -> dict[str, Any]:
        self.store = await holdfast.open(url)
        facts = durable.of_store(self.store)
        await self._sessions(sessions)
        await self._long(nodes)
        self.app = inspector(self.store, authenticate=lambda _: True, hosts=None)
        return facts

    async def _sessions(self, count: int) -> None:
        """Make sessions, many in each transaction."""
        chunks = iter(range(0, count, CHUNK))

        async def fill() -> None:
            for first in chunks:
                async with self.store.transaction() as transaction:
                    for each in range(first, min(first + CHUNK, count)):
                        await transaction.sessions.create(
                            f"session-{each:07}",
                            owner=f"user-{each % 1000}",
                            labels={"plan": "team" if each % 3 else "free"},
                        )

        await asyncio.gather(*(fill() for _ in range(FILLERS)))

    async def _long(self, count: int) -> None:
        """Make a conversation of this many messages, in turns."""
        session = await self.store.sessions.create(LONG)
        for first in range(0, count, TURNS):
            async with session.turn(f"turn-{first}") as turn:
                for number in range(first, min(first + TURNS, count)):
                    turn.add({"role": "assistant" if number % 2 else "user", "content": TEXT})
                turn.state = {"messages": first}

    async def page(self, path: str, query: dict[str, str], reads: int) -> dict[str, Any]:
        """Ask for one page again and again."""

        async def ask(_: None) -> None:
            await self._answer(path, query)

        return await child.at_once([[None] * reads], ask)

    async def next_of(self, path: str, query: dict[str, str]) -> dict[str, str]:
        """Return the query of the page after this one."""
        found = re.search(r'rel="next" href="([^"]*)"', await self._answer(path, query))
        assert found is not None, "there is a next page"
        return dict(parse_qsl(urlsplit(html.unescape(found[1])).query))

    async def _answer(self, path: str, query: dict[str, str]) -> str:
        """Return the body of a page, asked for as a server does."""
        messages: list[Any] = []
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query).encode(),
            "headers": [(b"host", b"localhost")],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        assert messages[0]["status"] == 200, messages
        return b"".join(one.get("body", b"") for one in messages[1:]).decode()

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Pages())
