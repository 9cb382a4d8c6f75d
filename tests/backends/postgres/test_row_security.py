"""Rows hidden by row-level security are never read as missing: every call says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresOptions
from holdfast.table_catalog import table_names

ROLE = "holdfast_tenant"
ADVICE = r"row-level security .*DISABLE ROW LEVEL SECURITY.*BYPASSRLS"
WORKER = PostgresOptions(migrate=False)


def alter(administrator: Any, change: str, tables: list[str]) -> None:
    administrator.run("; ".join(f"ALTER TABLE holdfast.{table} {change}" for table in tables))


@contextmanager
def a_tenant(database: Any) -> Iterator[str]:
    """Return the URL of a role whose policies hide every row, in a store with one turn."""
    database.clean()
    with holdfast.open_blocking(database.url) as store:
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t1"))
    database.administrator.run(
        f"CREATE ROLE {ROLE} LOGIN; GRANT USAGE ON SCHEMA holdfast TO {ROLE}; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {ROLE}; "
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {ROLE}; "
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast TO {ROLE}"
    )
    try:
        yield database.url.replace("postgres@", f"{ROLE}@")
    finally:
        alter(database.administrator, "DISABLE ROW LEVEL SECURITY", table_names())
        database.administrator.run(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


@pytest.fixture
def tenant(postgres_database: Any) -> Iterator[str]:
    with a_tenant(postgres_database) as url:
        yield url


def data_tables() -> list[str]:
    return [name for name in table_names() if name != "settings"]


def test_a_store_whose_rows_are_hidden_reads_and_writes_nothing_and_says_why(
    tenant: str, postgres_database: Any
) -> None:
    with holdfast.open_blocking(tenant, options=WORKER) as store:
        session = store.sessions.handle("chat")
        assert session.load().revision == 1
        alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", data_tables())
        for call in (
            session.load,
            session.history,
            store.sessions.list,
            store.maintenance.diagnose,
            store.maintenance.stats,
            lambda: session.commit(holdfast.Commit(turn_id="t2")),
            lambda: store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1])),
        ):
            with pytest.raises(holdfast.Incompatible, match=ADVICE):
                call()


@pytest.mark.parametrize("table", ["revisions", "nodes", "blobs", "usage"])
def test_a_diagnosis_names_a_table_whose_rows_are_hidden(tenant: str, postgres_database: Any, table: str) -> None:
    alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", [table])
    with holdfast.open_blocking(tenant, options=WORKER) as store:
        [concern] = [one for one in store.maintenance.diagnose().concerns if one.name == "row-security"]
    assert concern.level == "danger"
    assert f"row-level security of {table} applies" in concern.problem
    with holdfast.open_blocking(postgres_database.url) as store:
        assert "row-security" not in [one.name for one in store.maintenance.diagnose().concerns]


def test_a_store_whose_version_is_hidden_is_not_taken_for_another_programs(tenant: str, postgres_database: Any) -> None:
    alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", ["settings"])
    for options in (WORKER, PostgresOptions(migrate=False, pooler="transaction"), PostgresOptions()):
        with pytest.raises(holdfast.Incompatible, match=ADVICE):
            holdfast.open_blocking(tenant, options=options)


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_a_callers_pool_and_a_pooler_hide_nothing_either(tenant: str, postgres_database: Any, pooler: Any) -> None:
    options = PostgresOptions(migrate=False, pooler=pooler)

    async def case() -> None:
        async with (
            asyncpg.create_pool(tenant, min_size=1, max_size=2, statement_cache_size=0) as pool,
            holdfast.open(pool, options=options) as store,
        ):
            with pytest.raises(holdfast.Incompatible, match=ADVICE):
                await store.sessions.handle("chat").load()
            async with pool.acquire() as connection:
                assert await connection.fetchval("SHOW row_security") == "on"

    alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", data_tables())
    asyncio.run(case())


def test_a_callers_transaction_is_refused_and_keeps_its_setting(tenant: str, postgres_database: Any) -> None:
    alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", ["nodes"])

    async def case(url: str, role: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            async with holdfast.open(postgres_database.url) as store, connection.transaction():
                within = store.within(connection)
                if role:
                    assert (await within.sessions.handle("chat").load()).revision == 1
                    await connection.execute(f"SET LOCAL ROLE {role}")
                for _ in range(2):
                    with pytest.raises(holdfast.Incompatible, match=r"row-level security of holdfast\.nodes"):
                        await within.sessions.handle("chat").load()
                assert await connection.fetchval("SHOW row_security") == "on"
        finally:
            await connection.close()

    asyncio.run(case(tenant, ""))
    # The usual tenant setup: the transaction switches its role after it began.
    asyncio.run(case(postgres_database.url, ROLE))


def test_policies_that_do_not_apply_to_the_role_are_accepted(tenant: str, postgres_database: Any) -> None:
    alter(postgres_database.administrator, "ENABLE ROW LEVEL SECURITY", table_names())
    with holdfast.open_blocking(postgres_database.url) as store:
        assert store.sessions.handle("chat").load().revision == 1
    postgres_database.administrator.run(f"ALTER ROLE {ROLE} BYPASSRLS")
    with holdfast.open_blocking(tenant, options=WORKER) as store:
        assert store.sessions.handle("chat").commit(holdfast.Commit(turn_id="t2")).revision == 2
