"""The parts of faults work as specified: children, proxies, time budgets, and the report of a release."""

from __future__ import annotations

import importlib.util
import os
import pwd
import random
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.torture import servers
from holdfast.torture.children import TIMEOUT_S, Broken, Child, Gone, Silent, serve
from holdfast.torture.cuts import skip_reason as no_proxy
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch, SqliteScratch, Unusable, scratch_at
from holdfast.torture.pool_worker import Terms
from holdfast.torture.pools import Pool
from holdfast.torture.proxy import Unreachable, target_of, through
from holdfast.torture.running import MOST_UNJUDGED, Result, Violation, run_fault, share

TOOLS = Path(__file__).parents[2] / "tools"


# ---------------------------------------------------------------------------- children


def test_a_child_that_fails_tells_how() -> None:
    # A port cannot be opened.
    with Child(open) as child, pytest.raises(Broken, match="TypeError"):
        child.receive()


def test_a_killed_child_says_no_more() -> None:
    with Child(serve) as child:
        with pytest.raises(Silent):
            child.receive(0.01)
        assert not child.has_message(0.01)
        child.stop()
        child.resume()
        assert child.kill() == []
    with Child(serve) as child:
        child.send("nonsense")
        with pytest.raises((Broken, Gone)):
            child.receive()


# ---------------------------------------------------------------------------- places and proxies


def is_stopped(worker: Child) -> bool:
    return Path(f"/proc/{worker.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a process list to look at")
def test_a_stopped_worker_continues_without_a_call_of_its_pool(tmp_path: Path) -> None:
    """A call of the pool may wait for a lock, or for a server connection, that the stopped worker holds."""
    deadline_s = time.monotonic() + TIMEOUT_S
    with SqliteScratch(tmp_path) as scratch:
        place, notes = scratch.fresh(), scratch.file("notes")
        with Pool(place, notes, random.Random(1), 2, Terms(lease_s=2)) as pool:
            pool.stop_one()
            while not any(map(is_stopped, pool.workers)):
                assert time.monotonic() < deadline_s, "no worker was stopped"
            while any(map(is_stopped, pool.workers)):
                assert time.monotonic() < deadline_s, "the worker stays stopped"


def test_there_is_no_scratch_for_a_store_in_memory() -> None:
    for url in ("memory:", "sqlite::memory:"):
        with pytest.raises(Unusable):
            scratch_at(url)


def test_a_proxy_knows_where_a_url_leads() -> None:
    assert target_of("postgresql://ada@db/app") == (None, "db", 5432)
    assert target_of("postgresql://ada@db:6000/app") == (None, "db", 6000)
    assert target_of("postgresql:///app?host=/run/pg&port=7") == ("/run/pg/.s.PGSQL.7", "", 0)
    assert target_of("postgresql:///app") == (None, "localhost", 5432)
    assert through("postgresql://ada:x@db/app?host=y&sslmode=require", 9) == (
        "postgresql://ada:x@127.0.0.1:9/app?sslmode=require"
    )
    assert through("postgresql:///app", 9) == "postgresql://127.0.0.1:9/app"


@pytest.mark.parametrize("url", ["postgresql://one,two/app", "postgresql://db/app?sslmode=verify-full"])
def test_a_proxy_that_cannot_stand_there_is_an_obstacle(url: str, tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        target_of(url)
    with Scratch("postgres", url, tmp_path, None) as scratch:
        assert no_proxy(scratch)


def test_without_the_programs_of_a_server_its_faults_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert servers.no_server(None) is None
    monkeypatch.setattr(servers, "found", lambda: None)
    assert "no PostgreSQL server programs" in str(servers.no_server(None))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_programs_that_the_servers_user_cannot_get_at_are_copied(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    # As under a home folder, or after an installation with a umask of 077.
    programs = tmp_path / "closed" / "package" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    libraries = tmp_path / "closed" / "package.libs"
    libraries.mkdir()
    (libraries / "libpq.so").write_text("a library")
    shutil.copy("/bin/true", programs / "postgres")
    (programs / "postgres").chmod(0o700)
    (tmp_path / "closed").chmod(0o700)
    assert not servers.may_run(programs, nobody)
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        copied = servers.reachable(programs, Path(folder), nobody)
        assert copied.is_relative_to(folder)
        assert servers.may_run(copied, nobody)
        assert (copied.parents[2] / "package.libs" / "libpq.so").read_text() == "a library"
        # A runnable program, or one without a second user, is not copied.
        assert servers.reachable(copied, tmp_path, nobody) == copied
        assert servers.reachable(programs, tmp_path, None) == programs


# ---------------------------------------------------------------------------- running


def counting(_: Scratch, seed: int) -> Ran:
    return Ran(2, ("I1: odd",) if seed % 2 else ())


COUNTING = Fault("counting", "counts", ("I1",), {"sqlite": Numbers(1, 1)}, counting)


def test_a_fault_is_run_until_it_has_its_cases_and_each_run_has_a_seed_of_its_own(tmp_path: Path) -> None:
    with SqliteScratch(tmp_path) as scratch:
        result = run_fault(scratch, COUNTING, seed=10, wanted=5)
        assert (result.cases, result.runs, result.violations) == (6, 3, (Violation(11, ("I1: odd",)),))
        assert not result.passed
        many = run_fault(scratch, COUNTING, seed=0, wanted=1_000)
        assert [one.seed for one in many.violations] == [1, 3, 5]
        assert run_fault(scratch, COUNTING, seed=0, wanted=1).passed
        assert run_fault(scratch, COUNTING, seed=0, wanted=1_000, most_s=0.0).runs == 1


def too_wide(_: Scratch, seed: int) -> Ran:
    return Ran(1, ("I1: odd",) if seed == 4 else (), ("I3: too wide to be judged",) if seed % 2 == 0 else ())


def test_a_run_that_cannot_be_judged_is_neither_a_case_nor_a_violation(tmp_path: Path) -> None:
    fault = Fault("wide", "is wide", ("I1",), {"sqlite": Numbers(1, 1)}, too_wide)
    with SqliteScratch(tmp_path) as scratch:
        result = run_fault(scratch, fault, seed=0, wanted=2)
        assert (result.cases, result.runs, result.violations) == (2, 4, ())
        assert result.unjudged == ("seed 0: I3: too wide to be judged", "seed 2: I3: too wide to be judged")
        assert result.passed
        # A violation in an unjudged run counts all the same.
        assert run_fault(scratch, fault, seed=4, wanted=1).violations == (Violation(4, ("I1: odd",)),)
        never = fault._replace(run=lambda _, seed: Ran(1, (), (f"I3: {seed}",)))
        given_up = run_fault(scratch, never, seed=0, wanted=2)
        assert (given_up.cases, given_up.runs, given_up.passed) == (0, MOST_UNJUDGED, False)


def test_a_share_of_the_time_is_an_equal_part_of_what_is_left() -> None:
    assert share(None)(3) is None
    third = share(1)(3)
    assert third is not None
    assert 15 < third <= 20


def reliability() -> Any:
    spec = importlib.util.spec_from_file_location("reliability", TOOLS / "reliability.py")
    assert spec is not None
    assert spec.loader is not None
    tool: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_report_tells_what_was_reached_skipped_noticed_and_violated() -> None:
    good = Result("kill-writer", "sqlite", ("I1", "I2"), "kills", 500, 300, 30, (), None, 1.0)
    bad = Result("wakes", "sqlite", ("I8",), "waits", 9, 9, 1, (Violation(7, ("I8: slept",)),), None, 1.0)
    few = Result("flips", "sqlite", ("I9",), "flips", 10_000, 400, 1, (), None, 1.0)
    skipped = Result("power-loss", "postgres", ("I1",), "images", 0, 0, 0, (), "it does not apply", 0.0)
    tool = reliability()
    rows = (good, bad, few, skipped)
    bugs = (("wake_lost-wakes",), ("fence_at_least (failed)",))
    report = tool.Report(rows, "18.1", 42, 3.0, *bugs, "c0ffee", "2026-01-02", ("flips on SQLite, at `beef`",))
    page = tool.page(report)
    assert "Run on 2026-01-02 at commit `c0ffee`: 3 minutes, seed 42." in page
    assert "Failed at first, repeated after a fix: flips on SQLite, at `beef`." in page
    assert "| kill-writer | SQLite | I1 I2 | 300 of 500 kills | 30 | 0 | 10.0% |" in page
    assert "| wakes | SQLite | I8 | 9 of 9 waits | 1 | 1 | - |" in page
    assert "| flips | SQLite | I9 | 400 of 10,000 flips | 1 | 0 | - |" in page
    assert "- it does not apply: power-loss" in page
    assert (
        "**Of 3 rows, 0 held with all cases that a release asks for, 2 held with fewer,\nand 1 were violated.**" in page
    )
    assert "Skipped: 1." in page
    assert "holdfast torture --url URL --fault wakes --seed 7 --cases 1" in page
    assert "- wake_lost-wakes" in page
    assert "**NOT noticed: fence_at_least (failed)**" in page
    assert "## What they found" in page


def test_only_violated_rows_are_repeated(tmp_path: Path) -> None:
    tool = reliability()
    name = "clock that goes backwards"
    held = Result("kill-writer", "sqlite", ("I1",), "kills", 500, 300, 30, (), None, 1.0)
    slept = Result(
        "close-under-waiter", "sqlite", ("I9",), "runs", 50, 1, 1, (Violation(7, ("I9: slept",)),), None, 1.0
    )
    stepped = Result(name, "both", ("I5",), "tests", 3, 3, 1, (Violation(7, ("I5: early",)),), None, 1.0)
    kept = tool.Report((held, slept, stepped), "none", 42, 3.0, ("a bug",), (), "c0ffee", "2026-01-02")
    again = tool.run_again(tmp_path, kept, None)
    assert [(one.fault, one.cases, one.passed) for one in again.results] == [
        ("kill-writer", 300, True),
        ("close-under-waiter", 1, True),
        (name, 3, True),
    ]
    assert again.results[1].wanted == 50
    assert (again.commit, again.caught, again.violated) == ("c0ffee", ("a bug",), ())
    assert [note.split(",")[0] for note in again.again] == ["close-under-waiter on SQLite", f"{name} on both"]


def test_every_row_of_the_programme_is_run_or_named() -> None:
    tool = reliability()
    rows = {suite.name for suite in tool.SUITES} | {*tool.NOT_RUN}
    words = " ".join(rows)
    for what in ("random programs", "clock", "damaged rows", "flipped bits", "migration", "sixteen", "hostile", "I7"):
        assert what in words or any(what in suite.invariants for suite in tool.SUITES), what
    for suite in tool.SUITES:
        for path in (word for word in suite.tests if word.startswith("tests/")):
            assert (TOOLS.parent / path).exists(), path


def test_time_is_shared_by_what_each_row_still_needs() -> None:
    tool = reliability()
    assert tool.shared([30.0, 10.0], 100.0) == 30.0
    assert tool.shared([30.0, 10.0], 20.0) == 15.0
    assert tool.shared([0.0, 10.0], 20.0) == 0.0
    assert tool.shared([5.0], -1.0) == 0.0
    slow = Result("slow", "sqlite", ("I1",), "runs", 100, 10, 10, (), None, 20.0)
    assert tool.needed_s(slow) == 180.0


def test_every_command_of_the_track_record_names_a_test_that_there_is() -> None:
    command = r"`(?:HOLDFAST_\w+=\S+ )?pytest (tests/\S+\.py)(?:::(\w+))?`"
    shown = re.findall(command, "\n".join(reliability().track_record()))
    assert len(shown) > 5
    for path, name in shown:
        text = (TOOLS.parent / path).read_text(encoding="utf-8")
        # A file without a test name stands for all of its tests, possibly those of a contract that it inherits.
        assert f"def {name}" in text if name else "class Test" in text or "def test_" in text
