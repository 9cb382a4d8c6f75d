"""The inspector over a large store: whole pages, from the request to the last byte, without a network."""

from __future__ import annotations

import contextlib
import html
import re
import sqlite3
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg

import holdfast
from benchmarks import child, work
from benchmarks.drivers import durable
from holdfast.inspector import inspector

SEEDS = 1_000
"""Sessions that the store makes. A million of them would take half an hour."""
TURNS = 50
TEXT = work.text("node", 500)
LONG = "long"
COPY = """
INSERT INTO {schema}sessions (
    session_key, session_id, incarnation, family, revision, node_count, epoch, lineage, changed_at_ms, created_at_ms,
    name, owner
)
SELECT
    session_key + {step}, session_id || '-' || copy, incarnation, family + {step}, revision, node_count, epoch, lineage,
    changed_at_ms - 1000 * copy, created_at_ms - 1000 * copy, name || '-' || copy, owner
FROM {schema}sessions CROSS JOIN {series}
"""
COPY_LABELS = """
INSERT INTO {schema}session_labels (family, session_key, key, value)
SELECT family + {step}, session_key + {step}, key, value
FROM {schema}session_labels CROSS JOIN {series}
"""
"""Copies of all sessions: their keys follow those that are there, and each copy changed a second before the last."""


class Pages:
    """Filled once, asked in each round."""

    async def open(self, url: str, sessions: int, nodes: int) -> dict[str, Any]:
        self.store = await holdfast.open(url)
        facts = durable.of_store(self.store)
        await self._sessions(url, sessions)
        await self._long(nodes)
        self.app = inspector(self.store, authenticate=lambda _: True, hosts=None)
        return facts

    async def _sessions(self, url: str, count: int) -> None:
        """Make some sessions with the store, and the others as copies of their rows inside the database."""
        seeds = min(count, SEEDS)
        async with self.store.transaction() as transaction:
            for each in range(seeds):
                await transaction.sessions.create(
                    f"session-{each:07}",
                    owner=f"user-{each}",
                    labels={"plan": "team" if each % 3 else "free"},
                )
        copies = count // seeds - 1
        if copies > 0:
            copy = _copy_postgres if url.startswith("postgres") else _copy_sqlite
            await copy(url, seeds, copies)

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


async def _copy_sqlite(url: str, seeds: int, copies: int) -> None:
    numbers = f"WITH RECURSIVE series (copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM series WHERE copy < {copies})"
    with contextlib.closing(sqlite3.connect(url)) as connection, connection:
        for statement in (COPY, COPY_LABELS):
            copied = statement.format(schema="", step=f"copy * {seeds}", series="series")
            connection.execute(copied.replace("SELECT", f"{numbers} SELECT", 1))


async def _copy_postgres(url: str, seeds: int, copies: int) -> None:
    connection = await asyncpg.connect(url)
    series = f"generate_series(1, {copies}) AS series (copy)"
    try:
        for statement in (COPY, COPY_LABELS):
            await connection.execute(statement.format(schema="holdfast.", step=f"copy * {seeds}", series=series))
        last = (copies + 1) * seeds
        await connection.execute(f"SELECT setval('holdfast.session_keys', {last})")
        await connection.execute("VACUUM (ANALYZE) holdfast.sessions, holdfast.session_labels")
    finally:
        await connection.close()


if __name__ == "__main__":
    child.serve(Pages())
