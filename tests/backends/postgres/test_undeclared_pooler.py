"""A pooler that the options do not declare is named when a store is opened, and no operation runs through it."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.backends.postgres.strict_pooler import strict_pooler

import holdfast
from holdfast.backends.postgres import PostgresOptions, connector, executor, listener
from holdfast.backends.postgres.connector import OwnConnection
from holdfast.cli import main

SETTINGS = re.findall(r'^ +"(\w+)": ', Path(connector.__file__).read_text(encoding="utf-8"), re.MULTILINE)
NAMED = r"options.pooler: .*PgBouncer.*set options.pooler to transaction, or use a url that leads past"
BEHIND = PostgresOptions(pooler="transaction")
WORK = holdfast.WorkDraft(session_id="chat", payloads=["ship it"])


@pytest.fixture
def pgbouncer(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Start a PgBouncer with the test's settings and return its URL."""
    database = request.getfixturevalue("pooled_database")
    database.clean()
    server = request.getfixturevalue("postgres_server")
    tools, bouncers = sys.modules["holdfast_postgres_server"], sys.modules["holdfast_pgbouncer"]
    made: list[Any] = []

    def start(**settings: Any) -> str:
        made.append(bouncers.PgBouncer(server.folder, tools.POOLER_ROLE, tools.unprivileged_user(), **settings))
        url: str = made[-1].url(database.name)
        return url

    yield start
    for one in made:
        one.remove()


def refusal(url: str) -> str:
    with pytest.raises(holdfast.InvalidRequest, match=NAMED) as refused:
        holdfast.open_blocking(url)
    assert refused.value.field == "options.pooler"
    return str(refused.value)


def test_a_pooler_that_keeps_our_settings_to_itself_is_named(
    postgres_url: str, postgres_database: Any, tmp_path: Path
) -> None:
    with strict_pooler(postgres_url, postgres_database.name, tmp_path) as (_, url):
        refusal(url)
    # Not even the schema was created.
    assert postgres_database.administrator.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []


@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("ignored", ["extra_float_digits", ", ".join(SETTINGS)], ids=["refuses", "ignores"])
def test_pgbouncer_is_named_whatever_its_mode_and_whether_it_refuses_or_ignores_our_settings(
    pgbouncer: Callable[..., str], mode: str, ignored: str
) -> None:
    url = pgbouncer(mode=mode, ignored=ignored)
    refusal(url)
    with holdfast.open_blocking(url, options=BEHIND) as store:
        assert store.queue.enqueue(WORK).state == "pending"


def test_statement_mode_is_named_because_nothing_can_work_behind_it(pgbouncer: Callable[..., str]) -> None:
    url = pgbouncer(mode="statement")
    with pytest.raises(holdfast.InvalidRequest, match="pooler runs in statement mode") as refused:
        holdfast.open_blocking(url, options=BEHIND)
    assert refused.value.field == "url"


def test_a_pooler_with_too_few_connections_is_mentioned_when_nothing_answers(
    pgbouncer: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "GRACE_S", 0.5)
    url = pgbouncer(mode="session", size=1)
    short = PostgresOptions(pooler="transaction", acquire_timeout_ms=1_000, statement_timeout_ms=500)

    async def case() -> None:
        async with holdfast.open(url, options=BEHIND) as first:
            await first.queue.enqueue(WORK)
            with pytest.raises(holdfast.Unavailable, match=r"pooler .* too few server connections"):
                await holdfast.open(url, options=short)

    asyncio.run(case())


def test_the_command_line_says_how_to_declare_a_pooler(
    pgbouncer: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--url", pgbouncer()]) == 2
    assert "set --pooler to transaction, or use a --url that leads past the pooler" in capsys.readouterr().err


def test_a_callers_pool_through_pgbouncer_is_refused_unless_it_is_made_for_it(pgbouncer: Callable[..., str]) -> None:
    url = pgbouncer()

    async def opened(options: PostgresOptions | None, **settings: Any) -> str | None:
        async with asyncpg.create_pool(url, min_size=1, max_size=2, **settings) as pool:
            try:
                async with holdfast.open(pool, options=options) as store:
                    await store.queue.enqueue(WORK)
            except holdfast.InvalidRequest as error:
                return str(error)
        return None

    assert re.match(NAMED, asyncio.run(opened(None, statement_cache_size=0)) or "")
    assert "connect with statement_cache_size=0" in (asyncio.run(opened(BEHIND)) or "")
    assert asyncio.run(opened(BEHIND, statement_cache_size=0)) is None


def test_a_callers_connection_through_pgbouncer_is_accepted_only_without_named_statements(
    pgbouncer: Callable[..., str],
) -> None:
    url = pgbouncer()

    async def enqueued(**settings: Any) -> int:
        connection = await asyncpg.connect(url, **settings)
        try:
            async with holdfast.open(url, options=BEHIND) as store:
                async with connection.transaction():
                    await store.within(connection).queue.enqueue(WORK)
                return len(await store.queue.list("chat"))
        finally:
            connection.terminate()

    refused = pytest.raises(holdfast.InvalidRequest, match=r"connection: .*connect with statement_cache_size=0")
    # The second time, its name is taken by the statement that the first one left on the server connection.
    for _ in range(2):
        with refused:
            asyncio.run(enqueued())
    assert asyncio.run(enqueued(statement_cache_size=0)) == 1


def test_a_listen_url_that_leads_to_a_pooler_is_named_and_waiters_poll(
    postgres_database: Any,
    clean_postgres_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "RETRY_LONGEST_S", 0.1)
    with (
        strict_pooler(clean_postgres_url, postgres_database.name, tmp_path) as (_, url),
        caplog.at_level(logging.WARNING, "holdfast.listener"),
        holdfast.open_blocking(clean_postgres_url, options=PostgresOptions(listen_url=url)) as store,
        pytest.raises(holdfast.WaitTimeout),
    ):
        store.queue.wait("chat", timeout_ms=500)
    assert "listen_url" in caplog.text
    assert "PgBouncer" in caplog.text


def test_prepared_statements_have_names_that_no_other_client_uses(clean_postgres_url: str) -> None:
    async def names() -> list[str]:
        found: list[str] = []
        for _ in range(2):
            connection = await asyncpg.connect(clean_postgres_url, connection_class=OwnConnection)
            found += [row[0] for row in await connection.fetch("SELECT name FROM pg_prepared_statements")]
            await connection.close()
        return found

    first, second = asyncio.run(names())
    assert first != second
    assert all(re.fullmatch(r"holdfast_stmt_[0-9a-f]{16}_1", name) for name in (first, second))
