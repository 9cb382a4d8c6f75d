"""A healthy server raises no concern, and each danger to a server is reported while it exists."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess
from holdfast.maintenance import PostgresFacts
from holdfast.processes import Engine, External
from holdfast.rules import diagnosis as rules
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft

HOUR = 3_600_000
SETTINGS = {
    "max_connections": "20",
    "shared_buffers": "16MB",
    "listen_addresses": "''",
    "log_min_messages": "fatal",
    "archive_mode": "on",
    "archive_command": "'true'",
}
WAIT_S = 30


@pytest.fixture(scope="module")
def sound(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server with the settings that a server should have."""
    if request.config.getoption("--no-postgres"):
        pytest.skip("--no-postgres")
    tools = sys.modules["holdfast_postgres_server"]
    server = tools.Server(settings=SETTINGS)
    holdfast.open_blocking(server.url).close()
    yield server
    server.remove()


@pytest.fixture
def administrator(sound: Any) -> Iterator[Any]:
    made = sys.modules["holdfast_postgres_server"].Administrator(sound.url)
    yield made
    made.close()


@pytest.fixture
def store(sound: Any) -> Iterator[BlockingStore]:
    with holdfast.open_blocking(sound.url, options=holdfast.PostgresOptions(max_connections=2)) as opened:
        yield opened


def names(store: BlockingStore) -> list[str]:
    return [concern.name for concern in store.maintenance.diagnose().concerns]


def until(reached: Callable[[], bool]) -> None:
    """Poll until the condition holds: a server applies new settings with a delay."""
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline


def test_a_sound_server_has_no_concern(store: BlockingStore, administrator: Any) -> None:
    diagnosis = store.maintenance.diagnose()
    assert diagnosis.concerns == ()
    assert diagnosis.facts is not None
    engine = diagnosis.facts.engine
    assert isinstance(engine, PostgresFacts)
    [(version, age)] = administrator.rows(
        "SELECT current_setting('server_version_num')::int, age(datfrozenxid) FROM pg_database "
        "WHERE datname = current_database()"
    )
    assert (engine.version, engine.max_connections, engine.fsync) == (version, 20, True)
    assert engine.connections >= 2
    assert 0 < engine.transaction_ids_used <= age
    assert abs(engine.server_ms - time.time() * 1000) < 5_000


def test_the_server_that_tests_run_on_is_unfit_for_anything_else(clean_postgres_url: str) -> None:
    with holdfast.open_blocking(clean_postgres_url) as opened:
        found = opened.maintenance.diagnose().concerns
        assert [(one.level, one.name) for one in found] == [("danger", "fsync"), ("danger", "full-page-writes")]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("fsync = off", "fsync"),
        ("full_page_writes = off", "full-page-writes"),
        ("synchronous_commit = off", "synchronous-commit"),
        ("autovacuum = off", "autovacuum"),
    ],
)
def test_a_dangerous_setting_is_named_while_it_lasts(
    store: BlockingStore, administrator: Any, setting: str, name: str
) -> None:
    administrator.run(f"ALTER SYSTEM SET {setting}")
    administrator.run("SELECT pg_reload_conf()")
    try:
        until(lambda: names(store) == [name])
    finally:
        administrator.run("ALTER SYSTEM RESET ALL")
        administrator.run("SELECT pg_reload_conf()")
    until(lambda: names(store) == [])


def test_a_table_whose_autovacuum_is_off_is_named(store: BlockingStore, administrator: Any) -> None:
    administrator.run("ALTER TABLE holdfast.nodes SET (autovacuum_enabled = off)")
    try:
        (concern,) = store.maintenance.diagnose().concerns
    finally:
        administrator.run("ALTER TABLE holdfast.nodes RESET (autovacuum_enabled)")
    assert (concern.name, concern.problem) == ("autovacuum", "autovacuum is off for nodes")
    assert names(store) == []


def switch_log(administrator: Any) -> None:
    """Begin a new segment of the write-ahead log."""
    administrator.run("SELECT pg_logical_emit_message(true, 'test', 'test')")
    administrator.run("SELECT pg_switch_wal()")


def test_a_replication_slot_that_keeps_the_log_is_named(store: BlockingStore, administrator: Any) -> None:
    administrator.run("SELECT pg_create_physical_replication_slot('left_behind', true)")
    administrator.run("ALTER SYSTEM SET max_wal_size = '32MB'")
    administrator.run("SELECT pg_reload_conf()")
    try:
        for _ in range(9):
            switch_log(administrator)
        until(lambda: names(store) == ["log-growth"])
        (concern,) = store.maintenance.diagnose().concerns
        assert "'left_behind'" in concern.problem
        assert "pg_drop_replication_slot" in concern.advice
    finally:
        administrator.run("SELECT pg_drop_replication_slot('left_behind')")
        administrator.run("ALTER SYSTEM RESET ALL")
        administrator.run("SELECT pg_reload_conf()")
    until(lambda: names(store) == [])


def test_an_archive_that_takes_nothing_is_named_until_it_does(store: BlockingStore, administrator: Any) -> None:
    administrator.run("ALTER SYSTEM SET archive_command = 'false'")
    administrator.run("SELECT pg_reload_conf()")
    try:
        switch_log(administrator)
        until(lambda: names(store) == ["archiving"])
    finally:
        administrator.run("ALTER SYSTEM RESET ALL")
        administrator.run("SELECT pg_reload_conf()")
        switch_log(administrator)
    until(lambda: names(store) == [])


def test_an_index_that_is_dropped_or_was_never_finished_is_named(store: BlockingStore, administrator: Any) -> None:
    [(definition,)] = administrator.rows("SELECT pg_get_indexdef('holdfast.batches_settled'::regclass)")
    administrator.run("DROP INDEX holdfast.batches_settled")
    administrator.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.events_type'::regclass")
    try:
        diagnosis = store.maintenance.diagnose()
    finally:
        administrator.run(definition)
        administrator.run("UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'holdfast.events_type'::regclass")
    assert diagnosis.facts.missing_indexes == ("batches_settled", "events_type")
    assert [concern.name for concern in diagnosis.concerns] == ["missing-index"]
    assert names(store) == []


def test_a_transaction_that_is_kept_open_is_noticed(
    store: BlockingStore, administrator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "IDLE_TRANSACTION_MS", 0)
    monkeypatch.setattr(rules, "TRANSACTION_MS", 0)
    assert names(store) == []
    administrator.run("BEGIN; SELECT 1")
    until(lambda: names(store) == ["idle-transaction", "long-transaction"])
    administrator.run("ROLLBACK")
    assert names(store) == []


def test_connections_near_the_limit_are_noticed(sound: Any, store: BlockingStore) -> None:
    tools = sys.modules["holdfast_postgres_server"]
    with ExitStack() as ends:
        for _ in range(15):
            ends.callback(tools.Administrator(sound.url).close)
        assert names(store) == ["connections"]
    until(lambda: names(store) == [])


def test_old_transaction_ids_are_counted_as_the_server_does(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "TRANSACTION_IDS", 0)
    assert names(store) == ["transaction-ids"]


@pytest.mark.parametrize("off_ms", [-HOUR, HOUR])
def test_a_clock_that_is_an_hour_off_is_noticed(
    store: BlockingStore, monkeypatch: pytest.MonkeyPatch, off_ms: int
) -> None:
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + off_ms * 1_000_000)
    (concern,) = store.maintenance.diagnose().concerns
    assert concern.name == "clock-skew"
    assert ("ahead of" if off_ms > 0 else "behind") in concern.problem


def test_a_server_whose_support_has_ended_is_old(store: BlockingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 2_000_000_000_000 * 1_000_000)
    assert names(store) == ["clock-skew", "old-server"]


def test_a_role_that_may_only_read_gets_a_diagnosis(sound: Any, administrator: Any) -> None:
    administrator.run(
        "CREATE ROLE onlooker LOGIN; GRANT USAGE ON SCHEMA holdfast TO onlooker; "
        "GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO onlooker"
    )
    url = sound.url.replace("postgres@", "onlooker@")
    with holdfast.open_blocking(url, options=holdfast.PostgresOptions(migrate=False)) as store:
        assert names(store) == []


def test_unattended_leases_deliveries_and_work_are_counted(sound: Any) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(sound.url, clock=clock, options=holdfast.PostgresOptions(max_connections=2)) as store:
        store.sessions.create("chat")
        store.processes.register(holdfast.ProcessRegistration("p1", Engine("lua"), env_ref="env"))
        store.leases.claim(OnProcess("p1"), owner_id="w", ttl_ms=1_000)
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        store.triggers.subscribe(draft)
        store.triggers.emit("cron", "daily", idempotency_key="1")
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        assert names(store) == []
        clock.advance(2 * HOUR)
        diagnosis = store.maintenance.diagnose()
        assert [concern.name for concern in diagnosis.concerns] == ["expired-leases", "undelivered", "old-work"]
        facts = diagnosis.facts
        assert (facts.expired_leases, facts.undelivered, facts.ready_batches) == (1, 1, 1)


def test_an_older_server_answers_as_well(second_database: Any) -> None:
    second_database.empty()
    with holdfast.open_blocking(second_database.url) as store:
        assert names(store) == ["fsync", "full-page-writes"]
