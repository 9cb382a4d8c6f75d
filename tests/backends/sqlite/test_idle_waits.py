"""Waiters for any work sleep on while other processes commit what does not concern them, such as heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.sqlite import writer as writer_module
from holdfast.backends.sqlite.commit_watcher import CommitWatcher
from holdfast.backends.sqlite.readers import Readers
from holdfast.backends.sqlite.writer import Writer

COMMITS = 5
WAIT_MS = 20_000


def enqueue(other: holdfast.BlockingStore) -> None:
    other.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))


def start(other: holdfast.BlockingStore) -> None:
    other.processes.start("research")


def emit(other: holdfast.BlockingStore) -> None:
    target = holdfast.processes.Run("report")
    other.triggers.subscribe(holdfast.triggers.SubscriptionDraft(source_type="cron", source_key="daily", target=target))
    other.triggers.emit("cron", "daily", idempotency_key="2026-11-15")


WAITS: dict[str, tuple[Callable[[holdfast.BlockingStore], None], Callable[[holdfast.BlockingStore], None]]] = {
    "work": (lambda store: store.queue.wait_next(timeout_ms=WAIT_MS), enqueue),
    "runs": (lambda store: store.processes.wait_next(timeout_ms=WAIT_MS), start),
    "deliveries": (lambda store: store.triggers.wait_undelivered(timeout_ms=WAIT_MS), emit),
}


def beat(other: holdfast.BlockingStore, number: int) -> None:
    """Report a worker, as an idle one does."""
    worker = holdfast.workers.WorkerInfo("worker-1", host="here", pid=number)
    other.workers.heartbeat(worker, ttl_ms=30_000)


class Counts:
    """Reads of waiters, and the answers of those that were asked if a commit concerns them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.answers: list[bool] = []
        self.asked = threading.Condition()
        read, ask = Readers.run, Writer._is_concerned

        def reading(readers: Readers, operation: Any) -> Any:
            self.reads += 1
            return read(readers, operation)

        def asking(writer: Writer, change: Future[None]) -> bool:
            answer = ask(writer, change)
            with self.asked:
                self.answers.append(answer)
                self.asked.notify_all()
            return answer

        monkeypatch.setattr(Readers, "run", reading)
        monkeypatch.setattr(Writer, "_is_concerned", asking)

    def wait_for(self, answers: int, timeout_s: float) -> bool:
        with self.asked:
            return self.asked.wait_for(lambda: len(self.answers) >= answers, timeout_s)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[holdfast.BlockingStore, holdfast.BlockingStore]]:
    with holdfast.open_blocking(tmp_path / "a.db") as one, holdfast.open_blocking(tmp_path / "a.db") as other:
        yield one, other


@pytest.mark.parametrize("kind", WAITS)
def test_heartbeats_of_others_cost_an_idle_waiter_no_read_and_its_work_wakes_it(
    kind: str, stores: tuple[holdfast.BlockingStore, holdfast.BlockingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, other = stores
    wait, bring = WAITS[kind]
    counts = Counts(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, waiter)
        number = 0
        # The first ones may come before the wait sleeps, and wake it.
        while counts.answers[-1:] != [False]:
            number += 1
            assert number < 20, "every heartbeat concerns the waiter"
            beat(other, number)
            counts.wait_for(number, 1)
        reads = counts.reads
        for _ in range(COMMITS):
            number += 1
            asked = len(counts.answers)
            beat(other, number)
            assert counts.wait_for(asked + 1, 10)
        assert counts.reads == reads
        assert set(counts.answers[-COMMITS:]) == {False}
        assert not waiting.done()
        bring(other)
        waiting.result(60)


@pytest.mark.parametrize("kind", WAITS)
def test_own_writes_beside_those_of_others_cost_an_idle_waiter_no_read(
    kind: str, stores: tuple[holdfast.BlockingStore, holdfast.BlockingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommitWatcher, "wake", lambda _: None)  # only the writer looks for commits of others
    monkeypatch.setattr(writer_module, "LOOK_S", 0.0)
    waiter, other = stores
    wait, bring = WAITS[kind]
    counts = Counts(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait, waiter)
        number = 0
        while counts.answers[-1:] != [False]:
            number += 1
            assert number < 1_000, "every heartbeat concerns the waiter"
            beat(other, number)
            beat(waiter, number)
            counts.wait_for(number, 0.05)
        reads = counts.reads
        for _ in range(COMMITS):
            number += 1
            asked = len(counts.answers)
            beat(other, number)
            beat(waiter, number)
            assert counts.wait_for(asked + 1, 10)
        assert counts.reads == reads
        assert not waiting.done()
        bring(other)
        beat(waiter, number + 1)
        waiting.result(60)
