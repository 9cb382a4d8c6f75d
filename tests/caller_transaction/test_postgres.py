"""A connection to PostgreSQL is used unchanged: its isolation, its settings, its failures, and its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast.backends.postgres import listener as listening
from holdfast.backends.postgres.caller_transaction import SAFE_IN_A_SNAPSHOT, SETTINGS
from holdfast.backends.postgres.connection import statements_of
from holdfast.events import EventType
from holdfast.leases import OnSession
from holdfast.processes import Completed, External
from holdfast.triggers import SubscriptionDraft

WORK = holdfast.WorkDraft(session_id="chat", payloads=["ship it"])
SNAPSHOTS = ["repeatable_read", "serializable"]
Case = Callable[[Any, Any], Awaitable[None]]


@asynccontextmanager
async def both(url: str, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    connection = await asyncpg.connect(url)
    try:
        async with holdfast.open(url, **options) as store:
            yield store, connection
    finally:
        connection.terminate()


def run(url: str, case: Case, **options: Any) -> None:
    async def main() -> None:
        async with both(url, **options) as (store, connection):
            await case(store, connection)

    asyncio.run(asyncio.wait_for(main(), 60))


async def queued(store: Any, session_id: str = "chat") -> int:
    return len(await store.queue.list(session_id))


def test_waiters_of_the_same_store_are_pushed_at_the_commit(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far longer than the test: a waiter that wakes was notified.
    monkeypatch.setattr(listening, "SAFETY_POLL_S", 60.0)

    async def case(store: Any, connection: Any) -> None:
        waiter = asyncio.ensure_future(store.queue.wait("chat", timeout_ms=50_000))
        fence = asyncio.ensure_future(store.queue.wait("fence", timeout_ms=50_000))
        async with connection.transaction():
            await store.within(connection).queue.enqueue(WORK)
            await store.queue.enqueue(holdfast.WorkDraft(session_id="fence", payloads=[1]))
            await fence
            assert not waiter.done()
        await waiter

    run(clean_postgres_url, case)


TRIGGER = """
CREATE FUNCTION holdfast.forget_the_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN NEW;
END $$;
CREATE TRIGGER forget_the_disk BEFORE INSERT ON holdfast.batches
FOR EACH ROW EXECUTE FUNCTION holdfast.forget_the_disk()
"""


def test_an_operation_that_changed_a_setting_is_undone_and_refused(
    clean_postgres_url: str, postgres_database: Any
) -> None:
    async def case(store: Any, connection: Any) -> None:
        await connection.execute(TRIGGER)
        async with connection.transaction():
            with pytest.raises(holdfast.HoldfastError, match="synchronous_commit of your transaction changed"):
                await store.within(connection).queue.enqueue(WORK)
            assert await connection.fetchval("SHOW synchronous_commit") == "on"
            await store.within(connection).sessions.handle("chat").commit(holdfast.Commit(turn_id="t"))
        assert await queued(store) == 0
        assert (await store.sessions.handle("chat").load()).revision == 1

    try:
        run(clean_postgres_url, case)
    finally:
        postgres_database.administrator.run("DROP FUNCTION IF EXISTS holdfast.forget_the_disk CASCADE")


def test_every_setting_that_the_store_sets_anywhere_is_proven_unchanged() -> None:
    root = Path(holdfast.__file__).parent / "backends" / "postgres"
    sql = "".join(path.read_text(encoding="utf-8") for path in (root / "sql").glob("*.sql"))
    code = (root / "executor.py").read_text(encoding="utf-8") + (root / "connector.py").read_text(encoding="utf-8")
    # Settings of Citus are for a cluster, and only in the text that begins the store's own transactions.
    named = re.findall(r"SET LOCAL (?!citus\.)(\w+)", sql + code) + re.findall(r"set_config\('(\w+)'", sql)
    named += re.findall(r'^ +"(\w+)": ', code, re.MULTILINE)
    assert {"synchronous_commit", "lock_timeout", "row_security", "jit"} <= set(named) <= set(SETTINGS)
    begins = (root / "sql" / "control.sql").read_text(encoding="utf-8").partition("-- name: begin_write")[2]
    assert sql.count("SET LOCAL citus.") == begins.partition("-- name:")[0].count("SET LOCAL citus.")


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_every_operation_that_a_turn_needs_runs_in_a_snapshot(clean_postgres_url: str, isolation: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        kinds = [EventType("progress")]
        draft = SubscriptionDraft(source_type="mail", source_key="inbox", target=External())
        await store.triggers.subscribe(draft)
        lease = await store.leases.claim(OnSession("chat"), owner_id="me", ttl_ms=60_000)
        async with connection.transaction(isolation=isolation):
            within = store.within(connection)
            await within.processes.register(holdfast.ProcessRegistration("p", External(), event_types=kinds))
            await within.events.append("p", "progress", {"at": 1}, replay_key="one")
            await within.triggers.emit("mail", "inbox", idempotency_key="one")
            await within.queue.enqueue(WORK)
            session = within.sessions.handle("chat")
            await session.add_nodes([holdfast.Node("note")])
            checkpoint = holdfast.Checkpoint(turn_state={"n": 1})
            await session.commit(holdfast.Commit(turn_id="t", checkpoint=checkpoint, lease=lease, enqueues=[WORK]))
            await within.processes.complete("p", Completed())
            assert (await session.load()).checkpoint.turn_state == {"n": 1}
        assert (await store.sessions.handle("chat").load()).revision == 1
        assert await queued(store) == 2
        assert (await store.processes.get("p")).status == "completed"

    run(clean_postgres_url, case)


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_a_lost_race_in_a_snapshot_is_unavailable_and_not_run_again(clean_postgres_url: str, isolation: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        await store.sessions.create("chat")
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetch("SELECT 1")
        await store.sessions.handle("chat").commit(holdfast.Commit(turn_id="theirs"))
        within = store.within(connection)
        for _ in range(2):
            with pytest.raises(holdfast.Unavailable, match="roll yours back and run it again") as failure:
                await within.sessions.handle("chat").commit(holdfast.Commit(turn_id="mine"))
            assert failure.value.outcome == "not_applied"
        await connection.execute("SELECT 1")
        await transaction.rollback()
        assert (await store.sessions.handle("chat").load()).revision == 1

    run(clean_postgres_url, case)


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_a_lease_that_was_taken_over_after_the_snapshot_still_fences(clean_postgres_url: str, isolation: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        mine = await store.leases.claim(OnSession("chat"), owner_id="me", ttl_ms=60_000)
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetch("SELECT 1")
        await store.leases.release(mine)
        await store.leases.claim(OnSession("chat"), owner_id="another", ttl_ms=60_000)
        with pytest.raises(holdfast.Unavailable):
            await store.within(connection).sessions.handle("chat").commit(holdfast.Commit(turn_id="t", lease=mine))
        await transaction.rollback()

    run(clean_postgres_url, case)


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_contents_that_were_collected_after_the_snapshot_are_not_taken_for_stored(
    clean_postgres_url: str, isolation: str
) -> None:
    async def case(store: Any, connection: Any) -> None:
        session = store.sessions.handle("chat")
        first, _ = [
            await session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"n": n, "long": "x" * 99})))
            for n in (1, 2)
        ]
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetch("SELECT 1")
        await store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        await store.maintenance.collect_garbage()
        again = holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"n": 1, "long": "x" * 99}))
        kept = holdfast.Commit(checkpoint=holdfast.Checkpoint.keeping(first.manifest))
        with pytest.raises(holdfast.Unavailable):
            await store.within(connection).sessions.handle("chat").commit(kept)
        # The content itself is stored again.
        await store.within(connection).sessions.handle("chat").commit(again)
        await transaction.commit()
        assert (await session.load()).checkpoint.turn_state["n"] == 1
        assert (await store.maintenance.verify()).findings == ()

    run(clean_postgres_url, case)


@pytest.mark.parametrize("isolation", SNAPSHOTS)
def test_an_operation_that_must_see_what_others_commit_is_refused_in_a_snapshot(
    clean_postgres_url: str, isolation: str
) -> None:
    async def case(store: Any, connection: Any) -> None:
        await store.queue.enqueue(WORK)
        async with connection.transaction(isolation=isolation):
            within = store.within(connection)
            for call in (
                within.queue.claim("chat", owner_id="me"),
                within.sessions.delete("chat"),
                within.sessions.fork("chat", into="other"),
            ):
                with pytest.raises(holdfast.InvalidRequest, match="READ COMMITTED"):
                    await call
            assert await queued(within) == 1
        async with connection.transaction():
            assert (await store.within(connection).queue.claim("chat", owner_id="me")).fence == 1

    run(clean_postgres_url, case)


def test_statements_that_are_safe_in_a_snapshot_exist() -> None:
    assert SAFE_IN_A_SNAPSHOT - set(statements_of("holdfast")) == set()


def test_a_read_only_transaction_reads_in_a_snapshot_and_never_writes(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        await store.queue.enqueue(WORK)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            within = store.within(connection)
            assert await queued(within) == 1
            with pytest.raises(holdfast.InvalidRequest, match="connection: its transaction is read-only"):
                await within.queue.enqueue(WORK)
            assert await queued(within) == 1

    run(clean_postgres_url, case)


def test_a_transaction_that_has_failed_is_refused(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(holdfast.InvalidRequest, match="connection: its transaction has failed already"):
            await store.within(connection).queue.enqueue(WORK)
        await transaction.rollback()

    run(clean_postgres_url, case)


def test_the_search_path_does_not_matter(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        await connection.execute("CREATE TEMP TABLE sessions (x int); CREATE TEMP TABLE batches (x int)")
        for path in ("", "pg_temp"):
            await connection.execute("SELECT set_config('search_path', $1, false)", path)
            async with connection.transaction():
                within = store.within(connection)
                await within.queue.enqueue(WORK)
                await within.sessions.handle("chat").commit(holdfast.Commit())
        assert await queued(store) == 2

    run(clean_postgres_url, case)


def test_a_lost_connection_is_unavailable_and_nothing_is_stored(
    clean_postgres_url: str, postgres_database: Any
) -> None:
    async def case(store: Any, connection: Any) -> None:
        await connection.execute("BEGIN")
        within = store.within(connection)
        await within.queue.enqueue(WORK)
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        postgres_database.administrator.rows("SELECT pg_terminate_backend($1, 5000)", pid)
        with pytest.raises((holdfast.Unavailable, holdfast.InvalidRequest), match=r"lost|closed"):
            await within.queue.enqueue(WORK)
        with pytest.raises(holdfast.InvalidRequest, match="connection: is closed"):
            await within.queue.enqueue(WORK)
        assert await queued(store) == 0

    run(clean_postgres_url, case)


def test_a_cancelled_operation_leaves_no_trace_and_the_transaction_usable(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        await store.sessions.create("held")
        other = await asyncpg.connect(clean_postgres_url)
        await other.execute("BEGIN")
        await other.fetch("SELECT * FROM holdfast.sessions WHERE session_id = 'held' FOR UPDATE")
        async with connection.transaction():
            within = store.within(connection)
            held = holdfast.WorkDraft(session_id="held", payloads=["x"])
            task = asyncio.ensure_future(
                within.sessions.handle("new").commit(holdfast.Commit(turn_id="t", enqueues=[held]))
            )
            # It waits for the other's lock, after it has created its own session.
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while not await other.fetchval(blocked):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await within.queue.enqueue(WORK)
        await other.close()
        assert await queued(store) == 1
        assert await store.sessions.handle("new").load() is None
        assert [one.session_id for one in (await store.sessions.list()).items] == ["held", "chat"]

    run(clean_postgres_url, case)


def test_operations_at_the_same_time_take_turns(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        async with connection.transaction():
            within = store.within(connection)
            session = within.sessions.handle("chat")
            done = await asyncio.gather(
                *(session.commit(holdfast.Commit(turn_id=str(n), expected_revision=0)) for n in range(5)),
                return_exceptions=True,
            )
        assert sorted(type(one).__name__ for one in done) == ["CommitReceipt"] + ["HeadConflict"] * 4
        assert (await store.sessions.handle("chat").load()).revision == 1

    run(clean_postgres_url, case)


def test_another_database_is_refused(clean_postgres_url: str, postgres_server: Any) -> None:
    async def case(store: Any, _: Any) -> None:
        other = await asyncpg.connect(postgres_server.url)
        async with other.transaction():
            with pytest.raises(holdfast.InvalidRequest, match="connection: leads to another database"):
                await store.within(other).queue.enqueue(WORK)
        await other.close()

    run(clean_postgres_url, case)


def test_another_schema_of_the_same_database_is_not_confused(postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        other_options = holdfast.PostgresOptions(schema="other")
        async with holdfast.open(postgres_url, options=other_options) as other:
            async with connection.transaction():
                await store.within(connection).queue.enqueue(WORK)
                await other.within(connection).queue.enqueue(WORK)
                await other.within(connection).queue.enqueue(WORK)
            assert (await queued(store), await queued(other)) == (1, 2)

    run(postgres_url, case)


def test_a_connection_that_went_back_to_its_pool_or_is_closed_is_refused(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        pool = await asyncpg.create_pool(clean_postgres_url, min_size=1, max_size=1)
        given = await pool.acquire()
        await pool.release(given)
        with pytest.raises(holdfast.InvalidRequest, match="connection: was given back"):
            store.within(given)
        await pool.close()
        await connection.close()
        with pytest.raises(holdfast.InvalidRequest, match="connection: is closed"):
            store.within(connection)

    run(clean_postgres_url, case)


def test_a_store_on_a_callers_pool_of_one_connection_works_within_that_connection(clean_postgres_url: str) -> None:
    async def main() -> None:
        async with (
            asyncpg.create_pool(clean_postgres_url, min_size=1, max_size=1) as pool,
            holdfast.open(pool) as store,
        ):
            async with pool.acquire() as connection, connection.transaction():
                await store.within(connection).queue.enqueue(WORK)
            assert await queued(store) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_blocking_store_says_which_store_to_use(clean_postgres_url: str) -> None:
    async def use(store: Any) -> None:
        connection = await asyncpg.connect(clean_postgres_url)
        async with connection.transaction():
            with pytest.raises(holdfast.InvalidRequest, match=r"store: .*use holdfast\.open"):
                store.within(connection)
        await connection.close()

    with holdfast.open_blocking(clean_postgres_url) as store:
        asyncio.run(use(store))


def test_the_store_keeps_nothing_of_what_was_rolled_back(clean_postgres_url: str) -> None:
    async def case(store: Any, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await store.within(connection).sessions.create("chat")
        await transaction.rollback()
        assert await store.sessions.open("chat") is None

    run(clean_postgres_url, case)
