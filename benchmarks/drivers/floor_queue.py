"""The floor of a queue: hand-written fenced SQL, one statement to claim and one to complete, each in a transaction.

With `fused`, completing one job and claiming the next share a transaction.
"""

from __future__ import annotations

import secrets
from typing import Any

import apsw
import asyncpg

from benchmarks import child
from benchmarks.drivers import durable

TABLE = """
CREATE TABLE jobs (
    id {key}, payload TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'ready', token TEXT, fence BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX jobs_ready ON jobs (id) WHERE state = 'ready';
"""
# Materialized, because a subquery in a condition may run again and then claim more than its limit.
CLAIM = """
WITH next AS MATERIALIZED (SELECT id FROM jobs WHERE state = 'ready' ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE jobs SET state = 'claimed', token = $1, fence = fence + 1 FROM next WHERE jobs.id = next.id
RETURNING jobs.id, fence, payload
"""
COMPLETE = "DELETE FROM jobs WHERE id = ANY($1::bigint[]) AND token = $2 AND state = 'claimed' RETURNING id"
CLAIM_SQLITE = """
UPDATE jobs SET state = 'claimed', token = ?1, fence = fence + 1
WHERE id IN (SELECT id FROM jobs WHERE state = 'ready' ORDER BY id LIMIT ?2)
RETURNING id, fence, payload
"""
COMPLETE_SQLITE = "DELETE FROM jobs WHERE id = ?1 AND token = ?2 AND state = 'claimed' RETURNING id"


class Postgres:
    """One connection for each worker."""

    async def open(self, url: str, *, fused: bool = False) -> dict[str, Any]:
        self.url, self.fused = url, fused
        self.held: dict[Any, Any] = {}
        self.connections: list[Any] = [await asyncpg.connect(url)]
        await self.connections[0].execute(TABLE.format(key="BIGSERIAL PRIMARY KEY"))
        return {"durable": await self.connections[0].fetchval("SHOW fsync") == "on"}

    async def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0) -> dict[str, Any]:
        while len(self.connections) < workers:
            self.connections.append(await asyncpg.connect(self.url))
        first = self.connections[0]
        missing = jobs + backlog - await first.fetchval("SELECT count(*) FROM jobs WHERE state = 'ready'")
        await first.executemany("INSERT INTO jobs (payload) VALUES ($1)", [(f"job {each}",) for each in range(missing)])
        turn = self._fused if self.fused else self._turn
        lanes = [[(connection, batch)] * (jobs // batch // workers) for connection in self.connections[:workers]]
        answer = await child.at_once(lanes, turn)
        return answer | {"count": answer["count"] * batch}

    async def _turn(self, asked: tuple[Any, int]) -> None:
        connection, batch = asked
        token = secrets.token_hex(16)
        rows = await connection.fetch(CLAIM, token, batch)
        done = await connection.fetch(COMPLETE, [row["id"] for row in rows], token)
        assert len(done) == len(rows) == batch

    async def _fused(self, asked: tuple[Any, int]) -> None:
        connection, batch = asked
        token = secrets.token_hex(16)
        async with connection.transaction():
            if connection in self.held:
                rows, held = self.held[connection]
                assert len(await connection.fetch(COMPLETE, [row["id"] for row in rows], held)) == batch
            self.held[connection] = await connection.fetch(CLAIM, token, batch), token


class Sqlite:
    """One connection."""

    def open(self, path: str) -> dict[str, Any]:
        self.connection = apsw.Connection(path)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(TABLE.format(key="INTEGER PRIMARY KEY"))
        return durable.of_connection(self.connection)

    def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0) -> dict[str, Any]:
        (found,) = self.connection.execute("SELECT count(*) FROM jobs").fetchone()
        with self.connection:
            missing = [(f"job {each}",) for each in range(jobs + backlog - found)]
            self.connection.executemany("INSERT INTO jobs (payload) VALUES (?)", missing)
        answer = child.one_after_another([batch] * (jobs // batch // workers * workers), self._turn)
        return answer | {"count": answer["count"] * batch}

    def _turn(self, batch: int) -> None:
        token = secrets.token_hex(16)
        rows = self.connection.execute(CLAIM_SQLITE, (token, batch)).fetchall()
        with self.connection:
            done = [self.connection.execute(COMPLETE_SQLITE, (row[0], token)).fetchall() for row in rows]
        assert len(done) == len(rows) == batch


class Either:
    """The driver for the requested database."""

    def open(self, url: str = "", path: str = "", *, fused: bool = False) -> Any:
        self.inner: Any = Postgres() if url else Sqlite()
        return self.inner.open(url, fused=fused) if url else self.inner.open(path)

    def work(self, **asked: Any) -> Any:
        return self.inner.work(**asked)


if __name__ == "__main__":
    child.serve(Either())
