"""A watcher of a topic is woken by its next change, in this process or another."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.sqlite import commit_watcher
from holdfast.errors import Conflict, StoreClosed
from holdfast.wait import AsyncWaiting

WAIT_MS = 60_000


def tell(topic: str) -> Callable[[Any], Any]:
    async def operation(transaction: Any) -> None:
        await transaction.drop_lease("process", "p")
        transaction.notify(topic)

    return operation


def store_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-sqlite-")]


OTHER_PROCESS = """
import sys
from holdfast import rows as r
from holdfast.backends.sqlite import SqliteBackend, SqliteOptions
from holdfast.wait import BlockingWaiting

class Clock:
    def now_ms(self):
        return 1

async def put(transaction):
    before = await transaction.find_lease("process", "p")
    # Another fence each time: SQLite commits nothing when a page does not change.
    await transaction.save_lease(r.LeaseRow("process", "p", None, None, before.fence + 1 if before else 1, 1, 1))

store = SqliteBackend.open(sys.argv[1], SqliteOptions(), Clock(), BlockingWaiting())
print("ready", flush=True)
for _ in sys.stdin:
    store.drive(store.write(put))
    print("done", flush=True)
"""


class OtherProcess:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        assert self.stdout.readline() == "ready\n"

    def commit(self) -> None:
        self.stdin.write("go\n")
        self.stdin.flush()
        assert self.stdout.readline() == "done\n"


@contextmanager
def other_process(path: Path) -> Iterator[OtherProcess]:
    command = [sys.executable, "-c", OTHER_PROCESS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield OtherProcess(process)


def test_a_commit_wakes_the_watchers_of_its_topics_and_no_others(store: Any) -> None:
    mine, yours = store.backend.watch("mine"), store.backend.watch("yours")
    store.write(tell("mine"))
    assert store.backend.drive(store.backend.pause(mine, WAIT_MS)) is True
    # Each of these looks for commits of other processes, and must not mistake our own for one.
    for _ in range(5):
        store.write(tell("mine"))
    assert not yours.done()
    assert store.backend.drive(store.backend.pause(yours, 0)) is False


def test_a_refused_operation_wakes_no_waiter(store: Any) -> None:
    async def refused(transaction: Any) -> None:
        transaction.notify("topic")
        raise Conflict("no")

    change = store.backend.watch("topic")
    with pytest.raises(Conflict):
        store.write(refused)
    store.write(tell("another"))
    assert not change.done()
    change.cancel()


def test_a_commit_of_another_process_wakes_a_waiter(store: Any, path: Path) -> None:
    with other_process(path) as other:
        for _ in range(3):
            change = store.backend.watch("topic")
            other.commit()
            assert store.backend.drive(store.backend.pause(change, WAIT_MS)) is True


def test_a_commit_of_another_process_is_noticed_by_one_that_waits_for_the_lock(open_store: Any, path: Path) -> None:
    store = open_store()
    with other_process(path) as other:
        # Locked by another connection, so that the writer waits.
        third = open_store()
        third.connection.execute("BEGIN IMMEDIATE")
        future = store.submit(tell("x"))
        change = store.backend.watch("topic")
        third.connection.execute("COMMIT")
        other.commit()
        assert store.backend.drive(store.backend.pause(change, WAIT_MS)) is True
        future.result(60)


def test_nothing_runs_until_a_caller_writes_or_watches(open_store: Any) -> None:
    assert store_threads() == []
    store = open_store()
    store.ask("fence_floor")
    assert store_threads() == []
    change = store.backend.watch("topic")
    assert len(store_threads()) == 1
    change.cancel()
    store.close()
    assert store_threads() == []


class RecordingSource(commit_watcher.FixedInterval):
    """Reports when the thread sleeps without a timeout, and when it sleeps between two polls."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep, self.looking = threading.Event(), threading.Event()

    def wait(self, timeout_s: float | None) -> bool:
        (self.asleep if timeout_s is None else self.looking).set()
        return super().wait(timeout_s)


def test_the_thread_polls_only_while_there_is_a_watcher(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RecordingSource()
    monkeypatch.setattr(commit_watcher, "wake_source", lambda _: source)
    store.write(tell("x"))
    assert store_threads() == []
    for _ in range(3):
        change = store.backend.watch("topic")
        assert source.looking.wait(60)
        source.asleep.clear()
        change.cancel()
        assert source.asleep.wait(60)
        source.looking.clear()


def test_without_events_polling_at_a_steady_pace_finds_every_commit(
    store: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_watcher, "wake_source", lambda _: commit_watcher.FixedInterval())
    with other_process(path) as other:
        for _ in range(3):
            change = store.backend.watch("topic")
            other.commit()
            assert store.backend.drive(store.backend.pause(change, WAIT_MS)) is True


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@on_linux
def test_a_file_system_that_tells_nothing_delays_a_wake_and_loses_none(
    store: Any, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "nobody-writes-here"
    silent.touch()
    monkeypatch.setattr(commit_watcher, "wake_source", lambda _: commit_watcher.FileWatch(str(silent)))
    with other_process(path) as other:
        for _ in range(3):
            change = store.backend.watch("topic")
            other.commit()
            assert store.backend.drive(store.backend.pause(change, WAIT_MS)) is True


@on_linux
def test_writing_the_file_is_an_event_and_silence_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    source = commit_watcher.wake_source(str(log))
    try:
        assert isinstance(source, commit_watcher.FileWatch)
        assert source.wait(0) is False
        log.write_bytes(b"x" * 10_000)
        assert source.wait(60) is True
        assert source.wait(0) is False
        source.wake()
        assert source.wait(None) is True
    finally:
        source.close()


@on_linux
def test_looks_come_quickly_after_an_event_and_ever_more_slowly_without(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    source = commit_watcher.wake_source(str(log))
    source.close()
    pauses_s = [source.next_pause_s(0.1, event=True, found=False)]
    while pauses_s[-1] < 0.1:
        pauses_s.append(source.next_pause_s(pauses_s[-1], event=False, found=False))
    assert pauses_s[0] == 0.0005
    assert all(later <= 1.5 * earlier for earlier, later in itertools.pairwise(pauses_s))
    assert len(pauses_s) == 15
    assert source.next_pause_s(0.1, event=False, found=False) == 0.1


@pytest.fixture
def log_watch(tmp_path: Path) -> Iterator[commit_watcher.FileWatch]:
    (tmp_path / "log").touch()
    source = commit_watcher.FileWatch(str(tmp_path / "log"))
    yield source
    source.close()


@on_linux
def test_a_commit_that_was_announced_ends_the_quick_looks_and_makes_idle_ones_rarer(log_watch: Any) -> None:
    for idle_s in (0.2, 0.4, 0.8, 1.0, 1.0):
        assert log_watch.next_pause_s(idle_s, event=True, found=False) == 0.0005
        assert log_watch.next_pause_s(0.0005, event=False, found=False) == 0.00075
        assert log_watch.next_pause_s(0.00075, event=False, found=True) == idle_s
        assert log_watch.next_pause_s(idle_s, event=False, found=False) == idle_s


@on_linux
def test_events_right_before_a_commit_is_found_may_be_of_the_next_one(log_watch: Any) -> None:
    assert log_watch.next_pause_s(0.1, event=True, found=False) == 0.0005
    assert log_watch.next_pause_s(0.0005, event=False, found=True) == 0.00075
    assert log_watch.next_pause_s(0.00075, event=False, found=True) == 0.4


@on_linux
def test_a_commit_without_an_event_makes_the_looks_frequent_for_good(log_watch: Any) -> None:
    for _ in range(3):
        log_watch.next_pause_s(0.1, event=True, found=False)
        log_watch.next_pause_s(0.0005, event=False, found=False)
        log_watch.next_pause_s(0.0005, event=False, found=True)
    assert log_watch.next_pause_s(0.8, event=False, found=True) == 0.1
    # An event that comes only after the commit was found announces it, too: it was on its way.
    assert log_watch.next_pause_s(0.1, event=True, found=True) == 0.0005
    log_watch.next_pause_s(0.0005, event=False, found=False)
    assert log_watch.next_pause_s(0.0005, event=False, found=True) == 0.1


@on_linux
def test_an_idle_waiter_looks_a_few_times_for_each_commit_and_once_a_second_otherwise(
    store: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float | None] = []
    is_idle = threading.Event()
    longest_s = commit_watcher.SAFETY_LOOK_S

    class Counting(commit_watcher.FileWatch):
        def wait(self, timeout_s: float | None) -> bool:
            pauses_s.append(timeout_s)
            if timeout_s is not None and timeout_s >= longest_s:
                is_idle.set()
            return super().wait(timeout_s)

    monkeypatch.setattr(commit_watcher, "wake_source", Counting)
    with other_process(path) as other:

        def commit_and_wait_until_idle() -> None:
            change = store.backend.watch("topic")
            del pauses_s[:]
            is_idle.clear()
            other.commit()
            assert store.backend.drive(store.backend.pause(change, WAIT_MS)) is True
            unused = store.backend.watch("another")  # keeps the watcher polling
            assert is_idle.wait(60)
            unused.cancel()

        # Each commit doubles the interval between polls, up to the longest one.
        for _ in range(4):
            longest_s = min(longest_s * 2, commit_watcher.LONGEST_LOOK_S)
            commit_and_wait_until_idle()
        for _ in range(3):
            commit_and_wait_until_idle()
            assert len(pauses_s) <= 25


def test_a_file_that_cannot_be_watched_is_looked_at_steadily(tmp_path: Path) -> None:
    source = commit_watcher.wake_source(str(tmp_path / "missing"))
    assert isinstance(source, commit_watcher.FixedInterval)
    assert [source.next_pause_s(pause_s, event=False, found=False) for pause_s in (0.0005, 0.1)] == [0.003, 0.003]


def test_a_store_in_memory_never_looks_around(open_store: Any) -> None:
    store = open_store(":memory:")
    change = store.backend.watch("topic")
    assert store_threads() == []
    store.write(tell("topic"))
    assert change.done()


def test_a_clock_that_is_moved_by_hand_wakes_all_waiters(store: Any, clock: Any) -> None:
    change = store.backend.watch("topic")
    clock.advance(1)
    assert change.done()


def test_a_watch_that_timed_out_was_cancelled_or_came_true_is_forgotten(store: Any) -> None:
    for _ in range(3):
        assert store.backend.drive(store.backend.pause(store.backend.watch("a"), 1)) is False
        store.backend.watch("b").cancel()
        store.backend.watch("c")
        store.write(tell("c"))
    assert not store.backend._signals.watched


def test_a_cancelled_task_leaves_no_watch_behind(open_store: Any) -> None:
    async def scenario() -> bool:
        store = open_store(waiting=AsyncWaiting())
        task = asyncio.create_task(store.backend.pause(store.backend.watch("topic"), WAIT_MS))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        watched = store.backend._signals.watched
        await store.backend.close()
        return bool(watched)

    assert asyncio.run(scenario()) is False


def test_tasks_wait_side_by_side(open_store: Any) -> None:
    async def scenario() -> list[bool]:
        store = open_store(waiting=AsyncWaiting())
        waits = [store.backend.pause(store.backend.watch(f"topic {i % 10}"), WAIT_MS) for i in range(100)]
        tasks = [asyncio.create_task(wait) for wait in waits]
        await asyncio.gather(*(store.backend.write(tell(f"topic {i}")) for i in range(10)))
        woken = await asyncio.gather(*tasks)
        assert await store.backend.offload(lambda: 7) == 7
        await store.backend.close()
        return woken

    assert asyncio.run(scenario()) == [True] * 100


def test_closing_wakes_the_waiters(open_store: Any) -> None:
    store = open_store()
    change = store.backend.watch("topic")
    store.close()
    with pytest.raises(StoreClosed):
        change.result(0)
