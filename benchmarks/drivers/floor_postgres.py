"""The floor on PostgreSQL: the bare driver inserts one row with all bytes of the turn, one connection a session."""

from __future__ import annotations

from typing import Any

import asyncpg

from benchmarks import child

INSERT = "INSERT INTO turns (session, turn, content) VALUES ($1, $2, $3)"


class Floor:
    """One connection for each session, one insert a turn, each its own transaction."""

    async def open(self, url: str) -> dict[str, Any]:
        self.url = url
        self.lanes = child.Lanes()
        self.connections: dict[str, Any] = {}
        self.first = await asyncpg.connect(url)
        await self.first.execute("CREATE TABLE turns (id BIGSERIAL PRIMARY KEY, session TEXT, turn TEXT, content TEXT)")
        fsync, synchronous = (
            await self.first.fetchval("SHOW fsync"),
            await self.first.fetchval("SHOW synchronous_commit"),
        )
        return {"durable": (fsync, synchronous) == ("on", "on"), "fsync": fsync, "synchronous_commit": synchronous}

    async def insert(self, turn: Any) -> None:
        content = turn.question + turn.answer + turn.state
        await self.connections[turn.session].execute(INSERT, turn.session, turn.id, content)

    async def turns(self, sessions: int, turns: int) -> dict[str, Any]:
        lanes = self.lanes.next(sessions, turns)
        for lane in lanes:
            if lane[0].session not in self.connections:
                self.connections[lane[0].session] = await asyncpg.connect(self.url)
                await self.connections[lane[0].session].prepare(INSERT)
        return await child.at_once(lanes, self.insert)

    async def audit(self) -> dict[str, Any]:
        count, size = await self.first.fetchrow("SELECT count(*), sum(length(content)) FROM turns")
        assert count == self.lanes.turns
        return {"turns": count, "content_bytes": size}


if __name__ == "__main__":
    child.serve(Floor())
