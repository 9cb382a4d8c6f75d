"""PostgreSQL backends on the test's own event loop, with helpers that run one operation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.backends.postgres.twins import FAST, PLAIN, Twins

from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import EventLoop


class Store:
    """A backend with helpers that run one operation."""

    def __init__(self, backend: PostgresBackend, loop: EventLoop) -> None:
        self.backend = backend
        self.loop = loop

    def write(self, operation: Callable[[Any], Any]) -> Any:
        return self.loop.drive(self.backend.write(operation))

    def read(self, operation: Callable[[Any], Any]) -> Any:
        return self.loop.drive(self.backend.read(operation))

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Write with one method of the transaction."""
        return self.write(lambda transaction: getattr(transaction, method)(*arguments, **keywords))

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Read with one method of the transaction."""
        return self.read(lambda transaction: getattr(transaction, method)(*arguments, **keywords))

    def close(self) -> None:
        self.loop.drive(self.backend.close())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture
def open_store(clean_postgres_url: str, clock: ManualClock, loop: EventLoop) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_one(url: Any = clean_postgres_url, clock: Any = clock, **options: Any) -> Store:
        backend = loop.drive(PostgresBackend.open(url, PostgresOptions(**options), clock))
        opened.append(Store(backend, loop))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def administrator(postgres_database: Any) -> Any:
    """A connection that sees everything."""
    return postgres_database.administrator


@pytest.fixture
def twins_url(postgres_database: Any) -> str:
    """The URL of a database whose schemas of twins, if they exist, have no rows."""
    postgres_database.clean(FAST, PLAIN)
    url: str = postgres_database.url
    return url


@pytest.fixture
def twins(twins_url: str, clock: ManualClock, loop: EventLoop) -> Iterator[Twins]:
    """Two schemas that live the same life (see `twins.py`)."""
    made = Twins(twins_url, loop, clock)
    yield made
    made.close()


@pytest.fixture(params=["the test's clock", "the server's clock"])
def timed_twins(request: pytest.FixtureRequest, twins_url: str, clock: ManualClock, loop: EventLoop) -> Iterator[Twins]:
    """Twins with either clock: the server's clock is read inside the statement."""
    made = Twins(twins_url, loop, clock if request.param == "the test's clock" else None)
    yield made
    made.close()


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server that may be stopped."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    request.getfixturevalue("postgres_database")
    server = sys.modules["holdfast_postgres_server"].Server()
    yield server
    server.remove()
