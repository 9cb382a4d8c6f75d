"""Runs the tests of a framework in a process of their own, with a plugin that replaces the framework's store."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

TIMEOUT_S = 1_500
NOTHING: Mapping[str, str] = {}
PLUGINS = Path(__file__).parent / "plugins"


@dataclass(frozen=True)
class Outcome:
    """Counts of a suite. `skipped` maps a reason to the number of tests."""

    adapter: str
    suite: str
    backend: str
    passed: int
    failed: list[str]
    skipped: Mapping[str, int]
    output: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields that the table needs."""
        return {name: getattr(self, name) for name in ("adapter", "suite", "backend", "passed", "failed", "skipped")}


def run(
    *,
    adapter: str,
    suite: str,
    distribution: str,
    files: Sequence[str],
    plugin: str,
    url: str,
    folder: Path,
    left_out: Mapping[str, str] = NOTHING,
    options: Sequence[str] = (),
    marks: bool = False,
) -> Outcome:
    """Run test files of a source distribution. `left_out` maps a part of a test's id to the reason for skipping it.

    The plugin is a module of the folder `plugins`. It reads the URL of the store from the variable
    HOLDFAST_ADAPTER_URL. If it `marks` the tests that used Holdfast, only those count as passed.
    """
    source = _fetching().fetch(distribution)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "leave_out", "-p", plugin]
    command += ["-p", "no:cacheprovider", *options, *files]
    dropped = ("SLIPCOVER_", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    done = subprocess.run(
        command,
        cwd=source,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=inherited
        | {
            "PYTHONPATH": os.pathsep.join([str(PLUGINS), str(source)]),
            "HOLDFAST_ADAPTER_URL": url,
            "HOLDFAST_ADAPTER_LEFT_OUT": json.dumps(left_out),
        },
    )
    if not report.exists():
        return Outcome(adapter, suite, url.partition(":")[0], 0, ["no report"], {}, done.stdout + done.stderr)
    passed, failed, skipped = 0, list[str](), Counter[str]()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        states = {child.tag: child for child in case}
        if "failure" in states or "error" in states:
            failed.append(name)
        elif "skipped" in states:
            skipped[states["skipped"].get("message") or "no reason given"] += 1
        elif not marks or any(one.get("name") == "holdfast" for one in case.iter("property")):
            passed += 1
    return Outcome(adapter, suite, url.partition(":")[0], passed, failed, dict(skipped), done.stdout + done.stderr)


def _fetching() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "fetch_suites.py"
    spec = importlib.util.spec_from_file_location("holdfast_fetch_suites", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
