"""OpenAI Agents' sessions, on a file or on PostgreSQL: a turn appends its two messages and nothing else."""

from __future__ import annotations

import sqlite3
from typing import Any

from agents import SQLiteSession

from benchmarks import child


class Sessions:
    """One session object for each conversation."""

    def __init__(self) -> None:
        self.lanes = child.Lanes()
        self.sessions: dict[str, Any] = {}
        self.engine: Any = None
        self.path = ""

    async def open(self, path: str = "", url: str = "") -> dict[str, Any]:
        if url:
            from sqlalchemy import text
            from sqlalchemy.ext.asyncio import create_async_engine

            self.engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:", 1), pool_size=16)
            async with self.engine.connect() as connection:
                asked = text("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
                row = (await connection.execute(asked)).one()
            return {"durable": tuple(row) == ("on", "on")}
        self.path = path
        first = SQLiteSession("chat-0", path)
        self.sessions["chat-0"] = first
        with first._locked_connection() as connection:
            (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        return {"durable": synchronous >= 2, "journal": journal, "sqlite": sqlite3.sqlite_version}

    async def _session(self, session: str) -> None:
        if session in self.sessions:
            return
        if self.engine is None:
            self.sessions[session] = SQLiteSession(session, self.path)
            return
        from agents.extensions.memory import SQLAlchemySession

        self.sessions[session] = SQLAlchemySession(session, engine=self.engine, create_tables=True)
        await self.sessions[session].get_items(limit=1)

    async def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        lanes = self.lanes.next(sessions, turns)
        for lane in lanes:
            await self._session(lane[0].session)
        prepared = [
            [
                (
                    turn.session,
                    [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}],
                )
                for turn in lane
            ]
            for lane in lanes
        ]
        return await child.at_once(prepared, lambda each: self.sessions[each[0]].add_items(each[1]))

    async def audit(self) -> dict[str, Any]:
        size = 0
        for session, done in self.lanes.done.items():
            items = await self.sessions[session].get_items()
            assert len(items) == 2 * done
            size += sum(len(item["content"]) for item in items)
        return {"turns": self.lanes.turns, "content_bytes": size}

    def stored(self) -> int:
        return child.file_bytes(self.path)


if __name__ == "__main__":
    child.serve(Sessions())
