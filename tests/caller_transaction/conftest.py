"""An application with its own rows, on SQLite and on PostgreSQL, and the kinds of connection that it may hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import holdfast
from holdfast.testing.contract.bench import EventLoop

PRAGMAS = (
    *("synchronous", "busy_timeout", "cache_size", "temp_store", "foreign_keys", "defer_foreign_keys", "query_only"),
    *("recursive_triggers", "reverse_unordered_selects", "ignore_check_constraints", "secure_delete", "journal_mode"),
    *("locking_mode", "wal_autocheckpoint", "cell_size_check", "trusted_schema", "mmap_size", "automatic_index"),
)
SWITCHES = [name for name in dir(apsw) if name.startswith("SQLITE_DBCONFIG_ENABLE_")] + [
    *("SQLITE_DBCONFIG_DEFENSIVE", "SQLITE_DBCONFIG_TRUSTED_SCHEMA", "SQLITE_DBCONFIG_DQS_DML"),
    *("SQLITE_DBCONFIG_DQS_DDL", "SQLITE_DBCONFIG_WRITABLE_SCHEMA", "SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE"),
]
LIMITS = [name for name in dir(apsw) if name.startswith("SQLITE_LIMIT_")]
TABLE = "CREATE TABLE {} (id text)"


class Application:
    """An application with its own table beside the store's, one connection, and transactions that it ends itself."""

    table = "application_orders"

    def __init__(self, store: Any) -> None:
        self.store = store

    def call(self, result: Any) -> Any:
        return result

    def within(self) -> Any:
        return self.store.within(self.connection)

    connection: Any

    def begin(self) -> None:
        raise NotImplementedError

    def run(self, statement: str) -> list[Any]:
        raise NotImplementedError

    def settings(self) -> Any:
        """Return every setting of the connection."""
        raise NotImplementedError

    def insert(self, name: str) -> None:
        self.run(f"INSERT INTO {self.table} (id) VALUES ('{name}')")

    def orders(self) -> list[str]:
        return [row[0] for row in self.run(f"SELECT id FROM {self.table} ORDER BY id")]

    def close(self) -> None:
        raise NotImplementedError


class SqliteApplication(Application):
    def __init__(self, folder: Path, way: str, loop: EventLoop) -> None:
        self.url = str(folder / "agents.db")
        self.loop = loop if way == "async" else None
        super().__init__(holdfast.open_blocking(self.url) if self.loop is None else loop.drive(opened(self.url)))
        self.connection = apsw.Connection(self.url)
        self.run(TABLE.format(self.table))

    def call(self, result: Any) -> Any:
        return result if self.loop is None else self.loop.drive(result)

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def run(self, statement: str) -> list[Any]:
        return self.connection.execute(statement).fetchall()

    def settings(self) -> Any:
        pragmas = {name: self.connection.pragma(name) for name in PRAGMAS}
        switches = {name: self.connection.config(getattr(apsw, name), -1) for name in SWITCHES}
        limits = {name: self.connection.limit(getattr(apsw, name)) for name in LIMITS}
        return pragmas, switches, limits, self.connection.last_insert_rowid()

    def close(self) -> None:
        self.connection.close()
        self.call(self.store.close())


class PostgresApplication(Application):
    def __init__(self, url: str, way: str, loop: EventLoop) -> None:
        self.url = url
        self.loop = loop
        super().__init__(loop.drive(opened(url)))
        self.pool = loop.drive(pooled(url)) if way == "pool" else None
        self.connection = loop.drive(connected(url, self.pool))
        # Dropped with the connection: other tests count the tables in the database.
        self.run(TABLE.format(self.table).replace("TABLE", "TEMPORARY TABLE"))

    def call(self, result: Any) -> Any:
        return self.loop.drive(result)

    def within(self) -> Any:
        async def use() -> Any:
            return self.store.within(self.connection)

        return self.call(use())

    def begin(self) -> None:
        self.run("BEGIN")

    def run(self, statement: str) -> list[Any]:
        return self.call(self.connection.fetch(statement))

    def settings(self) -> Any:
        # Settings of PL/pgSQL appear once the first function of a connection has loaded it.
        found = self.run("SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'")
        return {row[0]: row[1] for row in found}

    def close(self) -> None:
        if self.pool is None:
            self.call(self.connection.close())
        else:
            self.pool.terminate()
        self.call(self.store.close())


async def opened(url: str) -> Any:
    return await holdfast.open(url)


async def pooled(url: str) -> Any:
    return await asyncpg.create_pool(url, min_size=1, max_size=1)


async def connected(url: str, pool: Any) -> Any:
    return await (asyncpg.connect(url) if pool is None else pool.acquire())


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture(params=["sqlite-blocking", "sqlite-async", "postgres-own", "postgres-pool"])
def app(request: pytest.FixtureRequest, tmp_path: Path, loop: EventLoop) -> Iterator[Any]:
    kind, way = request.param.split("-")
    made: Application
    if kind == "sqlite":
        made = SqliteApplication(tmp_path, way, loop)
    else:
        made = PostgresApplication(request.getfixturevalue("clean_postgres_url"), way, loop)
    yield made
    made.close()
