"""`holdfast torture` as a person runs it: nothing that is there is touched, and a violation is told with its replay."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import main
from holdfast.opening import open_backend
from holdfast.torture import catalogue
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch
from holdfast.waiting import BlockingWaiting

QUICK = ("concurrent-clients", "kill-writer", "power-loss", "stop-holder")


def filled(url: str) -> dict[str, Any]:
    """A store with something in it; every row of every table."""
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("chat", name="mine")
        session.commit(holdfast.Commit(turn_id="turn-1", checkpoint=holdfast.Checkpoint(turn_state={"n": 1})))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="key"))
        store.processes.register(holdfast.ProcessRegistration("job", holdfast.External()))
    return rows_of(url)


def rows_of(url: str) -> dict[str, Any]:
    backend = open_backend(url, None, None, BlockingWaiting())
    try:
        return backend.dump()
    finally:
        backend.drive(backend.close())


def run(*arguments: object) -> int:
    return main(["torture", *map(str, arguments)])


def faults(*names: str) -> list[str]:
    return [word for name in names for word in ("--fault", name)]


def test_a_torture_leaves_the_file_and_its_folder_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.db"
    before = filled(str(file))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert run("--url", file, "--cases", 1, *faults(*QUICK)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.db"]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == digest
    assert rows_of(str(file)) == before
    out = capsys.readouterr().out
    for name in QUICK:
        assert name in out
    assert "held" in out


def test_a_torture_leaves_the_database_as_it_was(
    postgres_database: Any, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = filled(postgres_url)
    schemas = postgres_database.administrator.rows("SELECT nspname FROM pg_namespace ORDER BY nspname")
    assert run("--url", postgres_url, "--cases", 1, "--json", *faults("kill-writer", "power-loss")) == 0
    assert postgres_database.administrator.rows("SELECT nspname FROM pg_namespace ORDER BY nspname") == schemas
    assert rows_of(postgres_url) == before
    kill, power = json.loads(capsys.readouterr().out)["results"]
    assert kill["cases"] >= 1
    assert kill["violations"] == []
    assert kill["skipped"] is None
    assert power["skipped"] == "it does not apply to PostgreSQL"
    assert power["cases"] == 0


def broken(_: Scratch, seed: int) -> Ran:
    if seed == 8:
        raise RuntimeError("something unforeseen")
    return Ran(1, ("I1: turn 3 was acknowledged and is gone",) if seed == 7 else ())


BROKEN = Fault("broken", "a fault that is violated", ("I1",), {"sqlite": Numbers(3, 9)}, broken)


def test_a_violation_is_told_with_a_command_that_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "FAULTS", (BROKEN,))
    assert run("--url", tmp_path / "agent.db", "--seed", 6) == 1
    out = capsys.readouterr().out
    assert "I1: turn 3 was acknowledged and is gone" in out
    assert "something unforeseen" in out
    [first, second] = [line.split("replay: ")[1] for line in out.splitlines() if "replay: " in line]
    assert "--seed 7" in first
    assert "--seed 8" in second
    assert main(shlex.split(first)[1:]) == 1
    assert "turn 3" in capsys.readouterr().out


def test_a_password_is_not_repeated() -> None:
    from holdfast.cli.torture import replay

    told = replay("postgresql://ada:secret@db:5432/app?sslmode=require", "kill-writer", 3)
    assert "secret" not in told
    assert "ada:***@db:5432/app" in told
    assert "postgresql://ada@db/app" in replay("postgresql://ada@db/app", "kill-writer", 3)


def test_the_time_is_shared_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", tmp_path / "agent.db", "--minutes", 0, *faults("kill-reader", "stop-holder")) == 0
    assert "time was up before 500" in capsys.readouterr().out


def test_an_interrupted_torture_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "torture", "--url", str(tmp_path / "agent.db"), "--minutes", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + 60
        while not list(tmp_path.glob(".*/*-scratch.db")) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "memory:"], "outlives its process"),
        (["--url", "nowhere/at/all/agent.db"], "does not exist"),
        (["--url", "agent.db", "--schema", "mine"], "a schema of its own"),
        (["--url", "agent.db", "--fault", "bad-luck"], "there is no fault"),
    ],
)
def test_a_call_that_is_wrong_is_refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err


def test_the_faults_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert "kill-writer" in capsys.readouterr().out
    assert run("--list", "--json") == 0
    assert {one["fault"] for one in json.loads(capsys.readouterr().out)} == {fault.name for fault in catalogue.FAULTS}
