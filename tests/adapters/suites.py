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
TRIES = 3
"""Most runs of a test that measures time."""


@dataclass(frozen=True)
class Outcome:
    """Counts of a suite. `skipped` maps a reason to the number of tests, `again` those that passed when run again."""

    adapter: str
    suite: str
    backend: str
    passed: int
    failed: list[str]
    skipped: Mapping[str, int]
    output: str
    again: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields that the table needs."""
        names = ("adapter", "suite", "backend", "passed", "failed", "skipped", "again")
        return {name: getattr(self, name) for name in names}


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
    timed: Sequence[str] = (),
) -> Outcome:
    """Run test files of a source distribution. `left_out` maps a part of a test's id to the reason for skipping it.

    `timed` are names of tests that measure time or order by it. If they fail they are run again, alone.
    The plugin is a module of the folder `plugins`. It reads the URL of the store from the variable
    HOLDFAST_ADAPTER_URL. If it `marks` the tests that used Holdfast, only those count as passed.
    """
    source = _fetching().fetch(distribution)
    variables = {"HOLDFAST_ADAPTER_URL": url, "HOLDFAST_ADAPTER_LEFT_OUT": json.dumps(left_out)}
    command = ["-p", "leave_out", "-p", plugin, "-p", "no:cacheprovider", *options, *files]
    first, output = _cases(source, command, folder / "report.xml", variables)
    backend = url.partition(":")[0]
    if not first:
        return Outcome(adapter, suite, backend, 0, ["no report"], {}, output)
    passed, failed, skipped = _counts(first, marks=marks)
    again = 0
    for _ in range(TRIES - 1):
        slow = {name.rpartition("::")[2].partition("[")[0] for name in failed} & {*timed}
        if not slow:
            break
        cases, said = _cases(source, [*command, "-k", " or ".join(slow)], folder / "again.xml", variables)
        output += said
        mended = {_name(case) for case in cases if _has_passed(case, marks=marks)} & {*failed}
        failed = [name for name in failed if name not in mended]
        again += len(mended)
    return Outcome(adapter, suite, backend, passed + again, failed, dict(skipped), output, again)


def _cases(
    source: Path, options: Sequence[str], report: Path, variables: Mapping[str, str]
) -> tuple[list[ET.Element], str]:
    """Run pytest in a process of its own. Return its cases, none without a report, and its output."""
    dropped = ("SLIPCOVER_", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=inherited | variables | {"PYTHONPATH": os.pathsep.join([str(PLUGINS), str(source)])},
    )
    cases = [*ET.parse(report).getroot().iter("testcase")] if report.exists() else []
    return cases, done.stdout + done.stderr


def _counts(cases: Sequence[ET.Element], *, marks: bool) -> tuple[int, list[str], Counter[str]]:
    """Return the number of tests that passed, the names of those that failed, and the reasons of skips."""
    passed, failed, skipped = 0, list[str](), Counter[str]()
    for case in cases:
        states = {child.tag: child for child in case}
        if "failure" in states or "error" in states:
            failed.append(_name(case))
        elif "skipped" in states:
            skipped[states["skipped"].get("message") or "no reason given"] += 1
        elif _has_passed(case, marks=marks):
            passed += 1
    return passed, failed, skipped


def _has_passed(case: ET.Element, *, marks: bool) -> bool:
    """Return True for a test that passed, and with `marks` used Holdfast."""
    if {"failure", "error", "skipped"} & {child.tag for child in case}:
        return False
    return not marks or any(one.get("name") == "holdfast" for one in case.iter("property"))


def _name(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _fetching() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "fetch_suites.py"
    spec = importlib.util.spec_from_file_location("holdfast_fetch_suites", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
