"""Closing a blocking store on PostgreSQL closes all of it, also while threads work in it or are interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast

WAIT_S = 60


def test_a_call_that_ends_while_another_thread_closes_leaves_it_to_finish(clean_postgres_url: str) -> None:
    store = holdfast.open_blocking(clean_postgres_url)
    backend: Any = store._backend
    reading, go_on = threading.Event(), threading.Event()

    async def held(_: Any) -> str:
        reading.set()
        await asyncio.get_running_loop().run_in_executor(None, go_on.wait, WAIT_S)
        return "read"

    with ThreadPoolExecutor(2) as threads:
        read = threads.submit(lambda: backend.drive(backend.read(held)))
        assert reading.wait(WAIT_S)
        closed = threads.submit(store.close)
        while not backend._closed:
            pass
        go_on.set()
        assert read.result(WAIT_S) == "read"
        closed.result(WAIT_S)
    assert backend._connections.size == 0
    with pytest.raises(holdfast.errors.StoreClosed):
        store.sessions.create("chat")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_close_that_was_interrupted_continues_and_can_be_repeated(clean_postgres_url: str) -> None:
    store = holdfast.open_blocking(clean_postgres_url)
    backend: Any = store._backend
    store.sessions.create("chat")
    right = backend._close_connections
    go_on = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    async def held() -> None:
        signal.pthread_kill(main, signal.SIGUSR2)
        await asyncio.get_running_loop().run_in_executor(None, go_on.wait, WAIT_S)
        await right()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR2, stop)
    try:
        backend._close_connections = held
        with pytest.raises(KeyboardInterrupt):
            store.close()
    finally:
        signal.signal(signal.SIGUSR2, before)
    go_on.set()
    store.close()
    assert backend._connections.size == 0
    assert backend._thread._loop.is_closed()
