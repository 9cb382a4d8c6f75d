"""Only a valid time is ever stored, whatever a clock returns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

import holdfast
from holdfast.clock import SystemClock, read_clock

NONSENSE: list[Any] = [-1, -5, 2**63, 1.5, float("nan"), "x", None, True, [1]]


class Odd:
    """A clock that returns a given value."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def now_ms(self) -> int:
        return cast("int", self.answer)


@pytest.fixture(params=["memory", "sqlite in memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": "memory:", "sqlite in memory": "sqlite::memory:", "sqlite": str(tmp_path / "a.db")}[request.param]


@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
def test_a_clock_that_answers_nonsense_is_refused_and_nothing_is_stored(url: str, answer: Any) -> None:
    clock = Odd(1_000)
    with holdfast.open_blocking(url, clock=clock) as store:
        session = store.sessions.create("chat")
        clock.answer = answer
        for call in (
            lambda: session.commit(holdfast.Commit()),
            session.load,
            lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1])),
            lambda: store.queue.wait("chat", timeout_ms=0),
            store.maintenance.stats,
        ):
            with pytest.raises(holdfast.InvalidRequest) as info:
                call()
            assert (info.value.field, info.value.outcome, info.value.retryable) == ("clock", "not_applied", False)
        clock.answer = 2_000
        assert (session.load(), len(store.queue.list("chat"))) == (None, 0)
        assert session.commit(holdfast.Commit()).revision == 1
        assert session.history().items[0].committed_at_ms == 2_000


@pytest.mark.parametrize("answer", [0, 1, 2**63 - 1])
def test_every_time_that_a_column_holds_is_a_time(answer: int) -> None:
    assert read_clock(Odd(answer)) == answer


def test_the_system_s_clock_tells_milliseconds_since_the_epoch() -> None:
    before = int(time.time() * 1_000)
    assert before - 1 <= read_clock(SystemClock()) <= int(time.time() * 1_000) + 1
