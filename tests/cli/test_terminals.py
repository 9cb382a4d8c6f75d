"""Colours, questions and progress bars appear on a terminal and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import terminal
from holdfast.cli.text_width import columns_of

TIMEOUT_S = 60


def on_a_terminal(*arguments: object, answer: str | None = None, **environment: str) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; return the exit code and all of its output."""
    inside, outside = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "HOLDFAST_URL"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *(str(one) for one in arguments)],
        stdin=outside,
        stdout=outside,
        stderr=outside,
        env={**variables, "TERM": "xterm", "PYTHONUTF8": "1", **environment},
    )
    os.close(outside)
    seen = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if select.select([inside], [], [], 0.1)[0]:
            try:
                data = os.read(inside, 65_536)
            except OSError:
                break  # the other end is closed
            if not data:
                break
            seen += data
            if answer is not None and b"[y/N]" in seen:
                os.write(inside, f"{answer}\n".encode())
                answer = None
    code = process.wait(TIMEOUT_S)
    os.close(inside)
    return code, seen.decode().replace("\r\n", "\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.db"
    with holdfast.open_blocking(made) as store:
        graph = holdfast.Append([holdfast.Node("n1", payload="hi")], leaf="n1")
        store.sessions.create("chat").commit(holdfast.Commit(turn_id="t", graph=graph))
    return made


def test_a_terminal_gets_colours_unless_it_asks_for_none(file: Path) -> None:
    code, seen = on_a_terminal("sessions", "graph", "chat", "--url", file)
    assert code == 0
    assert "\x1b[32m◆\x1b[0m n1" in seen
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, seen = on_a_terminal("sessions", "graph", "chat", "--url", file, **variables)
        assert "◆ n1  event  hi  <- head\n" in seen
        assert "\x1b" not in seen


LONG = "a-session-with-a-very-long-name-" + "0123456789" * 8 + "-end"


def test_a_table_is_fitted_to_the_terminal_without_cutting_ids(tmp_path: Path) -> None:
    url = tmp_path / "agent.db"
    with holdfast.open_blocking(url) as store:
        store.sessions.create(LONG, name=LONG, owner="ada")
    listing = ("sessions", "list", "--url", url)
    code, seen = on_a_terminal(*listing, COLUMNS="90", NO_COLOR="1")
    lines = seen.splitlines()
    assert code == 0
    assert lines[1].startswith(f"{LONG}  "), "an id is never cut: it is pasted into another command"
    assert re.search(r" a-\S*…\S*nd ", lines[1]), "any other text gives way"
    assert "ada" in lines[1]
    assert LONG in on_a_terminal(*listing, COLUMNS="400")[1]
    assert LONG in on_a_terminal(*listing, "--json", COLUMNS="90")[1]
    piped = subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, listing)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "90"},
        check=True,
    )
    assert piped.stdout.count(LONG) == 2


def test_a_graph_is_fitted_to_the_terminal_without_cutting_ids(tmp_path: Path) -> None:
    url, ids = tmp_path / "agent.db", [f"batch:{'4ab9dbe7' * 4}/{number}" for number in range(2)]
    with holdfast.open_blocking(url) as store:
        nodes = [holdfast.Node(one, kind="assistant", payload="会話 " * 20) for one in ids]
        store.sessions.create("chat").commit(holdfast.Commit(graph=holdfast.Append(nodes)))
    code, seen = on_a_terminal("sessions", "graph", "chat", "--url", url, COLUMNS="80", NO_COLOR="1")
    lines = seen.splitlines()[:2]
    assert code == 0
    assert [one in line for one, line in zip(ids, lines, strict=True)] == [True, True]
    assert [78 <= columns_of(line) <= 80 for line in lines] == [True, True], lines
    assert lines[1].endswith("…  <- head")
    assert "会話 " * 9 in on_a_terminal("sessions", "graph", "chat", "--url", url, COLUMNS="200")[1]


@pytest.mark.parametrize(
    ("widths", "titles", "columns", "fit"),
    [
        ([5, 5], [5, 5], 80, [5, 5]),
        ([50, 10], [7, 5], 42, [30, 10]),
        ([30, 30], [7, 5], 42, [20, 20]),
        ([30, 3], [7, 12], 10, [8, 3]),
        ([], [], 10, []),
    ],
)
def test_the_widest_columns_give_way_first(widths: list[int], titles: list[int], columns: int, fit: list[int]) -> None:
    assert terminal.fitted(widths, titles, columns) == fit


def test_an_empty_no_color_asks_for_nothing(file: Path) -> None:
    assert "\x1b[32m" in on_a_terminal("sessions", "graph", "chat", "--url", file, NO_COLOR="")[1]


@pytest.mark.parametrize("answer", ["n", "", "no", "nonsense"])
def test_without_a_yes_everything_is_kept(file: Path, answer: str) -> None:
    code, seen = on_a_terminal("sessions", "delete", "chat", "--url", file, answer=answer)
    assert code == 1
    assert "Erase session 'chat' with its history, queue, grants and subscriptions? [y/N]" in seen
    assert "holdfast: error: nothing was done\n" in seen
    with holdfast.open_blocking(file) as store:
        assert store.sessions.open("chat") is not None


def test_a_yes_gives_a_report(file: Path) -> None:
    code, seen = on_a_terminal("sessions", "delete", "chat", "--url", file, answer="y", NO_COLOR="1")
    assert code == 0
    assert "deleted                yes\n" in seen
    with holdfast.open_blocking(file) as store:
        assert store.sessions.open("chat") is None


def test_long_work_shows_a_bar_that_goes_away(file: Path, tmp_path: Path) -> None:
    with holdfast.open_blocking(file) as store:
        for number in range(30):
            store.sessions.create(f"s{number}")
    other = tmp_path / "other.db"
    holdfast.open_blocking(other).close()
    code, seen = on_a_terminal("copy", "--from", file, "--to", other)
    assert code == 0
    assert "\r\x1b[Kcopying [" in seen
    copied, forgotten = seen.rstrip().splitlines()[-2:]
    assert copied.endswith("copied 31 sessions, 0 were there already, 0 refused")
    assert forgotten.startswith("their earlier turn ids")


def test_an_export_a_sweep_and_a_vacuum_show_a_bar(file: Path, tmp_path: Path) -> None:
    with holdfast.open_blocking(file) as store:
        store.sessions.handle("chat").add_nodes([holdfast.Node(f"more-{number}") for number in range(30)])
    out = tmp_path / "chat.jsonl"
    code, seen = on_a_terminal("sessions", "export", "chat", "-o", out, "--url", file, NO_COLOR="1")
    assert code == 0
    assert "\r\x1b[Kexporting [" in seen
    assert "/31" in seen
    assert out.exists()
    with holdfast.open_blocking(file) as store:
        store.sessions.handle("chat").attachments.put(b"loose")
    code, seen = on_a_terminal("attachments", "sweep", "--older-than", "0s", "--yes", "--url", file, NO_COLOR="1")
    assert code == 0
    assert f"\r\x1b[Ksweeping attachments [{'#' * 24}] 1/1" in seen
    with holdfast.open_blocking(file) as store:
        store.sessions.handle("chat").tombstone(["more-1", "more-2"])
    code, seen = on_a_terminal("vacuum", "--yes", "--url", file, NO_COLOR="1")
    assert code == 0
    assert f"\r\x1b[Kvacuuming nodes [{'#' * 24}] 2/2" in seen


def test_long_work_of_unknown_length_shows_a_clock_that_goes_away(file: Path) -> None:
    code, seen = on_a_terminal("doctor", "--url", file, NO_COLOR="1")
    assert code == 0
    assert "\r\x1b[Kexamining, 0 s" in seen
    assert seen.endswith("ok\n")


@pytest.mark.parametrize(
    ("command", "bar"), [("verify", "verifying rows ["), ("gc", "collecting garbage of families [")]
)
def test_reading_everything_shows_how_far_it_has_come(file: Path, command: str, bar: str) -> None:
    code, seen = on_a_terminal(command, *(["--yes"] if command == "gc" else []), "--url", file, NO_COLOR="1")
    assert code == 0
    assert f"\r\x1b[K{bar}" in seen
