"""`holdfast top`: fits 80 columns, is drawn in place, leaves by a key, and prints one picture for scripts."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.activity import Activity
from holdfast.cli import screen
from holdfast.cli.screen import Screen
from holdfast.cli.text_width import columns_of
from holdfast.cli.top_view import Looks, _title, frame
from holdfast.maintenance import Concern
from holdfast.processes import Completed
from holdfast.testing.clock import ManualClock
from holdfast.workers import WorkerInfo

TIMEOUT_S = 60


def fill(store: holdfast.BlockingStore) -> None:
    """Store more than a terminal of 24 lines shows, with ids that are longer than its 80 columns."""
    for number in range(30):
        store.sessions.create(f"chat-{number}").enqueue("hi", kind=f"a-kind-with-a-long-name-{number % 15}\x1b[31m")
        worker = f"worker@a-host-with-a-long-name-{number}.example.internal:7000:abcdef12"
        store.workers.heartbeat(WorkerInfo(worker, host="h", pid=7, kinds=("turn", "mail") * 20), ttl_ms=3_600_000)
    claim = store.queue.claim("chat-3", owner_id="w1")
    assert claim is not None
    store.queue.fail(claim, "no answer", retry_in_ms=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.db"
    with holdfast.open_blocking(made) as store:
        fill(store)
    return made


def text_of(line: Any) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in line)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 15), (200, 100)])
def test_a_picture_fits_the_terminal_and_is_whole_without_one(file: Path, width: int, height: int) -> None:
    with holdfast.open_blocking(file) as store:
        picture = Looks(store).look()
    lines = [text_of(line) for line in frame(picture, 2_000, width, height)]
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
    assert not any("\x1b" in line for line in lines)
    assert "attention" in lines
    assert "dead-letters" in lines
    whole = "\n".join(text_of(line) for line in frame(picture, 2_000))
    assert "worker@a-host-with-a-long-name-29.example.internal:7000:abcdef12" in whole
    assert whole.count("a-kind-with-a-long-name") == 15


def test_the_ids_of_a_concern_are_shown_if_its_text_names_none(file: Path) -> None:
    old = Concern("warning", "old-work", "2 batches of unclaimed work", "see why", ("chat-1", "chat 2", "x" * 80))
    letters = Concern("warning", "dead-letters", "work failed in 'chat-3'", "retry it", ("chat-3",))
    with holdfast.open_blocking(file) as store:
        picture = msgspec.structs.replace(Looks(store).look(), concerns=(old, letters))
    for size in ((), (80, 100)):
        lines = [text_of(line) for line in frame(picture, 2_000, *size)]
        assert lines[-6:-3] == ["  2 batches of unclaimed work: see why", "  chat-1", "  'chat 2'"]
        assert lines[-3] == ("x" * 80 if size else "  " + "x" * 80)
        assert lines[-1] == "  work failed in 'chat-3': retry it"


def test_a_line_as_wide_as_the_terminal_keeps_its_last_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor stays on the last character of a full line: what erases the rest erases that one, too."""
    monkeypatch.setenv("COLUMNS", "4")
    monkeypatch.setenv("LINES", "2")
    out = io.StringIO()
    for lines in (["abcd"], ["abcd", "efgh"]):
        Screen(io.StringIO(), out).draw(lines)
    erased, rest = screen.REST_OF_LINE, screen.REST_OF_SCREEN
    frames = [f"{erased}abcd\n{rest}", f"{erased}abcd\n{erased}efgh"]
    assert out.getvalue() == "".join(f"{screen.BEGIN}{screen.HOME}{one}{screen.END}" for one in frames)


def test_the_id_of_a_worker_is_whole_where_it_fits() -> None:
    worker = "worker@node-7.example.internal:7000:abcdef12"
    with holdfast.open_blocking("memory:") as store:
        store.workers.heartbeat(WorkerInfo(worker, host="h", pid=7, kinds=("turn", "mail") * 20), ttl_ms=60_000)
        lines = [text_of(line) for line in frame(Looks(store).look(), 2_000, 80, 24)]
    assert any(line.startswith(f"{worker} ") for line in lines)
    assert max(map(columns_of, lines)) <= 80


@pytest.mark.parametrize("width", [4, 10, 20, 40])
def test_no_line_is_longer_than_a_narrow_terminal(url: str, width: int) -> None:
    """A line that wraps moves the first ones out of sight."""
    with holdfast.open_blocking(url) as store:
        picture = msgspec.structs.replace(
            Looks(store).look(), concerns=(Concern("warning", "old-work", "2 batches wait", "see why"),)
        )
    lines = frame(picture, 2_000, width)
    titles = [_title("agent.db", problem, width) for problem in (None, "not available: the file is gone")]
    assert max(columns_of(text_of(line)) for line in [*lines, *titles]) <= width
    assert any("no worker" in text_of(line) for line in frame(picture, 2_000, 40))


def test_letters_that_take_two_columns_keep_the_table_straight() -> None:
    with holdfast.open_blocking("memory:") as store:
        for kind in ("会話の要約" * 12, "mail"):
            store.sessions.create(kind).enqueue("hi", kind=kind)
        lines = [text_of(line) for line in frame(Looks(store).look(), 2_000, 80, 24)]
    start = next(place for place, line in enumerate(lines) if line.startswith("kind "))
    before_the_last = [row.rpartition("  ")[0] for row in lines[start : start + 3]]
    assert len(set(map(columns_of, before_the_last))) == 1
    assert max(map(columns_of, lines)) <= 80


def test_one_picture_for_scripts(on: Any, url: str) -> None:
    with holdfast.open_blocking(url) as store:
        fill(store)
    said = on("top", "--once", "--interval", "100ms")
    assert (said.code, "turns/s 0.0" in said.out, "dead-letters" in said.out) == (0, True, True)
    picture = on("top", "--once", "--interval", "100ms", "--json").json
    assert [one["dead"] for one in picture["depths"] if one["dead"]] == [1]
    assert picture["rates"] == {"turns": 0.0, "events": 0.0, "is_complete": True}
    assert len(picture["workers"]) == 30
    assert [one["name"] for one in picture["concerns"] if one["name"] == "dead-letters"] == ["dead-letters"]


def test_an_empty_store_has_a_picture(on: Any) -> None:
    said = on("top", "--once", "--interval", "100ms").out
    assert "no work" in said
    assert "no worker is alive" in said


def test_without_a_terminal_it_says_how_to_use_it(on: Any) -> None:
    said = on("top")
    assert (said.code, "add --once" in said.err) == (2, True)


# Rates.


def test_turns_of_many_sessions_are_counted() -> None:
    """A refresh reads 1,000 sessions: the ones that changed last, not those that changed before the last refresh."""
    clock = ManualClock()
    with holdfast.open_blocking("memory:", clock=clock) as store:
        sessions = [store.sessions.create(f"s{number}") for number in range(1_500)]
        clock.advance(3_600_000)
        looks = Looks(store)
        looks.look()
        for first in range(0, 1_500, 250):
            for session in sessions[first : first + 250]:
                session.append("hi")
            clock.advance(2_000)
            rates = looks.look().rates
        assert rates is not None
        assert (rates.turns, rates.is_complete) == (125.0, False)


def test_turns_and_events_are_counted_between_two_looks() -> None:
    clock = ManualClock()
    with holdfast.open_blocking("memory:", clock=clock) as store:

        def look() -> Any:
            now_ms = store.now_ms()
            since_ms = activity.since_ms(now_ms)
            processes = [*store.processes.list(), *store.processes.ended(since_ms=since_ms)]
            sessions = store.sessions.list(changed_since_ms=since_ms)
            return activity.look(now_ms, sessions, processes, is_complete=True)

        quiet, busy = store.sessions.create("quiet"), store.sessions.create("busy")
        for _ in range(5):
            quiet.append("hi")
        clock.advance(3_600_000)
        busy.append("hi")
        activity = Activity()
        clock.advance(10)
        assert look() is None
        store.processes.start("research", id="r1")
        for number in range(3):
            busy.append(f"{number}")
            store.events.append("r1", "progress", number)
        quiet.append("again")
        store.sessions.create("new").append("hi")
        store.processes.complete("r1", Completed())
        clock.advance(2_000)
        rates = look()
        assert (rates.turns, rates.events) == ((3 + 1 + 1) / 2, 4 / 2)
        clock.advance(2_000)
        rates = look()
        assert (rates.turns, rates.events) == (0, 0)


# On a terminal.


@contextmanager
def on_a_terminal(url: object, kind: str = "xterm") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    inside, outside = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "HOLDFAST_URL"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "top", "--interval", "100ms", "--url", str(url)],
        stdin=outside,
        stdout=outside,
        stderr=outside,
        env={**variables, "TERM": kind, "PYTHONUTF8": "1", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(outside)
    try:
        yield process, inside
    finally:
        process.kill()
        process.wait()
        os.close(inside)


def read_until(inside: int, wanted: Any, seen: str = "") -> str:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not wanted(seen):
        assert time.monotonic() < deadline_s, seen[-2_000:]
        if select.select([inside], [], [], 0.1)[0]:
            try:
                seen += os.read(inside, 65_536).decode(errors="replace")
            except OSError:
                return seen  # the other end is closed
    return seen


@pytest.mark.parametrize("leave", ["q", "\x1b", signal.SIGINT])
def test_it_is_drawn_in_place_and_leaves_the_terminal_as_it_was(file: Path, leave: Any) -> None:
    with on_a_terminal(file) as (process, inside):
        seen = read_until(inside, lambda seen: seen.count(screen.END) >= 3)
        assert seen.index(screen.ENTER) < seen.index(screen.HOME)
        assert "\x1b[2J" not in seen, "clearing the screen would flicker"
        for picture in seen.split(screen.BEGIN)[1:3]:
            plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", picture).split("\r\n")
            assert len(plain) <= 24
            assert max(map(len, plain)) <= 80
        if isinstance(leave, str):
            os.write(inside, leave.encode())
        else:
            process.send_signal(leave)
        seen = read_until(inside, lambda seen: screen.LEAVE in seen, seen)
        assert seen.endswith(screen.LEAVE)
        assert process.wait(TIMEOUT_S) == 0


def test_pictures_follow_each_other_on_a_terminal_that_cannot_be_drawn_on(file: Path) -> None:
    with on_a_terminal(file, "dumb") as (process, inside):
        seen = read_until(inside, lambda seen: seen.count("every 0.1 s") >= 3)
        assert "\x1b" not in seen
        assert max(map(len, seen.split("\r\n"))) <= 80
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_a_database_that_is_away_is_named_until_it_is_back(postgres_database: object) -> None:
    """The last picture stays, and says that it is old."""
    del postgres_database  # makes the module of the servers
    server = sys.modules["holdfast_postgres_server"].Server()
    try:
        with holdfast.open_blocking(server.url) as store:
            store.sessions.create("chat").enqueue("hi", kind="mail")
        with on_a_terminal(server.url) as (process, inside):
            seen = read_until(inside, lambda seen: seen.count(screen.END) >= 2)
            assert "q quits" in seen
            server.stop()
            seen = read_until(inside, lambda seen: "not available" in seen)
            seen = read_until(inside, lambda seen: screen.END in seen[seen.rindex("not available") :], seen)
            picture = seen[seen.rindex("not available") :]
            plain = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", picture).split("\r\n")
            assert any(line.startswith("mail ") for line in plain), "what was known is still shown"
            assert max(map(len, plain)) <= 80
            server.start()
            read_until(inside, lambda seen: "q quits" in seen)
            os.write(inside, b"q")
            assert process.wait(TIMEOUT_S) == 0
    finally:
        server.remove()
