"""A read from a replica is never older than it claims; otherwise the primary answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.backends.postgres.replicas import Replicated, connected, replicated, until

import holdfast
from holdfast.backends.postgres import replica as replica_module
from holdfast.errors import ReplicaBehind, UnknownPosition
from holdfast.events import EventType
from holdfast.leases import OnSession
from holdfast.processes import External
from holdfast.sessions import CommitReceipt, Graph, ReplaceGraph
from holdfast.store import Store

LONG_MS = 60_000
SHORT_MS = 30
JOB = holdfast.ProcessRegistration("job", External(), event_types=[EventType("progress")])


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    with replicated() as made:
        yield made


@pytest.fixture(autouse=True)
def _never_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a replica again at once after it was unreachable."""
    monkeypatch.setattr(replica_module, "AWAY_S", 0.0)


def commit(store: Store, session_id: str, **given: Any) -> Awaitable[CommitReceipt]:
    return store.sessions.handle(session_id).commit(holdfast.Commit(**given))


async def revision(store: Store, session_id: str) -> int:
    view = await store.sessions.handle(session_id).load()
    return 0 if view is None else view.revision


# Primary or replica.


def test_a_read_without_a_position_shows_what_the_replica_has(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open() as store:
            await commit(store, "old")
            await servers.catch_up()
            async with servers.paused():
                await commit(store, "old")
                assert await revision(store.reading(), "old") == 1

    asyncio.run(case())


def test_the_store_itself_reads_and_decides_on_the_primary(servers: Replicated) -> None:
    asyncio.run(check_that_the_store_asks_the_primary(servers))


async def check_that_the_store_asks_the_primary(servers: Replicated) -> None:
    async with servers.open() as store, servers.paused():
        receipt = await commit(store, "decides", turn_id="turn-1")
        assert await revision(store, "decides") == receipt.revision
        assert await commit(store, "decides", turn_id="turn-1") == replace(receipt, replayed=True)
        with pytest.raises(holdfast.HeadConflict):
            await commit(store, "decides", expected_revision=receipt.revision - 1)
        batch = await store.queue.enqueue(holdfast.WorkDraft(session_id="decides", payloads=[1]))
        await store.queue.wait("decides", timeout_ms=LONG_MS)
        claim = await store.queue.claim("decides", owner_id="me")
        assert claim is not None
        await store.queue.complete(claim)
        settled = await store.queue.wait_settled("decides", batch.batch_id, timeout_ms=LONG_MS)
        assert settled.state == "completed"
        lease = await store.leases.claim(OnSession("decides"), owner_id="me")
        assert lease is not None
        assert await store.leases.holder(OnSession("decides")) is not None


def test_a_replica_that_stays_behind_is_refused_or_the_primary_answers(servers: Replicated) -> None:
    asyncio.run(check_a_replica_that_stays_behind(servers))


async def check_a_replica_that_stays_behind(servers: Replicated) -> None:
    async with servers.open() as store, servers.paused():
        receipt = await commit(store, "behind")
        with pytest.raises(ReplicaBehind) as refused:
            await revision(store.reading(after=receipt, wait_ms=SHORT_MS, fall_back=False), "behind")
        assert (refused.value.position, refused.value.waited_ms) == (receipt.position, SHORT_MS)
        assert refused.value.retryable
        assert await revision(store.reading(after=receipt, wait_ms=SHORT_MS), "behind") == receipt.revision
        assert await revision(store.reading(after=receipt.position, wait_ms=0), "behind") == receipt.revision


def test_a_read_waits_for_the_replica(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open() as store, servers.paused() as resume:
            receipt = await commit(store, "waits")
            fresh = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
            reading = asyncio.ensure_future(revision(fresh, "waits"))
            async with connected(servers.replica) as watcher:
                looks: set[Any] = set()

                async def looked_again() -> bool:
                    looks.update(
                        row[0]
                        for row in await watcher.fetch(
                            "SELECT query_start FROM pg_stat_activity WHERE query LIKE '%pg_xact_status%' "
                            "AND pid <> pg_backend_pid()"
                        )
                    )
                    return len(looks) > 2

                await until(looked_again)
            assert not reading.done()
            await resume()
            assert await reading == receipt.revision

    asyncio.run(case())


async def replayed(store: Store) -> holdfast.Receipt:
    await commit(store, "kinds", turn_id="again")
    receipt = await commit(store, "kinds", turn_id="again")
    assert receipt.replayed
    return receipt


async def nodes(store: Store) -> holdfast.Receipt:
    return await store.sessions.handle("kinds").add_nodes([holdfast.Node("beside")])


async def replaced(store: Store) -> holdfast.Receipt:
    graph = ReplaceGraph(Graph((holdfast.Node("new"),), "new"))
    return await commit(store, "kinds", graph=graph)


async def replaced_again(store: Store) -> holdfast.Receipt:
    graph = ReplaceGraph(Graph((holdfast.Node("new"),), "new"))
    await commit(store, "kinds", turn_id="replaced", graph=graph)
    return await commit(store, "kinds", turn_id="replaced", graph=graph)


async def appended(store: Store) -> holdfast.Receipt:
    await store.processes.register(JOB)
    return await store.events.append("job", "progress", 1)


async def appended_again(store: Store) -> holdfast.Receipt:
    await appended(store)
    await store.events.append("job", "progress", 1, replay_key="k")
    return await store.events.append("job", "progress", 1, replay_key="k")


async def enqueued(store: Store) -> str:
    await store.queue.enqueue(holdfast.WorkDraft(session_id="kinds", payloads=[1]))
    return await store.position()


async def found_done(store: Store) -> str:
    return await store.position()


async def claimed(store: Store, number: int) -> holdfast.WorkClaim:
    for payload in range(number):
        await store.queue.enqueue(holdfast.WorkDraft(session_id="jobs", payloads=[payload], kind="job"))
    claim = await store.queue.claim_next(owner_id="me", kinds=["job"])
    assert claim is not None
    return claim


async def completed(store: Store) -> holdfast.Receipt:
    return await store.queue.complete(await claimed(store, 1))


async def completed_again(store: Store) -> holdfast.Receipt:
    claim = await claimed(store, 1)
    await store.queue.complete(claim)
    return await store.queue.complete(claim)


async def completed_for_the_next(store: Store) -> holdfast.Receipt:
    receipt, _ = await store.queue.complete_and_claim_next(await claimed(store, 2), owner_id="me", kinds=["job"])
    return receipt


GIVES_A_POSITION: dict[str, Callable[[Store], Awaitable[holdfast.Receipt | str]]] = {
    "turn": lambda store: commit(store, "kinds"),
    "first turn": lambda store: commit(store, "kinds of first turns"),
    "replayed turn": replayed,
    "nodes": nodes,
    "replaced graph": replaced,
    "replay of a replaced graph": replaced_again,
    "event": appended,
    "replayed event": appended_again,
    "work": enqueued,
    "completed work": completed,
    "work that was completed before": completed_again,
    "completed work with the next claim": completed_for_the_next,
    "nothing": found_done,
}


@pytest.mark.parametrize("what", GIVES_A_POSITION)
def test_a_position_is_reached_once_the_replica_shows_the_write(servers: Replicated, what: str) -> None:
    async def case() -> None:
        async with servers.open() as store, servers.paused() as resume:
            # Another write before and after it: only its own commit counts.
            await commit(store, "others")
            given = await GIVES_A_POSITION[what](store)
            await commit(store, "others")
            patient = store.reading(after=given, wait_ms=LONG_MS, fall_back=False)
            hasty = store.reading(after=given, wait_ms=0, fall_back=False)
            with pytest.raises(ReplicaBehind):
                await hasty.sessions.list()
            await resume()
            assert await patient.sessions.handle("kinds").load() == await store.sessions.handle("kinds").load()
            for queue in ("kinds", "jobs"):
                assert await patient.queue.list(queue) == await store.queue.list(queue)
            assert await patient.processes.list() == await store.processes.list()
            # It stays so, also for a receipt that is used much later.
            await hasty.sessions.list()

    asyncio.run(case())


def test_a_turn_that_runs_does_not_count_as_shown(servers: Replicated) -> None:
    asyncio.run(check_a_turn_that_runs(servers))


async def check_a_turn_that_runs(servers: Replicated) -> None:
    """On a standby, pg_current_snapshot() does not list running transactions: such a one looks as if it had ended."""
    async with servers.open() as store, connected(servers.primary) as connection, connected(servers.primary) as older:
        # An earlier transaction keeps it from being older than all running ones.
        await older.execute("BEGIN; SELECT pg_current_xact_id()")
        transaction = connection.transaction()
        await transaction.start()
        receipt = await commit(store.within(connection), "runs")
        await commit(store, "later")
        await servers.catch_up()
        hasty = store.reading(after=receipt, wait_ms=SHORT_MS, fall_back=False)
        with pytest.raises(ReplicaBehind):
            await revision(hasty, "runs")
        with pytest.raises(ReplicaBehind):
            await revision(store.reading(after=receipt, wait_ms=SHORT_MS), "runs")
        await transaction.commit()
        patient = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
        assert await revision(patient, "runs") == receipt.revision, "a transaction that continues holds up no reader"
        await older.execute("ROLLBACK")


def test_a_turn_that_runs_is_not_called_lost(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open() as store, connected(servers.primary) as connection:
            transaction = connection.transaction()
            await transaction.start()
            # No newer transaction has ended: its number is ahead of every snapshot.
            receipt = await commit(store.within(connection), "newest")
            for fall_back in (True, False):
                with pytest.raises(ReplicaBehind):
                    await revision(store.reading(after=receipt, wait_ms=0, fall_back=fall_back), "newest")
            await transaction.commit()
            assert await revision(store.reading(after=receipt, wait_ms=0), "newest") == receipt.revision

    asyncio.run(case())


@pytest.mark.parametrize("beside", ["BEGIN; SELECT pg_current_xact_id()", "SELECT 1"], ids=["an older one", "nothing"])
def test_a_turn_that_was_rolled_back_is_unknown(servers: Replicated, beside: str) -> None:
    async def case() -> None:
        async with (
            servers.open() as store,
            connected(servers.primary) as connection,
            connected(servers.primary) as older,
        ):
            await older.execute(beside)
            transaction = connection.transaction()
            await transaction.start()
            receipt = await commit(store.within(connection), "gone")
            await transaction.rollback()
            for fall_back in (True, False):
                with pytest.raises(UnknownPosition) as refused:
                    await revision(store.reading(after=receipt, wait_ms=SHORT_MS, fall_back=fall_back), "gone")
                assert refused.value.position == receipt.position

    asyncio.run(case())


def test_no_answer_is_older_than_its_receipt_while_the_replica_stops_and_goes(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open() as store:
            read = asyncio.Condition()
            reads = 0

            async def work(name: str) -> None:
                nonlocal reads
                for number in range(40):
                    receipt = await commit(store, name, graph=holdfast.Append([holdfast.Node()]))
                    fresh = store.reading(after=receipt, wait_ms=number % 20, fall_back=True)
                    view = await fresh.sessions.handle(name).load()
                    assert view is not None
                    assert view.revision == receipt.revision
                    assert len(view.graph.nodes) == number + 1
                    async with read:
                        reads += 1
                        read.notify_all()

            async def more(number: int) -> None:
                until_reads = min(reads + number, 160)
                async with read:
                    await read.wait_for(lambda: reads >= until_reads)

            async def stop_and_go() -> None:
                while reads < 160:
                    async with servers.paused():
                        await more(5)
                    await more(5)

            async with asyncio.TaskGroup() as group:
                group.create_task(stop_and_go())
                for number in range(4):
                    group.create_task(work(f"load-{number}"))

    asyncio.run(case())


# A replica that is unreachable, is restarted, or cancels a query.


def test_the_primary_answers_while_the_replica_is_away(servers: Replicated, caplog: pytest.LogCaptureFixture) -> None:
    async def case() -> None:
        async with servers.open() as store:
            receipt = await commit(store, "away")
            await servers.catch_up()
            assert await revision(store.reading(fall_back=False), "away") == 1
            servers.replica.stop()
            try:
                assert await revision(store.reading(after=receipt), "away") == 1
                assert await revision(store.reading(), "away") == 1
                with pytest.raises(holdfast.Unavailable) as refused:
                    await revision(store.reading(fall_back=False), "away")
                assert not isinstance(refused.value, ReplicaBehind)
                # A store opens without its replica.
                with caplog.at_level(logging.WARNING, "holdfast.replica"):
                    async with holdfast.open(
                        servers.primary.url, options=holdfast.PostgresOptions(read_url=servers.replica.url)
                    ) as second:
                        assert await revision(second.reading(after=receipt), "away") == 1
                assert "the replica is down" in caplog.text
            finally:
                servers.replica.start()
            patient = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
            assert await revision(patient, "away") == 1, "it is asked again"

    asyncio.run(case())


def test_reads_continue_while_the_primary_is_away(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open() as store:
            receipt = await commit(store, "headless")
            await servers.catch_up()
            servers.primary.stop()
            try:
                fresh = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
                assert await revision(fresh, "headless") == 1
                with pytest.raises(holdfast.Unavailable):
                    await commit(store, "headless")
            finally:
                servers.primary.start()
            again = await commit(store, "headless")
            fresh = store.reading(after=again, wait_ms=LONG_MS, fall_back=False)
            assert await revision(fresh, "headless") == again.revision

    asyncio.run(case())


RUNS = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"


@pytest.mark.parametrize(("runs", "state"), [(True, "40001"), (False, "")], ids=["a query", "an idle connection"])
def test_a_read_that_replay_cancels_is_run_again(servers: Replicated, runs: bool, state: str) -> None:
    async def case() -> None:
        async with (
            servers.open() as store,
            connected(servers.primary) as primary,
            connected(servers.replica) as watcher,
            servers.impatient(),
        ):
            await primary.execute(
                "DROP TABLE IF EXISTS churn; CREATE TABLE churn (i int); INSERT INTO churn VALUES (1)"
            )
            await servers.catch_up()
            began: list[int] = []
            cancelled: list[BaseException] = []

            async def read(tx: Any) -> int:
                connection = tx._runner.connection
                began.append(await connection.fetchval("SELECT count(*) FROM churn"))
                if len(began) > 1:
                    return began[-1]
                sleeping = asyncio.ensure_future(connection.execute("SELECT pg_sleep(60)" if runs else "SELECT 1"))
                await until(lambda: watcher.fetchval(RUNS)) if runs else await sleeping
                # The rows that this snapshot shows are about to be removed.
                await primary.execute("DELETE FROM churn")
                # Truncating the table would lock it on the replica, and could cancel the second read, too.
                await primary.execute("VACUUM (TRUNCATE off) churn")
                try:
                    await sleeping
                    await servers.catch_up()
                    await connection.execute("SELECT 1")
                except (asyncpg.PostgresError, OSError, asyncpg.InterfaceError) as error:
                    cancelled.append(error)
                    raise replica_module.DriverFailure(error) from error
                raise AssertionError("replay did not cancel it")

            backend = store.reading(fall_back=False)._context.backend
            assert await backend.read(read) == 0
            assert (len(began), getattr(cancelled[0], "sqlstate", "")) == (2, state), cancelled

    asyncio.run(case())


# A replica that was behind when the store opened.


def test_a_store_opens_while_its_replica_lacks_the_schema(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open(), servers.paused() as resume:
            options = holdfast.PostgresOptions(schema="later", read_url=servers.replica.url)
            async with holdfast.open(servers.primary.url, options=options) as store:
                receipt = await commit(store, "chat")
                for after in (None, receipt):
                    assert await revision(store.reading(after=after, wait_ms=0), "chat") == 1
                    with pytest.raises(ReplicaBehind):
                        await revision(store.reading(after=after, wait_ms=0, fall_back=False), "chat")
                await resume()
                patient = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
                assert await revision(patient, "chat") == 1

    asyncio.run(case())


def test_a_blocking_store_reads_from_the_replica(servers: Replicated) -> None:
    options = holdfast.PostgresOptions(read_url=servers.replica.url)
    with holdfast.open_blocking(servers.primary.url, options=options) as store:
        session = store.sessions.handle("blocking")
        first = session.commit(holdfast.Commit())

        def revision_after(after: holdfast.Receipt | str | None, **terms: Any) -> int:
            view = store.reading(after=after, **terms).sessions.handle("blocking").load()
            return 0 if view is None else view.revision

        assert revision_after(first, wait_ms=LONG_MS, fall_back=False) == 1

        async def case() -> None:
            async with servers.paused() as resume:
                second = await asyncio.to_thread(session.commit, holdfast.Commit())
                assert await asyncio.to_thread(revision_after, None) == 1
                assert await asyncio.to_thread(revision_after, second, wait_ms=0) == 2
                with pytest.raises(ReplicaBehind):
                    await asyncio.to_thread(revision_after, second, wait_ms=0, fall_back=False)
                waiting = asyncio.ensure_future(
                    asyncio.to_thread(revision_after, second, wait_ms=LONG_MS, fall_back=False)
                )
                await resume()
                assert await waiting == 2

        asyncio.run(case())


# Another server than the replica of this store.


def test_a_read_url_that_leads_elsewhere_is_refused_when_the_store_opens(
    servers: Replicated, clean_postgres_url: str
) -> None:
    async def case() -> None:
        async with servers.open():
            pass
        async with connected(servers.primary) as primary:
            await primary.execute("DROP DATABASE IF EXISTS elsewhere")
            await primary.execute("CREATE DATABASE elsewhere")
        await servers.catch_up()
        sibling = servers.replica.url.replace("/postgres?", "/elsewhere?")
        for url, problem in (
            (clean_postgres_url, "another database"),
            (sibling, "another database"),
            (servers.replica.url.replace("/postgres?", "/missing?"), "no such database"),
            ("http://x", "must begin with"),
            ("postgresql://h:port/db", "not a valid URL"),
        ):
            with pytest.raises(holdfast.InvalidRequest, match=problem) as refused:
                await holdfast.open(servers.primary.url, options=holdfast.PostgresOptions(read_url=url))
            assert refused.value.field == "options.read_url"

    asyncio.run(case())


def test_a_position_of_another_cluster_is_refused(servers: Replicated, clean_postgres_url: str) -> None:
    async def case() -> None:
        async with servers.open() as store, holdfast.open(clean_postgres_url) as other:
            receipt = await commit(other, "chat")
            for foreign in (receipt, receipt.position, "memory", "sqlite", "postgresql:1.1.9999999999999999999"):
                with pytest.raises(holdfast.InvalidRequest, match="not a position of this store"):
                    store.reading(after=foreign)

    asyncio.run(case())


def test_a_read_url_may_lead_to_the_primary(servers: Replicated) -> None:
    async def case() -> None:
        async with servers.open(read_url=servers.primary.url) as store:
            for number in range(1, 4):
                receipt = await commit(store, "same")
                assert await revision(store.reading(after=receipt, wait_ms=0, fall_back=False), "same") == number

    asyncio.run(case())


def test_a_store_without_a_replica_reads_from_its_server(servers: Replicated) -> None:
    async def case() -> None:
        async with holdfast.open(servers.primary.url) as store:
            receipt = await commit(store, "alone")
            assert await revision(store.reading(after=receipt, wait_ms=0, fall_back=False), "alone") == 1
        # Opened on the replica itself, there is no primary to fall back to.
        await servers.catch_up()
        async with holdfast.open(servers.replica.url, options=holdfast.PostgresOptions(migrate=False)) as standby:
            assert await revision(standby.reading(after=receipt), "alone") == 1
            async with holdfast.open(servers.primary.url) as store, servers.paused():
                later = await commit(store, "alone")
                with pytest.raises(ReplicaBehind):
                    await revision(standby.reading(after=later, wait_ms=SHORT_MS), "alone")

    asyncio.run(case())


def test_a_store_over_a_pool_of_the_caller_reads_from_the_replica(servers: Replicated) -> None:
    async def case() -> None:
        async with asyncpg.create_pool(servers.primary.url, min_size=1, max_size=3, statement_cache_size=256) as pool:
            options = holdfast.PostgresOptions(read_url=servers.replica.url)
            async with holdfast.open(pool, options=options) as store:
                receipt = await commit(store, "over a pool")
                fresh = store.reading(after=receipt, wait_ms=LONG_MS, fall_back=False)
                assert await revision(fresh, "over a pool") == 1
                async with servers.paused():
                    later = await commit(store, "over a pool")
                    assert await revision(store.reading(), "over a pool") == 1
                    assert await revision(store.reading(after=later, wait_ms=0), "over a pool") == 2

    asyncio.run(case())


# Commits.


def test_a_replica_tells_no_commit_anything(servers: Replicated) -> None:
    """A stale head from a replica would cost a commit a second trip."""

    async def case() -> None:
        async with servers.open() as store:
            await commit(store, "hints")
            await servers.catch_up()
            async with servers.paused():
                await commit(store, "hints")
                assert await revision(store.reading(), "hints") == 1
                runs = store._context.backend._executor  # type: ignore[attr-defined]
                assert runs.cache.sessions.get("hints").session.revision == 2
                assert (await commit(store, "hints", expected_revision=2)).revision == 3

    asyncio.run(case())
