"""`holdfast torture` as a user runs it: existing data is untouched, and a violation is reported with its replay."""

from __future__ import annotations

import hashlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.cli import main
from holdfast.cli.parser import build
from holdfast.factory import open_backend
from holdfast.torture import catalogue
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.leftovers import PREFIX, Owned, dead
from holdfast.torture.places import Scratch, SqliteScratch
from holdfast.torture.replays import replay
from holdfast.wait import BlockingWaiting

QUICK = ("concurrent-clients", "kill-writer", "power-loss", "stop-holder")


def filled(url: str) -> dict[str, Any]:
    """A store with something in it; yields every row of every table."""
    with holdfast.open_blocking(url) as store:
        session = store.sessions.create("chat", name="mine")
        session.commit(holdfast.Commit(turn_id="turn-1", checkpoint=holdfast.Checkpoint(turn_state={"n": 1})))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="key"))
        store.processes.register(holdfast.ProcessRegistration("job", holdfast.processes.External()))
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


def test_a_violation_is_printed_with_a_command_that_repeats_it(
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


SECRET_URLS = [
    "postgresql://ada:s3cret@db:5432/app?sslmode=require",
    "postgresql://db/app?user=ada&password=s3cret&sslmode=require",
    "postgresql://ada:s3c%40ret%2F@one:1,two:2/app?target_session_attrs=read-write",
    "postgres://ada@db/app?sslpassword=s3cret&something=s3cret",
    "postgresql://ada:s3cret@[::1/app",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_secret_of_a_url_is_not_repeated(url: str) -> None:
    reported = replay(url, "kill-writer", 3)
    assert "s3c" not in reported
    assert "***" in reported


def options_of(command: str) -> Any:
    words = shlex.split(command)
    return build(words[1:]).parse_args(words[1:])


@pytest.mark.parametrize(
    "url", ["agent.db", "sqlite:a file.db", "postgresql://ada@[::1]:5/app?host=/run/pg&sslmode=require", None]
)
@pytest.mark.parametrize("pooler", [None, "transaction"])
def test_a_replay_is_the_same_call_again(url: str | None, pooler: str | None) -> None:
    options = options_of(replay(url, "kill-writer", 3, pooler=pooler))
    assert (options.url, options.pooler, options.fault) == (url, pooler, ["kill-writer"])
    assert (options.seed, options.cases) == (3, 1)


def test_the_url_of_the_environment_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalogue, "FAULTS", (BROKEN,))
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "agent.db"))
    assert run("--seed", 7, "--cases", 1) == 1
    [again] = [line.split("replay: ")[1] for line in capsys.readouterr().out.splitlines() if "replay: " in line]
    assert "--url" not in again
    assert main(shlex.split(again)[1:]) == 1


def test_the_time_is_shared_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--url", tmp_path / "agent.db", "--minutes", 0.0001, *faults("kill-reader", "stop-holder")) == 0
    assert "time was up before 500" in capsys.readouterr().out


def begun(*arguments: object, until: Callable[[], object]) -> subprocess.Popen[bytes]:
    """A running torture."""
    command = [sys.executable, "-m", "holdfast", "torture", *map(str, arguments), "--minutes", "5"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline_s = time.monotonic() + 60
    while not until() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_torture_that_is_ended_leaves_no_folder_behind(tmp_path: Path, number: signal.Signals) -> None:
    with begun("--url", tmp_path / "agent.db", until=lambda: list(tmp_path.glob(".*/*-scratch.db"))) as process:
        process.send_signal(number)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []


def schemas_of(database: Any) -> list[str]:
    return [name for (name,) in database.administrator.rows("SELECT nspname FROM pg_namespace ORDER BY nspname")]


def scratch_schemas(database: Any) -> list[str]:
    return [name for name in schemas_of(database) if name.startswith(PREFIX)]


def test_a_torture_that_is_terminated_leaves_no_schema_behind(
    postgres_database: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with begun("--url", postgres_url, until=lambda: scratch_schemas(postgres_database)) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert scratch_schemas(postgres_database) == []
    assert list(tmp_path.glob(f".{PREFIX}*")) == []


def test_leftovers_of_a_killed_torture_are_removed_by_the_next_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / f".{PREFIX}somebody"
    foreign.mkdir()
    file = tmp_path / "agent.db"
    with SqliteScratch(tmp_path) as living:
        with begun("--url", file, until=lambda: list(tmp_path.glob(".*/*-scratch.db"))) as process:
            process.kill()
        [left] = set(tmp_path.glob(f".{PREFIX}*")) - {foreign, living.folder}
        assert run("--url", file, "--cases", 1, *faults("close-under-waiter")) == 0
        assert f"removed {left}" in capsys.readouterr().err
        assert set(tmp_path.iterdir()) == {foreign, living.folder}


def test_a_schema_that_a_killed_torture_left_is_dropped_by_the_next(
    postgres_database: Any,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    postgres_database.administrator.rows(f"CREATE SCHEMA {PREFIX}of_another_machine")
    try:
        with begun("--url", postgres_url, until=lambda: len(scratch_schemas(postgres_database)) > 1) as process:
            process.kill()
        [left] = set(scratch_schemas(postgres_database)) - {f"{PREFIX}of_another_machine"}
        assert run("--url", postgres_url, "--cases", 1, *faults("close-under-waiter")) == 0
        reported = capsys.readouterr().err
        assert f"dropped schema {left}" in reported
        assert f"DROP SCHEMA {PREFIX}of_another_machine CASCADE" in reported
        assert scratch_schemas(postgres_database) == [f"{PREFIX}of_another_machine"]
    finally:
        postgres_database.administrator.rows(f"DROP SCHEMA {PREFIX}of_another_machine")


def test_a_folder_that_names_a_foreign_schema_is_left_alone(tmp_path: Path) -> None:
    planted = tmp_path / f".{PREFIX}planted"
    planted.mkdir()
    (planted / "owner").write_bytes(msgspec.json.encode(Owned("public", "0")))
    assert list(dead(tmp_path)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cases", "0"],
        ["--cases", "-1"],
        ["--cases", "1.5"],
        ["--cases", "9" * 30],
        ["--minutes", "0"],
        ["--minutes", "-3"],
        ["--minutes", "nan"],
        ["--minutes", "inf"],
        ["--minutes", "1e9"],
        ["--seed", "-1"],
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--url", tmp_path / "agent.db", *arguments) == 2
    assert arguments[0] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_torture_that_could_run_nothing_does_not_say_that_all_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--url", tmp_path / "agent.db", *faults("failover")) == 1
    reported = capsys.readouterr()
    assert "does not apply to SQLite" in reported.out
    assert "nothing was run" in reported.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "memory:"], "outlives its process"),
        (["--url", "nowhere/at/all/agent.db"], "does not exist"),
        (["--url", "agent.db", "--schema", "mine"], "a schema of its own"),
        (["--url", "agent.db", "--pooler", "transaction"], "is for PostgreSQL"),
        (["--url", "agent.db", "--attachments", "here"], "--attachments"),
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
