"""An idle worker reports itself seldom, and looks as often as ever for neighbours that may die."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.worker import claim_renewal
from holdfast.worker.claim_renewal import ClaimRenewer, Held

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


def test_an_idle_worker_reports_three_times_a_minute_and_looks_for_neighbours_six_times(renewer: Counted) -> None:
    renewer.live_until(60)
    assert renewer.reports == [0, 20, 40]
    assert renewer.looks == [0, 10, 20, 30, 40, 50]


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
    assert renewer.reports == [0, 20, 30, 40, 50, 60, 80]
