"""A pytest plugin: LangGraph's runtime tests get a HoldfastSaver where they would get a SqliteSaver.

Each saver has a store of its own: a new file, or a new schema of the database. The replacement happens when this module
is imported: the suite's conftest, which takes the functions by name, is imported later.
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
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests import conftest_checkpointer  # of the suite

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver

URL = os.environ["HOLDFAST_ADAPTER_URL"]
# Read when the suite's conftest is imported: no servers of its own.
os.environ["NO_DOCKER"] = "true"

MADE: list[HoldfastSaver] = []
"""Savers that the current test was given."""


@contextmanager
def saver() -> Iterator[HoldfastSaver]:
    """Open a saver on an empty store. The tests keep types of their own in states, which any serialiser must load."""
    with TemporaryDirectory() as folder:
        options: Any = None
        url = str(Path(folder) / "agent.db")
        if URL.startswith("postgres"):
            url = URL
            options = holdfast.PostgresOptions(schema=f"suite_{uuid4().hex[:16]}", max_connections=4)
        with (
            holdfast.open_blocking(url, options=options) as store,
            HoldfastSaver(store, serde=JsonPlusSerializer()) as opened,
        ):
            MADE.append(opened)
            yield opened


@asynccontextmanager
async def async_saver() -> AsyncIterator[HoldfastSaver]:
    """The same, for tasks."""
    with saver() as opened:
        yield opened


conftest_checkpointer._checkpointer_sqlite = saver
conftest_checkpointer._checkpointer_sqlite_aio = async_saver


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    MADE.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Mark tests that used the replacement. One that got another saver proves nothing, and fails."""
    assert MADE, "the test was given a saver that is not ours"
    item.user_properties.append(("holdfast", "used"))
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that do not use a checkpointer of a database."""
    chosen = [item for item in items if _uses_ours(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _uses_ours(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    named = {name: value for name, value in parameters.items() if name.endswith("checkpointer")}
    return bool(named) and all(value in ("sqlite", "sqlite_aio") for value in named.values())
