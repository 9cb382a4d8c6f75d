"""After a failover, the position of a lost write is reported as lost, and no replica of another history answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.backends.postgres.replicas import Replicated, connected, replicated

import holdfast
from holdfast.store import Store
from holdfast.torture.servers import Server

LONG_MS = 60_000
SHORT_MS = 30


@pytest.fixture(autouse=True)
def _with_servers(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")


def store_on(primary: Server, replica: Server) -> Any:
    return holdfast.open(primary.url, options=holdfast.PostgresOptions(read_url=replica.url))


async def commit(store: Store, config: str) -> holdfast.sessions.CommitReceipt:
    return await store.sessions.handle("chat").commit(holdfast.Commit(config=config))


async def config(store: Store) -> Any:
    view = await store.sessions.handle("chat").load()
    return None if view is None else view.config


def promote(server: Server) -> None:
    server.run("pg_ctl", "-D", server.data, "-w", "promote")


def test_a_position_that_a_failover_lost_is_unknown() -> None:
    async def case(servers: Replicated) -> None:
        async with servers.open() as store:
            kept = await commit(store, "kept")
            await servers.catch_up()
            servers.replica.stop()
            lost = await commit(store, "lost")
        servers.primary.stop()
        servers.replica.start()
        promote(servers.replica)
        async with store_on(servers.replica, servers.replica) as store, connected(servers.replica) as connection:
            assert await config(store.reading(after=kept, fall_back=False)) == "kept"
            for fall_back in (True, False):
                with pytest.raises(holdfast.errors.UnknownPosition) as refused:
                    await config(store.reading(after=lost, wait_ms=SHORT_MS, fall_back=fall_back))
                assert (refused.value.position, refused.value.retryable) == (lost.position, False)
            # Once its number is assigned again, the loss cannot be noticed. Every remaining row up to it is shown.
            number = int(lost.position.rpartition(".")[2])
            while int(await connection.fetchval("SELECT pg_current_xact_id()::text")) < number:
                continue
            assert await config(store.reading(after=lost, wait_ms=LONG_MS, fall_back=False)) == "kept"

    with replicated() as servers:
        asyncio.run(case(servers))


def test_a_replica_of_another_history_does_not_answer() -> None:
    check_a_replica_of_another_history()


def check_a_replica_of_another_history() -> None:
    """The replica has replayed more than the promoted one, and its transactions have the same numbers."""

    async def case(servers: Replicated) -> None:
        behind, ahead = servers.replicas
        async with servers.open() as store:
            kept = await commit(store, "kept")
            await servers.catch_up(behind)
            behind.stop()
            lost = [await commit(store, "lost") for _ in range(5)]
            await servers.catch_up(ahead)
        servers.primary.stop()
        behind.start()
        promote(behind)
        async with store_on(behind, ahead) as store:
            assert await config(store.reading(after=lost[-1], fall_back=False)) == "lost", "it is no replica any more"
            found = await commit(store, "found")
            assert number_of(kept) < number_of(found) <= number_of(lost[-1]), "a number was given twice"
            with pytest.raises(holdfast.errors.ReplicaBehind):
                await config(store.reading(after=found, wait_ms=SHORT_MS, fall_back=False))
            assert await config(store.reading(after=found, wait_ms=SHORT_MS)) == "found"

    with replicated(2) as servers:
        asyncio.run(case(servers))


def test_a_replica_that_was_promoted_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    check_a_replica_that_was_promoted()
    assert "the replica was promoted: it is on timeline 2, the primary on 1" in caplog.text


def check_a_replica_that_was_promoted() -> None:
    """The primary continues, and both servers assign the same numbers to different transactions."""

    async def case(servers: Replicated) -> None:
        async with servers.open() as store:
            kept = await commit(store, "kept")
            await servers.catch_up()
            assert await config(store.reading(after=kept, fall_back=False)) == "kept"
            promote(servers.replica)
            later = await commit(store, "later")
            async with holdfast.open(servers.replica.url) as other:
                while number_of(await commit(other, "elsewhere")) < number_of(later):
                    continue
            for asked in (store, store_on(servers.primary, servers.replica)):
                async with asked as opened:
                    assert await config(opened.reading(after=later)) == "later"
                    assert await config(opened.reading(after=kept)) == "later"
                    for after in (later, kept):
                        with pytest.raises(holdfast.Unavailable, match="was promoted"):
                            await config(opened.reading(after=after, fall_back=False))
                    if opened is not store:
                        assert await config(opened.reading()) == "later"

    with replicated() as servers:
        asyncio.run(case(servers))


def number_of(receipt: holdfast.Receipt) -> int:
    return int(receipt.position.rpartition(".")[2])


def test_a_replica_that_follows_the_new_primary_answers() -> None:
    async def case(servers: Replicated) -> None:
        promoted, follower = servers.replicas
        async with servers.open() as store:
            kept = await commit(store, "kept")
            await servers.catch_up(promoted)
            await servers.catch_up(follower)
        servers.primary.stop("fast")
        promote(promoted)
        async with connected(follower) as connection:
            await connection.execute(f"ALTER SYSTEM SET primary_conninfo = 'user=postgres host={promoted.folder}'")
            await connection.execute("SELECT pg_reload_conf()")
        async with store_on(promoted, follower) as store:
            found = await commit(store, "found")
            assert await config(store.reading(after=found, wait_ms=LONG_MS, fall_back=False)) == "found"
            assert await config(store.reading(after=kept, wait_ms=LONG_MS, fall_back=False)) == "found"

    with replicated(2) as servers:
        asyncio.run(case(servers))
