"""A schema is opened only if it is a store's schema of a supported version."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.postgres import PostgresBackend, PostgresOptions, schema_setup
from holdfast.backends.postgres.connection import statements_of
from holdfast.errors import Incompatible, InvalidRequest, SchemaMissing, SchemaTooNew, Unavailable

SHAPE = """
SELECT 'column', table_name, column_name, data_type, is_nullable, collation_name, ordinal_position::text
FROM information_schema.columns WHERE table_schema = $1
UNION ALL
SELECT 'index', tablename, indexname, replace(indexdef, $1 || '.', ''), '', '', ''
FROM pg_indexes WHERE schemaname = $1
UNION ALL
SELECT 'sequence', sequencename, '', '', '', '', '' FROM pg_sequences WHERE schemaname = $1
UNION ALL
SELECT 'function', proname, pg_get_function_identity_arguments(oid), replace(prosrc, $1, ''), proacl::text, '', ''
FROM pg_proc WHERE pronamespace = $1::regnamespace
ORDER BY 1, 2, 3
"""


def lease() -> r.LeaseRow:
    return r.LeaseRow("process", "p", "me", "hash", 3, 1, 2)


def test_an_empty_database_gets_a_schema_of_its_own(postgres_url: str, open_store: Any, administrator: Any) -> None:
    store = open_store(postgres_url)
    [(version,)] = administrator.rows("SELECT value FROM holdfast.settings WHERE name = 'schema_version'")
    assert (version, store.backend.schema_version, store.backend.durability) == (1, 1, "durable")
    [(elsewhere,)] = administrator.rows("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    assert elsewhere == 0


def test_a_schema_is_opened_again_with_what_it_holds(open_store: Any) -> None:
    open_store().call("save_lease", lease())
    assert open_store().ask("find_lease", "process", "p") == lease()
    assert open_store(migrate=False).ask("find_lease", "process", "p") == lease()


def test_two_schemas_in_one_database_know_nothing_of_each_other(open_store: Any, postgres_database: Any) -> None:
    postgres_database.empty()
    one, other = open_store(), open_store(schema="other_1")
    one.call("save_lease", lease())
    assert other.ask("find_lease", "process", "p") is None


def test_replaying_every_migration_ends_in_the_schema(postgres_database: Any, administrator: Any) -> None:
    postgres_database.empty()
    assert list(schema_setup.migrations()) == [*range(1, schema_setup.SCHEMA_VERSION + 1)]
    administrator.run("CREATE SCHEMA other_replayed; CREATE SCHEMA other_whole;")
    for text in schema_setup.migrations().values():
        administrator.run(text.replace("{schema}", "other_replayed"))
    administrator.run(schema_setup.functions_text("other_replayed"))
    administrator.run(schema_setup.schema_text("other_whole"))
    assert administrator.rows(SHAPE, "other_replayed") == administrator.rows(SHAPE, "other_whole")


def test_the_output_of_ddl_makes_a_schema_that_opens_without_any_right_to_change_it(
    postgres_database: Any, open_store: Any, administrator: Any
) -> None:
    postgres_database.empty()
    administrator.run(open_store(schema="other_a").backend.ddl().replace("other_a", "other_b"))
    assert administrator.rows(SHAPE, "other_b") == administrator.rows(SHAPE, "other_a")
    open_store(schema="other_b", migrate=False)


def test_a_role_without_ddl_rights_works_with_migrate_false(
    postgres_url: str, open_store: Any, administrator: Any
) -> None:
    open_store(postgres_url)
    administrator.run("DROP ROLE IF EXISTS holdfast_worker; CREATE ROLE holdfast_worker LOGIN")
    administrator.run("GRANT USAGE ON SCHEMA holdfast TO holdfast_worker")
    administrator.run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO holdfast_worker")
    administrator.run("GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO holdfast_worker")
    administrator.run("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast TO holdfast_worker")
    try:
        url = re.sub("//[^@/]*@", "//holdfast_worker@", postgres_url)
        with holdfast.open_blocking(url, options=PostgresOptions(migrate=False)) as worker:
            assert worker.sessions.handle("chat").commit(holdfast.Commit()).revision == 1
            worker.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
            assert worker.queue.claim("chat", owner_id="w1") is not None
            assert worker.maintenance.verify().findings == ()
            assert worker.sessions.delete("chat").deleted
        with pytest.raises(Unavailable, match="right"):
            holdfast.open_blocking(url, options=PostgresOptions(schema="other_c"))
    finally:
        administrator.run("DROP OWNED BY holdfast_worker; DROP ROLE holdfast_worker")


def test_an_empty_schema_that_was_made_beforehand_is_used(
    postgres_url: str, open_store: Any, administrator: Any
) -> None:
    administrator.run("CREATE SCHEMA holdfast")
    open_store(postgres_url).call("save_lease", lease())


@pytest.mark.parametrize("table", ["customers", "settings"])
def test_a_schema_of_another_program_is_left_alone(
    postgres_url: str, open_store: Any, administrator: Any, table: str
) -> None:
    administrator.run(f"CREATE SCHEMA other; CREATE TABLE other.{table} (name text, value bigint)")
    with pytest.raises(Incompatible, match="another program"):
        open_store(postgres_url, schema="other")
    assert len(administrator.rows("SELECT * FROM pg_tables WHERE schemaname = 'other'")) == 1


def test_a_newer_schema_is_refused(open_store: Any, administrator: Any) -> None:
    open_store()
    administrator.run("UPDATE holdfast.settings SET value = 7 WHERE name = 'schema_version'")
    try:
        with pytest.raises(SchemaTooNew) as refused:
            open_store()
        assert (refused.value.found, refused.value.known) == (7, 1)
    finally:
        administrator.run("UPDATE holdfast.settings SET value = 1 WHERE name = 'schema_version'")


def test_a_server_that_is_too_old_is_refused(clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert schema_setup.OLDEST_SERVER == 140_000
    monkeypatch.setattr(schema_setup, "OLDEST_SERVER", 990_000)
    with pytest.raises(Incompatible, match="needs 14 or newer"):
        holdfast.open_blocking(clean_postgres_url)


def test_a_database_that_cannot_hold_every_text_is_refused(clean_postgres_url: str, administrator: Any) -> None:
    administrator.run("CREATE DATABASE holdfast_latin TEMPLATE template0 ENCODING 'LATIN1'")
    try:
        with pytest.raises(Incompatible, match="LATIN1"):
            holdfast.open_blocking(re.sub(r"/holdfast_test_\w+", "/holdfast_latin", clean_postgres_url))
    finally:
        administrator.run("DROP DATABASE holdfast_latin WITH (FORCE)")


def test_without_migrate_nothing_is_made(postgres_url: str, open_store: Any, administrator: Any) -> None:
    with pytest.raises(SchemaMissing):
        open_store(postgres_url, migrate=False)
    assert administrator.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []


def test_a_migration_that_fails_leaves_nothing(
    postgres_url: str, open_store: Any, administrator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(schema: str) -> str:
        return f"CREATE TABLE {schema}.settings (x bigint); SELECT 1 / 0;"

    monkeypatch.setattr(schema_setup, "schema_text", broken)
    with pytest.raises(holdfast.HoldfastError):
        open_store(postgres_url)
    assert administrator.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'holdfast'") == []


@pytest.mark.parametrize("schema", ["", "Holdfast", "a b", "a;b", "1a", "a" * 64, "pg_mine", 'a"b', 7, None])
def test_a_schema_name_that_is_not_a_plain_identifier_is_refused(clean_postgres_url: str, schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"options\.schema"):
        holdfast.open_blocking(clean_postgres_url, options=PostgresOptions(schema=schema))


def test_every_statement_names_the_schema_and_none_the_search_path() -> None:
    no_table = r"LATERAL|unnest|SET\b|OF\b|jsonb_array_elements_text"
    table = re.compile(rf"\b(?:(?<!DISTINCT )FROM|JOIN|INTO|UPDATE|USING)\s+(?!{no_table})([\w.]+)")
    for name, text in statements_of("s_x").items():
        made_here = set(re.findall(r"(\w+)(?:\s*\([^()]*\))?\s+AS\s*(?:MATERIALIZED\s*)?\(", text))
        for found in table.findall(text):
            fine = found.startswith(("s_x.", "pg_catalog.")) or found in made_here or found == "clock_timestamp"
            assert fine, f"{name}: {found}"
        assert "search_path" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sesame@localhost:1/db",
        "postgresql://me:sesame@localhost:notaport/db",
        "postgres://me:sesame@nowhere.invalid/db",
        "postgresql://me:sesame@[::1/db",
    ],
)
def test_a_server_that_is_not_there_is_named_without_its_password(url: str) -> None:
    with pytest.raises((Unavailable, InvalidRequest)) as refused:
        holdfast.open_blocking(url, options=PostgresOptions(acquire_timeout_ms=500))
    assert "sesame" not in repr(refused.value) + str(refused.value)


def test_a_database_that_does_not_exist_is_an_invalid_request(clean_postgres_url: str) -> None:
    with pytest.raises(InvalidRequest, match="no such database"):
        holdfast.open_blocking(re.sub(r"/holdfast_test_\w+", "/holdfast_absent", clean_postgres_url))


def test_a_store_opened_for_tasks_says_so_when_it_is_driven(store: Any) -> None:
    async def nothing() -> None: ...

    work = nothing()
    with pytest.raises(InvalidRequest, match="open_blocking"):
        store.backend.drive(work)
    work.close()


def test_a_store_belongs_to_its_event_loop(store: Any) -> None:
    import asyncio

    async def use() -> None:
        await store.backend.read(lambda tx: tx.find_session("chat"))

    with pytest.raises(InvalidRequest, match="event loop"):
        asyncio.run(use())


def test_without_the_driver_the_extra_is_named(clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.backends.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(InvalidRequest, match=r"holdfast\[postgres\]"):
        holdfast.open_blocking(clean_postgres_url)
    assert PostgresBackend is not None


def test_server_functions_run_with_the_callers_rights_and_not_for_the_public(store: Any, administrator: Any) -> None:
    assert store.backend.schema_version == 1
    functions = administrator.rows(
        """
        SELECT
            proname::text, prosecdef, coalesce(proconfig, '{}'), lanname::text,
            EXISTS (SELECT 1 FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee = 0) AS public
        FROM pg_proc
        JOIN pg_language ON pg_language.oid = prolang
        WHERE pronamespace = 'holdfast'::regnamespace
        """
    )
    assert {"commit_turn_v1", "append_event_v1", "show_head_v1"} <= {name for name, *_ in functions}
    for name, as_owner, settings, language, public in functions:
        assert not as_owner, name
        assert not public, name
        if language == "plpgsql":
            assert "search_path=pg_catalog, pg_temp" in settings, name
            # A function that only others call is planned with their settings.
            inner = {"claim_in_session_v1", "position_v1", "lock_slots_v1", "move_key_v1", "take_slot_v1"}
            is_inner = name in inner
            assert is_inner or "plan_cache_mode=force_generic_plan" in settings, name
