"""The contract runs on memory and SQLite, blocking and async."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.contract import LocalBench


@pytest.fixture(params=["memory-blocking", "memory-async", "sqlite-blocking", "sqlite-async"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBench]:
    kind, way = request.param.split("-")
    opened = LocalBench(kind, way, tmp_path)
    yield opened
    opened.close()
