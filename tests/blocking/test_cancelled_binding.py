"""An unbound handle belongs to the first session that it really committed, also if that task was cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

import holdfast

TIMEOUT_S = 30


class GatedClock:
    """A clock that can block its readers: the writer reads it once in each operation that it has begun."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def now_ms(self) -> int:
        self.reached.set()
        assert self.open.wait(TIMEOUT_S)
        return 1_000

    async def hold(self, task: asyncio.Task[object]) -> None:
        """Return once the writer is inside an operation of the task."""
        await asyncio.get_running_loop().run_in_executor(None, self.reached.wait, TIMEOUT_S)
        assert self.reached.is_set()
        assert not task.done()

    def close(self) -> None:
        self.reached.clear()
        self.open.clear()


def turn(session_id: str) -> holdfast.Commit:
    return holdfast.Commit(session_id=session_id)


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(tmp_path: Path, scenario: Callable[[holdfast.Store, GatedClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = GatedClock()
        async with holdfast.open(tmp_path / "state.db", clock=clock) as store:
            try:
                await scenario(store, clock)
            finally:
                clock.open.set()

    asyncio.run(main())


def test_a_commit_that_was_cancelled_while_it_ran_binds_its_handle(tmp_path: Path) -> None:
    async def scenario(store: holdfast.Store, clock: GatedClock) -> None:
        handle = store.sessions.unbound()
        clock.close()
        task: asyncio.Task[object] = asyncio.create_task(handle.commit(turn("first")))
        await clock.hold(task)
        await cancelled(task)
        clock.open.set()
        # Submitted after it, and so done after it.
        await store.sessions.create("later")
        with pytest.raises(holdfast.errors.SessionBindingConflict):
            await handle.commit(turn("second"))
        assert await store.sessions.handle("second").load() is None
        assert (await handle.commit(turn("first"))).revision == 2

    run(tmp_path, scenario)


def test_a_commit_that_comes_while_a_cancelled_one_still_runs_is_held_to_its_session(tmp_path: Path) -> None:
    async def scenario(store: holdfast.Store, clock: GatedClock) -> None:
        handle = store.sessions.unbound()
        clock.close()
        task: asyncio.Task[object] = asyncio.create_task(handle.commit(turn("first")))
        await clock.hold(task)
        await cancelled(task)
        second = asyncio.create_task(handle.commit(turn("second")))
        await asyncio.sleep(0)
        clock.open.set()
        with pytest.raises(holdfast.errors.SessionBindingConflict):
            await second
        assert await store.sessions.handle("second").load() is None
        assert (await handle.commit(turn("first"))).revision == 2

    run(tmp_path, scenario)


def test_a_commit_that_was_cancelled_before_it_ran_binds_nothing(tmp_path: Path) -> None:
    async def scenario(store: holdfast.Store, clock: GatedClock) -> None:
        handle = store.sessions.unbound()
        clock.close()
        running: asyncio.Task[object] = asyncio.create_task(store.sessions.create("other"))
        await clock.hold(running)
        task: asyncio.Task[object] = asyncio.create_task(handle.commit(turn("first")))
        await asyncio.sleep(0)
        await cancelled(task)
        clock.open.set()
        await running
        assert (await handle.commit(turn("second"))).revision == 1
        assert await store.sessions.handle("first").load() is None

    run(tmp_path, scenario)


@pytest.mark.parametrize("url", ["memory:", "sqlite::memory:"])
def test_a_refused_commit_binds_nothing(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        handle = store.sessions.unbound()
        with pytest.raises(holdfast.HeadConflict):
            handle.commit(holdfast.Commit(session_id="first", expected_revision=7))
        assert handle.commit(turn("second")).revision == 1
        with pytest.raises(holdfast.errors.SessionBindingConflict):
            handle.commit(turn("first"))


def test_a_commit_that_did_not_become_durable_binds_nothing(tmp_path: Path) -> None:
    def full() -> bool:
        raise apsw.FullError("no room")

    with holdfast.open_blocking(tmp_path / "state.db") as store:
        handle = store.sessions.unbound()
        connection = cast("Any", store)._backend._runner.connection
        connection.set_commit_hook(full)
        with pytest.raises(holdfast.Unavailable) as info:
            handle.commit(turn("first"))
        assert info.value.outcome == "not_applied"
        connection.set_commit_hook(None)
        assert handle.commit(turn("second")).revision == 1
        assert store.sessions.handle("first").load() is None
