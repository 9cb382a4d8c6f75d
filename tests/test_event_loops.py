"""One async store serves tasks of several event loops in several threads, on every backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import StoreClosed
from holdfast.events import EventType
from holdfast.processes import External
from holdfast.testing.contract.bench import in_background

TIMEOUT_S = 30
THREADS, TURNS = 3, 8


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("clean_postgres_url"))
    return "memory:" if request.param == "memory" else str(tmp_path / "agents.db")


async def opened(url: str) -> holdfast.Store:
    return await holdfast.open(url)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on an event loop that ends with the work."""

    async def limited() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await work

    return asyncio.run(limited())


def elsewhere(make: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
    """Run on an event loop of its own, in a thread of its own."""
    return in_background(lambda: run(make()))


def turn(name: str) -> holdfast.Commit:
    return holdfast.Commit(turn_id=name, graph=holdfast.Append([holdfast.Node(name, payload=name)]))


def work(text: str) -> holdfast.WorkDraft:
    return holdfast.WorkDraft(session_id="one", payloads=[text])


async def revision(store: holdfast.Store, session_id: str) -> int:
    view = await store.sessions.handle(session_id).load()
    return 0 if view is None else view.revision


def test_a_store_outlives_the_loop_that_opened_it(url: str) -> None:
    store = run(opened(url))

    async def use(number: int) -> None:
        await store.sessions.handle("one").commit(turn(f"t{number}"))
        async with store.transaction() as tx:
            await tx.sessions.handle("two").commit(turn(f"t{number}"))
        assert await revision(store, "one") == await revision(store, "two") == number

    for number in (1, 2, 3):
        run(use(number))
    for _ in range(2):
        run(store.close())
    with pytest.raises(StoreClosed):
        run(use(4))


def test_loops_in_threads_share_a_store(url: str) -> None:
    async def home() -> None:
        async with holdfast.open(url) as store:

            async def turns(name: str) -> None:
                for number in range(TURNS):
                    await store.sessions.handle("shared").commit(turn(f"{name}-{number}"))
                    await store.queue.enqueue(work(name))
                    assert await revision(store, "shared") > 0

            others = [elsewhere(lambda name=str(index): turns(name)) for index in range(THREADS)]
            await turns("home")
            for other in others:
                await asyncio.wrap_future(other)
            assert await revision(store, "shared") == (THREADS + 1) * TURNS
            assert len(await store.queue.list("one", limit=100)) == (THREADS + 1) * TURNS

    run(home())


def test_the_last_write_of_a_loop_wakes_waiters_elsewhere(clean_postgres_url: str) -> None:
    """The task that notifies is cancelled before it begins: the end of the loop must neither hang nor lose it."""

    async def write() -> holdfast.Store:
        store = await holdfast.open(clean_postgres_url)
        await store.queue.enqueue(work("1"))
        return store

    with holdfast.open_blocking(clean_postgres_url) as other:
        waiting = in_background(lambda: other.queue.wait("one", timeout_ms=TIMEOUT_S * 1_000))
        # Shorter than the poll of a waiter that nothing wakes. The first look may come after the write.
        store = run(write())
        waiting.result(TIMEOUT_S / 2)
        assert len(other.queue.list("one")) == 1
    run(store.close())


@pytest.mark.parametrize("waiter_is_home", [True, False])
def test_waits_end_with_changes_of_other_loops(url: str, waiter_is_home: bool) -> None:
    async def home() -> None:
        async with holdfast.open(url) as store:

            async def wait() -> None:
                await store.queue.wait("one", timeout_ms=TIMEOUT_S * 1_000)

            async def write() -> None:
                await store.queue.enqueue(work("1"))

            if waiter_is_home:
                waiting = asyncio.create_task(wait())
                await asyncio.sleep(0.05)
                await asyncio.wrap_future(elsewhere(write))
                await waiting
            else:
                there = elsewhere(wait)
                await asyncio.sleep(0.05)
                await write()
                await asyncio.wrap_future(there)

    run(home())


def test_events_are_followed_from_another_loop(url: str) -> None:
    async def home() -> None:
        async with holdfast.open(url) as store:
            kinds = [EventType("news")]
            await store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))

            async def follow() -> list[Any]:
                found = []
                async for event in store.events.follow("build"):
                    found.append(event.payload)
                    if len(found) == 3:
                        break
                return found

            there = elsewhere(follow)
            for number in range(3):
                await store.events.append("build", "news", number)
            assert await asyncio.wrap_future(there) == [0, 1, 2]

    run(home())


def test_a_cancelled_task_of_another_loop_harms_no_other(url: str) -> None:
    async def home() -> None:
        async with holdfast.open(url) as store:

            async def there() -> None:
                for turns_of_the_loop in range(6):
                    call = asyncio.ensure_future(store.sessions.handle("one").commit(turn(f"c{turns_of_the_loop}")))
                    waiting = asyncio.ensure_future(store.queue.wait("one", timeout_ms=TIMEOUT_S * 1_000))
                    for _ in range(turns_of_the_loop):
                        await asyncio.sleep(0)
                    call.cancel()
                    waiting.cancel()
                    await asyncio.gather(call, waiting, return_exceptions=True)
                with pytest.raises(KeyError):
                    async with store.transaction() as tx:
                        await tx.sessions.create("gone")
                        raise KeyError
                await store.sessions.handle("one").commit(turn("last"))

            await asyncio.wrap_future(elsewhere(there))
            assert await revision(store, "one") >= 1
            assert await store.sessions.open("gone") is None

    run(home())


def test_a_transaction_may_be_used_from_another_loop(url: str) -> None:
    async def home() -> None:
        async with holdfast.open(url) as store:
            async with store.transaction() as tx:
                await tx.sessions.create("one")
                await asyncio.wrap_future(elsewhere(lambda: tx.sessions.handle("two").commit(turn("t1"))))
            assert await revision(store, "two") == 1

    run(home())


def test_another_loop_may_close_a_store(url: str) -> None:
    async def home() -> None:
        store = await holdfast.open(url)
        await store.sessions.create("one")
        await asyncio.wrap_future(elsewhere(store.close))
        with pytest.raises(StoreClosed):
            await store.sessions.create("two")

    run(home())


def test_the_loop_that_opened_a_store_may_be_busy_or_paused(url: str) -> None:
    paused = asyncio.new_event_loop()
    try:
        store = paused.run_until_complete(opened(url))

        async def there() -> None:
            await store.sessions.create("one")
            await store.close()

        elsewhere(there).result(TIMEOUT_S)
    finally:
        paused.run_until_complete(paused.shutdown_asyncgens())
        paused.run_until_complete(paused.shutdown_default_executor())
        paused.close()


def test_a_session_without_a_queue_has_no_work_on_any_loop(clean_postgres_url: str) -> None:
    async def home() -> None:
        async with holdfast.open(clean_postgres_url) as store:
            assert await store.queue.claim("never", owner_id="w1") is None
            assert await asyncio.wrap_future(elsewhere(lambda: store.queue.claim("never", owner_id="w1"))) is None

    run(home())


def test_a_second_loop_starts_no_thread_before_it_is_used(clean_postgres_url: str) -> None:
    before = set(threading.enumerate())  # other cases may share connections on a loop of their own

    def new_loops() -> int:
        return sum(one.name == "holdfast-postgres-loop" for one in set(threading.enumerate()) - before)

    async def home() -> None:
        async with holdfast.open(clean_postgres_url) as store:
            await store.sessions.create("one")
            assert new_loops() == 0
            await asyncio.wrap_future(elsewhere(lambda: store.sessions.create("two")))
            assert new_loops() == 1
        assert new_loops() == 0

    run(home())


def test_a_pool_of_the_caller_serves_other_loops_while_its_own_runs(clean_postgres_url: str) -> None:
    import asyncpg

    async def home() -> None:
        async with asyncpg.create_pool(clean_postgres_url) as pool, holdfast.open(pool) as store:
            await asyncio.wrap_future(elsewhere(lambda: store.sessions.create("one")))
            assert await store.sessions.open("one") is not None

    run(home())


@pytest.mark.parametrize("at_home", [True, False])
@pytest.mark.parametrize("call", ["write", "transaction", "close"])
def test_a_block_does_not_wait_for_itself_on_any_loop(url: str, at_home: bool, call: str) -> None:
    """The calls are made on the loop of the block, and on one in a thread that the block starts."""

    async def around(store: holdfast.Store) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "write": lambda: store.sessions.create("around"),
            "transaction": lambda: store.transaction().__aenter__(),
            "close": store.close,
        }
        with pytest.raises(holdfast.InvalidRequest, match="would wait for the end of the transaction"):
            await calls[call]()

    async def block(store: holdfast.Store) -> None:
        async with store.transaction(timeout_ms=TIMEOUT_S * 2_000) as tx:
            await tx.sessions.create("one")
            await around(store)
            await asyncio.to_thread(run, around(store))
            await tx.sessions.create("two")

    async def main() -> None:
        async with await opened(url) as store:
            await (block(store) if at_home else asyncio.to_thread(run, block(store)))
            assert [entry.session_id for entry in await store.sessions.list()] == ["one", "two"]

    run(main())
