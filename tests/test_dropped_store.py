"""A store that was never closed warns when it is collected, and ends its thread and closes its file."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import holdfast

TIMEOUT_S = 30


def writers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast-sqlite-")}


def drop(holder: list[Any]) -> None:
    """Drop the last reference."""
    holder.clear()
    gc.collect()


def opened(url: str) -> tuple[list[Any], threading.Thread]:
    """Return a list with the only reference to a store that has written and waited, and its watching thread."""
    before = writers()
    store = holdfast.open_blocking(url)
    store.sessions.create("chat").commit(holdfast.Commit(config={"kept": True}))
    with pytest.raises(holdfast.WaitTimeout):
        store.queue.wait("chat", timeout_ms=1)
    (thread,) = writers() - before
    return [store], thread


def test_a_dropped_store_warns_and_its_thread_ends(tmp_path: Path) -> None:
    store, thread = opened(str(tmp_path / "state.db"))
    with pytest.warns(ResourceWarning, match=r"state\.db was never closed"):
        drop(store)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_a_dropped_store_in_memory_warns_and_its_thread_ends() -> None:
    before = writers()

    async def written() -> list[Any]:
        store = await holdfast.open("sqlite::memory:")
        await store.sessions.create("chat")
        return [store]

    store = asyncio.run(written())
    (thread,) = writers() - before
    with pytest.warns(ResourceWarning, match="was never closed"):
        drop(store)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_writes_that_a_dropped_store_acknowledged_are_stored(tmp_path: Path) -> None:
    store, thread = opened(str(tmp_path / "state.db"))
    with pytest.warns(ResourceWarning):
        drop(store)
    thread.join(TIMEOUT_S)
    with holdfast.open_blocking(tmp_path / "state.db") as again:
        view = again.sessions.handle("chat").load()
        assert view is not None
        assert view.config == {"kept": True}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_dropped_store_lets_its_file_go(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    store, thread = opened(path)
    assert store[0].sessions.handle("chat").load() is not None
    assert held(path)
    with pytest.warns(ResourceWarning):
        drop(store)
    thread.join(TIMEOUT_S)
    del thread
    gc.collect()
    assert held(path) == []


def held(path: str) -> list[str]:
    """Return the files of a database that this process has open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.startswith(path)]


def test_a_store_that_was_closed_goes_without_a_word(tmp_path: Path) -> None:
    store, thread = opened(str(tmp_path / "state.db"))
    store[0].close()
    assert not thread.is_alive()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop(store)


def test_a_session_handle_keeps_its_store_alive(tmp_path: Path) -> None:
    store, thread = opened(str(tmp_path / "state.db"))
    handle = [store[0].sessions.handle("chat")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop(store)
        assert handle[0].commit(holdfast.Commit()).revision == 2
    with pytest.warns(ResourceWarning):
        drop(handle)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
