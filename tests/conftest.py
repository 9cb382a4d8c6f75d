"""Shipped cases assert with plain `assert`; pytest explains those only in modules that it is told of.

The database of the PostgreSQL tests is here, too, because several folders use it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")


def pytest_configure() -> None:
    """One seed for the whole run, workers included; `HOLDFAST_SEED=<seed>` runs it again."""
    os.environ.setdefault("HOLDFAST_SEED", f"{random.SystemRandom().getrandbits(48):x}")


def pytest_report_header() -> str:
    """Print the seed where nothing captures it."""
    return f"holdfast seed: {os.environ['HOLDFAST_SEED']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-postgres", action="store_true", help="leave out the tests that need a PostgreSQL server")


def postgres_tools() -> ModuleType:
    """The module beside this one. Loaded by its path: in importlib's import mode, tests have no names."""
    name = "holdfast_postgres_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("postgres_server.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server of this test process's own."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    server = postgres_tools().Server()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A database of this test process's own."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    tools = postgres_tools()
    server_url = os.environ.get(tools.URL_VARIABLE) or request.getfixturevalue("postgres_server").url
    database = tools.Database(server_url)
    yield database
    database.drop()


@pytest.fixture
def postgres_url(postgres_database: Any) -> str:
    """A database without any schema of ours."""
    postgres_database.empty()
    url: str = postgres_database.url
    return url


@pytest.fixture
def clean_postgres_url(postgres_database: Any) -> str:
    """A database in which our schema, if it is there at all, holds no rows: much faster than making it anew."""
    postgres_database.clean()
    url: str = postgres_database.url
    return url
