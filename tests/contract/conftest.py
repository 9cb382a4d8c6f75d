"""The contract runs on memory, SQLite and PostgreSQL, blocking and async."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.contract import LocalBench

KINDS = ["memory-blocking", "memory-async", "sqlite-blocking", "sqlite-async", "postgres-blocking", "postgres-async"]


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBench]:
    kind, way = request.param.split("-")
    url = None
    if kind == "postgres":
        new = "new_database" in request.node.name
        url = request.getfixturevalue("postgres_url" if new else "clean_postgres_url")
    opened = LocalBench(kind, way, tmp_path, url)
    yield opened
    opened.close()
