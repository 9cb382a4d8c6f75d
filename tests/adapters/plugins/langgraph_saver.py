"""A pytest plugin: LangGraph's runtime tests get a HoldfastSaver where they would get a SqliteSaver.

Each saver has a store of its own: a new file, or a new schema of the database.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver

URL = os.environ["HOLDFAST_ADAPTER_URL"]
# Read when the suite's conftest is imported: no servers of its own.
os.environ["NO_DOCKER"] = "true"


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
            yield opened


@asynccontextmanager
async def async_saver() -> AsyncIterator[HoldfastSaver]:
    """The same, for tasks."""
    with saver() as opened:
        yield opened


def pytest_configure() -> None:
    sys.path.insert(0, str(Path.cwd()))
    from tests import conftest_checkpointer

    conftest_checkpointer._checkpointer_sqlite = saver
    conftest_checkpointer._checkpointer_sqlite_aio = async_saver


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that do not use a checkpointer of a database."""
    chosen = [item for item in items if _uses_ours(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _uses_ours(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    named = {name: value for name, value in parameters.items() if name.endswith("checkpointer")}
    return bool(named) and all(value in ("sqlite", "sqlite_aio") for value in named.values())
