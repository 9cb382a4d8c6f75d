"""`python3 tasks.py fast` runs the rules and the contract on memory and SQLite, and types what changed: no server."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

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
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == project["version"]
