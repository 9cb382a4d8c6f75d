"""LangGraph's AsyncSqliteSaver, driven like its blocking sibling."""

from __future__ import annotations

from typing import Any

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks import child
from benchmarks.peers.langgraph_sqlite import Saver


class AsyncPuts(Saver):
    """The same turns by aiosqlite, on the one connection that a saver has."""

    async def open(self, path: str) -> dict[str, Any]:  # type: ignore[override]
        self.path = path
        self.connection = await aiosqlite.connect(path)
        self.saver = AsyncSqliteSaver(self.connection)
        await self.saver.setup()
        answer = {}
        for name in ("synchronous", "journal_mode"):
            async with self.connection.execute(f"PRAGMA {name}") as found:
                (answer[name],) = await found.fetchone()
        return {"durable": answer["synchronous"] >= 2} | answer

    async def aput(self, prepared: tuple[str, Any, Any, Any]) -> None:
        session, *arguments = prepared
        self.conversations.configs[session] = await self.saver.aput(self.conversations.config(session), *arguments)

    async def turns(self, sessions: int, turns: int) -> Any:
        return await child.at_once(self.prepared(sessions, turns), self.aput)

    async def audit(self) -> Any:
        return self.counted({session: await self.saver.aget_tuple(self.thread(session)) for session in self.lanes.done})

    async def shut(self) -> None:
        await self.connection.close()


if __name__ == "__main__":
    child.serve(AsyncPuts())
