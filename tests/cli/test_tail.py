"""A tail shows each change once, also one that began and ended between two polls, by the store's own clock."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.cli import stores, tail
from holdfast.events import EventType
from holdfast.processes import Completed, External
from holdfast.testing.clock import ManualClock

MINUTE_MS = 60_000


def found(said: Any) -> list[dict[str, Any]]:
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


def test_events_of_processes_that_have_ended_are_shown(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        for name in ("one", "two"):
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            store.processes.complete(name, Completed())
    shown = found(on("tail", "--since", "1h", "--for", "1ms", "--json"))
    assert [(one["process_id"], one["event"]["type"]) for one in shown] == [
        ("one", "process.completed"),
        ("two", "process.completed"),
    ]
    assert found(on("tail", "--for", "1ms", "--json")) == []


def test_one_process_is_shown_since_a_time_as_well(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        store.processes.register(holdfast.ProcessRegistration("one", External()))
        store.processes.complete("one", Completed())
    assert len(found(on("tail", "--process", "one", "--since", "1h", "--json"))) == 1
    assert found(on("tail", "--process", "one", "--for", "1ms", "--json")) == []


def test_a_process_that_began_and_ended_between_two_looks_is_seen_once(url: str) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(url, clock=clock) as store:
        logs = tail.Logs(store, store.now_ms())
        assert list(logs.news()) == []
        store.processes.register(holdfast.ProcessRegistration("short", External()))
        clock.advance(1)
        store.processes.complete("short", Completed())
        assert [one["process_id"] for one in logs.news()] == ["short"]
        assert list(logs.news()) == []
        clock.advance(MINUTE_MS)
        assert list(logs.news()) == []


def test_more_changes_than_one_look_takes_are_all_shown_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if all of them changed at the same time, where a poll that starts over would stop at the same ones."""
    monkeypatch.setattr(tail, "MOST", 4)
    monkeypatch.setattr(tail, "PAGE", 2)
    names = [f"p{number}" for number in range(11)]
    with holdfast.open_blocking(url, clock=ManualClock()) as store:
        since_ms = store.now_ms()
        for name in names:
            store.sessions.handle(name).commit(holdfast.Commit(turn_id="t"))
            store.processes.register(holdfast.ProcessRegistration(name, External()))
            store.processes.complete(name, Completed())
        turns, logs = tail.Turns(store, None, since_ms), tail.Logs(store, since_ms)
        shown = [[one.get("session_id") or one["process_id"] for one in look.news()] for look in (turns, logs) * 6]
        assert not turns.behind
        assert not logs.behind
    seen = [name for look in shown for name in look]
    assert sorted(seen) == sorted(names * 2)
    assert max(len(look) for look in shown) == 4


def test_ages_are_those_of_the_stores_clock(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store whose clock is years behind this machine's, a recent change is still shown as recent."""
    clock = ManualClock(1_000_000_000_000)
    file = tmp_path / "agent.db"
    holdfast.open_blocking(file).close()
    opened = holdfast.open_blocking
    monkeypatch.setattr(holdfast, "open_blocking", lambda *args, **named: opened(*args, clock=clock, **named))
    with opened(file, clock=clock) as store:
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["x"]))
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t"))
    clock.advance(5 * MINUTE_MS)
    assert "oldest pending batch  5 min 0 s old\n" in run("status", "--url", file).out
    assert found(run("tail", "--since", "1m", "--for", "1ms", "--json", "--url", file)) == []
    assert len(found(run("tail", "--since", "6m", "--for", "1ms", "--json", "--url", file))) == 1
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
        for _ in range(tail.PAGE + 1):
            session.commit(holdfast.Commit())
    shown = found(on("tail", "--since", "1h", "--for", "1ms", "--json"))
    assert [one["revision"]["revision"] for one in shown] == list(range(1, tail.PAGE + 2))


def test_a_turn_without_a_message_does_not_repeat_the_one_before(url: str) -> None:
    def said(text: str) -> holdfast.Append:
        return holdfast.Append([holdfast.Node(kind="openai-agents.item", payload={"role": "user", "content": text})])

    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("chat")
        turns = tail.Turns(store, None, 0)
        session.commit(holdfast.Commit(turn_id="t1", graph=said("hi")))
        session.commit(holdfast.Commit(turn_id="t2"))
        assert [one["text"] for one in turns.news()] == ["revision 1 user: hi", "revision 2 t2"]
        session.commit(holdfast.Commit(turn_id="t3"))
        session.commit(holdfast.Commit(turn_id="t4", graph=said("there")))
        assert [one["text"] for one in turns.news()] == ["revision 3 t3", "revision 4 user: there"]


def test_all_events_of_one_log_since_a_time_are_shown_however_many(
    on: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "MOST", 4)
    monkeypatch.setattr(tail, "PAGE", 2)
    with holdfast.open_blocking(url) as store:
        kinds = [EventType("progress")]
        store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=kinds))
        for number in range(10):
            store.events.append("build", "progress", number)
        store.processes.complete("build", Completed())
    for which in (["--for", "1ms"], ["--process", "build"]):
        shown = found(on("tail", *which, "--since", "1h", "--json"))
        assert [one["event"]["sequence"] for one in shown] == list(range(1, 12))


# Concurrent writes during a poll.

KINDS = [EventType("progress"), EventType("late", after_terminal=True)]


def afterwards(patch: pytest.MonkeyPatch, facet: Any, name: str, write: Callable[[], object]) -> None:
    """Let another store write after each answer of a listing, before the listed items are read."""
    right = getattr(facet, name)

    def listing(*args: Any, **named: Any) -> Any:
        page = right(*args, **named)
        write()
        return page

    patch.setattr(facet, name, listing)


def test_values_written_between_listing_and_reading_are_shown_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open_blocking(url) as store, holdfast.open_blocking(url) as writer:
        since_ms = store.now_ms()
        writer.processes.register(holdfast.ProcessRegistration("build", External(), event_types=KINDS))
        turns, logs = tail.Turns(store, None, since_ms), tail.Logs(store, since_ms)
        session = writer.sessions.create("chat")
        with monkeypatch.context() as patch:
            afterwards(patch, store.processes, "list", lambda: writer.events.append("build", "progress"))
            afterwards(patch, store.sessions, "list", lambda: session.commit(holdfast.Commit()))
            shown = [one for look in (logs, turns) * 4 for one in look.news()]
        shown += [one for look in (logs, turns) for one in look.news()]
    events = [one["event"].sequence for one in shown if one["what"] == "event"]
    revisions = [one["revision"].revision for one in shown if one["what"] == "turn"]
    assert (events, revisions) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_nothing_is_shown_again_once_it_was_forgotten(url: str) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(url, clock=clock) as store:
        turns, logs = tail.Turns(store, None, store.now_ms()), tail.Logs(store, store.now_ms())

        def news() -> list[tuple[str, int]]:
            shown = [one for look in (logs, turns) for one in look.news()]
            return [
                (one["what"], one["event"].sequence if "event" in one else one["revision"].revision) for one in shown
            ]

        store.processes.register(holdfast.ProcessRegistration("build", External(), event_types=KINDS))
        store.processes.complete("build", Completed())
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit())
        assert news() == [("event", 1), ("turn", 1)]
        clock.advance(MINUTE_MS)
        store.processes.register(holdfast.ProcessRegistration("other", External()))
        store.processes.complete("other", Completed())
        store.sessions.create("another").commit(holdfast.Commit())
        assert news() == [("event", 1), ("turn", 1)]
        # A pass that began after all of this allows the next one to forget.
        assert [news() for _ in range(2)] == [[], []]
        assert (len(logs._shown), len(turns._shown)) == (1, 1)
        store.events.append("build", "late")
        session.commit(holdfast.Commit())
        assert news() == [("event", 2), ("turn", 2)]
        assert news() == []
        store.sessions.delete("chat")
        store.sessions.create("chat").commit(holdfast.Commit())
        assert news() == [("turn", 1)]


def test_changes_behind_a_pass_that_pauses_are_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader pauses for longer than the overlap, in the middle of a pass, and later changes are read first."""
    monkeypatch.setattr(tail, "MOST", 2)
    monkeypatch.setattr(tail, "PAGE", 2)
    clock, names = ManualClock(1_700_000_040_000), [f"s{number}" for number in range(6)]
    assert clock.now_ms() % MINUTE_MS == 0
    with holdfast.open_blocking(url, clock=clock) as store:
        turns, logs = tail.Turns(store, None, store.now_ms()), tail.Logs(store, store.now_ms())
        for name in names:
            store.sessions.handle(name).commit(holdfast.Commit(turn_id="one"))
            store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=KINDS))
            store.processes.complete(name, Completed())
        shown = [one for look in (turns, logs) for one in look.news()]
        assert turns.behind
        assert logs.behind
        store.sessions.handle("s0").commit(holdfast.Commit(turn_id="two"))
        store.events.append("s0", "late")
        clock.advance(tail.OVERLAP_MS + 10_000)
        store.sessions.handle("s5").commit(holdfast.Commit(turn_id="two"))
        store.events.append("s5", "late")
        shown += [one for look in (turns, logs) * 8 for one in look.news()]
        assert not turns.behind
        assert not logs.behind
    assert sorted(place(one) for one in shown) == sorted(
        [(what, name, 1) for what in ("turn", "event") for name in names]
        + [(what, name, 2) for what in ("turn", "event") for name in ("s0", "s5")]
    )


def place(one: dict[str, Any]) -> tuple[str, str, int]:
    """Return the place of a turn or event: its session and revision, or its process and sequence."""
    revision, event = one.get("revision"), one.get("event")
    if one["what"] == "turn":
        return "turn", one["session_id"], revision["revision"] if isinstance(revision, dict) else revision.revision
    return "event", one["process_id"], event["sequence"] if isinstance(event, dict) else event.sequence


class Writers:
    """Writes at random with a clock that jumps, also in transactions that become visible later than others."""

    def __init__(self, url: str, seed: int, stack: contextlib.ExitStack) -> None:
        self._chance = random.Random(seed)
        self.clock, self._late_clock = ManualClock(), ManualClock()
        self.store = stack.enter_context(holdfast.open_blocking(url, clock=self.clock))
        self._writer = stack.enter_context(holdfast.open_blocking(url, clock=self._late_clock))
        self.expected: list[tuple[str, str, int]] = []
        self._written_ms: dict[str, int] = {}
        self._ended: list[str] = []

    def write(self) -> None:
        for _ in range(self._chance.randrange(4)):
            self.clock.advance(self._chance.choice((0, 0, 1, 500, 7_000, 31_000, 61_000)))
            self._chance.choice((self._commit, self._commit, self._process, self._event))()

    def _begin(self, name: str) -> None:
        """No transaction takes as long as the overlap, and the time is read while the row is locked."""
        now_ms = self.clock.now_ms()
        began_ms = now_ms - self._chance.choice((0, 0, 10, 3_000, tail.OVERLAP_MS - 1))
        began_ms = max(began_ms, self._written_ms.get(name, 0))
        self._written_ms[name] = began_ms
        self._late_clock.advance(began_ms - self._late_clock.now_ms())

    def _commit(self) -> None:
        name = f"s{self._chance.randrange(12)}"
        self._begin(name)
        done = self._writer.sessions.handle(name).commit(holdfast.Commit())
        self.expected.append(("turn", name, done.revision))

    def _process(self) -> None:
        name = f"p{len(self._ended)}"
        self._begin(name)
        self._writer.processes.register(holdfast.ProcessRegistration(name, External(), event_types=KINDS))
        self._writer.processes.complete(name, Completed())
        self._ended.append(name)
        self.expected.append(("event", name, 1))

    def _event(self) -> None:
        if self._ended:
            name = self._chance.choice(self._ended[-12:])
            self._begin(name)
            self.expected.append(("event", name, self._writer.events.append(name, "late").event.sequence))


def everything_is_shown_once_however_long_a_pass_takes(url: str, seed: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tail, "MOST", 4)
    patch.setattr(tail, "PAGE", 2)
    with contextlib.ExitStack() as stack:
        writers = Writers(url, seed, stack)
        store = writers.store
        since_ms = store.now_ms()
        turns, logs = tail.Turns(store, None, since_ms), tail.Logs(store, since_ms)
        writers.clock.advance(tail.OVERLAP_MS)  # so that no transaction began before the tail
        shown: list[dict[str, Any]] = []
        with patch.context() as meanwhile:
            afterwards(meanwhile, store.sessions, "list", writers.write)
            afterwards(meanwhile, store.processes, "ended", writers.write)
            for _ in range(25):
                shown += [one for look in (turns, logs) for one in look.news()]
        # Nothing more is written: the current pass ends, and one that begins afterwards sees the rest.
        for look in (turns, logs):
            for _ in range(3):
                shown += look.news()
                while look.behind:
                    shown += look.news()
    assert sorted(map(place, shown)) == sorted(writers.expected)


@pytest.mark.parametrize("seed", range(10))
def test_everything_is_shown_once_however_long_a_pass_takes(
    url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything_is_shown_once_however_long_a_pass_takes(url, seed, monkeypatch)


def test_a_tail_ends_though_its_passes_never_end_together(
    run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns take two polls from the first one on, and ended processes two from the second one on."""
    monkeypatch.setattr(tail, "MOST", 2)
    monkeypatch.setattr(tail, "PAGE", 2)
    file, opened, looks = tmp_path / "agent.db", holdfast.open_blocking, 0

    def watched(*args: Any, **named: Any) -> Any:
        store = opened(*args, **named)

        def write() -> None:
            nonlocal looks
            looks += 1
            assert looks < 50, "the tail continues though everything was shown"
            if looks == 2:
                for name in ("one", "two", "three"):
                    store.processes.register(holdfast.ProcessRegistration(name, External()))
                    store.processes.complete(name, Completed())

        afterwards(monkeypatch, store.sessions, "list", write)
        return store

    with opened(file) as store:
        for name in ("a", "b", "c"):
            store.sessions.handle(name).commit(holdfast.Commit())
    monkeypatch.setattr(holdfast, "open_blocking", watched)
    shown = [place(one) for one in found(run("tail", "--since", "1h", "--for", "1ms", "--json", "--url", file))]
    turns, ends = ([one for one in shown if one[0] == what] for what in ("turn", "event"))
    assert turns == [("turn", name, 1) for name in ("a", "b", "c")]
    # The time may run out before the pass that would show them, but never in the middle of it.
    assert ends in ([], [("event", name, 1) for name in ("one", "two", "three")])


def test_an_end_that_becomes_visible_late_is_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is that of a transaction which began long before others that were already shown."""
    clock, late = ManualClock(), ManualClock()
    with holdfast.open_blocking(url, clock=clock) as store, holdfast.open_blocking(url, clock=late) as writer:
        logs = tail.Logs(store, store.now_ms())
        for name in ("build", "other"):
            store.processes.register(holdfast.ProcessRegistration(name, External()))
        assert list(logs.news()) == []
        clock.advance(10 * MINUTE_MS)
        store.processes.complete("other", Completed())
        assert [one["process_id"] for one in logs.news()] == ["other"]
        writer.processes.complete("build", Completed())
        assert [one["process_id"] for one in logs.news()] == ["build"]
        assert list(logs.news()) == []


def test_more_processes_than_a_poll_reads_are_all_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MOST", 2)
    monkeypatch.setattr(tail, "PAGE", 2)
    with holdfast.open_blocking(url) as store:
        logs = tail.Logs(store, store.now_ms())
        for number in range(7):
            store.processes.register(holdfast.ProcessRegistration(f"p{number}", External(), event_types=KINDS))
            store.events.append(f"p{number}", "progress")
        assert len(list(logs.news())) == 7


WRITER = """
import sys, holdfast
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
kinds = [holdfast.events.EventType("progress")]
with holdfast.open_blocking(url) as store:
    store.processes.register(holdfast.ProcessRegistration(name, holdfast.processes.External(), event_types=kinds))
    print("ready", flush=True)
    sys.stdin.readline()
    session = store.sessions.handle("shared")
    for number in range(count):
        store.events.append(name, "progress", number)
        session.commit(holdfast.Commit(turn_id=f"{name}-{number}"))
        if number % 20 == 0:
            short = f"{name}-short-{number}"
            store.processes.register(holdfast.ProcessRegistration(short, holdfast.processes.External()))
            store.processes.complete(short, holdfast.processes.Completed())
    store.processes.complete(name, holdfast.processes.Completed())
"""


def started(stack: contextlib.ExitStack, *arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    stack.enter_context(child)
    stack.callback(child.kill)
    return child


def test_a_tail_under_load_shows_each_turn_and_event_once(url: str) -> None:
    """Writers are separate processes; the last turn is committed after all of theirs and ends the test."""
    count, names = 120, ["one", "two"]
    with contextlib.ExitStack() as stack:
        following = started(
            stack, "-m", "holdfast", "tail", "--json", "--interval", "10ms", "--since", "1h", "--url", url
        )
        writers = [started(stack, "-c", WRITER, url, name, str(count)) for name in names]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        ends = [writer.communicate(timeout=120) for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0], ends
        with holdfast.open_blocking(url) as store:
            store.sessions.handle("last").commit(holdfast.Commit(turn_id="last"))
        shown: Counter[tuple[Any, ...]] = Counter()
        assert following.stdout is not None
        while ("last", 1) not in shown:
            one = json.loads(following.stdout.readline())
            if one["what"] == "turn":
                shown[one["session_id"], one["revision"]["revision"]] += 1
            elif one["what"] == "event":
                shown[one["process_id"], "event", one["event"]["sequence"]] += 1
        following.send_signal(signal.SIGINT)
    expected = {(name, "event", sequence) for name in names for sequence in range(1, count + 2)}
    expected |= {(f"{name}-short-{number}", "event", 1) for name in names for number in range(0, count, 20)}
    expected |= {("shared", revision) for revision in range(1, 2 * count + 1)} | {("last", 1)}
    assert {key: times for key, times in shown.items() if times != 1} == {}
    assert set(shown) == expected
