"""The floor of a worker: hand-written fenced SQL, claim and complete apart or in one transaction, and nothing else.

It renews no claim, wakes for nothing, retries nothing and keeps no order.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import apsw
import asyncpg

from benchmarks import crew
from benchmarks.drivers import durable
from benchmarks.drivers.floor_queue import CLAIM, CLAIM_SQLITE, COMPLETE, COMPLETE_SQLITE, TABLE

BUSY_MS = 15_000


class Jobs(crew.Base):
    """A table of jobs."""

    module = "benchmarks.drivers.floor_worker"

    async def open(self, url: str, slots: int, *, fused: bool = False) -> dict[str, Any]:
        self.where = {"url": url, "slots": slots, "fused": fused}
        self.postgres = await asyncpg.connect(url) if url.startswith("postgres") else None
        if self.postgres is not None:
            await self.postgres.execute(TABLE.format(key="BIGSERIAL PRIMARY KEY"))
            return {"durable": await self.postgres.fetchval("SHOW fsync") == "on"}
        self.sqlite = connected(url)
        self.sqlite.execute(TABLE.format(key="INTEGER PRIMARY KEY"))
        return durable.of_connection(self.sqlite)

    async def fill(self, jobs: int) -> None:
        rows = [(str(each),) for each in range(jobs)]
        if self.postgres is not None:
            await self.postgres.executemany("INSERT INTO jobs (payload) VALUES ($1)", rows)
            return
        with self.sqlite:
            self.sqlite.executemany("INSERT INTO jobs (payload) VALUES (?)", rows)

    async def left(self) -> int:
        count = "SELECT count(*) FROM jobs"
        if self.postgres is not None:
            return int(await self.postgres.fetchval(count))
        [(found,)] = self.sqlite.execute(count).fetchall()
        return int(found)

    async def shut(self) -> None:
        if self.postgres is not None:
            await self.postgres.close()


def connected(path: str) -> apsw.Connection:
    """Open a file as Holdfast does."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_MS)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def work(where: dict[str, Any], gate: crew.Gate) -> None:
    """Be a worker process."""
    if where["url"].startswith("postgres"):
        asyncio.run(_slots(where, gate))
    else:
        _one_by_one(where, gate)


async def _slots(where: dict[str, Any], gate: crew.Gate) -> None:
    await asyncio.gather(*(_slot(where, gate) for _ in range(where["slots"])))


async def _slot(where: dict[str, Any], gate: crew.Gate) -> None:
    connection = await asyncpg.connect(where["url"])
    held: Any = None
    while True:
        token = secrets.token_hex(16)
        if where["fused"] and held is not None:
            async with connection.transaction():
                await connection.fetch(COMPLETE, *held)
                rows = await connection.fetch(CLAIM, token, 1)
            held = None
        else:
            rows = await connection.fetch(CLAIM, token, 1)
        if not rows:
            await asyncio.sleep(0.01)
            continue
        await gate.pass_async(int(rows[0]["payload"]))
        held = [rows[0]["id"]], token
        if not where["fused"]:
            await connection.fetch(COMPLETE, *held)


def _one_by_one(where: dict[str, Any], gate: crew.Gate) -> None:
    connection = connected(where["url"])
    while True:
        token = secrets.token_hex(16)
        rows: list[Any] = connection.execute(CLAIM_SQLITE, (token, 1)).fetchall()
        for row in rows:
            gate.pass_blocking(int(row[2]))
            connection.execute(COMPLETE_SQLITE, (row[0], token)).fetchall()


if __name__ == "__main__":
    crew.main(Jobs, work)
