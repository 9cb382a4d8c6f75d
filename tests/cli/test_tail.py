"""A tail shows each thing once, also what began and ended between two looks, by the store's own clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast
from holdfast import paging
from holdfast.cli import stores, tail
from holdfast.testing.clock import ManualClock

MINUTE_MS = 60_000


def told(said: Any) -> list[dict[str, Any]]:
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


def test_events_of_processes_that_have_ended_are_shown(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        for name in ("one", "two"):
            store.processes.register(holdfast.ProcessRegistration(name, holdfast.External()))
            store.processes.complete(name, holdfast.Completed())
    shown = told(on("tail", "--since", "1h", "--for", "1ms", "--json"))
    assert [(one["process_id"], one["event"]["type"]) for one in shown] == [
        ("one", "process.completed"),
        ("two", "process.completed"),
    ]
    assert told(on("tail", "--for", "1ms", "--json")) == []


def test_one_process_is_shown_since_a_time_as_well(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.register(holdfast.ProcessRegistration("one", holdfast.External()))
        store.processes.complete("one", holdfast.Completed())
    assert len(told(on("tail", "--process", "one", "--since", "1h", "--json"))) == 1
    assert told(on("tail", "--process", "one", "--for", "1ms", "--json")) == []


def test_a_process_that_began_and_ended_between_two_looks_is_seen_once(url: str) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(url, clock=clock) as store:
        logs = tail.Logs(store, store.now_ms())
        assert list(logs.news()) == []
        store.processes.register(holdfast.ProcessRegistration("short", holdfast.External()))
        clock.advance(1)
        store.processes.complete("short", holdfast.Completed())
        assert [one["process_id"] for one in logs.news()] == ["short"]
        assert list(logs.news()) == []
        clock.advance(MINUTE_MS)
        assert list(logs.news()) == []


def test_more_changes_than_one_look_takes_are_all_shown_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all of them changed at the same time, so that a look that begins anew would stop at the same ones."""
    monkeypatch.setattr(tail, "MOST", 4)
    monkeypatch.setattr(tail, "PAGE", 2)
    names = [f"p{number}" for number in range(11)]
    with holdfast.open_blocking(url, clock=ManualClock()) as store:
        since_ms = store.now_ms()
        for name in names:
            store.sessions.handle(name).commit(holdfast.Commit(turn_id="t"))
            store.processes.register(holdfast.ProcessRegistration(name, holdfast.External()))
            store.processes.complete(name, holdfast.Completed())
        turns, logs = tail.Turns(store, None, since_ms), tail.Logs(store, since_ms)
        shown = [[one.get("session_id") or one["process_id"] for one in look.news()] for look in (turns, logs) * 6]
        assert not turns.behind
        assert not logs.behind
    seen = [name for look in shown for name in look]
    assert sorted(seen) == sorted(names * 2)
    assert max(len(look) for look in shown) == 4


def test_ages_are_those_of_the_stores_clock(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose clock is years behind this machine's: what happened a moment ago there is a moment old."""
    clock = ManualClock(1_000_000_000_000)
    file = tmp_path / "agent.db"
    holdfast.open_blocking(file).close()
    opened = holdfast.open_blocking
    monkeypatch.setattr(holdfast, "open_blocking", lambda *args, **named: opened(*args, clock=clock, **named))
    with opened(file, clock=clock) as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["x"]))
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t"))
    clock.advance(5 * MINUTE_MS)
    assert "oldest pending work  5 min 0 s old\n" in run("status", "--url", file).out
    assert told(run("tail", "--since", "1m", "--for", "1ms", "--json", "--url", file)) == []
    assert len(told(run("tail", "--since", "6m", "--for", "1ms", "--json", "--url", file))) == 1
    assert "time" not in vars(stores)


def test_work_of_a_session_that_is_deleted_meanwhile_is_no_more(url: str) -> None:
    with holdfast.open_blocking(url) as store:
        work = tail.Work(store, None)
        assert list(work.news()) == []
        store.queue.enqueue(holdfast.WorkDraft(session_id="gone", payloads=[1]))
        assert [one["state"] for one in work.news()] == ["pending"]
        store.sessions.delete("gone")
        assert list(work.news()) == []


def test_all_turns_of_one_session_are_shown_however_many(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("chat")
        for _ in range(paging.PAGE + 1):
            session.commit(holdfast.Commit())
    shown = told(on("tail", "--since", "1h", "--for", "1ms", "--json"))
    assert [one["revision"]["revision"] for one in shown] == list(range(1, paging.PAGE + 2))


def test_all_events_of_one_log_since_a_time_are_shown_however_many(
    on: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MOST", 4)
    monkeypatch.setattr(tail, "PAGE", 2)
    with holdfast.open_blocking(url) as store:
        kinds = [holdfast.EventType("progress")]
        store.processes.register(holdfast.ProcessRegistration("build", holdfast.External(), event_types=kinds))
        for number in range(10):
            store.events.append("build", "progress", number)
        store.processes.complete("build", holdfast.Completed())
    for which in (["--for", "1ms"], ["--process", "build"]):
        shown = told(on("tail", *which, "--since", "1h", "--json"))
        assert [one["event"]["sequence"] for one in shown] == list(range(1, 12))
