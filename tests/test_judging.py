"""Judging an event blocks no other writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.events import EventType, Payload, Template, WakeRule
from holdfast.processes import Completed, External
from holdfast.rules import events
from holdfast.testing.contract import Bench, LocalBench
from holdfast.testing.contract.bench import TIMEOUT_S, in_background

KINDS = [f"{kind}-{way}" for kind in ("memory", "sqlite", "postgres") for way in ("blocking", "async")]
COMPLETED = next(one.terminal for one in events.CORE_EVENT_TYPES if one.name == "process.completed")


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    kind, way = request.param.split("-")
    url = request.getfixturevalue("clean_postgres_url") if kind == "postgres" else None
    opened = LocalBench(kind, way, tmp_path, url)
    yield opened
    opened.close()


def another_writes_while_an_event_is_judged(
    bench: Bench, patch: pytest.MonkeyPatch, timeout_s: float = TIMEOUT_S
) -> None:
    """Append an event whose judgement does not end before another handle has written to the same process."""
    store, other = bench.open(), bench.open()
    heavy = EventType("heavy", schema={"type": "object"}, wake=WakeRule(Template("{a}", {"a": Payload()})))
    end = EventType("process.completed", schema={"type": "object"}, terminal=COMPLETED)
    store.processes.register(
        holdfast.ProcessRegistration("build", External(), event_types=[heavy, end, EventType("plain")])
    )
    judge, written = events.judge, []

    def judge_slowly(*arguments: Any) -> events.Judgement:
        if arguments[0].type != "plain":
            writing = in_background(lambda: other.events.append("build", "plain").event.sequence)
            written.append(writing.result(timeout_s))
        return judge(*arguments)

    patch.setattr(events, "judge", judge_slowly)
    assert store.events.append("build", "heavy", {"a": 1}).event.sequence == 2
    assert store.processes.complete("build", Completed("x" * 100_000)).event_count == 4
    assert written == [1, 3]


@pytest.mark.parametrize("bench", KINDS, indirect=True)
def test_another_writes_while_an_event_is_judged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    another_writes_while_an_event_is_judged(bench, monkeypatch)


@pytest.mark.parametrize("bench", ["sqlite-blocking", "postgres-blocking"], indirect=True)
def test_an_event_is_judged_again_by_a_registration_that_came_between(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = bench.open(), bench.open()

    def register(schema: Any) -> None:
        kinds = [EventType("news", schema=schema)]
        other.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))

    register({"type": "integer"})
    judge, asked = events.judge, []

    def judge_while_it_is_registered_anew(*arguments: Any) -> events.Judgement:
        judged = judge(*arguments)
        if arguments[0].type != "news":
            return judged
        if not asked:
            other.processes.complete("build", Completed())
            bench.clock.advance(1)
            other.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
            register({"type": "string"})
        asked.append(judged.refusal is None)
        return judged

    monkeypatch.setattr(events, "judge", judge_while_it_is_registered_anew)
    with pytest.raises(holdfast.InvalidRequest, match="string"):
        store.events.append("build", "news", 5)
    assert asked == [True, False]
