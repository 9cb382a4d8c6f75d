"""Durable stores, named by their URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'agent.db'}"
    url: str = request.getfixturevalue("clean_postgres_url")
    return url


@pytest.fixture
def store(url: str) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(url) as store:
        yield store
