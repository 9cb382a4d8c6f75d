"""After a lossy failover or a restored backup, an idle store reads the rows that exist, and reports the change.

The database reuses keys of lost sessions, so that a cached row may belong to another session.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import asyncpg
import msgspec
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.server_watch import Origin, ServerWatch
from holdfast.rows import RevisionRow, SessionRow
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import EventLoop


class Stores:
    """Opens stores on one event loop."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self._closers: list[Callable[[], Any]] = []

    def open(self, url: Any, **options: Any) -> Store:
        backend = self.loop.drive(PostgresBackend.open(url, PostgresOptions(**options), None))
        self._closers.append(backend.close)
        return Store(Context(backend, holdfast.Limits()))

    def open_on_a_pool(self, url: str) -> Store:
        async def create_pool() -> Any:
            return await asyncpg.create_pool(url, min_size=1, max_size=4, statement_cache_size=256)

        pool = self.loop.drive(create_pool())
        self._closers.append(pool.close)
        return self.open(pool)

    def close(self) -> None:
        for close in reversed(self._closers):
            self.loop.drive(close())


@pytest.fixture
def stores(loop: EventLoop) -> Any:
    made = Stores(loop)
    yield made
    made.close()


def turn(number: int) -> holdfast.Commit:
    return holdfast.Commit(
        turn_id=f"t{number}",
        graph=holdfast.Append([holdfast.Node(f"n{number}", payload=number)], leaf=f"n{number}"),
        checkpoint=holdfast.Checkpoint(turn_state={"n": number}),
        usage=[holdfast.Usage("turn", "model", input_tokens=number)],
        enqueues=[holdfast.WorkDraft(payloads=[number], source_key=f"k{number}")],
    )


async def lost_past(store: Store) -> None:
    """Create a session and forks of it: one family, keys 1 to 3."""
    await store.sessions.handle("lost").commit(turn(1))
    for name in ("chat", "other"):
        await store.sessions.fork("lost", into=name)
        await store.sessions.handle(name).commit(turn(2))
        await store.sessions.handle(name).load(holdfast.sessions.FullGraph())


async def new_past(store: Store) -> None:
    """Create sessions under the same keys: one alone, and one with a fork that inherits from the other's key."""
    for name in ("first", "other"):
        await store.sessions.handle(name).commit(turn(1))
        await store.sessions.handle(name).attachments.put(name.encode())
    await store.sessions.fork("other", into="chat")
    await store.sessions.handle("chat").commit(turn(2))


async def readings(store: Store) -> dict[str, Any]:
    """Return everything that is read by a session's key."""
    found: dict[str, Any] = {}
    for name in ("lost", "first", "chat", "other"):
        session = store.sessions.handle(name)
        found |= {
            f"{name} nodes": [node.id for node in await session.nodes()],
            f"{name} node": await session.load_node("n1"),
            f"{name} newest": await session.load(),
            f"{name} all": await session.load(holdfast.sessions.FullGraph()),
            f"{name} path": await session.load(holdfast.sessions.ActivePath(leaf="n1")) if name != "lost" else None,
            f"{name} at": await session.load(at=1) if name != "lost" else None,
            f"{name} history": [entry.turn_id for entry in await session.history()],
            f"{name} work": [batch.source_key for batch in await store.queue.list(name)],
            f"{name} attachments": [entry.id for entry in await session.attachments.list()],
        }
    found["verify"] = (await store.maintenance.verify()).findings
    # The server may vacuum or extend a file at any time.
    found["stats"] = msgspec.structs.replace(await store.maintenance.stats(), bytes_on_disk=None)
    return found


Way = Callable[[Stores, str], Store]

WAYS: dict[str, Way] = {
    "direct": lambda stores, url: stores.open(url),
    "pooler": lambda stores, url: stores.open(url, pooler="transaction"),
    "caller's pool": lambda stores, url: stores.open_on_a_pool(url),
}


def check_readings_of_an_idle_store(stores: Stores, way: Way, url: str, database: Any) -> None:
    """Restore an empty backup under an idle store: every row is gone, and every key is assigned again."""
    drive = stores.loop.drive
    idle = way(stores, url)
    drive(lost_past(idle))
    database.clean()
    fresh = stores.open(url)
    drive(new_past(fresh))
    right, found = drive(readings(fresh)), drive(readings(idle))
    assert {name for name in right if found[name] != right[name]} == set()
    assert right["verify"] == ()
    assert right["chat nodes"] == ["n1", "n2"]


@pytest.mark.parametrize("way", WAYS)
def test_an_idle_store_reads_a_restored_database_as_a_fresh_one_does(
    clean_postgres_url: str, postgres_database: Any, stores: Stores, way: str
) -> None:
    check_readings_of_an_idle_store(stores, WAYS[way], clean_postgres_url, postgres_database)


def messages(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in log.records if one.name == "holdfast.server"]


def check_that_a_restored_dump_is_noticed(
    stores: Stores, way: Way, url: str, database: Any, log: pytest.LogCaptureFixture
) -> None:
    """Drop and recreate the schema under an idle store, as restoring a dump does."""
    drive = stores.loop.drive
    idle = way(stores, url)
    drive(lost_past(idle))
    log.set_level(logging.INFO)
    assert messages(log) == []
    database.empty()
    drive(new_past(stores.open(url)))
    drive(idle.sessions.handle("chat").history())
    assert messages(log) == [("WARNING", "another database answers: it was restored, or the address leads elsewhere")]
    log.clear()
    drive(idle.sessions.handle("chat").history())
    assert messages(log) == []


@pytest.mark.parametrize("way", ["direct", "pooler"])
def test_a_dump_that_was_restored_under_an_idle_store_is_noticed(
    postgres_url: str, postgres_database: Any, stores: Stores, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    check_that_a_restored_dump_is_noticed(stores, WAYS[way], postgres_url, postgres_database, caplog)


async def within(store: Store, url: str) -> Any:
    connection: Any = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            return await store.within(connection).sessions.handle("chat").load()
    finally:
        await connection.close()


def test_a_store_whose_database_was_replaced_works_within_a_transaction_on_the_new_one(
    postgres_url: str, postgres_database: Any, stores: Stores
) -> None:
    drive = stores.loop.drive
    idle = stores.open(postgres_url)
    drive(lost_past(idle))
    assert drive(within(idle, postgres_url)).node_count == 2
    postgres_database.empty()
    drive(new_past(stores.open(postgres_url)))
    assert drive(within(idle, postgres_url)).revision == 2


# Verdicts from the write-ahead log.

BEFORE = Origin(started_us=1, database=10, table=100, timeline="00000001", flushed=1_000)


@pytest.mark.parametrize(
    ("after", "level", "words"),
    [
        (BEFORE, None, ""),
        (BEFORE._replace(flushed=2_000), None, ""),
        (BEFORE._replace(flushed=500), None, ""),
        (BEFORE._replace(started_us=2, flushed=2_000), "INFO", "was restarted"),
        (BEFORE._replace(started_us=2, flushed=900), "WARNING", "100 bytes of the log are missing"),
        (BEFORE._replace(started_us=2, timeline="00000002", flushed=900), "WARNING", "100 bytes"),
        (BEFORE._replace(started_us=2, timeline="00000002", flushed=1_500), "WARNING", "timeline 00000002"),
        (BEFORE._replace(started_us=2, timeline=None, flushed=None), "WARNING", "timeline None"),
        (BEFORE._replace(database=11), "WARNING", "another database"),
        (BEFORE._replace(table=101), "WARNING", "another database"),
        (BEFORE._replace(table=None), None, ""),
    ],
)
def test_the_server_that_answers_is_compared_with_the_one_before(
    after: Origin, level: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    changes: list[None] = []
    watch = ServerWatch(lambda: changes.append(None))
    assert not watch.compare(BEFORE)
    assert watch.compare(after) is (level is not None)
    assert len(changes) == (level is not None)
    assert [one for one, _ in messages(caplog)] == ([] if level is None else [level])
    assert all(words in text for _, text in messages(caplog))


def test_calls_that_are_spread_over_two_servers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    other, changes = BEFORE._replace(started_us=2, timeline="00000002", flushed=5_000), []
    watch = ServerWatch(lambda: changes.append(None))
    for origin in [BEFORE, other] * 5:
        watch.compare(origin)
    assert len(changes) == 9
    assert len(messages(caplog)) == 1


def test_a_log_position_that_an_overtaken_answer_tells_is_not_taken_for_the_newest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = ServerWatch(lambda: None)
    for flushed in (1_000, 3_000, 2_000):
        watch.compare(BEFORE._replace(flushed=flushed))
    watch.compare(BEFORE._replace(started_us=2, flushed=2_500))
    assert [text for _, text in messages(caplog)] == [
        "an older database answers: 500 bytes of the log are missing that were on disk"
    ]


def head(session_id: str, *, revision: int, at_ms: int) -> tuple[SessionRow, RevisionRow]:
    session = SessionRow(
        7, session_id, 1, 7, revision, 0, 1, b"[]", at_ms, None, None, None, None, None, None, None, None
    )
    return session, RevisionRow(7, revision, 7, None, "print", 1, 0, None, None, None, b"[]", b"{}", at_ms)


def test_the_newest_head_is_asked_for_when_a_server_seems_to_have_been_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    watch = ServerWatch(lambda: None)
    watch.compare(BEFORE)
    watch.remember(*head("late", revision=5, at_ms=900))
    watch.remember(*head("early", revision=3, at_ms=100))
    watch.keep_known_head()
    # Read from the other server before its origin was checked.
    watch.remember(*head("later", revision=9, at_ms=2_000))
    assert watch.compare(BEFORE._replace(started_us=2, flushed=2_000))
    assert watch.question == ("late", 7, 5, 7, 900, "print")
    assert messages(caplog) == []
    watch.answer(known=False)
    watch.answer(known=False)
    assert messages(caplog) == [
        ("WARNING", "an older database answers: a turn is missing that this store has seen committed")
    ]
    assert watch.question is None
    watch.compare(BEFORE._replace(started_us=3, flushed=3_000))
    assert messages(caplog)[1:] == [("INFO", "the server was restarted")]


COPIES = {"the same data": "INFO", "an older copy": "WARNING"}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("way", ["direct", "caller's pool"])
def test_an_older_copy_of_the_data_is_noticed_although_its_log_has_grown(
    stores: Stores, own_server: Any, caplog: pytest.LogCaptureFixture, copy: str, way: str
) -> None:
    check_that_an_older_copy_is_noticed(stores, own_server, caplog, copy, way)


def check_that_an_older_copy_is_noticed(
    stores: Stores, server: Any, log: pytest.LogCaptureFixture, copy: str, way: str
) -> None:
    log.set_level(logging.INFO, logger="holdfast")
    drive, data = stores.loop.drive, server.folder / "data"

    async def commit(store: Store, turns: list[str]) -> None:
        for turn_id in turns:
            await store.sessions.handle("chat").commit(holdfast.Commit(turn_id=turn_id))

    drive(commit(stores.open(server.url), ["first"]))
    server.stop("fast")
    shutil.copytree(data, server.folder / "copy", symlinks=True)
    server.start()
    idle = stores.open(server.url) if way == "direct" else stores.open_on_a_pool(server.url)
    drive(commit(idle, [f"acknowledged-{number}" for number in range(5)]))
    server.stop("immediate")
    if copy == "an older copy":
        owner = data.stat()
        shutil.rmtree(data)
        (server.folder / "copy").rename(data)
        for path in (data, *data.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    server.start()
    drive(commit(stores.open(server.url), [f"other-{number}" for number in range(60)]))
    log.clear()
    drive(idle.sessions.list())
    drive(commit(idle, ["mine"]))
    assert [level for level, _ in messages(log)] == [COPIES[copy]]
