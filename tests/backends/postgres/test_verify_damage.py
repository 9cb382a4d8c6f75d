"""Verification reports every damage to a schema, or `damages.py` says why it cannot; only Holdfast errors are raised.

Every column of every table in the server's catalogue is damaged in every way that its type allows, and every row is
deleted, one at a time. NOT NULL constraints are dropped first, as a manual restore may leave them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
from tests.backends.damages import answers, expected_tables
from tests.backends.sqlite.furnished import seed_processes, seed_sessions, seed_work

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.blocking import BlockingStore
from holdfast.processes import Run
from holdfast.sessions import FullGraph
from holdfast.testing.clock import ManualClock
from holdfast.workers import WorkerInfo

# The damaged row of each table; every other row stays as it is.
VICTIMS = {
    "settings": "name = 'fence_floor'",
    "sessions": "session_id = 'fork'",
    "revisions": "session_key = (SELECT session_key FROM holdfast.sessions WHERE session_id = 'x') AND revision = 3",
    "nodes": "node_id = 'n1'",
    "usage": "source = 'turn'",
    "blobs": "hash = (SELECT min(hash) FROM holdfast.blobs)",
    "batches": "source_key = 'claimed'",
    "ready": "session_key = (SELECT session_key FROM holdfast.sessions WHERE session_id = 'x')",
    "limits": "kind = 'capped'",
    "slots": "kind = 'capped'",
    "waiting_keys": "kind = 'capped'",
    "leases": "kind = 'process'",
    "attachments": "label = 'late'",
    "attachment_objects": "attachment_id = (SELECT min(attachment_id) FROM holdfast.attachment_objects)",
    "object_deletions": "family > 0",
    "processes": "process_id = 'p'",
    "events": "process_id = 'p' AND sequence = 1",
    "grants": "process_id = 'p'",
    "subscriptions": "key = 'key'",
    "occurrences": "idempotency_key = 'i2'",
    "deliveries": "state = 'failed'",
    "schedules": "name = 'nightly'",
    "artifacts": "kind = 'mod'",
    "workers": "worker_id = 'w1'",
    "stream_blocks": "block = 0",
    "session_labels": "key = 'user'",
}
WAYS = {
    "text": {"other": "'zzz'", "blank": "''", "null": "NULL"},
    "bigint": {"negative": "-5", "huge": "999999", "more": "{c} + 1", "less": "{c} - 1", "null": "NULL"},
    "bytea": {
        "garbage": "'\\xff00'",
        "empty": "''",
        "cut": "substr({c}, 1, greatest(length({c}) - 1, 0))",
        "null": "NULL",
    },
}
TYPES = {"text": "bytea USING convert_to({c}, 'UTF8')", "bigint": "text USING {c}::text", "bytea": "text USING 'x'"}
"""The type that a column is changed to, which no statement expects."""

WHOLE = os.environ.get("HOLDFAST_WHOLE") == "1"
"""Every way for every column. Otherwise NULL and one way more, another one with each seed."""


class Ground(NamedTuple):
    """A schema with rows in every table, a copy of them, and a store on it."""

    store: BlockingStore
    backend: PostgresBackend
    administrator: Any
    before: dict[str, str]
    untouched: object


@pytest.fixture(scope="module")
def ground(postgres_database: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    postgres_database.empty()
    url, clock, byte_store = postgres_database.url, ManualClock(1_000_000), tmp_path_factory.mktemp("byte_store")
    administrator = postgres_database.administrator
    with holdfast.open_blocking(url, clock=clock) as store:
        fill(store, url, clock, byte_store)
        administrator.run("CREATE SCHEMA other_copy")
        for table in VICTIMS:
            administrator.run(f"CREATE TABLE other_copy.{table} AS TABLE holdfast.{table}")
            for column, _ in columns(administrator, table):
                with_null = f"ALTER TABLE holdfast.{table} ALTER COLUMN {column} DROP NOT NULL"
                administrator.run(f"DO $$ BEGIN {with_null}; EXCEPTION WHEN OTHERS THEN NULL; END $$")
        backend = store._backend
        assert isinstance(backend, PostgresBackend)
        other = store.sessions.handle("other").load(FullGraph())
        yield Ground(store, backend, administrator, answers(store), other)
    postgres_database.empty()


def fill(store: BlockingStore, url: str, clock: ManualClock, byte_store: Path) -> None:
    seed_sessions(store)
    seed_work(store)
    seed_processes(store)
    store.schedules.put("nightly", "0 3 * * *", run=Run("report", args={"a": 1}))
    store.artifacts.put_content("mod", b"content" * 100)
    store.workers.heartbeat(WorkerInfo("w1", host="here", pid=7), ttl_ms=60_000)
    with holdfast.open_blocking(url, clock=clock, attachments=byte_store) as outside:
        ref = outside.sessions.create("byte_store").attachments.put(b"outside")
    store.sessions.handle("byte_store").attachments.forget(ref.id)
    assert store.maintenance.verify().findings == ()


def columns(administrator: Any, table: str) -> list[tuple[str, str]]:
    """Return every column of a table with its type, from the catalogue, without generated columns."""
    return [
        (column, kind)
        for column, kind in administrator.rows(
            "SELECT column_name::text, data_type::text FROM information_schema.columns "
            "WHERE table_schema = 'holdfast' AND table_name = $1 AND is_generated = 'NEVER' ORDER BY ordinal_position",
            table,
        )
    ]


def chosen(place: str, ways: dict[str, str]) -> dict[str, str]:
    """Return the kinds of damage that are tried in this run."""
    others = sorted(set(ways) - {"null"})
    one = random.Random(f"{os.environ.get('HOLDFAST_SEED')} {place}").choice(others)
    return {way: ways[way] for way in ways if WHOLE or way in ("null", one)}


def damaged(ground: Ground, statement: str) -> bool:
    """Report whether the statement changed anything; the schema itself may forbid it."""
    try:
        return bool(ground.administrator.rows(statement))
    except asyncpg.IntegrityConstraintViolationError:
        return False


def restore(ground: Ground, table: str) -> None:
    names = ", ".join(column for column, _ in columns(ground.administrator, table))
    ground.administrator.run(
        f"DELETE FROM holdfast.{table}; INSERT INTO holdfast.{table} ({names}) SELECT {names} FROM other_copy.{table}"
    )


def look(ground: Ground, place: tuple[str, str, str]) -> Iterator[str]:
    """Yield each wrong reaction of the store to one damage."""
    table, column, way = place
    ground.backend._executor.forget()
    named = {finding.table for finding in ground.store.maintenance.verify().findings}
    expected = expected_tables(table, column, way)
    if not (named >= expected if expected else not named):
        yield f"{table}.{column} {way}: named {sorted(named)}, expected {sorted(expected)}"
    after = answers(ground.store)
    ground.backend._executor.forget()
    if ground.store.sessions.handle("other").load(FullGraph()) != ground.untouched:
        yield f"{table}.{column} {way}: another session reads differently"
    if way in ("garbage", "empty", "cut"):
        # Content is verified when it is read: it comes back unchanged or raises.
        for name, answer in after.items():
            if name != "stats" and answer not in (ground.before[name], "Corrupt"):
                yield f"{table}.{column} {way}: {name} answers something else"


@pytest.mark.parametrize("table", VICTIMS)
def test_verification_names_the_table_of_every_damage_and_only_our_errors_come(ground: Ground, table: str) -> None:
    wrong: list[str] = []
    damages = [
        (column, way, f"SET {column} = {expression.format(c=column)}")
        for column, kind in columns(ground.administrator, table)
        for way, expression in chosen(f"{table}.{column}", WAYS[kind]).items()
    ]
    done = 0
    for column, way, change in damages:
        value = change.partition(" = ")[2]
        where = f"{VICTIMS[table]} AND {column} IS DISTINCT FROM {value}"
        if damaged(ground, f"UPDATE holdfast.{table} {change} WHERE {where} RETURNING 1"):
            done += 1
            wrong += look(ground, (table, column, way))
            restore(ground, table)
    ground.administrator.run(f"DELETE FROM holdfast.{table} WHERE {VICTIMS[table]}")
    wrong += look(ground, (table, "*", "missing"))
    restore(ground, table)
    assert done > 0
    assert wrong == []


@pytest.mark.parametrize("table", VICTIMS)
def test_a_column_of_another_type_is_damage_and_nothing_but_our_errors_come(ground: Ground, table: str) -> None:
    tried: set[str] = set()
    for column, kind in columns(ground.administrator, table):
        if (kind in tried and not WHOLE) or not holds_values(ground, table, column):
            continue
        if not retype(ground, table, column, TYPES[kind].format(c=column)):
            continue
        tried.add(kind)
        ground.backend._executor.forget()
        try:
            named = {finding.table for finding in ground.store.maintenance.verify().findings}
            after = answers(ground.store)
        finally:
            remake(ground, table, column, kind)
        assert table in named, f"{table}.{column}: {named}"
        assert not {answer for answer in after.values() if answer == "HoldfastError"}, f"{table}.{column}: {after}"
    assert tried
    ground.backend._executor.forget()
    assert ground.store.maintenance.verify().findings == ()


def holds_values(ground: Ground, table: str, column: str) -> bool:
    """Report whether any row has a value there: NULL is the same in every type."""
    return bool(ground.administrator.rows(f"SELECT 1 FROM holdfast.{table} WHERE {column} IS NOT NULL LIMIT 1"))


def retype(ground: Ground, table: str, column: str, kind: str) -> bool:
    """Change the column's type; report whether that worked, since an index may forbid it."""
    try:
        ground.administrator.run(f"ALTER TABLE holdfast.{table} ALTER COLUMN {column} TYPE {kind}")
    except asyncpg.PostgresError:
        return False
    return True


def remake(ground: Ground, table: str, column: str, kind: str) -> None:
    """Restore the column."""
    collate = 'COLLATE "C" ' if kind == "text" else ""
    ground.administrator.run(
        f"DELETE FROM holdfast.{table}; "
        f"ALTER TABLE holdfast.{table} ALTER COLUMN {column} TYPE {kind} {collate}USING NULL::{kind}"
    )
    restore(ground, table)


def test_every_table_of_the_schema_has_a_victim(ground: Ground) -> None:
    tables = {
        name for (name,) in ground.administrator.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")
    }
    assert tables == set(VICTIMS)
    for table, where in VICTIMS.items():
        [(count,)] = ground.administrator.rows(f"SELECT count(*) FROM holdfast.{table} WHERE {where}")
        assert count == 1, table
