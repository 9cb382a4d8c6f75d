"""Fixtures of the adapters' tests, and the record of what ran, from which the table in the documents is made.

`--all-frameworks` makes a framework that is not installed an error; otherwise its tests are skipped and the header of
the run names it. `--whole-suites` runs the tests of the frameworks themselves, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FRAMEWORKS = {
    "langgraph": ("langgraph-checkpoint", "langgraph.checkpoint.base"),
    "openai_agents": ("openai-agents", "agents"),
    "pydantic_ai": ("pydantic-ai-slim", "pydantic_ai"),
    "adk": ("google-adk", "google.adk"),
    "a2a": ("a2a-sdk", "a2a"),
    "mcp": ("mcp", "mcp"),
}
"""Adapters, each with the distribution and the module of its framework."""
RESULTS = Path(__file__).parents[2] / "build" / "adapters" / "results.json"
BACKENDS = ("memory", "sqlite", "postgres")


def missing() -> list[str]:
    """Return the adapters whose framework is not installed."""
    return [adapter for adapter, (name, _) in FRAMEWORKS.items() if not version_of(name)]


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def pytest_configure(config: pytest.Config) -> None:
    gone = missing()
    if gone and config.getoption("--all-frameworks"):
        raise pytest.UsageError(f"not installed: the frameworks of the adapters {', '.join(gone)}")


def pytest_report_header() -> str:
    found = [f"{name} {version_of(name) or 'NOT INSTALLED, its tests are skipped'}" for name, _ in FRAMEWORKS.values()]
    return f"frameworks: {', '.join(found)}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a folder whose framework is missing. The header names it."""
    return True if collection_path.name in missing() and collection_path.is_dir() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the further values of a test to `--whole-suites`, except in memory, where they cost little."""
    if config.getoption("--whole-suites"):
        return
    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def is_left_out(item: pytest.Item) -> bool:
    indices: dict[str, int] = getattr(getattr(item, "callspec", None), "indices", {})
    values = [index for name, index in indices.items() if name not in {"url", "lasting_url"}]
    return indices.get("url", 0) > 0 and any(values)


# ---------------------------------------------------------------------------- the record


Counts = Counter[str]
SEEN: dict[str, Counts] = {}
SUITES: list[dict[str, Any]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count outcomes by test file. The controller of several workers sees all of them."""
    if report.when != "call" and not (report.when == "setup" and report.skipped):
        return
    suites = [value for name, value in report.user_properties if name == "suite"]
    SUITES.extend(json.loads(str(value)) for value in suites)
    if not suites:
        SEEN.setdefault(report.nodeid.partition("::")[0], Counter())[report.outcome] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("--whole-suites"):
        return
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    versions = {adapter: f"{name} {version_of(name)}" for adapter, (name, _) in FRAMEWORKS.items()}
    before: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if before.get("versions") != versions:
        before = {"own": {}, "suites": []}
    # A run of some tests replaces their rows only.
    suites = {(one["adapter"], one["suite"], one["backend"]): one for one in [*before["suites"], *SUITES]}
    results = {"versions": versions, "own": before["own"] | SEEN, "suites": list(suites.values())}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True), encoding="utf-8")


# ---------------------------------------------------------------------------- fixtures


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store on each backend."""
    return url_of(request, tmp_path, request.param)


@pytest.fixture(params=BACKENDS[1:])
def lasting_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store that other processes can open."""
    return url_of(request, tmp_path, request.param)


def url_of(request: pytest.FixtureRequest, folder: Path, backend: str) -> str:
    if backend == "memory":
        return "memory:"
    if backend == "sqlite":
        return f"sqlite:///{folder}/agent.db"
    found: str = request.getfixturevalue("clean_postgres_url")
    return found


@pytest.fixture(scope="session")
def suites() -> ModuleType:
    """The module that runs the tests of a framework."""
    return beside("suites")


def beside(name: str) -> ModuleType:
    whole = f"holdfast_adapters_{name}"
    if whole not in sys.modules:
        spec = importlib.util.spec_from_file_location(whole, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[whole] = module
        spec.loader.exec_module(module)
    return sys.modules[whole]


@pytest.fixture
def killed_import() -> Callable[..., None]:
    """Run `holdfast import` in a process that is killed at a commit, and check that it was."""

    def run(at: int, *arguments: str) -> None:
        command = [sys.executable, str(Path(__file__).parent / "killed_import.py"), str(at), "import", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    return run


@pytest.fixture
def run_suite(
    request: pytest.FixtureRequest,
    suites: ModuleType,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Callable[..., None]:
    """Run tests of a framework's source distribution in a process of their own, and record their outcomes."""
    if not request.config.getoption("--whole-suites"):
        pytest.skip("a suite of the framework: --whole-suites")

    def run(**arguments: Any) -> None:
        outcome = suites.run(folder=tmp_path, **arguments)
        record_property("suite", json.dumps(outcome.as_json()))
        assert outcome.failed == [], outcome.output
        assert outcome.passed

    return run
