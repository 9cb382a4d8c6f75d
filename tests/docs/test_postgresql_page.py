"""The claims of the PostgreSQL page hold on a server: statements, rights, backups, failover."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast import PostgresOptions
from holdfast.errors import DurabilityUncertain, SchemaMissing
from holdfast.leases import OnSession
from holdfast.processes import External
from holdfast.triggers import SubscriptionDraft

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-on-postgresql.md"
FENCE = re.compile(r"^```sql\n-- (?P<name>[^\n:]+)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = PAGE.read_text(encoding="utf-8")
STATEMENTS = {match["name"]: match["text"] for match in FENCE.finditer(TEXT)}
CHANGES = {"roles", "grants on what is there", "limits of a role", "raise fences", "autovacuum"}
QUERIES = sorted(set(STATEMENTS) - CHANGES)
ROLES = ("holdfast_owner", "holdfast_app", "holdfast_reader")


def as_role(url: str, role: str) -> str:
    return re.sub("//[^@/]*@", f"//{role}@", url)


def drop_roles(administrator: Any) -> None:
    for role in ROLES:
        if administrator.rows("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
            administrator.run(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def administrator(postgres_url: str, postgres_database: Any) -> Iterator[Any]:
    drop_roles(postgres_database.administrator)
    yield postgres_database.administrator
    postgres_database.empty()
    drop_roles(postgres_database.administrator)


def test_every_statement_on_the_page_has_a_name_and_is_run_here() -> None:
    assert len(STATEMENTS) == TEXT.count("```sql\n")
    assert set(STATEMENTS) >= CHANGES
    assert set(QUERIES) == set(ANSWERS)


# Rights.


def test_the_roles_of_the_page_have_exactly_the_rights_that_they_need(administrator: Any, postgres_url: str) -> None:
    administrator.run(STATEMENTS["roles"])
    with pytest.raises(SchemaMissing):
        holdfast.open_blocking(as_role(postgres_url, "holdfast_app"), options=PostgresOptions(migrate=False))
    holdfast.open_blocking(as_role(postgres_url, "holdfast_owner")).close()
    with holdfast.open_blocking(
        as_role(postgres_url, "holdfast_app"), options=PostgresOptions(migrate=False)
    ) as worker:
        work_through(worker)
        assert worker.maintenance.verify().ok
        assert worker.sessions.delete("chat").deleted
    with pytest.raises(holdfast.Unavailable, match="right"):
        holdfast.open_blocking(as_role(postgres_url, "holdfast_app"), options=PostgresOptions(schema="other_x"))


def test_rights_on_a_schema_that_is_there_already_are_granted_by_hand(administrator: Any, postgres_url: str) -> None:
    holdfast.open_blocking(postgres_url).close()
    administrator.run("CREATE ROLE holdfast_app LOGIN")
    administrator.run(STATEMENTS["grants on what is there"])
    with holdfast.open_blocking(
        as_role(postgres_url, "holdfast_app"), options=PostgresOptions(migrate=False)
    ) as worker:
        work_through(worker)


def test_a_role_that_may_only_read_runs_the_queries_and_loads_sessions(administrator: Any, postgres_url: str) -> None:
    with holdfast.open_blocking(postgres_url) as store:
        work_through(store)
    administrator.run("CREATE ROLE holdfast_reader LOGIN; GRANT USAGE ON SCHEMA holdfast TO holdfast_reader")
    administrator.run("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO holdfast_reader")
    url = as_role(postgres_url, "holdfast_reader")
    for query in QUERIES:
        asyncio.run(fetch(url, STATEMENTS[query]))
    with holdfast.open_blocking(url, options=PostgresOptions(migrate=False)) as reader:
        view = reader.sessions.handle("chat").load()
        assert view is not None
        assert view.revision == 1
        with pytest.raises(holdfast.Unavailable, match="right"):
            reader.sessions.handle("chat").commit(holdfast.Commit())


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_a_role_has_limits_of_its_own_and_the_stores_hold_behind_a_pooler_too(
    administrator: Any, postgres_url: str, pooler: Any
) -> None:
    administrator.run(STATEMENTS["roles"])
    administrator.run(STATEMENTS["limits of a role"])
    holdfast.open_blocking(as_role(postgres_url, "holdfast_owner")).close()
    url = as_role(postgres_url, "holdfast_app")
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "jit", "lock_timeout")
    shown = [row[0] for name in names for row in asyncio.run(fetch(url, f"SHOW {name}"))]
    assert shown == ["30s", "30s", "off", "10s"]
    options = PostgresOptions(migrate=False, pooler=pooler, lock_timeout_ms=100)
    named = f"{url}{'&' if '?' in url else '?'}application_name=seen"
    with holdfast.open_blocking(named, options=options) as worker:
        handle = worker.sessions.handle("chat")
        handle.commit(holdfast.Commit())
        seen = {row[0] for row in administrator.rows("SELECT application_name FROM pg_stat_activity")}
        assert ("seen" in seen) == (pooler == "transaction")
        assert ("holdfast" in seen) == (pooler == "none")
        administrator.run("BEGIN; SELECT 1 FROM holdfast.sessions FOR UPDATE")
        try:
            begun_s = time.monotonic()
            with pytest.raises(holdfast.Unavailable, match="another transaction holds"):
                handle.commit(holdfast.Commit())
            assert time.monotonic() - begun_s < 10
        finally:
            administrator.run("ROLLBACK")


async def fetch(url: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        rows: list[Any] = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


# Queries.


def work_through(store: Any) -> None:
    """Create settled, claimed and waiting work, leases, a wake, and a delivery that was never started."""
    session = store.sessions.create("chat", owner="me")
    for number in range(3):
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", source_key=f"m{number}", payloads=["x"]))
    claim = store.queue.claim("chat", owner_id="worker-1", max_batches=1)
    session.commit(
        holdfast.Commit(turn_id="t", graph=holdfast.Append([holdfast.Node("n1", payload="hi")]), completes=[claim])
    )
    store.queue.claim("chat", owner_id="worker-2", max_batches=1)
    store.leases.claim(OnSession("chat"), owner_id="worker-2")
    daily = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
    store.triggers.subscribe(daily)
    store.triggers.emit("cron", "daily", idempotency_key="today")


ANSWERS: dict[str, Callable[[list[Any]], bool]] = {
    "queue age": lambda rows: [tuple(row)[:2] for row in rows] == [("chat", 1)] and 0 <= rows[0][2] < 60_000,
    "claims": lambda rows: [tuple(row) for row in rows] == [("worker-2", 1, 0)],
    "leases": lambda rows: [tuple(row) for row in rows] == [("session", "worker-2", 1, 0)],
    "undelivered": lambda rows: rows[0][0] == 1 and 0 <= rows[0][1] < 60_000,
    "largest sessions": lambda rows: tuple(rows[0]) == ("chat", 1, 1),
    "bytes": lambda rows: {row[0] for row in rows} >= {"nodes", "batches", "blobs"},
    "bloat": lambda rows: {row[0] for row in rows} >= {"nodes", "batches", "blobs"},
    "long transactions": lambda rows: rows == [],
    "connections": lambda rows: "holdfast" in {row[0] for row in rows},
    "blocked": lambda rows: rows == [],
    "replicas": lambda rows: rows == [],
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_page_says_what_it_should(administrator: Any, postgres_url: str, query: str) -> None:
    with holdfast.open_blocking(postgres_url) as store:
        work_through(store)
        rows = administrator.rows(STATEMENTS[query])
        assert ANSWERS[query](rows), rows


def test_the_queries_that_should_say_nothing_speak_up_when_there_is_something(
    administrator: Any, postgres_url: str
) -> None:
    late = STATEMENTS["long transactions"].replace("interval '30 seconds'", "interval '0 seconds'")

    async def block() -> tuple[list[Any], list[Any]]:
        one, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
        await one.execute("BEGIN; LOCK TABLE holdfast.settings")
        waiting = asyncio.ensure_future(other.execute("SELECT 1 FROM holdfast.settings"))
        blocked: list[Any] = []
        while not blocked:
            blocked = await asyncio.to_thread(administrator.rows, STATEMENTS["blocked"])
        open_ones = await asyncio.to_thread(administrator.rows, late)
        await one.execute("ROLLBACK")
        await waiting
        await one.close()
        await other.close()
        return blocked, open_ones

    holdfast.open_blocking(postgres_url).close()
    blocked, open_ones = asyncio.run(block())
    assert len(blocked) == 1
    assert "idle in transaction" in {row["state"] for row in open_ones}


def test_the_tables_that_change_most_may_be_vacuumed_sooner(administrator: Any, postgres_url: str) -> None:
    holdfast.open_blocking(postgres_url).close()
    administrator.run(STATEMENTS["autovacuum"])
    assert administrator.rows(
        "SELECT 1 FROM pg_class WHERE oid = 'holdfast.batches'::regclass"
        " AND reloptions::text LIKE '%scale_factor=0.01%'"
    )


# Backups.


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server that the test may stop."""
    request.getfixturevalue("postgres_database")
    server = sys.modules["holdfast_postgres_server"].Server()
    yield server
    server.remove()


def contents(administrator: Any) -> dict[str, list[Any]]:
    tables = [row[0] for row in administrator.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")]
    found = {name: administrator.rows(f"SELECT t::text FROM holdfast.{name} AS t ORDER BY 1") for name in tables}
    counts = administrator.rows("SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'holdfast'")
    return {**found, "sequences": sorted(counts)}


def test_a_dump_of_the_schema_is_everything_and_fences_can_be_raised_after_a_restore(
    own_server: Any, tmp_path: Path
) -> None:
    tools = sys.modules["holdfast_postgres_server"]
    with holdfast.open_blocking(own_server.url) as store:
        work_through(store)
    tools.run_sql(own_server.url, "CREATE DATABASE restored TEMPLATE template0")
    other_url = tools.with_database(own_server.url, "restored")
    programs = own_server.installation.programs
    where = {"URL": own_server.url, "OTHER_URL": other_url, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    commands = re.findall(r"^pg_(?:dump|restore) .*$", TEXT, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(["sh", "-c", command], env=where, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    original, restored = tools.Administrator(own_server.url), tools.Administrator(other_url)
    try:
        assert contents(restored) == contents(original)
        restored.run(STATEMENTS["raise fences"])
    finally:
        original.close()
        restored.close()
    with holdfast.open_blocking(other_url, options=PostgresOptions(migrate=False)) as store:
        assert store.maintenance.verify().ok
        assert store.leases.claim(OnSession("chat"), owner_id="worker-2").fence > 1_000_000
        store.sessions.create("new")
        assert store.leases.claim(OnSession("new"), owner_id="worker-2").fence > 1_000_000
        claim = store.queue.claim("chat", owner_id="worker-2", max_batches=1)
        assert claim is not None
        assert claim.fence > 1_000_000


# Failover.


class Standby:
    """A standby of a server, in its own folder."""

    def __init__(self, primary: Any) -> None:
        self._run = primary._run
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._data = self.folder / "data"
        if primary._user is not None:
            os.chown(self.folder, primary._user.pw_uid, primary._user.pw_gid)
        connect = f"host={primary.folder} user=postgres"
        self._run("pg_basebackup", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "-d", connect)
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"unix_socket_directories = '{self.folder}'\n")
        self.start()

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def remove(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


def until(look: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline_s


def test_a_store_that_names_both_servers_follows_the_one_that_can_write(own_server: Any) -> None:
    holdfast.open_blocking(own_server.url).close()
    standby = Standby(own_server)
    try:
        query = "?target_session_attrs=read-write"
        assert query in TEXT
        # The standby is listed first, so that it has to be skipped.
        url = f"postgresql://postgres@/postgres{query}&host={standby.folder},{own_server.folder}"
        alone = f"postgresql://postgres@/postgres?host={standby.folder}"
        with holdfast.open_blocking(url) as store:
            handle = store.sessions.handle("chat")
            assert handle.commit(holdfast.Commit(turn_id="1")).revision == 1
            with holdfast.open_blocking(alone, options=PostgresOptions(migrate=False)) as reader:
                until(lambda: reader.sessions.handle("chat").load() is not None)
                with pytest.raises(holdfast.Unavailable, match="read-only"):
                    reader.sessions.handle("chat").commit(holdfast.Commit())
                with pytest.raises(holdfast.WaitTimeout):
                    reader.queue.wait("chat", timeout_ms=50)
            own_server.stop("immediate")
            with pytest.raises(holdfast.Unavailable) as down:
                handle.commit(holdfast.Commit(turn_id="2"))
            assert down.value.outcome == "not_applied"
            standby.promote()
            assert handle.commit(holdfast.Commit(turn_id="1")).replayed
            assert handle.commit(holdfast.Commit(turn_id="2")).revision == 2
        own_server.start()
    finally:
        standby.remove()


def test_a_turn_that_a_failover_lost_is_stored_again_and_what_another_stored_meanwhile_is_not_mistaken_for_it(
    own_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    holdfast.open_blocking(own_server.url).close()
    standby = Standby(own_server)
    try:
        url = (
            f"postgresql://postgres@/postgres?target_session_attrs=read-write&host={own_server.folder},{standby.folder}"
        )
        lost = holdfast.Commit(turn_id="lost", checkpoint=holdfast.Checkpoint(turn_state={"lost": True}))
        with holdfast.open_blocking(url) as store, holdfast.open_blocking(url) as other:
            handle = store.sessions.handle("chat")
            standby.stop()
            assert handle.commit(lost).revision == 1
            own_server.stop("immediate")
            standby.start()
            standby.promote()
            assert other.sessions.handle("chat").commit(holdfast.Commit(turn_id="other")).revision == 1
            # Accepted: the number fits, although it meant the lost turn when the caller learned it.
            assert handle.commit(holdfast.Commit(turn_id="next", expected_revision=1)).revision == 2
            view = handle.load()
            assert view is not None
            assert view.checkpoint is None
            again = handle.commit(lost)
            assert (again.revision, again.replayed) == (3, False)
            assert store.maintenance.verify().ok
        warnings = [one for one in caplog.records if (one.name, one.levelname) == ("holdfast.server", "WARNING")]
        assert len(warnings) == 2, "each of the two stores notices once"
        own_server.start()
    finally:
        standby.remove()


def test_a_commit_whose_standby_is_away_is_unknown_or_stored_and_uncertain(own_server: Any) -> None:
    tools = sys.modules["holdfast_postgres_server"]
    holdfast.open_blocking(own_server.url).close()
    administrator = tools.Administrator(own_server.url)
    try:
        administrator.run("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        administrator.rows("SELECT pg_reload_conf()")
        until(lambda: administrator.rows("SHOW synchronous_standby_names")[0][0] == "absent")
        with holdfast.open_blocking(own_server.url, options=PostgresOptions(statement_timeout_ms=300)) as store:
            with pytest.raises(holdfast.Unavailable) as late:
                store.leases.claim(OnSession("slow"), owner_id="me")
            assert late.value.outcome == "unknown"
        with holdfast.open_blocking(own_server.url) as store:
            ended = threading.Event()

            def end_the_waits() -> None:
                while not ended.is_set():
                    administrator.rows(
                        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    )

            ender = threading.Thread(target=end_the_waits)
            ender.start()
            try:
                with pytest.raises(DurabilityUncertain) as doubt:
                    store.sessions.handle("chat").commit(holdfast.Commit(turn_id="1"))
            finally:
                ended.set()
                ender.join()
            assert doubt.value.outcome == "applied"
            # A replay waits for the standby, too. Without a configured standby, nothing waits any more.
            administrator.run("ALTER SYSTEM RESET synchronous_standby_names")
            administrator.rows("SELECT pg_reload_conf()")
            assert store.sessions.handle("chat").commit(holdfast.Commit(turn_id="1")).replayed
    finally:
        administrator.close()


# The cost of a turn.


def test_the_cost_of_a_turn_can_be_measured(postgres_url: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "measure_a_turn.py"), postgres_url, "20", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +\d+  nodes: rows$", done.stdout, re.MULTILINE)
    assert re.search(r"^ +[1-9]\d*  with 16 sessions at once$", done.stdout, re.MULTILINE)


PARTITIONED = ("nodes", "revisions", "blobs", "usage", "batches", "attachments")


def test_the_tables_whose_keys_begin_with_the_family_can_be_partitioned_by_it(
    administrator: Any, postgres_url: str, postgres_database: Any
) -> None:
    with holdfast.open_blocking(postgres_url) as store:
        text = store.ddl()
    postgres_database.empty()
    for table in PARTITIONED:
        whole = re.search(rf'CREATE TABLE "holdfast"\.{table} \(.*?\n\);', text, re.DOTALL)
        assert whole is not None
        text = text.replace(whole[0], whole[0].removesuffix(";") + " PARTITION BY HASH (family);")
        text = re.sub(rf'ALTER TABLE "holdfast"\.{table} SET [^;]*;', "", text)
        text += "".join(
            f"CREATE TABLE holdfast.{table}_{number} PARTITION OF holdfast.{table} "
            f"FOR VALUES WITH (MODULUS 3, REMAINDER {number});\n"
            for number in range(3)
        )
    administrator.run(text)
    with holdfast.open_blocking(postgres_url, options=PostgresOptions(migrate=False)) as store:
        work_through(store)
        session = store.sessions.handle("chat")
        for number in range(5):
            store.sessions.handle(f"other-{number}").commit(holdfast.Commit(turn_id="t", expected_revision=0))
        store.sessions.fork("chat", into="fork")
        session.commit(holdfast.Commit(turn_id="u", checkpoint=holdfast.Checkpoint(turn_state={"a": 1})))
        assert session.load().checkpoint.turn_state == {"a": 1}
        assert store.maintenance.verify().ok
        assert store.sessions.delete("chat").deleted
        assert store.maintenance.verify().ok
    used = administrator.rows("SELECT DISTINCT tableoid FROM holdfast.revisions")
    assert len(used) > 1
