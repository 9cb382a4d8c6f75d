"""An alarm that raises `TimeoutError`, an `OSError`, is not mistaken for a file error, and prints nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.backends.sqlite import commit_watcher, writer
from holdfast.interrupts import start_thread

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

WAIT_S = 120
ENDED_S = 10


def alarm(*_: object) -> None:
    raise TimeoutError("the caller's deadline")


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, alarm)
    yield
    signal.signal(signal.SIGUSR2, before)


def ring_in_main(right: Callable[..., Any]) -> Callable[..., Any]:
    """Send the signal to the main thread, once."""
    signals = [signal.SIGUSR2]

    def rung(*arguments: Any, **named: Any) -> Any:
        if signals:
            signal.pthread_kill(cast("int", threading.main_thread().ident), signals.pop())
        return right(*arguments, **named)

    return rung


CALLS: dict[str, tuple[str, Callable[[holdfast.BlockingStore, str], object]]] = {
    "put": ("fsync", lambda store, _: store.sessions.handle("chat").attachments.put(b"new")),
    "put again": ("open", lambda store, _: store.sessions.handle("chat").attachments.put(b"there")),
    "get": ("fstat", lambda store, name: store.sessions.handle("chat").attachments.get(name)),
    "sweep": ("fsync", lambda store, _: store.attachments.sweep(older_than_ms=0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_alarm_in_work_on_a_folder_reaches_its_caller(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_call, call = CALLS[name]
    with holdfast.open_blocking("memory:", attachments=tmp_path) as store:
        there = store.sessions.create("chat").attachments.put(b"there")
        with monkeypatch.context() as patch:
            patch.setattr(os, system_call, ring_in_main(getattr(os, system_call)))
            with pytest.raises(TimeoutError, match="the caller's deadline"):
                call(store, there.id)
        call(store, store.sessions.handle("chat").attachments.put(b"there").id)
        assert store.maintenance.verify().findings == ()


class ByteStore:
    """An application's byte store that a handler interrupts or that fails by itself."""

    def __init__(self) -> None:
        self.interrupted = True
        self.failed = False

    def put(self, space: str, name: str, data: bytes) -> None:
        if self.interrupted:
            signal.raise_signal(signal.SIGUSR2)
        if self.failed:
            raise TimeoutError("the place is away")

    def get(self, space: str, name: str) -> bytes | None:
        return None

    def delete(self, space: str, name: str) -> int | None:
        return None


def test_an_alarm_in_a_place_of_the_application_differs_from_its_failure() -> None:
    byte_store = ByteStore()
    with holdfast.open_blocking("memory:", attachments=byte_store) as store:
        session = store.sessions.create("chat")
        with pytest.raises(TimeoutError, match="the caller's deadline"):
            session.attachments.put(b"x")
        byte_store.interrupted, byte_store.failed = False, True
        with pytest.raises(holdfast.Unavailable, match="failed with TimeoutError"):
            session.attachments.put(b"x")


class Watching:
    """An observer that a handler interrupts, or that fails by itself."""

    def __init__(self, *, interrupted: bool) -> None:
        self.interrupted = interrupted

    def begin(self, operation: str, system: str, *, steps: bool) -> None:
        if self.interrupted:
            signal.raise_signal(signal.SIGUSR2)
        raise TimeoutError("nobody listens")


def test_an_alarm_in_an_observer_differs_from_its_failure() -> None:
    watching = Watching(interrupted=False)
    with holdfast.open_blocking("memory:", observe=cast("Any", watching)) as store:
        store.sessions.create("chat")
        watching.interrupted = True
        with pytest.raises(TimeoutError, match="the caller's deadline"):
            store.sessions.create("more")
        watching.interrupted = False


NOISE = """
import random, signal, sys
import holdfast

class Stop(BaseException):
    pass

armed = False
interrupts = 0
rng = random.Random(7)

def ring(*_):
    global interrupts
    if armed:
        interrupts += 1
        raise rng.choice((Stop, TimeoutError))

signal.signal(signal.SIGALRM, ring)
options = None if sys.argv[1] == "memory:" else holdfast.SqliteOptions(synchronous="off")
store = holdfast.open_blocking(sys.argv[1], options=options)
session = store.sessions.create("chat")

def wait():
    try:
        store.queue.wait("chat", timeout_ms=1)
    except holdfast.WaitTimeout:
        pass

calls = (session.load, wait, store.sessions.list, lambda: session.commit(holdfast.Commit()))
while interrupts < 4_000:
    try:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, rng.choice((0.00005, 0.0003, 0.002)) * rng.random() + 1e-6)
            rng.choice(calls)()
        finally:
            armed = False
    except (Stop, TimeoutError):
        pass
session.commit(holdfast.Commit())
store.close()
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_interrupts_write_nothing_to_standard_error(tmp_path: Path, kind: str) -> None:
    url = "memory:" if kind == "memory" else str(tmp_path / "a.db")
    command = [sys.executable, "-W", "always", "-c", NOISE, url]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_thread_whose_start_was_interrupted_is_not_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        start_thread(thread)
        started.append(thread)
        signal.raise_signal(signal.SIGUSR2)

    monkeypatch.setattr(commit_watcher, "start_thread", start)
    monkeypatch.setattr(writer, "start_thread", start)
    with holdfast.open_blocking(tmp_path / "a.db") as store:
        backend: Any = store._backend
        for _ in range(5):
            for call in (lambda: backend.watch("topic"), lambda: backend._writer._accept(writer.Job(nothing, 0.0))):
                with suppress(TimeoutError):
                    call()
        deadline_s = time.monotonic() + ENDED_S
        while sum(thread.is_alive() for thread in started) > 2 and time.monotonic() < deadline_s:
            for thread in started:
                thread.join(0.01)
        assert sorted(thread.name for thread in started if thread.is_alive()) == [
            "holdfast-sqlite-commit-watcher",
            "holdfast-sqlite-writer",
        ]
    assert not any(thread.is_alive() for thread in started)


async def nothing(_: object) -> None:
    return None
