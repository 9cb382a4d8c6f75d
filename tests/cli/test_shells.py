"""Completion in real shells: a line is typed into a terminal, TAB is pressed, and the shell runs the result."""

from __future__ import annotations

import os
import pty
import select
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast

PROMPT = "ready-to-type> "
TIMEOUT_S = 60.0
ATTRIBUTES_ASKED, ATTRIBUTES = b"\x1b[c", b"\x1b[?62c"
"""Some versions of fish ask the terminal for its attributes, and wait for an answer."""
START = {
    "bash": f"PS1='{PROMPT}'; bind 'set enable-bracketed-paste off'; source ./script\n",
    "zsh": f"autoload -Uz compinit; compinit -u -D; PS1='{PROMPT}'; source ./script\n",
    "fish": f"function fish_prompt; echo -n '{PROMPT}'; end; source ./script\n",
}
ARGUMENTS = {
    "bash": ("--noprofile", "--rcfile", "start", "-i"),
    "zsh": ("-i",),
    "fish": ("--no-config", "--init-command", "source start", "-i"),
}
HOME, END = "\x01", "\x05"
IDS = ("chat-1", "two words", "it's", "a:b:c", "cost$HOME;", "(round*)", "-dash")
RECORDER = """\
#!/bin/sh
if [ -n "$RECORD" ]; then printf '%s\\n' "$@" END > "$RECORD"; exit; fi
exec {python} -m holdfast "$@"
"""


class Shell:
    """A shell in a terminal. It runs the completed line with a program that records its arguments."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.batches: dict[str, str] = {}
        self._fifo = folder / "recorded"
        os.mkfifo(self._fifo)
        self._recorded = os.open(self._fifo, os.O_RDWR)
        self._shown = b""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:  # pragma: no cover - another process
            os.chdir(folder)
            os.execvp(kind, [kind, *ARGUMENTS[kind]])
        self._until(self._terminal, PROMPT.encode())

    def completed(self, line: str) -> list[str]:
        """Type a line, complete it, run it, and return the arguments of the program."""
        os.write(self._terminal, f"{line}\t{HOME}RECORD={self._fifo} {END}\r".encode())
        return self._until(self._recorded, b"END\n").decode().split("\n")[:-2]

    def _until(self, wanted: int, last: bytes) -> bytes:
        """Read until one of the files has said its last word, and keep the terminal from filling up meanwhile."""
        read, ends_s = b"", time.monotonic() + TIMEOUT_S
        while not read.rstrip(b" ").endswith(last.rstrip(b" ")):
            ready, _, _ = select.select([self._terminal, self._recorded], [], [], max(0.0, ends_s - time.monotonic()))
            assert ready, f"the shell is silent; it showed {self._shown!r}"
            for one in ready:
                part = os.read(one, 65_536)
                if one == self._terminal:
                    self._shown += part
                    if ATTRIBUTES_ASKED in part:
                        os.write(one, ATTRIBUTES)
                if one == wanted:
                    read += part
                    if PROMPT.encode() in read and last == PROMPT.encode():
                        return read
        return read

    def close(self) -> None:
        """Hang up, as a terminal does that is closed."""
        os.close(self._terminal)
        os.close(self._recorded)
        os.waitpid(self._pid, 0)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell that has loaded its script, on a store with ids of every kind."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    file = tmp_path / "a.db"
    with holdfast.open_blocking(file) as store:
        for id in IDS:
            store.sessions.create(id)
            store.queue.enqueue(holdfast.WorkDraft(session_id=id, payloads=[1]))
        store.processes.start("research", id="run:1")
    (tmp_path / "script").write_text(run("completion", request.param).out)
    for name in ("start", ".zshrc"):
        (tmp_path / name).write_text(START[request.param])
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(RECORDER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name, value in {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_URL", str(file))
    started = Shell(request.param, tmp_path)
    with holdfast.open_blocking(file) as store:
        started.batches = {id: store.queue.list(id).items[0].batch_id for id in IDS}
    yield started
    started.close()


def test_a_shell_completes_words_and_ids_as_it_must_read_them(shell: Shell) -> None:
    assert shell.completed("holdfast sess") == ["sessions"]
    assert shell.completed("holdfast processes list --status comp") == ["processes", "list", "--status", "completed"]
    assert shell.completed("holdfast --url a.db processes show run") == ["--url", "a.db", "processes", "show", "run:1"]
    typed = {"two": "two words", "it": "it's", "a:b": "a:b:c", "cost": "cost$HOME;", "'(r": "(round*)"}
    for beginning, id in typed.items():
        assert shell.completed(f"holdfast why {beginning}") == ["why", id]
    assert shell.completed("holdfast queue list --session tw") == ["queue", "list", "--session", "two words"]


def test_a_shell_completes_batches_and_ids_that_begin_with_a_dash(shell: Shell) -> None:
    assert shell.completed("holdfast why -- -d") == ["why", "--", "-dash"]
    assert shell.completed("holdfast queue retry tw") == ["queue", "retry", "two words"]
    of = shell.batches
    assert shell.completed("holdfast queue retry two\\ words b") == ["queue", "retry", "two words", of["two words"]]
    assert shell.completed("holdfast queue retry --url a.db chat-1 b")[-1] == of["chat-1"]
    assert shell.completed("holdfast queue retry -- -dash b") == ["queue", "retry", "--", "-dash", of["-dash"]]
