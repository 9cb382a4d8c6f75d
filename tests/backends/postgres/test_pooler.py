"""Behind a transaction pooler, no connection state outlives a transaction (see `strict_pooler.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends.postgres.strict_pooler import SERVERS, Pooler, strict_pooler

import holdfast
from holdfast.backends.postgres import PostgresOptions
from holdfast.testing.contract.bench import at_once


@pytest.fixture
def pooler(clean_postgres_url: str, postgres_database: Any, tmp_path: Path) -> Iterator[tuple[Pooler, str]]:
    if "host=" not in clean_postgres_url:
        pytest.skip("the pooler speaks over a socket in the file system")
    with strict_pooler(clean_postgres_url, postgres_database.name, tmp_path) as made:
        yield made


def work_on(store: Any, name: str) -> None:
    handle = store.sessions.handle(name)
    for number in range(5):
        handle.commit(
            holdfast.Commit(
                turn_id=f"t{number}",
                graph=holdfast.Append([holdfast.Node(f"n{number}", payload=number)]),
                enqueues=[holdfast.WorkDraft(payloads=[number])],
            )
        )
        claim = store.queue.claim(name, owner_id="me")
        handle.commit(holdfast.Commit(completes=[claim]))
    assert handle.load(holdfast.sessions.FullGraph()).node_count == 5


def test_a_store_works_behind_a_transaction_pooler(pooler: tuple[Pooler, str], clean_postgres_url: str) -> None:
    made, url = pooler
    options = PostgresOptions(pooler="transaction", max_connections=8, listen_url=clean_postgres_url)
    with holdfast.open_blocking(url, options=options) as store:
        outcomes = at_once(*(lambda name=f"chat-{n}": work_on(store, name) for n in range(6)))
        assert outcomes == [None] * 6
        assert store.maintenance.verify().findings == ()
        assert made.handed_out > 100
    with holdfast.open_blocking(url, options=PostgresOptions(pooler="transaction", migrate=False)) as store:
        assert store.maintenance.stats().sessions == 6


def test_behind_a_pooler_no_setting_statement_or_listening_stays_on_a_server_connection(
    pooler: tuple[Pooler, str], administrator: Any
) -> None:
    _, url = pooler
    options = PostgresOptions(pooler="transaction", lock_timeout_ms=777, statement_timeout_ms=20_777)
    with holdfast.open_blocking(url, options=options) as store:
        work_on(store, "chat")
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=1_500)
    import asyncpg

    async def look() -> list[tuple[Any, ...]]:
        seen = []
        for _ in range(SERVERS):
            connection = await asyncpg.connect(url, statement_cache_size=0)
            async with connection.transaction():
                seen.append(
                    tuple(
                        await connection.fetchrow(
                            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "
                            "(SELECT count(*) FROM pg_prepared_statements WHERE name <> ''), "
                            "(SELECT count(*) FROM pg_listening_channels())"
                        )
                    )
                )
            await connection.close()
        return seen

    assert set(asyncio.run(look())) == {("0", "0", 0, 0)}
