"""A scratch place for faults on each backend, and a process from which their children fork."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.torture import children
from holdfast.torture.places import PostgresScratch, Scratch, SqliteScratch


@pytest.fixture(scope="session", autouse=True)
def quick_children() -> None:
    """Fork children from a process that has the modules loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(children.LOADED))
    multiprocessing.forkserver.ensure_running()


@pytest.fixture
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scratch]:
    """A scratch place on the test's backend."""
    kind: str = request.param
    place: Any
    if kind == "sqlite":
        place = SqliteScratch(tmp_path)
    else:
        place = PostgresScratch(request.getfixturevalue("postgres_database").url, tmp_path)
    with place:
        yield place
