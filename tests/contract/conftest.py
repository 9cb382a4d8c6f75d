"""Runs the contract on memory async and blocking, on SQLite blocking, and on PostgreSQL blocking.

Cases that wait, race or lock run async and blocking on every backend: elsewhere the blocking facade has no logic. Cases
that use SQL most also run on a second major version of PostgreSQL, and some through a transaction pooler, with and
without a listen URL around it. Async, on the second server and through the pooler, a case with many values runs with
the first ones: the rules decide by values, and have met all of them elsewhere. So does, outside memory, a case that
ends before any database is asked. Three options extend each of these parts to the whole contract.

On PostgreSQL most handles take over connections of earlier cases (`KeptConnections`); those that wait or race do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.factory import open_backend
from holdfast.ports import Backend
from holdfast.records.options import PostgresOptions
from holdfast.testing.contract import LocalBench
from holdfast.wait import BlockingWaiting

KINDS = ["memory-blocking", "memory-async", "sqlite-blocking", "postgres-blocking"]
OTHER_WAY = ["sqlite-async", "postgres-async"]
BOTH_WAYS = {
    "TestClaims",
    "TestExclusiveClaims",
    "TestJobWaits",
    "TestLeases",
    "TestRaces",
    "TestSharedPuts",
    "TestTransactions",
    "TestWaits",
}
ON_OWN_CONNECTIONS = {
    "TestDeletions",
    "TestForksWithTurns",
    "TestJobWaits",
    "TestRaces",
    "TestSharedPuts",
    "TestTransactions",
    "TestWaits",
    "TestWakes",
}
"""Cases that wait or race. Other blocking ones on PostgreSQL take over connections; async ones never do."""
SECOND = "second-blocking"
POOLED = "pooled-blocking"
LISTENING = "listening-blocking"
CITUS = ["citus-blocking", "citus-async"]
ON_SECOND = {
    "TestClaims",
    "TestCommits",
    "TestEvents",
    "TestJobs",
    "TestLeases",
    "TestMaintenance",
    "TestQueue",
    "TestRaces",
    "TestTriggers",
}
ONLY_ON = {
    # Only a blocking call can be interrupted in its caller's thread.
    "TestNestedCalls": ["memory-blocking", "sqlite-blocking", "postgres-blocking"],
    # The actors of these cases are separate processes, and always blocking.
    "TestSecondProcess": ["sqlite-blocking", "postgres-blocking"],
}
THROUGH_POOLER = {
    "TestClaims",
    "TestCommits",
    "TestEvents",
    "TestJobs",
    "TestRaces",
    "TestTransactions",
    "TestTriggers",
}
THROUGH_POOLER_LISTENING = {"TestWaits", "TestWakes"}
NOT_BY_FAMILY = {"TestLimits", "TestLimitRaces", "TestPauses"}
"""Cases of a feature that a cluster distributed by family refuses: the slots of a kind would be on many nodes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bench" not in metafunc.fixturenames:
        return
    name = "" if metafunc.cls is None else metafunc.cls.__name__
    if metafunc.config.getoption("--citus") is not None:
        metafunc.parametrize("bench", CITUS[: 1 if name in ONLY_ON else 2], indirect=True)
        return
    every_way, every_second, every_pooled = (
        metafunc.config.getoption(f"--whole-{part}") for part in ("facade", "second", "pooler")
    )
    both_ways = name not in ONLY_ON and (every_way or name in BOTH_WAYS)
    more = [
        *((kind, both_ways) for kind in OTHER_WAY),
        (SECOND, every_second or name in ON_SECOND),
        (POOLED, every_pooled or name in THROUGH_POOLER),
        (LISTENING, every_pooled or name in THROUGH_POOLER_LISTENING),
    ]
    kinds = ONLY_ON.get(name, KINDS) + [kind for kind, wanted in more if wanted]
    metafunc.parametrize("bench", kinds, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the further values of cases on benches that differ in nothing that depends on values."""
    left_out = [item for item in items if repeats_values(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not repeats_values(item, config)]


def repeats_values(item: pytest.Item, config: pytest.Config) -> bool:
    callspec = getattr(item, "callspec", None)
    bench = None if callspec is None else callspec.params.get("bench")
    part = FIRST_VALUES.get(bench)
    if part is None and bench in KINDS[1:] and getattr(item, "originalname", None) in REFUSED_BY_RULES:
        part = "facade"
    if part is None or config.getoption(f"--whole-{part}"):
        return False
    return any(index for name, index in callspec.indices.items() if name != "bench")


FIRST_VALUES = {
    **dict.fromkeys(("memory-async", *OTHER_WAY), "facade"),
    **{SECOND: "second", POOLED: "pooler", LISTENING: "pooler"},
}
"""The benches that run a case with its first values, and the option that makes them run it with all."""


REFUSED_BY_RULES = {
    "test_a_payload_that_one_keyword_works_long_for_is_refused",
    "test_a_payload_that_shares_its_parts_is_refused_before_it_is_written_out",
    "test_a_schema_that_takes_long_to_compile_is_not_declared",
    "test_a_wrong_argument_is_refused_by_name_and_nothing_is_written",
    "test_calls_that_write_wait_or_decide_are_refused",
}
"""Cases that end before any database is asked: on memory with all values, on the others with the first."""


class PooledBench(LocalBench):
    """Handles of this process go through the pooler; a second process, which is given a URL alone, bypasses it."""

    def __init__(self, folder: Path, url: str, pooled_url: str, options: PostgresOptions) -> None:
        super().__init__("postgres", "blocking", folder, url)
        self._pooled_url = pooled_url
        self._options = options

    def _open(self) -> Backend:
        return open_backend(self._pooled_url, self._options, self.clock, BlockingWaiting())


class KeepingBench(LocalBench):
    """Its handles take over the connections of earlier cases, and their event loop."""

    def __init__(self, folder: Path, database: Any) -> None:
        super().__init__("postgres", "blocking", folder, database.url)
        self._database = database

    def _open(self) -> Backend:
        backend: Backend = self._database.kept.open(self.clock)
        return backend


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBench]:
    kind, way = request.param.split("-")
    if request.config.getoption("--citus") == "family" and request.cls and request.cls.__name__ in NOT_BY_FAMILY:
        pytest.skip("limits and pauses of kinds are refused by family")
    new = "new_database" in request.node.name
    if kind in ("memory", "sqlite"):
        opened = LocalBench(kind, way, tmp_path)
    elif kind in ("postgres", "second", "citus"):
        database = request.getfixturevalue(f"{kind}_database")
        url = emptied(database, new=new)
        alone = new or way == "async" or kind == "citus" or request.cls is None or is_about_connections(request.cls)
        opened = LocalBench("postgres", way, tmp_path, url) if alone else KeepingBench(tmp_path, database)
    else:
        database = request.getfixturevalue("pooled_database")
        url = emptied(database, new=new)
        options = PostgresOptions(pooler="transaction", listen_url=url if kind == "listening" else None)
        opened = PooledBench(tmp_path, url, database.pooled_url, options)
    yield opened
    opened.close()


def is_about_connections(case: type) -> bool:
    """Return True for cases whose handles need connections and event loops of their own."""
    return case.__name__ in ON_OWN_CONNECTIONS or case.__name__ in ONLY_ON


def emptied(database: Any, *, new: bool) -> str:
    """Return the URL of an emptied or new database."""
    if new:
        database.empty()
    else:
        database.clean()
    url: str = database.url
    return url
