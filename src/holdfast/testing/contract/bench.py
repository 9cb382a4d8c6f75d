"""The bench of the contract suite: opens handles on one database, and reports waiters so that no test sleeps.

A test is written once, without `await`, and runs on every backend both ways: through the blocking facade, and through
the async store driven on an event loop of its own. To test a backend of your own, override the fixture `bench` with an
object that has these methods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, cast

import pytest

from holdfast.backends.memory import MemoryBackend
from holdfast.blocking import BlockingStore
from holdfast.factory import open_backend, open_backend_async
from holdfast.ports import AttachmentBytes, Backend
from holdfast.records.artifacts import ArtifactCheck
from holdfast.records.limits import Limits
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import AsyncWaiting, BlockingWaiting, Waiting

T = TypeVar("T")

TIMEOUT_S = 30
"""Timeout for events that must happen. A passing test never sleeps through it."""


class Bench(Protocol):
    """One empty database and its clock."""

    clock: ManualClock
    durability: Literal["ephemeral", "durable"]
    url: str | None
    """URL for a second process; None if no other process can open the store."""

    def open(
        self,
        *,
        limits: Limits = ...,
        attachments: AttachmentBytes | None = None,
        artifact_checks: Mapping[str, ArtifactCheck] = ...,
    ) -> BlockingStore:
        """Open one more handle on the database, over a connection of its own where there are connections."""
        ...

    def parked(self, waiters: int = 1) -> None:
        """Return once that many callers have begun to wait since the last call, and still do; fail if they never do.

        A waiter has checked and found nothing. A test calls this between the start of a wait and the act that must end
        it: only then does a change that wakes no waiter show. `Parking` counts the waiters of any backend.
        """
        ...

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        ...

    def close(self) -> None:
        """Close every handle."""
        ...


class EventLoop:
    """An event loop in a thread, on which a blocking test drives an async store."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="contract-loop", daemon=True)
        self._thread.start()

    def drive(self, work: Awaitable[T]) -> T:
        """Run an awaitable on the loop and wait for it."""

        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class _Driven:
    """A backend whose coroutines are driven on an event loop."""

    def __init__(self, backend: Backend, loop: EventLoop) -> None:
        self._backend = backend
        self.drive = loop.drive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Parking:
    """A backend wrapper that counts waiters. Put it into the store's context in place of the backend."""

    def __init__(self, backend: Backend, parked: ParkedWaiters) -> None:
        self._backend = backend
        self._parked = parked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change, and be counted. The watch began earlier, so any later change ends the wait."""
        self._parked.enter()
        try:
            return await self._backend.pause(change, timeout_ms)
        finally:
            self._parked.leave()


class ParkedWaiters:
    """Counts the callers that wait now, over all handles of a bench, and those that began since the last `wait`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = self._begun = 0

    def enter(self) -> None:
        """Count one more waiter."""
        with self._changed:
            self._waiting += 1
            self._begun += 1
            self._changed.notify_all()

    def leave(self) -> None:
        """Count one waiter less."""
        with self._changed:
            self._waiting -= 1

    def wait(self, waiters: int) -> None:
        """Return once this many have begun to wait and still do."""
        with self._changed:
            there = self._changed.wait_for(lambda: min(self._waiting, self._begun) >= waiters, TIMEOUT_S)
            assert there, f"{min(self._waiting, self._begun)} of {waiters} wait"
            self._begun = 0


class LocalBench:
    """Implements `Bench` for the backends of this package."""

    def __init__(
        self,
        kind: Literal["memory", "sqlite", "postgres"],
        way: Literal["blocking", "async"],
        folder: Path,
        url: str | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.durability: Literal["ephemeral", "durable"] = "ephemeral" if kind == "memory" else "durable"
        self.url: str | None = str(folder / "contract.db") if kind == "sqlite" else url
        self._loop = EventLoop() if way == "async" else None
        waiting: Waiting = BlockingWaiting() if self._loop is None else AsyncWaiting()
        self._shared = MemoryBackend(self.clock, waiting) if kind == "memory" else None
        self._stores: list[BlockingStore] = []
        self._backends: list[Backend] = []
        self._parked = ParkedWaiters()

    def open(
        self,
        *,
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        attachments: AttachmentBytes | None = None,
        artifact_checks: Mapping[str, ArtifactCheck] = MappingProxyType({}),
    ) -> BlockingStore:
        """Open one more handle on the database."""
        backend = self._shared or self._open()
        self._backends.append(backend)
        driven = backend if self._loop is None else cast("Backend", _Driven(backend, self._loop))
        watched = cast("Backend", Parking(backend, self._parked))
        store = BlockingStore(Store(Context(watched, limits, attachments, artifact_checks=artifact_checks)), driven)
        if self._shared is None:
            self._stores.append(store)
        return store

    def _open(self) -> Backend:
        if self._loop is None:
            return open_backend(self.url or "", None, self.clock, BlockingWaiting())
        return self._loop.drive(open_backend_async(self.url or "", None, self.clock))

    def parked(self, waiters: int = 1) -> None:
        """Return once that many callers wait."""
        self._parked.wait(waiters)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        return self._backends[0].dump()

    def close(self) -> None:
        """Close every handle, and the loop."""
        for store in self._stores:
            store.close()
        if self._loop is not None:
            self._loop.close()


def at_once(*calls: Callable[[], T]) -> list[T | BaseException]:
    """Run the calls in threads that start together. Return each one's result, or its exception."""
    barrier = threading.Barrier(len(calls))
    outcomes: list[Future[T]] = [Future() for _ in calls]

    def run(index: int, call: Callable[[], T]) -> None:
        try:
            barrier.wait(TIMEOUT_S)
            outcomes[index].set_result(call())
        except BaseException as error:
            outcomes[index].set_exception(error)

    threads = [threading.Thread(target=run, args=(index, call)) for index, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return [outcome.exception(0) or outcome.result(0) for outcome in outcomes]


def in_background(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread. The test asks for the result, with a timeout, when it is due."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class Contract:
    """Base of the contract classes. A test takes `store`, and `bench` for more handles or the clock."""

    @pytest.fixture
    def store(self, bench: Bench) -> BlockingStore:
        """A handle on an empty database."""
        return bench.open()

    @pytest.fixture
    def clock(self, bench: Bench) -> ManualClock:
        """The database's clock."""
        return bench.clock


class RefusedWithoutTrace:
    """Context in which a call must be refused with the given error, and no row of any table may change."""

    def __init__(self, bench: Bench, error: type[BaseException]) -> None:
        self._bench = bench
        self._raises = pytest.raises(error)
        self._before: dict[str, list[tuple[Any, ...]]] = {}

    def __enter__(self) -> pytest.ExceptionInfo[BaseException]:
        self._before = self._bench.dump()
        return self._raises.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        refused = self._raises.__exit__(kind, error, trace)
        if refused:
            assert self._bench.dump() == self._before, "a refused call left a trace"
        return bool(refused)


def refused(bench: Bench, error: type[BaseException]) -> RefusedWithoutTrace:
    """`with refused(bench, HeadConflict) as info:` — refused with exactly that kind of error, and nothing changed."""
    return RefusedWithoutTrace(bench, error)
