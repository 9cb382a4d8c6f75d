"""A worker under `--reload` starts anew at each change of its program, gracefully, and waits after a mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.reloading import Reloader, changed, python_files, snapshot

WAIT_MS = 30_000

APP = """
import holdfast
worker = holdfast.Worker("agent.db", grace_s=20)

@worker.turn
def answer(turn):
    turn.add("{version}")
"""


@contextmanager
def reloading(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "holdfast", "worker", "app:worker", "--reload"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_MS / 1000)


def said(process: subprocess.Popen[str], wanted: str) -> str:
    """Read what the command says up to a line with that text."""
    assert process.stderr is not None
    for line in process.stderr:
        if wanted in line:
            return line
    pytest.fail(f"it ended without saying {wanted!r}")


def answered(store: holdfast.BlockingStore) -> str:
    batch = store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=["hi"]))
    store.queue.wait_settled("chat", batch.batch_id, timeout_ms=WAIT_MS)
    return str(store.sessions.handle("chat").messages()[-1])


def test_a_change_starts_the_worker_anew(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP.format(version="first"))
    with holdfast.open_blocking(tmp_path / "agent.db") as store, reloading(tmp_path) as process:
        assert answered(store) == "first"
        app.write_text(APP.format(version="the second"))
        assert said(process, "has changed").startswith("app.py has changed")
        assert answered(store) == "the second"
        app.write_text("def broken(:\n")
        said(process, "waiting for a change")
        app.write_text(APP.format(version="mended"))
        assert answered(store) == "mended"
    assert process.returncode == 0


def test_a_closed_terminal_ends_the_worker_too(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(version="first"))
    with holdfast.open_blocking(tmp_path / "agent.db") as store, reloading(tmp_path) as process:
        assert answered(store) == "first"
        process.send_signal(signal.SIGHUP)
        assert process.wait(WAIT_MS / 1000) == 0
        assert list(store.workers.list()) == []


def test_a_second_stop_kills_a_child_that_does_not_end(tmp_path: Path) -> None:
    found: list[str] = []
    stubborn = "import signal, pathlib; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path('ready').touch(); "
    command = [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {stubborn} signal.pause()"]
    reloader = Reloader(command, tmp_path, found.append)
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(reloader.run()))
    running.start()
    deadline_s = time.monotonic() + WAIT_MS / 1000
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    reloader.stop()
    reloader.stop()
    running.join(WAIT_MS / 1000)
    assert codes == [-signal.SIGKILL]


def test_files_that_are_not_of_the_program_are_not_watched(tmp_path: Path) -> None:
    for name in (
        "app.py",
        "package/part.py",
        ".hidden/x.py",
        "__pycache__/x.py",
        "env/pyvenv.cfg",
        "env/x.py",
        "a.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert [os.path.relpath(path, tmp_path) for path in python_files(tmp_path)] == ["app.py", "package/part.py"]


def test_a_change_is_another_time_or_size_or_a_file_that_comes_or_goes(tmp_path: Path) -> None:
    app, other = tmp_path / "app.py", tmp_path / "other.py"
    app.write_text("a")
    before = snapshot(tmp_path)
    assert changed(before, snapshot(tmp_path)) is None
    os.utime(app, ns=(1, time.time_ns() + 10**9))
    assert changed(before, snapshot(tmp_path)) == str(app)
    before = snapshot(tmp_path)
    other.write_text("")
    assert changed(before, snapshot(tmp_path)) == str(other)
    assert changed(snapshot(tmp_path), before) == str(other)


def test_a_worker_that_ends_by_itself_cannot_be_reloaded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "worker", "app:worker", "--reload", "--until-idle"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "--until-idle" in ended.stderr
