"""Contenders: one that cannot run is a row with the reason; one that does other work than the rest ends the run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import work

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / ".venv"
REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"
INSTALL_TIMEOUT_S = 600
ANSWER_TIMEOUT_S = 600
LAST_WORDS = 400


class UnlikeWork(Exception):
    """Two rows of one table did different work without saying so."""


class CannotRun(Exception):
    """The contender does not run here. The message is the reason."""


@dataclass(frozen=True)
class Contender:
    """A contender: its driver module, its environment, and the parts that it leaves out."""

    name: str
    module: str
    where: dict[str, Any] = field(default_factory=dict)
    peer: bool = False
    carries: tuple[str, ...] = ("messages", "state")
    request: dict[str, Any] = field(default_factory=dict)
    """Arguments of its own in a round, besides those of all contenders."""
    less: str = ""
    """The parts of a turn that it does less than Holdfast, in words. Required if it carries less."""
    root: Path = ROOT
    """The checkout that it runs from."""
    environment: dict[str, str] = field(default_factory=dict)


class Running:
    """A contender's process."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        if contender.peer:
            install_peers()
        python = peers_python() if contender.peer else Path(sys.executable)
        environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        self._said: list[str] = []
        self._process = subprocess.Popen(
            [python, "-m", contender.module],
            cwd=contender.root,
            env=environment | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"} | contender.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            del self._said[:-50]

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do} | arguments) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise CannotRun(f"ended: {self._last_words()}") from error

    def receive(self) -> Any:
        """Return the answer to the last request."""
        assert self._process.stdout is not None
        watch = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self._process.wait()
            raise CannotRun(f"ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise CannotRun(f"{answer['error'][:LAST_WORDS]}\n{answer['trace']}")
        return answer["ok"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request, and return the answer."""
        self.send(do, **arguments)
        return self.receive()

    def _last_words(self) -> str:
        self._listening.join(1)
        return " ".join(line.strip() for line in self._said[-3:])[-LAST_WORDS:] or "without a word"

    def open(self) -> dict[str, Any]:
        """Open its database, and check that it waits for the disk like all others."""
        self.send("open", **self.contender.where)
        return self.opened()

    def opened(self) -> dict[str, Any]:
        """Finish `open`. Split off so that several can open at the same time."""
        facts: dict[str, Any] = self.receive()
        if not facts.get("durable"):
            raise UnlikeWork(f"{self.contender.name} does not wait for the disk: {facts}")
        return facts

    def audit(self) -> None:
        """Read back its data: every turn that it was given, with the bytes that it claims to carry."""
        found = self.ask("audit")
        expected = found["turns"] * sum(work.PARTS[part] for part in self.contender.carries)
        if found["content_bytes"] != expected:
            raise UnlikeWork(f"{self.contender.name} keeps {found['content_bytes']} bytes of {expected}")
        if set(self.contender.carries) != set(work.PARTS) and not self.contender.less:
            raise UnlikeWork(f"{self.contender.name} keeps less than a turn and does not say so")

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listening.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


# ---------------------------------------------------------------------------- the peers' environment


def peers_python() -> Path:
    """Return the interpreter of the peers' environment."""
    return PEERS / "bin" / "python"


def install_peers() -> None:
    """Make the peers' environment equal to requirements.txt. Idempotent."""
    stamp = PEERS / ".installed"
    wanted = REQUIREMENTS.read_text(encoding="utf-8") + sys.version
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        raise CannotRun("no uv beside this Python: run `python3 tasks.py example` first")
    commands: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, PEERS],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", peers_python(), "-r", REQUIREMENTS],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
        if done.returncode != 0:
            raise CannotRun(f"the peers cannot be installed: {done.stderr.strip()[-LAST_WORDS:]}")
    stamp.write_text(wanted, encoding="utf-8")
