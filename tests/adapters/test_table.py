"""The table of the documents is about the versions that are tested, and shows every outcome."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"holdfast_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_a_row_for_each_suite_and_each_of_our_files() -> None:
    suite = {
        "adapter": "a",
        "suite": "theirs",
        "backend": "sqlite",
        "passed": 3,
        "failed": ["x"],
        "skipped": {"w|hy": 2},
    }
    results: dict[str, Any] = {
        "versions": {"a": "framework 1.0"},
        "own": {"tests/adapters/a/test_b.py": {"passed": 4}, "tests/adapters/test_c.py": {"passed": 1}},
        "suites": [suite, {**suite, "backend": "postgresql", "failed": [], "again": 1}],
    }
    page = tool("adapter_table").rendered(results)
    assert page.splitlines()[-3:] == [
        "| framework 1.0 | `tests/adapters/a/test_b.py` | all | 4 | 0 | 0 |",
        r"| framework 1.0 | theirs | postgresql | 3, 1 of them when run again | 0 | 2: w\|hy |",
        r"| framework 1.0 | theirs | sqlite | 3 | 1 | 2: w\|hy |",
    ]


@pytest.mark.parametrize(("timed", "passed"), [(("test_second_time",), 2), ((), 1)])
def test_a_test_that_measures_time_is_run_again(
    suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: tuple[str, ...], passed: int
) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_second_time():\n"
        "    seen = Path('seen').exists()\n"
        "    Path('seen').touch()\n"
        "    assert seen\n"
        "def test_always(): pass\n"
        "def test_never(): assert False\n"
    )
    monkeypatch.setattr(suites, "_fetching", lambda: SimpleNamespace(fetch=lambda _: tmp_path))
    outcome = suites.run(
        adapter="a",
        suite="s",
        distribution="d",
        files=("test_it.py",),
        plugin="leave_out",
        url="sqlite:///x",
        folder=tmp_path,
        timed=timed,
    )
    assert (outcome.passed, outcome.again) == (passed, passed - 1)
    assert outcome.failed == ([] if timed else ["test_it::test_second_time"]) + ["test_it::test_never"]


def test_the_page_is_about_the_versions_of_the_lock() -> None:
    locked = tool("fetch_suites").locked
    page = (ROOT / "docs" / "adapters" / "tested.md").read_text(encoding="utf-8")
    tested = {line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")} - {
        "framework"
    }
    assert tested
    assert [row for row in tested if row != f"{row.split()[0]} {locked(row.split()[0]).version}"] == []


def test_a_package_that_is_not_locked_cannot_be_fetched() -> None:
    with pytest.raises(SystemExit, match=r"nobody is not in uv\.lock"):
        tool("fetch_suites").locked("nobody")
