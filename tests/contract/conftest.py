"""The contract runs on memory, SQLite and PostgreSQL, blocking and async.

What touches SQL most runs once more on a second major version of PostgreSQL, and a part with something of everything
through a transaction pooler, with a way around it to listen on and without; two options make these parts the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.opening import open_backend
from holdfast.ports import Backend
from holdfast.records.options import PostgresOptions
from holdfast.testing.contract import LocalBench
from holdfast.waiting import BlockingWaiting

KINDS = ["memory-blocking", "memory-async", "sqlite-blocking", "sqlite-async", "postgres-blocking", "postgres-async"]
SECOND = "second-blocking"
POOLED = "pooled-blocking"
LISTENING = "listening-blocking"
ON_SECOND = {
    "TestClaims",
    "TestCommits",
    "TestEvents",
    "TestLeases",
    "TestMaintenance",
    "TestQueue",
    "TestRaces",
    "TestTriggers",
}
ONLY_ON = {
    # Those who act on second processes are processes of their own, and always blocking.
    "TestSecondProcess": ["sqlite-blocking", "postgres-blocking"],
    # Junk is refused before anybody waits, so that one async way is enough.
    "TestHostileInput": [kind for kind in KINDS if kind not in {"sqlite-async", "postgres-async"}],
}
THROUGH_POOLER = {"TestClaims", "TestCommits", "TestEvents", "TestRaces", "TestTriggers"}
THROUGH_POOLER_LISTENING = {"TestWaits", "TestWakes"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "bench" not in metafunc.fixturenames:
        return
    name = "" if metafunc.cls is None else metafunc.cls.__name__
    every_second, every_pooled = (metafunc.config.getoption(f"--whole-{part}") for part in ("second", "pooler"))
    more = [
        (SECOND, every_second or name in ON_SECOND),
        (POOLED, every_pooled or name in THROUGH_POOLER),
        (LISTENING, every_pooled or name in THROUGH_POOLER_LISTENING),
    ]
    kinds = ONLY_ON.get(name, KINDS) + [kind for kind, wanted in more if wanted]
    metafunc.parametrize("bench", kinds, indirect=True)


class PooledBench(LocalBench):
    """Handles of this process go through the pooler; a second process, which is given a URL alone, goes past it."""

    def __init__(self, folder: Path, url: str, pooled_url: str, options: PostgresOptions) -> None:
        super().__init__("postgres", "blocking", folder, url)
        self._pooled_url = pooled_url
        self._options = options

    def _open(self) -> Backend:
        return open_backend(self._pooled_url, self._options, self.clock, BlockingWaiting())


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBench]:
    kind, way = request.param.split("-")
    new = "new_database" in request.node.name
    if kind in ("memory", "sqlite"):
        opened = LocalBench(kind, way, tmp_path)
    elif kind == "postgres":
        opened = LocalBench(
            kind, way, tmp_path, request.getfixturevalue("postgres_url" if new else "clean_postgres_url")
        )
    elif kind == "second":
        opened = LocalBench("postgres", way, tmp_path, emptied(request.getfixturevalue("second_database"), new=new))
    else:
        database = request.getfixturevalue("pooled_database")
        url = emptied(database, new=new)
        options = PostgresOptions(pooler="transaction", listen_url=url if kind == "listening" else None)
        opened = PooledBench(tmp_path, url, database.pooled_url, options)
    yield opened
    opened.close()


def emptied(database: Any, *, new: bool) -> str:
    """The URL of a database that is as good as new, or new."""
    if new:
        database.empty()
    else:
        database.clean()
    url: str = database.url
    return url
