"""A SQLite store in a temporary folder, and a clock that stands still."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import SqliteBackend, SqliteOptions
from holdfast.wait import BlockingWaiting, Ticket


class ManualClock:
    def __init__(self) -> None:
        self.time_ms = 1_000
        self.listeners: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self.time_ms

    def subscribe(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def advance(self, by_ms: int) -> None:
        self.time_ms += by_ms
        for listener in self.listeners:
            listener()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="tasks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _pass_on(outcome: Future[Any], answer: asyncio.Future[Any]) -> None:
    error = answer.exception()
    if error is None:
        outcome.set_result(answer.result())
    else:
        outcome.set_exception(error)


class Store:
    """A backend with helpers that run one operation."""

    def __init__(self, backend: SqliteBackend, tasks: LoopThread) -> None:
        self.backend = backend
        self._tasks = tasks

    @property
    def connection(self) -> Any:
        return self.backend._runner.connection

    def submit(self, operation: Callable[[Any], Any]) -> Future[Any]:
        """Submit from a task of the event loop; the operation is accepted when this returns."""
        ticket, outcome = Ticket(self._tasks.loop), Future[Any]()
        # Not awaited by a task: an exit in a task ends its loop.
        ticket._future.add_done_callback(partial(_pass_on, outcome))
        self.backend._writer.accept(operation, ticket)
        return outcome

    def write(self, operation: Callable[[Any], Any]) -> Any:
        return self.backend.drive(self.backend.write(operation))

    def read(self, operation: Callable[[Any], Any]) -> Any:
        return self.backend.drive(self.backend.read(operation))

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Write with one method of the transaction."""
        return self.write(lambda transaction: getattr(transaction, method)(*arguments, **keywords))

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Read with one method of the transaction."""
        return self.read(lambda transaction: getattr(transaction, method)(*arguments, **keywords))

    def close(self) -> None:
        self.backend.drive(self.backend.close())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def open_store(path: Path, clock: ManualClock) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []
    tasks = LoopThread()

    def open_one(at: Path | str = path, waiting: Any = None, **options: Any) -> Store:
        backend = SqliteBackend.open(at, SqliteOptions(**options), clock, waiting or BlockingWaiting())
        opened.append(Store(backend, tasks))
        return opened[-1]

    yield open_one
    for store in opened:
        # A test that opened for asyncio closed its own; closing again would need its event loop.
        with suppress(RuntimeError):
            store.close()
    tasks.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()
