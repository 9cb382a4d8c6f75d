"""The table of the documents is about the versions that are tested, and shows every outcome."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
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
        "suites": [suite],
    }
    page = tool("adapter_table").rendered(results)
    assert page.splitlines()[-2:] == [
        "| framework 1.0 | `tests/adapters/a/test_b.py` | all | 4 | 0 | 0 |",
        r"| framework 1.0 | theirs | sqlite | 3 | 1 | 2: w\|hy |",
    ]


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
