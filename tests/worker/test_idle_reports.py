"""An idle worker reports itself seldom, looks for neighbours that may die whenever it does, and for unknown kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.worker import claim_renewal, unhandled
from holdfast.worker.claim_renewal import ClaimRenewer, Held
from holdfast.worker.handlers import Handlers
from holdfast.worker.running import Runner
from holdfast.worker.unhandled import UnhandledKinds

LEASE_MS = 30_000
STEP_S = 0.5


class Counted(ClaimRenewer):
    """Moves by hand through the time of its thread, and counts."""

    now_s = 1000.0

    def __init__(self, store: holdfast.BlockingStore) -> None:
        super().__init__(store, "w1", ["job"], LEASE_MS)
        self.reports: list[float] = []
        self.looks: list[float] = []

    def _renewed(self, *given: Any) -> holdfast.workers.Heartbeat:
        self.reports.append(self.now_s - 1000)
        return super()._renewed(*given)

    def _found_neighbours(self) -> list[holdfast.workers.WorkerInfo]:
        self.looks.append(self.now_s - 1000)
        return super()._found_neighbours()

    def live_until(self, at_s: float) -> None:
        while self.now_s < 1000 + at_s:
            self._do_what_is_due()
            self.now_s += STEP_S


@pytest.fixture
def renewer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    with holdfast.open_blocking("memory:") as store:
        made = Counted(store)
        monkeypatch.setattr(claim_renewal, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=lambda _: None))
        yield made


def test_an_idle_worker_reports_and_looks_for_neighbours_three_times_a_minute(renewer: Counted) -> None:
    renewer.live_until(60)
    assert renewer.reports == [0, 20, 40]
    assert renewer.looks == [0, 20, 40]


def test_a_worker_that_holds_a_claim_reports_as_often_as_it_renews(renewer: Counted) -> None:
    renewer.live_until(25)
    store = renewer._store
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1], kind="job"))
    claim = store.queue.claim_next(owner_id="w1", kinds=["job"], ttl_ms=LEASE_MS)
    assert claim is not None
    held = Held(claim, LEASE_MS, renewer.now_s, lambda: None)
    renewer.hold(held)
    renewer.live_until(55)
    assert renewer.reports == [0, 20, 30, 40, 50]
    renewer.drop(held)
    renewer.live_until(90)
    # The first after the call shows that it has ended.
    assert renewer.reports == renewer.looks == [0, 20, 30, 40, 50, 60, 80]


def test_a_worker_looks_for_overdue_claims_ten_times_a_life_and_never_while_it_is_idle(
    renewer: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []
    looks: list[int] = []

    async def main() -> None:
        async with holdfast.open("memory:") as store:
            runner = Runner(
                store, Handlers(), renewer, "w1", LEASE_MS, stopping=asyncio.Event(), tally=holdfast.worker.Tally()
            )
            real_sleep, ended = asyncio.sleep, asyncio.Event()

            async def pause(seconds: float) -> None:
                pauses_s.append(seconds)
                if len(pauses_s) == 3:
                    ended.set()
                await real_sleep(0)

            async def call() -> None:
                await ended.wait()

            monkeypatch.setattr(asyncio, "sleep", pause)
            monkeypatch.setattr(renewer, "give_up_overdue", lambda: looks.append(len(pauses_s)))
            looking = asyncio.create_task(runner.look_after_claims())
            for _ in range(20):
                await real_sleep(0)
            assert pauses_s == []
            runner.start(call())
            for _ in range(20):
                await real_sleep(0)
            assert not runner.running
            ended_after = len(pauses_s)
            for _ in range(20):
                await real_sleep(0)
            assert len(pauses_s) == ended_after
            looking.cancel()

    asyncio.run(main())
    assert set(pauses_s) == {3.0}
    assert looks == [*range(1, len(pauses_s) + 1)]


def test_looks_for_unknown_kinds_become_seldom_while_they_find_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []

    async def main() -> None:
        async with holdfast.open("memory:") as store:

            async def pause(seconds: float) -> None:
                pauses_s.append(seconds)
                if len(pauses_s) == 5:
                    await store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1], kind="fax"))
                if len(pauses_s) == 7:
                    raise asyncio.CancelledError

            monkeypatch.setattr(unhandled, "asyncio", SimpleNamespace(sleep=pause))
            runner: Any = SimpleNamespace(store=store, handlers=Handlers(), owner_id="w1")
            with pytest.raises(asyncio.CancelledError):
                await UnhandledKinds(runner).watch()

    asyncio.run(main())
    assert pauses_s == [60, 120, 240, 300, 300, 60, 60]
