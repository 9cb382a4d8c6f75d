"""Leaves to the whole run: further seeds, and on PostgreSQL all tests but those of `ON_SERVER`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ON_SERVER = ("test_conformance.py", "test_differential.py", "test_two_runs.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--whole-suites"):
        return
    left = pytest.mark.skip(reason="in the whole run only: --whole-suites")
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        on_server = parameters.get("url") == "postgres" and item.path.name not in ON_SERVER
        starts = "a_kill_in" in item.name and parameters.get("lasting_url") == "postgres"
        if item.path.parent == HERE and (parameters.get("seed", 0) or on_server or starts):
            item.add_marker(left)
