"""The blocking store is the async one without `await`: the same methods, for many threads, and no endless waits."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import StoreClosed
from holdfast.events import EventType
from holdfast.leases import Lease, OnProcess, OnSession
from holdfast.processes import Completed, External
from holdfast.testing.contract.bench import TIMEOUT_S, at_once, in_background

LONG_MS = TIMEOUT_S * 1000
FACETS = (
    "sessions",
    "queue",
    "attachments",
    "processes",
    "events",
    "grants",
    "leases",
    "triggers",
    "schedules",
    "artifacts",
    "workers",
    "maintenance",
)
THREADS = 16


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else str(tmp_path / "facade.db")


@pytest.fixture
def store(url: str) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(url) as opened:
        yield opened


def public_methods(value: object) -> dict[str, Any]:
    return {
        name: found
        for name, found in inspect.getmembers(value, callable)
        if not name.startswith("_") and not inspect.isclass(found)
    }


def twins(store: holdfast.BlockingStore) -> dict[str, tuple[Any, Any]]:
    """Return each async facet with its blocking twin."""
    pairs: dict[str, tuple[Any, Any]] = {"store": (store._store, store)}
    for name in FACETS:
        pairs[name] = (getattr(store._store, name), getattr(store, name))
    pairs["session"] = (store._store.sessions.handle("chat"), store.sessions.handle("chat"))
    pairs["session.attachments"] = (pairs["session"][0].attachments, pairs["session"][1].attachments)
    return pairs


# The same methods.


@pytest.mark.parametrize("facet", ["store", *FACETS, "session", "session.attachments"])
def test_a_blocking_facet_has_the_methods_of_its_async_twin_and_no_others(facet: str) -> None:
    with holdfast.open_blocking("memory:") as store:
        asynchronous, blocking = twins(store)[facet]
        assert public_methods(blocking).keys() == public_methods(asynchronous).keys()
        assert public_methods(blocking)


def test_no_facet_of_the_async_store_is_missing_here() -> None:
    with holdfast.open_blocking("memory:") as store:
        facets = {name for name in vars(store._store) if not name.startswith("_")}
        assert facets == {name for name in vars(store) if not name.startswith("_")} == set(FACETS)


@pytest.mark.parametrize("facet", ["store", *FACETS, "session", "session.attachments"])
def test_a_blocking_method_takes_what_its_async_twin_takes_and_says_the_same(facet: str) -> None:
    with holdfast.open_blocking("memory:") as store:
        asynchronous, blocking = twins(store)[facet]
        for name, method in public_methods(blocking).items():
            twin = getattr(asynchronous, name)
            assert inspect.signature(method).parameters == inspect.signature(twin).parameters, name
            assert method.__name__ == name
            if inspect.iscoroutinefunction(twin):
                assert not inspect.iscoroutinefunction(method), name
                # A method that the facade writes out may have a docstring without the example.
                assert (method.__doc__ or "").splitlines()[0].rstrip(".;") in (twin.__doc__ or ""), name


def test_the_async_store_has_coroutines_only_where_it_waits() -> None:
    with holdfast.open_blocking("memory:") as store:
        immediate = {
            f"{facet}.{name}"
            for facet, (asynchronous, _) in twins(store).items()
            for name, method in public_methods(asynchronous).items()
            if not inspect.iscoroutinefunction(method) and not inspect.isasyncgenfunction(method)
        }
    assert immediate == {
        *("store.ddl", "store.within", "store.reading", "store.transaction"),
        *("sessions.handle", "sessions.unbound", "session.turn", "processes.handle", "triggers.source_key"),
    }


# Many threads.


def test_sixteen_threads_commit_at_once_and_each_has_a_revision_of_its_own(store: holdfast.BlockingStore) -> None:
    session = store.sessions.create("chat")

    def commit(number: int) -> int:
        node = holdfast.Node(f"n{number}", payload=number)
        return session.commit(holdfast.Commit(turn_id=f"t{number}", graph=holdfast.Append([node]))).revision

    revisions = at_once(*[lambda number=number: commit(number) for number in range(THREADS)])
    assert sorted(revisions) == list(range(1, THREADS + 1))  # type: ignore[type-var]
    assert {node.payload for node in session.nodes()} == set(range(THREADS))
    assert store.maintenance.verify().ok


def test_sixteen_threads_use_every_facet_at_once(store: holdfast.BlockingStore) -> None:
    def life(number: int) -> str:
        name = f"chat-{number}"
        session = store.sessions.create(name)
        batch = store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[number]))
        claim = store.queue.claim(name, owner_id=name)
        assert claim is not None
        assert [one.batch_id for one in claim.batches] == [batch.batch_id]
        ref = session.attachments.put(b"%d" % number)
        session.commit(holdfast.Commit(completes=[claim], attachments=[ref.id]))
        store.processes.register(holdfast.ProcessRegistration(name, External()))
        store.grants.grant(holdfast.Scope(name), name)
        lease = store.leases.claim(OnProcess(name), owner_id=name)
        store.processes.complete(name, Completed(number), lease=lease)
        store.triggers.emit("cron", name, idempotency_key="once")
        store.artifacts.put("module", name, b"%d" % number)
        [event] = store.events.follow(name)
        return event.type

    assert (
        at_once(*[lambda number=number: life(number) for number in range(THREADS)]) == ["process.completed"] * THREADS
    )
    stats = store.maintenance.stats()
    assert (stats.sessions, stats.pending_batches, stats.processes, stats.artifacts) == (THREADS, 0, THREADS, THREADS)
    assert store.maintenance.verify().ok


def test_one_lease_goes_to_one_of_sixteen_threads(store: holdfast.BlockingStore) -> None:
    resource = OnSession("chat")
    outcomes = at_once(
        *[lambda number=number: store.leases.claim(resource, owner_id=f"w{number}") for number in range(THREADS)]
    )
    assert sum(isinstance(outcome, Lease) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, holdfast.LeaseHeld) for outcome in outcomes) == THREADS - 1


# Waiting.


def progress_process(store: holdfast.BlockingStore) -> None:
    kinds = [EventType("progress")]
    store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))


def test_follow_is_an_iterator_that_gives_each_event_as_it_comes_and_ends_with_the_process(
    store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress_process(store)
    backend = announce_watches(store, monkeypatch)
    events = store.events.follow("build", timeout_ms=LONG_MS)
    assert iter(events) is events
    first = in_background(lambda: next(events))
    when_watched(backend, first)
    store.events.append("build", "progress", 1)
    assert first.result(TIMEOUT_S).payload == 1
    rest = in_background(lambda: [event.type for event in events])
    when_watched(backend, rest)
    store.events.append("build", "progress", 2)
    when_watched(backend, rest)
    store.processes.complete("build", Completed())
    assert rest.result(TIMEOUT_S) == ["progress", "process.completed"]
    assert list(store.events.follow("build", after=2)) == list(store.events.after("build", 2))


def test_follow_asks_nothing_before_it_is_iterated_and_can_be_left(store: holdfast.BlockingStore) -> None:
    unknown = store.events.follow("nobody")
    with pytest.raises(holdfast.UnknownProcess):
        next(unknown)
    progress_process(store)
    store.events.append("build", "progress", 1)
    for event in store.events.follow("build", timeout_ms=LONG_MS):
        assert event.sequence == 1
        break


WAITS: dict[str, Callable[[holdfast.BlockingStore], Any]] = {
    "queue.wait": lambda store: store.queue.wait("chat", timeout_ms=LONG_MS),
    "processes.wait": lambda store: store.processes.wait("build", timeout_ms=LONG_MS),
    "events.wait_for": lambda store: store.events.wait_for("build", "progress", timeout_ms=LONG_MS),
    "events.follow": lambda store: list(store.events.follow("build")),
}


def when_watched(backend: Any, waiter: Future[Any]) -> None:
    """Return once a waiter watches: the watch itself announces it."""
    assert backend.began.wait(TIMEOUT_S), waiter
    backend.began.clear()


def announce_watches(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the backend announce when a watcher has looked and begins to pause."""
    backend = store._context.backend if hasattr(store, "_context") else store._backend
    pause, backend.began = backend.pause, threading.Event()

    async def announcing(change: Future[None], timeout_ms: int) -> bool:
        backend.began.set()
        return bool(await pause(change, timeout_ms))

    monkeypatch.setattr(backend, "pause", announcing)
    return backend


@pytest.mark.parametrize("wait", WAITS)
def test_closing_the_store_ends_a_wait_with_store_closed(url: str, wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = holdfast.open_blocking(url)
    progress_process(store)
    backend = announce_watches(store, monkeypatch)
    waiter = in_background(lambda: WAITS[wait](store))
    when_watched(backend, waiter)
    store.close()
    with pytest.raises(StoreClosed):
        waiter.result(TIMEOUT_S)
    assert not backend._signals.watched


@pytest.mark.parametrize("wait", ["queue.wait", "processes.wait", "events.wait_for"])
def test_a_wait_that_ran_out_leaves_no_watcher(store: holdfast.BlockingStore, wait: str) -> None:
    progress_process(store)
    facet, method = wait.split(".")
    arguments = {"queue.wait": ["chat"], "processes.wait": ["build"], "events.wait_for": ["build", "progress"]}[wait]
    with pytest.raises(holdfast.WaitTimeout):
        getattr(getattr(store, facet), method)(*arguments, timeout_ms=0)
    backend: Any = store._backend
    assert not backend._signals.watched


# After closing.

CALLS: dict[str, Callable[[holdfast.BlockingStore], Any]] = {
    "sessions.create": lambda store: store.sessions.create("chat"),
    "sessions.open": lambda store: store.sessions.open("chat"),
    "sessions.list": lambda store: store.sessions.list(),
    "session.load": lambda store: store.sessions.handle("chat").load(),
    "session.commit": lambda store: store.sessions.handle("chat").commit(holdfast.Commit()),
    "session.attachments.put": lambda store: store.sessions.handle("chat").attachments.put(b""),
    "queue.enqueue": lambda store: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[])),
    "queue.claim": lambda store: store.queue.claim("chat", owner_id="w"),
    "queue.wait": lambda store: store.queue.wait("chat", timeout_ms=LONG_MS),
    "attachments.sweep": lambda store: store.attachments.sweep(older_than_ms=0),
    "processes.get": lambda store: store.processes.get("build"),
    "processes.wait": lambda store: store.processes.wait("build", timeout_ms=LONG_MS),
    "events.follow": lambda store: next(store.events.follow("build")),
    "grants.has": lambda store: store.grants.has(holdfast.Scope("chat"), "build"),
    "leases.claim": lambda store: store.leases.claim(OnSession("chat"), owner_id="w"),
    "triggers.list": lambda store: store.triggers.list(),
    "schedules.list": lambda store: store.schedules.list(),
    "schedules.wait_next": lambda store: store.schedules.wait_next(timeout_ms=LONG_MS),
    "artifacts.get": lambda store: store.artifacts.get("module", "main"),
    "workers.list": lambda store: store.workers.list(),
    "maintenance.stats": lambda store: store.maintenance.stats(),
    "maintenance.verify": lambda store: store.maintenance.verify(),
    "maintenance.collect_garbage": lambda store: store.maintenance.collect_garbage(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_store_refuses_every_call(url: str, call: str) -> None:
    store = holdfast.open_blocking(url)
    store.close()
    with pytest.raises(StoreClosed) as info:
        CALLS[call](store)
    assert (info.value.retryable, info.value.outcome) == (False, "not_applied")


def test_closing_twice_and_from_many_threads_is_idempotent(url: str) -> None:
    store = holdfast.open_blocking(url)
    store.sessions.create("chat")
    assert at_once(*[store.close for _ in range(THREADS)]) == [None] * THREADS
    store.close()


def test_writes_accepted_before_a_close_are_either_stored_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "closing.db"
    store = holdfast.open_blocking(path)
    session = store.sessions.create("chat")

    def commit(number: int) -> int:
        return session.commit(holdfast.Commit(turn_id=f"t{number}")).revision

    outcomes = at_once(*[lambda number=number: commit(number) for number in range(THREADS - 1)], store.close)
    accepted = [outcome for outcome in outcomes if isinstance(outcome, int)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, StoreClosed)]
    assert len(accepted) + len(refused) == THREADS - 1
    with holdfast.open_blocking(path) as again:
        history = again.sessions.handle("chat").history()
        assert sorted(accepted) == [revision.revision for revision in history]


# Tasks.


async def watched(backend: Any) -> None:
    """Return once a waiter watches. A watcher that is woken for nothing stops, and then announces itself again."""
    while True:
        assert await asyncio.to_thread(backend.began.wait, TIMEOUT_S)
        backend.began.clear()
        if backend._signals.watched:
            return


@pytest.mark.parametrize("wait", ["queue.wait", "processes.wait", "events.wait_for", "events.follow"])
def test_a_cancelled_task_leaves_no_watcher_behind(url: str, wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with holdfast.open(url) as store:
            kinds = [EventType("progress")]
            await store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))
            backend: Any = announce_watches(store, monkeypatch)

            async def waiting() -> object:
                if wait == "queue.wait":
                    return await store.queue.wait("chat", timeout_ms=LONG_MS)
                if wait == "processes.wait":
                    return await store.processes.wait("build", timeout_ms=LONG_MS)
                if wait == "events.wait_for":
                    return await store.events.wait_for("build", "progress", timeout_ms=LONG_MS)
                return [event async for event in store.events.follow("build")]

            task = asyncio.create_task(waiting())
            await watched(backend)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not backend._signals.watched
            # The store continues unaffected.
            await store.events.append("build", "progress", 1)
            assert (await store.events.wait_for("build", "progress", timeout_ms=LONG_MS)).payload == 1

    asyncio.run(main())


def test_closing_an_async_store_ends_a_wait_with_store_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = await holdfast.open(url)
        backend: Any = announce_watches(store, monkeypatch)
        task = asyncio.create_task(store.queue.wait("chat", timeout_ms=LONG_MS))
        await watched(backend)
        await store.close()
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(task, TIMEOUT_S)
        with pytest.raises(StoreClosed):
            await store.sessions.list()

    asyncio.run(main())


def test_the_event_loop_runs_while_a_commit_waits_for_the_file(tmp_path: Path) -> None:
    """Another connection locks the file, and only a task of this loop releases it: a blocked loop would never end."""
    path = tmp_path / "busy.db"

    async def main() -> tuple[int, bool]:
        async with holdfast.open(path) as store:
            session = await store.sessions.create("chat")
            other = apsw.Connection(str(path))
            other.execute("BEGIN IMMEDIATE")
            commit = asyncio.create_task(session.commit(holdfast.Commit(turn_id="t1")))
            for _ in range(1_000):
                await asyncio.sleep(0)
            done_while_held = commit.done()
            assert await session.load() is None
            other.execute("ROLLBACK")
            other.close()
            receipt = await asyncio.wait_for(commit, TIMEOUT_S)
            return receipt.revision, done_while_held

    assert asyncio.run(main()) == (1, False)


def test_a_cancelled_commit_is_applied_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "cancelled.db"

    async def main() -> None:
        async with holdfast.open(path) as store:
            session = await store.sessions.create("chat")
            other = apsw.Connection(str(path))
            other.execute("BEGIN IMMEDIATE")
            turn = holdfast.Commit(turn_id="t1", graph=holdfast.Append([holdfast.Node("n1")], leaf="n1"))
            commit = asyncio.create_task(session.commit(turn))
            await asyncio.sleep(0)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            other.execute("ROLLBACK")
            other.close()
            receipt = await session.commit(turn)
            assert receipt.revision == 1
            assert [entry.turn_id for entry in await session.history()] == ["t1"]

    asyncio.run(main())


def test_one_store_serves_two_event_loops_at_once(url: str) -> None:
    store = asyncio.run(opened(url))

    async def life(name: str) -> int:
        session = await store.sessions.create(name)
        for number in range(10):
            await session.commit(holdfast.Commit(turn_id=f"t{number}"))
        view = await session.load()
        assert view is not None
        return view.revision

    assert at_once(*[lambda name=name: asyncio.run(life(name)) for name in ("one", "two")]) == [10, 10]
    asyncio.run(store.close())


async def opened(url: str) -> holdfast.Store:
    return await holdfast.open(url)


def test_a_change_in_one_event_loop_wakes_a_waiter_in_another(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = asyncio.run(opened(url))
    backend = announce_watches(store, monkeypatch)
    waiter = in_background(lambda: asyncio.run(store.queue.wait("chat", timeout_ms=LONG_MS)))
    when_watched(backend, waiter)
    asyncio.run(store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1])))  # type: ignore[arg-type]
    assert waiter.result(TIMEOUT_S) is None
    asyncio.run(store.close())


def test_two_stores_in_two_event_loops_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"

    async def life(name: str) -> list[int]:
        async with holdfast.open(path) as store:
            session = store.sessions.handle("chat")
            return [(await session.commit(holdfast.Commit(turn_id=f"{name}-{n}"))).revision for n in range(10)]

    one, two = at_once(*[lambda name=name: asyncio.run(life(name)) for name in ("one", "two")])
    assert isinstance(one, list)
    assert isinstance(two, list)
    assert sorted(one + two) == list(range(1, 21))
