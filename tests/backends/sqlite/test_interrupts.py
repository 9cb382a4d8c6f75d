"""An exception of a signal handler, at whatever moment of a read, leaves a store that reads, writes and closes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import Unavailable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


@pytest.fixture
def handled() -> Any:
    """Set the handler of a signal that nobody else uses."""
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, lambda *_: handler())
    signal.signal(signal.SIGUSR2, before)


async def nothing(_: Any) -> None:
    return None


async def ring(_: Any) -> None:
    signal.raise_signal(signal.SIGUSR2)


def test_a_read_that_was_left_in_its_transaction_is_ended_by_the_next(store: Any) -> None:
    store.read(nothing)
    [reader] = store.backend._readers._main
    reader.link.connection.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
    assert store.read(nothing) is None
    assert not reader.link.connection.in_transaction


def test_a_connection_in_the_wrong_state_is_not_damage(store: Any) -> None:
    store.connection.execute("BEGIN")
    for statement in ("begin_read", "release_member"):
        with pytest.raises(Unavailable, match="not in the expected state"):
            store.backend._link.control(statement)


def test_a_handler_that_raises_ends_its_read_and_no_other(store: Any, handled: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    handled(stop)
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            store.read(ring)
    assert len(store.backend._readers._main) == 1
    assert store.read(nothing) is None


def test_a_handler_reads_within_a_read_and_closes_the_store_after_it(store: Any, handled: Any) -> None:
    answers: list[object] = []

    def read_and_close() -> None:
        answers.append(store.read(nothing))
        store.close()
        with pytest.raises(holdfast.StoreClosed):
            store.read(nothing)

    handled(read_and_close)

    async def outer(transaction: Any) -> int:
        await ring(transaction)
        return len(await transaction.list_artifacts(after=("", ""), limit=5))

    assert store.read(outer) == 0
    assert answers == [None]
    store.close()


def test_a_store_closes_after_a_close_that_was_interrupted(tmp_path: Path, handled: Any) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    handled(stop)
    store = holdfast.open_blocking(tmp_path / "a.db")
    backend: Any = store._backend
    right = backend._waiting.settle

    async def interrupted(change: Any) -> None:
        backend._waiting.settle = right
        await ring(None)

    backend._waiting.settle = interrupted
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    assert not (tmp_path / "a.db-wal").exists()
