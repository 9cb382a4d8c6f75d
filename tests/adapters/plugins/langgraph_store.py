"""A pytest plugin: tests of LangGraph's store on SQLite get a HoldfastStore where they ask for a SqliteStore.

Each store is empty: a new file, or a new schema of the database. The index of vectors that some tests ask for is left
out; tests that search by it are left out by their names.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from langgraph.store import sqlite
from langgraph.store.sqlite import aio

import holdfast
from holdfast.adapters.langgraph import HoldfastStore

URL = os.environ["HOLDFAST_ADAPTER_URL"]
MADE: list[str] = []
"""Stores that the current test has opened."""


class SqliteStore(HoldfastStore):
    """Takes the arguments of the framework's class."""

    def setup(self) -> None:
        """Do nothing: a store of Holdfast creates its schema when it is opened."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None) -> Iterator[SqliteStore]:
        """Open a store."""
        del index
        MADE.append(conn_string)
        with (
            TemporaryDirectory() as folder,
            holdfast.open_blocking(place(folder), options=options()) as opened,
            cls(opened, ttl=ttl) as store,
        ):
            yield store


class AsyncSqliteStore(HoldfastStore):
    """Takes the arguments of the framework's class, for tasks."""

    async def setup(self) -> None:
        """Do nothing: a store of Holdfast creates its schema when it is opened."""

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """Delete the items whose time to live has passed."""
        return await self.asweep_ttl()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, conn_string: str, *, index: Any = None, ttl: Any = None
    ) -> AsyncIterator[AsyncSqliteStore]:
        """Open a store."""
        del index
        MADE.append(conn_string)
        with TemporaryDirectory() as folder:
            async with holdfast.open(place(folder), options=options()) as opened, cls(opened, ttl=ttl) as store:
                yield store  # type: ignore[misc]


def place(folder: str) -> str:
    return URL if URL.startswith("postgres") else str(Path(folder) / "agent.db")


def options() -> Any:
    if URL.startswith("postgres"):
        # A test makes 6,000 calls at once, which wait for these connections on a loaded machine.
        return holdfast.PostgresOptions(
            schema=f"suite_{uuid4().hex[:16]}", max_connections=4, acquire_timeout_ms=1_200_000
        )
    return None


sqlite.SqliteStore = SqliteStore  # type: ignore[misc,assignment]
for module in (sqlite, aio):
    module.AsyncSqliteStore = AsyncSqliteStore  # type: ignore[misc,assignment]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "flaky: of a plugin that repeats a failed test; here it fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    MADE.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Mark tests that used the replacement. One that opened no store says nothing about it, and fails."""
    try:
        return (yield)
    finally:
        assert MADE, "the test opened no store of ours"
        item.user_properties.append(("holdfast", "used"))
