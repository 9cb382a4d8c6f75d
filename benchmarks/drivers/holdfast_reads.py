"""Holdfast's reads from large stores: paths of a large graph, pages of a long listing."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from benchmarks import child, work
from benchmarks.drivers import durable

CHUNK = 5000
PATH = 200
LAST = 50
PAGE = 100
TEXT = work.text("node", 500)


class Reads:
    """Filled once, read in each round."""

    async def open(self, url: str, nodes: int = 0, rows: int = 0) -> dict[str, Any]:
        self.store = await holdfast.open(url)
        # Ask before the writer is busy: a connection answers one thread at a time.
        facts = durable.of_store(self.store)
        if nodes:
            await self._chain(nodes)
            await self._bush(nodes)
        if rows:
            await self._rows(rows)
        return facts

    async def _chain(self, count: int) -> None:
        """Make one path of this many nodes."""
        self.chain = await self.store.sessions.create("chain")
        for first in range(0, count, CHUNK):
            nodes = [
                holdfast.Node(f"n{each}", parent=f"n{each - 1}" if each else None, payload=TEXT)
                for each in range(first, min(first + CHUNK, count))
            ]
            await self.chain.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf=nodes[-1].id)))

    async def _bush(self, count: int) -> None:
        """Make a path of 200 nodes among many that are beside it."""
        self.bush = await self.store.sessions.create("bush")
        path = [
            holdfast.Node(f"p{each}", parent=f"p{each - 1}" if each else None, payload=TEXT) for each in range(PATH)
        ]
        await self.bush.commit(holdfast.Commit(graph=holdfast.Append(path, leaf=path[-1].id)))
        for first in range(PATH, count, CHUNK):
            beside = [
                holdfast.Node(f"b{each}", parent=f"p{each % PATH}", payload=TEXT)
                for each in range(first, min(first + CHUNK, count))
            ]
            await self.bush.commit(holdfast.Commit(graph=holdfast.Append(beside, leaf=path[-1].id)))

    async def _rows(self, count: int) -> None:
        for first in range(0, count, CHUNK // 10):
            numbers = range(first, min(first + CHUNK // 10, count))
            await asyncio.gather(*(self.store.sessions.create(f"session-{each:07}") for each in numbers))
            await asyncio.gather(
                *(
                    self.store.processes.register(
                        holdfast.ProcessRegistration(f"process-{each:07}", holdfast.processes.External())
                    )
                    for each in numbers
                )
            )
        self.cursors = {
            "sessions": await self._last_cursor(self.store.sessions.list),
            "processes": await self._last_cursor(self.store.processes.list),
        }

    async def _last_cursor(self, listing: Any) -> str | None:
        """Walk the whole listing, and return the cursor of its last page."""
        after: str | None = None
        while True:
            page = await listing(after=after, limit=PAGE)
            if page.next is None or len(page.items) < PAGE:
                return after
            # A page that ends exactly at the end may still have a successor, which is empty.
            following = await listing(after=page.next, limit=1)
            if not following.items:
                return after
            after = page.next

    async def path(self, reads: int) -> dict[str, Any]:
        """Read the active path of 200."""

        async def read(_: None) -> None:
            view = await self.bush.load()
            assert len(view.graph.nodes) == PATH

        return await child.at_once([[None] * reads], read)

    async def last(self, reads: int) -> dict[str, Any]:
        """Read the last 50 of a chain."""

        async def read(_: None) -> None:
            view = await self.chain.load(holdfast.sessions.ActivePath(last=LAST))
            assert len(view.graph.nodes) == LAST

        return await child.at_once([[None] * reads], read)

    async def page(self, of: str, reads: int, *, last: bool) -> dict[str, Any]:
        """Read the first page, or the last one."""
        listing = self.store.sessions.list if of == "sessions" else self.store.processes.list
        after = self.cursors[of] if last else None

        async def read(_: None) -> None:
            page = await listing(after=after, limit=PAGE)
            assert page.items

        return await child.at_once([[None] * reads], read)

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Reads())
