"""`python3 tasks.py fast` runs the rules and the contract on memory and SQLite, and types what changed: no server."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdfast_tasks", ROOT / "tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.read_text(encoding='utf-8') if path.exists() else ''}#\n", encoding="utf-8")


def test_fast_collects_the_rules_and_the_contract_on_memory_and_sqlite(tasks: ModuleType) -> None:
    workers = list(tasks.FAST_TESTS).index("-n")
    command = [*tasks.FAST_TESTS[:workers], *tasks.FAST_TESTS[workers + 4 :], "--collect-only"]
    done = subprocess.run(command, cwd=ROOT, env=tasks.environment(), capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    contract = [line for line in found if line.startswith("tests/contract/")]
    assert len(found) - len(contract) == sum(line.startswith("tests/rules/") for line in found) > 1_000
    assert sum("memory-blocking" in line for line in contract) > 1_000
    assert sum("sqlite-blocking" in line for line in contract) > 1_000
    assert [line for line in contract if "memory-blocking" not in line and "sqlite-blocking" not in line] == []


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdfast_conftest", ROOT / "tests" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case(place: str, number: int, **parameters: str) -> Any:
    """Return a test as pytest describes it, with parameters."""
    name = f"test_it[{number}]"
    indices = dict.fromkeys(parameters, 0) | {"number": number}
    callspec = SimpleNamespace(params=parameters | {"number": number}, indices=indices)
    return SimpleNamespace(path=ROOT / "tests" / place, name=name, nodeid=f"tests/{place}::{name}", callspec=callspec)


def test_a_push_draws_other_tests_with_each_seed_and_a_release_runs_them_all(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case("planted/test_planted.py", number) for number in range(300)]

    def drawn(seed: str) -> set[str]:
        monkeypatch.setenv("HOLDFAST_SEED", seed)
        return {one.name for one in cases if hooks.is_drawn(one)}

    shares = [drawn(str(seed)) for seed in range(30)]
    assert all(30 < len(share) < 100 for share in shares)
    assert set().union(*shares) == {one.name for one in cases}
    assert drawn("0") == shares[0] != shares[1]
    assert all("--draw" not in path.read_text(encoding="utf-8") for path in (ROOT / "tools").glob("*.py"))


def test_a_decision_in_memory_and_the_first_values_on_every_engine_are_never_left_to_a_draw(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SEED", "1")
    always = [
        *(case("contract/test_races.py", number, bench="memory-blocking") for number in range(50)),
        *(case(f"contract/test_{number}.py", 0, bench="postgres-blocking") for number in range(50)),
        *(case("rules/test_queue.py", number) for number in range(50)),
        *(
            case(f"worker/test_{number}.py", 0, engine=engine)
            for number in range(50)
            for engine in ("sqlite", "postgres")
        ),
    ]
    assert [one.nodeid for one in always if not hooks.is_drawn(one)] == []
    second = case("worker/test_worker.py", 0, engine="postgres")
    second.callspec.indices["engine"] = 1
    assert hooks.is_first_of_its_values(second)
    assert not hooks.is_first_of_its_values(case("worker/test_worker.py", 1, engine="postgres"))


@pytest.mark.parametrize(
    ("place", "parameters"),
    [
        ("contract/test_queue.py", {"bench": "pooled-blocking"}),
        ("contract/test_queue.py", {"bench": "sqlite-blocking"}),
        ("contract/test_queue.py", {"bench": "postgres-blocking"}),
        ("backends/sqlite/test_kills.py", {}),
    ],
)
def test_a_part_of_the_further_values_is_drawn(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, place: str, parameters: dict[str, str]
) -> None:
    monkeypatch.setenv("HOLDFAST_SEED", "1")
    drawn = [hooks.is_drawn(case(place, number, **parameters)) for number in range(90)]
    assert 10 < drawn.count(True) < 45


def test_draws_name_tests_that_there_are(hooks: ModuleType) -> None:
    starts = [start.split("::")[0] for start in (*hooks.DRAWN, *hooks.ALL_VALUES)]
    assert [start for start in starts if not [*(ROOT / "tests").glob(f"{start}*")]] == []


def test_fast_leaves_out_files_that_there_are(tasks: ModuleType) -> None:
    assert [path for path in tasks.SLOW_FILES if not (ROOT / path).is_file()] == []


def test_fast_types_what_differs_from_the_branch_that_a_clone_came_from(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init")
    write(origin, "src/kept.py", "src/changed.py", "src/removed.py", "tests/untyped.py", "tasks.py")
    git(origin, "add", ".")
    git(origin, "commit", "-m", "First")
    git(tmp_path, "clone", str(origin), str(clone))
    monkeypatch.setattr(tasks, "ROOT", clone)
    assert tasks.changed_typed_files() == []
    write(clone, "src/committed.py")
    git(clone, "add", ".")
    git(clone, "commit", "-m", "Second")
    write(clone, "src/changed.py", "src/new.py", "src/page.md", "tests/untyped.py", "tests/typing/api.py", "tasks.py")
    (clone / "src/removed.py").unlink()
    assert sorted(tasks.changed_typed_files()) == [
        *("src/changed.py", "src/committed.py", "src/new.py", "tasks.py", "tests/typing/api.py"),
    ]


def test_fast_is_where_commands_are_listed() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "python3 tasks.py fast" in (ROOT / page).read_text(encoding="utf-8")


def test_hooks_call_tools_of_the_environment_and_download_nothing() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    assert [hook["entry"] for hook in repository["hooks"] if not (ROOT / hook["entry"].split()[0]).is_file()] == []


def test_the_wheel_is_tried_on_every_version_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one}
    text = (ROOT / "tools" / "try_wheel.py").read_text(encoding="utf-8")
    first, last = map(int, re.findall(r"MINORS = range\((\d+), (\d+)\)", text)[0])
    assert declared == {f"3.{minor}" for minor in range(first, last)}


def test_the_newest_version_in_the_changelog_is_the_one_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    headings = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == project["version"]


GATED = """
def used(x):
    if x is None:
        return 3  # pragma: no cover
    if x:
        return 1
    if x == 0:  # pragma: no branch
        return 2
"""
PARTS = ("rules", "operations")


@pytest.mark.parametrize(
    ("argument", "code", "said"),
    [
        (0, 0, "rules: 100.00 % (needs 100 %)"),
        (1, 1, "src/holdfast/operations/part.py: 6/9: lines 7-8, branch 5->7"),
    ],
)
def test_the_coverage_gate_fails_for_a_line_that_no_test_reaches(
    tmp_path: Path, argument: int, code: int, said: str
) -> None:
    for part in PARTS:
        folder = tmp_path / "src" / "holdfast" / part
        folder.mkdir(parents=True)
        (folder / "part.py").write_text(GATED)
        (folder / "__init__.py").touch()
    imports = "\n".join(f"from {part}.part import used as use_{part}" for part in PARTS)
    calls = f"use_rules(0), use_rules(1), use_operations({argument}), use_operations(1)"
    (tmp_path / "run.py").write_text(f"import sys\nsys.path.insert(0, 'src/holdfast')\n{imports}\n{calls}\n")
    measured = ["-m", "slipcover", "--branch", "--json", "--out", "coverage.json", "--source", "src/holdfast"]
    # In a run that is measured itself, the child would take that run's results for its own, and delete them.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("SLIPCOVER_")}
    command = [sys.executable, *measured, "run.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=unmeasured)
    gate = [sys.executable, str(ROOT / "tools" / "coverage_gate.py"), "coverage.json", "--decisions"]
    done = subprocess.run(gate, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


def test_the_coverage_gate_fails_where_nothing_was_measured(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    report.write_text('{"meta": {"branch_coverage": true}, "files": {}}')
    gate = [sys.executable, str(ROOT / "tools" / "coverage_gate.py"), str(report), "--decisions"]
    done = subprocess.run(gate, check=False, capture_output=True, text=True)
    assert (done.returncode, "nothing of src/holdfast/rules was measured" in done.stdout) == (1, True)
