"""Fixtures and hooks for all tests. pytest rewrites the plain `assert`s of shipped cases only in registered modules.

The database of the PostgreSQL tests is here, too, because several folders use it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-postgres", action="store_true", help="leave out the tests that need a PostgreSQL server")
    parser.addoption(
        "--whole-facade", action="store_true", help="run the whole contract blocking and async on every backend"
    )
    parser.addoption(
        "--whole-pooler", action="store_true", help="run the whole contract through PgBouncer, and not only a part"
    )
    parser.addoption(
        "--whole-second",
        action="store_true",
        help="run the whole contract on the second PostgreSQL, and not only a part",
    )
    parser.addoption(
        "--draw", action="store_true", help="of tests that repeat much (DRAWN), run the share that this seed draws"
    )
    parser.addoption(
        "--undrawn", action="store_true", help="run only tests that every seed runs, to see that they cover every line"
    )
    parser.addoption("--all-frameworks", action="store_true", help="fail if the framework of an adapter is missing")
    parser.addoption("--whole-suites", action="store_true", help="run the tests of the frameworks with our adapters")
    parser.addoption(
        "--citus",
        choices=("schema", "family"),
        help="run the contract on a Citus cluster of this machine instead, spread by one of these",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set one seed for the whole run, workers included; `HOLDFAST_SEED=<seed>` repeats it."""
    gc.disable()  # Collecting 20,000 tests takes twice as long with it.
    os.environ.setdefault("HOLDFAST_SEED", f"{random.SystemRandom().getrandbits(48):x}")
    # Tests interrupt their children. A background job of a shell inherits ignored interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not config.getoption("--no-postgres") and not first_server():
        raise pytest.UsageError(postgres_tools().NO_SERVER)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but leave out the collected tests, which stay."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw from tests that repeat much, and start with the longest, so that none of them runs alone at the end."""
    undrawn = config.getoption("--undrawn")
    if undrawn or config.getoption("--draw"):
        drawn: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            is_run = share_of(item) == 1 if undrawn else is_drawn(item)
            (drawn if is_run else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = drawn
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.path.relative_to(Path(__file__).parent).as_posix().startswith(LONGEST))


LONGEST = (
    *("faults", "loop_gaps", "planted", "test_state_machine.py"),
    *("backends/postgres/test_statements", "cli/test_demo.py", "worker"),
)


LARGEST = "test_the_largest_payload_that_is_accepted_ends_in_time"
SLOW_SCHEMAS = ("a possessive", "multiples", "numbers", "patterns", "required names", "unique")
DRAWN = {
    **dict.fromkeys(("faults/test_planted_bugs.py", "planted", "worker/test_crashes.py::test_a_planted_bug"), 5),
    **dict.fromkeys(("backends/postgres/test_verify_damage.py", "backends/sqlite/test_loose_damage.py"), 4),
    **dict.fromkeys(("backends/test_damaged_files.py", "test_state_machine.py::test_the_machine_notices"), 4),
    "contract/test_second_process.py": 2,
    "loop_gaps": 10,
    **dict.fromkeys((f"rules/test_schema_cost.py::{LARGEST}[{kind}" for kind in SLOW_SCHEMAS), 3),
    "test_secrets.py": 3,
    **dict.fromkeys(("backends/sqlite/test_hostile_pages.py", "backends/sqlite/test_byte_flips.py"), 3),
    "faults/test_push_lane.py": 4,
    **dict.fromkeys(("cli/test_demo.py", "test_state_machine.py::test_both"), 2),
    **dict.fromkeys(("backends/postgres/test_statement_races.py", "docs/test_streaming_page.py"), 2),
    "inspector/test_browser.py": 6,
    **dict.fromkeys(("backends/postgres/test_renewal_races.py", "backends/postgres/test_job_races.py"), 5),
    **dict.fromkeys(("test_json_chunks.py", "test_codec.py", "test_decoding.py"), 2),
    "rules/test_every_check.py::test_every_check_refuses": 2,
}
"""Tests that repeat one promise with many values, damages or bugs: one in so many runs on a push, all on a release.

The seed draws them, so that each run has others. The tests that every seed runs reach all lines of the rules and
operations (`--undrawn`): the coverage gate must not depend on the seed.
"""
DRAWN_BENCHES = dict.fromkeys(
    ("memory-async", "second-blocking", "pooled-blocking", "sqlite-async", "postgres-async"), 3
)
"""Benches that repeat the contract of another one."""
DRAWN_VALUES = 4
"""A test runs with its first values on every engine, always, and with one in so many of its other values."""
ALL_VALUES = (
    *("rules", "docs", "backends/test_damaged_work.py", "backends/sqlite/test_verify_damage.py"),
    "backends/postgres/test_lost_answers",
)
"""Tests of which every value is another promise, or reaches another line of a decision."""
ALL_VALUES_BENCH = "memory-blocking"
"""The bench on which the contract always runs with all values: decisions depend on values, and memory costs least."""
ENGINES = frozenset({"memory", "sqlite", "postgres", "second", "pooled", "listening", "citus"})


def is_drawn(item: pytest.Item) -> bool:
    """Report whether this run's seed draws a test. Tests with their first values mostly run always."""
    return zlib.crc32(f"{os.environ['HOLDFAST_SEED']} {item.nodeid}".encode()) % share_of(item) == 0


def share_of(item: pytest.Item) -> int:
    """Return how many of such tests one stands for: 1 runs on every push, 4 on one in four."""
    place = place_of(item)
    bench = str(getattr(getattr(item, "callspec", None), "params", {}).get("bench"))
    all_values = bench == ALL_VALUES_BENCH or place.startswith(ALL_VALUES) or is_first_of_its_values(item)
    return max(
        DRAWN_BENCHES.get(bench, 1),
        1 if all_values else DRAWN_VALUES,
        *(share for start, share in DRAWN.items() if place.startswith(start)),
    )


def place_of(item: pytest.Item) -> str:
    """Return the place of a test below this folder: `rules/test_queue.py::test_a_claim[1]`."""
    return f"{item.path.relative_to(Path(__file__).parent).as_posix()}::{item.name}"


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print the facts that differ between runs and machines, where nothing captures them."""
    lines = [f"holdfast seed: {os.environ['HOLDFAST_SEED']}"]
    if config.getoption("--no-postgres"):
        return [*lines, "postgres: LEFT OUT (--no-postgres)"]
    second = postgres_tools().second_installation()
    pooler = beside("pgbouncer").version()
    return [
        *lines,
        f"postgres: {first_server()}; second: {NO_SECOND if second is None else second.version}",
        f"pgbouncer: {NO_POOLER if pooler is None else pooler}",
    ]


def is_first_of_its_values(item: pytest.Item) -> bool:
    """Return True for a test's first values, on whichever engine."""
    callspec = getattr(item, "callspec", None)
    indices: Mapping[str, int] = getattr(callspec, "indices", {})
    values: Mapping[str, object] = getattr(callspec, "params", {})
    return not any(index for name, index in indices.items() if not is_engine(values.get(name)))


def is_engine(value: object) -> bool:
    """Return True for a parameter that names a database, such as `sqlite` or `postgres-async`."""
    return type(value) is str and value.partition("-")[0] in ENGINES


NO_SECOND = "NONE FOUND, its tests are skipped"
NO_POOLER = "NOT INSTALLED, its tests are skipped"


def first_server() -> str:
    """Name the server that most tests use; empty without a server."""
    tools = postgres_tools()
    if os.environ.get(tools.URL_VARIABLE):
        return f"the one of {tools.URL_VARIABLE}"
    return str(tools.first_installation().version) if tools.installations() else ""


def beside(name: str, folder: str = ".") -> ModuleType:
    """Return a module of this folder. Loaded by its path: in importlib's import mode, tests have no module names."""
    whole = f"holdfast_{name}"
    if whole not in sys.modules:
        spec = importlib.util.spec_from_file_location(whole, Path(__file__).parent / folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[whole] = module
        spec.loader.exec_module(module)
    return sys.modules[whole]


def postgres_tools() -> ModuleType:
    """Return the module that starts servers."""
    return beside("postgres_server")


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server for this test process."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    server = postgres_tools().Server()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A database for this test process."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    tools = postgres_tools()
    server_url = os.environ.get(tools.URL_VARIABLE) or request.getfixturevalue("postgres_server").url
    database = tools.Database(server_url)
    yield database
    database.drop()


@pytest.fixture
def postgres_url(postgres_database: Any) -> str:
    """The URL of a database without a Holdfast schema."""
    postgres_database.empty()
    url: str = postgres_database.url
    return url


@pytest.fixture
def clean_postgres_url(postgres_database: Any) -> str:
    """The URL of a database whose Holdfast schema, if it exists, has no rows: much faster than creating it anew."""
    postgres_database.clean()
    url: str = postgres_database.url
    return url


@pytest.fixture(scope="session")
def second_database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A database on a server of another major version."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    tools = postgres_tools()
    installation = tools.second_installation()
    if installation is None:
        pytest.skip("no second PostgreSQL")
    server = tools.Server(installation)
    database = tools.Database(server.url)
    yield database
    database.drop()
    server.remove()


@pytest.fixture(scope="session")
def citus_database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A database that is spread over a cluster for this test process."""
    key = request.config.getoption("--citus")
    if key is None:
        pytest.skip("no --citus")
    tools = postgres_tools()
    citus = beside("citus", "../tools")
    with citus.started(key) as url:
        database = tools.SpreadDatabase(url, lambda: citus.distribute(url, key))
        yield database
        database.administrator.close()


@pytest.fixture(scope="session")
def pooled_database(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A separate database with `pooled_url`, which leads to it through a transaction pooler."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    bouncers, tools = beside("pgbouncer"), postgres_tools()
    if bouncers.installed() is None:
        pytest.skip("PgBouncer is not installed")
    server = request.getfixturevalue("postgres_server")
    # A separate role, to tell its connections from those that a test left behind.
    tools.run_sql(server.url, f"CREATE ROLE {tools.POOLER_ROLE} SUPERUSER LOGIN")
    database = tools.Database(server.url)
    bouncer = bouncers.PgBouncer(server.folder, tools.POOLER_ROLE, tools.unprivileged_user())
    database.pooled_url = bouncer.url(database.name)
    yield database
    bouncer.remove()
    database.drop()
