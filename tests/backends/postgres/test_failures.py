"""A call that provably left no trace is retried, one in doubt is reported as in doubt, and every store recovers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.postgres import PostgresBackend, PostgresOptions
from holdfast.backends.postgres.connection import StatementRunner
from holdfast.backends.postgres.driver_errors import DRIVER_ERRORS, DriverFailure, FailureKind, failure_kind, translated
from holdfast.backends.postgres.single_trip import NeedsTransaction, missing
from holdfast.blocking import BlockingStore
from holdfast.errors import (
    Corrupt,
    HoldfastError,
    Incompatible,
    InvalidRequest,
    StoreClosed,
    Unavailable,
)
from holdfast.ports import Transaction
from holdfast.ports.queries import ViewQuery
from holdfast.processes import Completed, External
from holdfast.store import Context, Store
from holdfast.testing.contract.bench import at_once, in_background

LEASE = r.LeaseRow("process", "p", "me", "hash", 1, 1, 2)


def terminate_all(administrator: Any) -> None:
    administrator.rows(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


# Lost connections.


def test_connections_that_were_terminated_while_unused_are_replaced(open_store: Any, administrator: Any) -> None:
    store = open_store()

    async def many() -> None:
        await asyncio.gather(*(store.backend.read(lambda tx: tx.find_session("chat")) for _ in range(8)))

    for _ in range(5):
        store.loop.drive(many())
        terminate_all(administrator)
        store.call("save_lease", LEASE)
    assert store.ask("find_lease", "process", "p") == LEASE


IN_TRANSACTION = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
)
STOPPED_S = 30


@pytest.mark.parametrize("where", ["on its own connection", "behind a pooler", "on a caller's pool"])
def test_the_server_ends_an_operation_of_a_process_that_stopped(
    open_store: Any, loop: Any, clean_postgres_url: str, administrator: Any, where: str
) -> None:
    """Nothing else frees its locks, and the server connection that a pooler gave it."""

    async def pool() -> Any:
        return await asyncpg.create_pool(clean_postgres_url, min_size=1, max_size=1)

    caller_pool = where == "on a caller's pool"
    url: Any = loop.drive(pool()) if caller_pool else None
    pooler = "transaction" if where == "behind a pooler" else "none"
    store = open_store(url or clean_postgres_url, pooler=pooler, statement_timeout_ms=300)
    runs: list[bool] = []

    async def operation(transaction: Any) -> None:
        await transaction.save_lease(LEASE)
        runs.append(bool(administrator.rows(IN_TRANSACTION)[0][0]))
        deadline_s = time.monotonic() + STOPPED_S
        # The thread of the event loop is held here, like that of a stopped process.
        while len(runs) == 1 and administrator.rows(IN_TRANSACTION)[0][0]:
            assert time.monotonic() < deadline_s, "the server waits for ever"
        await transaction.find_lease("process", "p")

    store.write(operation)
    assert runs == [True, True]
    assert store.ask("find_lease", "process", "p") == LEASE
    store.close()
    if caller_pool:
        loop.drive(url.close())


def test_an_operation_whose_connection_dies_before_the_commit_runs_again(store: Any, administrator: Any) -> None:
    runs: list[int] = []

    async def operation(transaction: Any) -> None:
        runs.append(1)
        await transaction.save_lease(LEASE)
        if len(runs) == 1:
            terminate_all(administrator)
        await transaction.find_lease("process", "p")

    store.write(operation)
    assert len(runs) == 2
    assert store.ask("find_lease", "process", "p") == LEASE


@pytest.mark.parametrize("stored", [False, True])
def test_a_connection_that_dies_at_the_commit_leaves_the_outcome_unknown(
    store: Any, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    commit = StatementRunner.commit
    runs: list[int] = []

    async def dying(runner: StatementRunner) -> None:
        if stored:
            await commit(runner)
        runner.connection.terminate()
        raise DriverFailure(ConnectionResetError("gone"))

    async def operation(transaction: Any) -> None:
        runs.append(1)
        await transaction.save_lease(LEASE)

    monkeypatch.setattr(StatementRunner, "commit", dying)
    with pytest.raises(Unavailable) as doubt:
        store.write(operation)
    monkeypatch.undo()
    assert doubt.value.outcome == "unknown"
    assert isinstance(doubt.value.__cause__, ConnectionResetError)
    assert runs == [1], "what may have happened is not tried again"
    assert (store.ask("find_lease", "process", "p") is not None) is stored


def test_a_commit_that_the_server_refuses_is_not_in_doubt(store: Any, administrator: Any) -> None:
    administrator.run(
        """
        CREATE FUNCTION holdfast.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END $$;
        CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON holdfast.leases
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION holdfast.refuse();
        """
    )
    try:
        with pytest.raises(Corrupt) as refused:
            store.call("save_lease", LEASE)
        assert refused.value.outcome == "not_applied"
        assert store.ask("find_lease", "process", "p") is None
    finally:
        administrator.run("DROP TRIGGER refuse ON holdfast.leases; DROP FUNCTION holdfast.refuse()")


@pytest.mark.parametrize("state", ["XX000", "22023"])
def test_an_error_of_a_trigger_that_proves_no_damage_is_not_called_damage(
    store: Any, administrator: Any, state: str
) -> None:
    administrator.run(
        f"""
        CREATE FUNCTION holdfast.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = '{state}'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON holdfast.leases FOR EACH ROW EXECUTE FUNCTION holdfast.refuse();
        """
    )
    try:
        with pytest.raises(HoldfastError, match="not today") as refused:
            store.call("save_lease", LEASE)
        assert type(refused.value) is HoldfastError
    finally:
        administrator.run("DROP TRIGGER refuse ON holdfast.leases; DROP FUNCTION holdfast.refuse()")


def test_a_read_whose_connection_dies_at_its_end_runs_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    end = StatementRunner.end
    runs: list[int] = []

    async def dying_once(runner: StatementRunner) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise DriverFailure(ConnectionResetError("gone"))
        await end(runner)

    monkeypatch.setattr(StatementRunner, "end", dying_once)
    assert store.ask("find_lease", "process", "p") is None
    assert len(runs) == 2


def test_a_warning_of_another_origin_puts_no_commit_in_doubt(store: Any, administrator: Any) -> None:
    administrator.run(
        """
        CREATE FUNCTION holdfast.warn() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON holdfast.leases
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION holdfast.warn();
        """
    )
    try:
        store.call("save_lease", LEASE)
        assert store.ask("find_lease", "process", "p") == LEASE
    finally:
        administrator.run("DROP TRIGGER warn ON holdfast.leases; DROP FUNCTION holdfast.warn()")


def test_a_store_heals_when_the_server_was_restarted(own_server: Any) -> None:
    with holdfast.open_blocking(own_server.url) as store:
        handle = store.sessions.handle("chat")
        handle.commit(holdfast.Commit())
        waiter = in_background(lambda: store.queue.wait("chat", timeout_ms=60_000))
        time.sleep(0.1)
        own_server.restart()
        assert handle.commit(holdfast.Commit()).revision == 2
        with holdfast.open_blocking(own_server.url) as other:
            other.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        waiter.result(20)
        own_server.stop("immediate")
        with pytest.raises(Unavailable) as down:
            handle.commit(holdfast.Commit(turn_id="t"))
        assert down.value.outcome == "not_applied"
        own_server.start()
        deadline = time.monotonic() + 20
        while True:
            try:
                assert handle.commit(holdfast.Commit(turn_id="t")).revision == 3
                break
            except Unavailable:
                assert time.monotonic() < deadline


def test_a_wait_outlives_a_server_that_is_away_for_longer_than_any_operation_tries(own_server: Any) -> None:
    with holdfast.open_blocking(own_server.url) as store:
        handle = store.sessions.handle("chat")
        handle.commit(holdfast.Commit())
        store.processes.register(holdfast.ProcessRegistration("job", External()))
        waits: list[Callable[[], object]] = [
            lambda: store.queue.wait("chat", timeout_ms=60_000),
            lambda: store.processes.wait("job", timeout_ms=60_000),
            lambda: store.events.wait_for("job", "process.waiting", timeout_ms=60_000),
        ]
        waiters = [in_background(wait) for wait in waits]
        own_server.stop("immediate")
        for _ in range(2):
            with pytest.raises(Unavailable):
                handle.load()
        with pytest.raises(Unavailable):
            store.queue.wait("chat", timeout_ms=100)
        assert not any(waiter.done() for waiter in waiters)
        own_server.start()
        with holdfast.open_blocking(own_server.url) as other:
            other.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
            other.events.append("job", "process.waiting", 1)
            other.processes.complete("job", Completed(1))
        for waiter in waiters:
            waiter.result(30)


# Contention.


def hold(url: str, statement: str) -> Callable[[], None]:
    """Hold the locks of a statement on a separate connection; return a function that releases them."""
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            await connection.execute(statement)
            ready.set()
            await asyncio.to_thread(done.wait)
        await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)

    def let_go() -> None:
        done.set()
        thread.join()

    return let_go


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_a_row_that_stays_locked_is_unavailable_in_bounded_time(
    open_store: Any, clean_postgres_url: str, pooler: str
) -> None:
    store = open_store(lock_timeout_ms=100, pooler=pooler)
    store.call("save_lease", LEASE)
    let_go = hold(clean_postgres_url, "SELECT * FROM holdfast.leases FOR UPDATE")
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="lock_timeout_ms") as refused:
            store.call("find_lease", "process", "p")
        assert 0.1 <= time.monotonic() - began < 5
        assert refused.value.outcome == "not_applied"
        assert store.ask("find_lease", "process", "p") == LEASE, "a reader waits for nobody"
    finally:
        let_go()
    assert store.call("find_lease", "process", "p") == LEASE


@pytest.mark.parametrize("pooler", ["none", "transaction"])
def test_a_statement_that_takes_too_long_is_ended(open_store: Any, pooler: str) -> None:
    store = open_store(statement_timeout_ms=150, pooler=pooler)

    async def sleep(transaction: Any) -> None:
        await transaction._runner.script("SELECT pg_sleep(20)")

    began = time.monotonic()
    with pytest.raises(Unavailable, match="statement_timeout_ms"):
        store.write(sleep)
    assert time.monotonic() - began < 5
    store.call("save_lease", LEASE)


def test_deadlocks_are_resolved_by_trying_again(open_store: Any) -> None:
    one, other = open_store(), open_store()
    for name in ("a", "b"):
        one.call("save_lease", r.LeaseRow("process", name, None, None, 0, 1, 2))

    def locking(names: str, barrier: threading.Barrier) -> Callable[[Any], Any]:
        async def operation(transaction: Any) -> None:
            for name in names:
                row = await transaction.find_lease("process", name)
                await transaction.save_lease(r.LeaseRow("process", name, None, None, row.fence + 1, 1, 2))
                with pytest.MonkeyPatch.context():
                    await asyncio.sleep(0.01)

        return operation

    for _ in range(5):
        barrier = threading.Barrier(2)
        outcomes = at_once(
            lambda barrier=barrier: one.write(locking("ab", barrier)),
            lambda barrier=barrier: other.write(locking("ba", barrier)),
        )
        assert outcomes == [None, None]
    assert {one.ask("find_lease", "process", name).fence for name in "ab"} == {10}


def test_a_row_that_two_insert_at_once_is_found_by_the_second(open_store: Any) -> None:
    stores = [open_store() for _ in range(4)]
    for number in range(10):
        made = [r.SessionRow(0, f"chat-{number}", 1, 0, 0, 0, 0, b"[]", 1)]

        async def ensure(transaction: Any, row: r.SessionRow = made[0]) -> Any:
            return await transaction.find_session(row.session_id) or await transaction.insert_session(row)

        rows = at_once(*(lambda store=store, ensure=ensure: store.write(ensure) for store in stores))
        assert len({row.session_key for row in rows}) == 1


def test_rows_that_always_contradict_each_other_are_corrupt(store: Any) -> None:
    event = r.EventRow("p", 1, "t", "h", None, None, None, 0, 1, b"{}")
    alone = r.EventWrite(event, r.ProcessRow("nobody", "h", "running", 0, None, None, None, None, 0, 1, 1, b"{}"))
    store.call("apply_event", alone)
    with pytest.raises(Corrupt) as refused:
        store.call("apply_event", alone)
    assert isinstance(refused.value.__cause__, asyncpg.UniqueViolationError)
    assert len(store.backend.dump()["events"]) == 1


# Operations that end in other ways.


def test_an_operation_that_raises_leaves_no_trace_and_its_connection_is_used_again(open_store: Any) -> None:
    store = open_store(max_connections=1)

    async def failing(transaction: Any) -> None:
        await transaction.save_lease(LEASE)
        raise LookupError("mine")

    for _ in range(3):
        with pytest.raises(LookupError):
            store.write(failing)
    assert store.ask("find_lease", "process", "p") is None


def test_a_name_that_no_transaction_has_is_an_error_and_not_a_slower_way(open_store: Any) -> None:
    store = open_store(max_connections=1, acquire_timeout_ms=5_000)
    runs: list[str] = []

    async def misspelt(transaction: Any) -> None:
        runs.append(type(transaction).__name__)
        await transaction.find_sesion("chat")

    async def needing_more(transaction: Any) -> None:
        runs.append(type(transaction).__name__)
        await transaction.save_lease(LEASE)

    for _ in range(2):
        with pytest.raises(AttributeError, match="find_sesion"):
            store.loop.drive(store.backend.write(misspelt, single_write=True))
        with pytest.raises(AttributeError, match="find_sesion"):
            store.loop.drive(store.backend.read(misspelt, view=ViewQuery("chat", None)))
    assert runs == ["SingleTrip", "PrefetchedView"] * 2
    runs.clear()
    store.loop.drive(store.backend.write(needing_more, single_write=True))
    assert runs == ["SingleTrip", "PostgresTransaction"]
    assert store.ask("find_lease", "process", "p") == LEASE


def test_every_name_of_a_transaction_that_a_single_trip_lacks_leads_to_one() -> None:
    names = {name for name in dir(Transaction) if not name.startswith("_")}
    assert "save_lease" in names
    assert {name for name in names if not isinstance(missing(object(), name), NeedsTransaction)} == set()


def test_a_clock_that_cannot_be_read_costs_no_connection(open_store: Any) -> None:
    class Stopped:
        """A clock that raises after a number of readings."""

        def __init__(self) -> None:
            self.left = 1_000

        def now_ms(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise Unavailable("no time")
            return 1_000

    clock = Stopped()
    store = open_store(clock=clock, max_connections=1, acquire_timeout_ms=5_000)
    facets = Store(Context(store.backend, holdfast.Limits()))
    store.loop.drive(facets.sessions.create("chat"))
    for readings in (0, 1):
        for _ in range(2):
            clock.left = readings
            with pytest.raises(Unavailable, match="no time"):
                store.loop.drive(facets.sessions.handle("chat").commit(holdfast.Commit()))
    clock.left = 1_000
    assert store.loop.drive(facets.sessions.handle("chat").commit(holdfast.Commit())).revision == 1


def test_a_reader_cannot_write(store: Any) -> None:
    with pytest.raises(HoldfastError):
        store.ask("save_lease", LEASE)
    assert store.ask("find_lease", "process", "p") is None


def test_a_reader_sees_one_snapshot(open_store: Any) -> None:
    reader, writer = open_store(), open_store()
    seen: list[Any] = []

    async def twice(transaction: Any) -> None:
        seen.append(await transaction.find_lease("process", "p"))
        await writer.backend.write(lambda other: other.save_lease(LEASE))
        seen.append(await transaction.find_lease("process", "p"))

    reader.read(twice)
    assert seen == [None, None]


def test_a_cancelled_operation_leaves_no_trace_and_no_lock(open_store: Any) -> None:
    store = open_store(max_connections=1)

    async def body() -> None:
        began = asyncio.Event()

        async def operation(transaction: Any) -> None:
            await transaction.save_lease(LEASE)
            began.set()
            await asyncio.sleep(30)

        task = asyncio.ensure_future(store.backend.write(operation))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    store.loop.drive(body())
    assert store.ask("find_lease", "process", "p") is None
    store.call("save_lease", LEASE)


ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND datname = $1 AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("caller_pool", [False, True])
def test_a_statement_whose_caller_was_cancelled_ends_at_the_server_and_writes_nothing(
    clean_postgres_url: str, caller_pool: bool
) -> None:
    async def body() -> None:
        gate, onlooker = await asyncpg.connect(clean_postgres_url), await asyncpg.connect(clean_postgres_url)
        pool = await asyncpg.create_pool(clean_postgres_url, min_size=0, max_size=2) if caller_pool else None
        async with holdfast.open(clean_postgres_url if pool is None else pool) as store:
            handle = await store.sessions.create("chat")
            database = await gate.fetchval("SELECT current_database()")
            async with gate.transaction():
                await gate.execute("SELECT 1 FROM holdfast.sessions FOR UPDATE")
                task = asyncio.ensure_future(handle.commit(holdfast.Commit(turn_id="t")))
                while await onlooker.fetchval(ACTIVE, database) == 0:
                    assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(10):
                    while await onlooker.fetchval(ACTIVE, database) > 0:
                        await asyncio.sleep(0.01)
            assert [entry.revision for entry in await handle.history()] == []
            assert (await handle.commit(holdfast.Commit(turn_id="t"))).revision == 1
        if pool is not None:
            await pool.close()
        await gate.close()
        await onlooker.close()

    asyncio.run(body())


@pytest.mark.parametrize("caller_pool", [False, True], ids=["pooler", "caller's pool"])
@pytest.mark.parametrize("call", ["commit", "history", "load"])
def test_every_operation_on_connections_of_the_caller_has_the_limits_of_the_options(
    clean_postgres_url: str, caller_pool: bool, call: str
) -> None:
    async def body() -> None:
        gate = await asyncpg.connect(clean_postgres_url)
        pool = await asyncpg.create_pool(clean_postgres_url, min_size=0, max_size=2)
        pooler: Any = "none" if caller_pool else "transaction"
        options = holdfast.PostgresOptions(lock_timeout_ms=50, statement_timeout_ms=60_000, pooler=pooler)
        async with holdfast.open(pool if caller_pool else clean_postgres_url, options=options) as store:
            handle = await store.sessions.create("chat")
            calls: dict[str, Callable[[], Any]] = {
                "commit": lambda: handle.commit(holdfast.Commit(turn_id="t")),
                "history": handle.history,
                "load": handle.load,
            }
            async with gate.transaction(), asyncio.timeout(20):
                await gate.execute("LOCK TABLE holdfast.sessions IN ACCESS EXCLUSIVE MODE")
                with pytest.raises(Unavailable, match="lock_timeout_ms") as refused:
                    await calls[call]()
                assert refused.value.outcome == "not_applied"
            await calls[call]()
        await pool.close()
        await gate.close()

    asyncio.run(body())


def test_closing_waits_for_what_was_accepted_and_refuses_what_comes(open_store: Any) -> None:
    store = open_store()

    async def body() -> None:
        async def slow(transaction: Any) -> None:
            await asyncio.sleep(0.1)
            await transaction.save_lease(LEASE)

        task = asyncio.ensure_future(store.backend.write(slow))
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(store.backend.close())
        await asyncio.sleep(0)
        with pytest.raises(StoreClosed):
            await store.backend.write(slow)
        await task
        await closing

    store.loop.drive(body())
    assert open_store().ask("find_lease", "process", "p") == LEASE


def test_a_blocking_store_that_is_closed_refuses_everything_and_its_thread_ends(clean_postgres_url: str) -> None:
    others = set(threading.enumerate())
    store = holdfast.open_blocking(clean_postgres_url)
    waiter = in_background(lambda: store.queue.wait("chat", timeout_ms=60_000))
    time.sleep(0.1)
    store.close()
    with pytest.raises(StoreClosed):
        waiter.result(10)
    with pytest.raises(StoreClosed):
        store.sessions.handle("chat").load()
    store.close()
    loops = {thread for thread in threading.enumerate() if thread.name == "holdfast-postgres-loop"}
    assert loops <= others


def test_a_store_made_before_a_fork_is_refused_in_the_child(
    clean_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open_blocking(clean_postgres_url) as store:
        assert isinstance(store, BlockingStore)
        monkeypatch.setattr("os.getpid", lambda: 1)
        with pytest.raises(Unavailable, match="forked"):
            store.sessions.handle("chat").load()
        monkeypatch.undo()


# The clock.


def test_without_a_clock_the_servers_is_used(open_store: Any, administrator: Any) -> None:
    store = open_store(clock=None)

    async def now(transaction: Any) -> int:
        return int(transaction.now_ms)

    [(before,)] = administrator.rows("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    reading = store.write(now)
    assert before <= reading <= before + 5_000
    assert store.read(now) >= reading


# Translation.


@pytest.mark.parametrize(
    ("error", "expected", "kind"),
    [
        (asyncpg.SerializationError("x"), Unavailable, FailureKind.CONTENTION),
        (asyncpg.DeadlockDetectedError("x"), Unavailable, FailureKind.CONTENTION),
        (asyncpg.LockNotAvailableError("x"), Unavailable, FailureKind.LOCKED),
        (asyncpg.UniqueViolationError("x"), Corrupt, FailureKind.RACE),
        (asyncpg.NotNullViolationError("x"), Corrupt, FailureKind.OTHER),
        (asyncpg.InvalidCachedStatementError("x"), Unavailable, FailureKind.CONTENTION),
        (asyncpg.QueryCanceledError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.AdminShutdownError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.CrashShutdownError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.CannotConnectNowError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.ConnectionDoesNotExistError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.IdleInTransactionSessionTimeoutError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.TooManyConnectionsError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.DiskFullError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.OutOfMemoryError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.ReadOnlySQLTransactionError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.InsufficientPrivilegeError("x"), Unavailable, FailureKind.OTHER),
        (asyncpg.InvalidPasswordError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.InvalidCatalogNameError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.CharacterNotInRepertoireError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.ProgramLimitExceededError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.UndefinedTableError("x"), Corrupt, FailureKind.OTHER),
        (asyncpg.InvalidTextRepresentationError("x"), Corrupt, FailureKind.OTHER),
        (asyncpg.DataCorruptedError("x"), Corrupt, FailureKind.OTHER),
        (asyncpg.IndexCorruptedError("x"), Corrupt, FailureKind.OTHER),
        (asyncpg.InternalServerError("x"), HoldfastError, FailureKind.OTHER),
        (asyncpg.InvalidParameterValueError("x"), HoldfastError, FailureKind.OTHER),
        (asyncpg.FeatureNotSupportedError("x"), Incompatible, FailureKind.OTHER),
        (asyncpg.PostgresSyntaxError("x"), Incompatible, FailureKind.OTHER),
        (asyncpg.DuplicatePreparedStatementError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.InvalidSQLStatementNameError("x"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.ProtocolViolationError("unsupported startup parameter: jit"), InvalidRequest, FailureKind.OTHER),
        (asyncpg.ProtocolViolationError("x"), Unavailable, FailureKind.LOST),
        (asyncpg.InterfaceError("connection is closed"), Unavailable, FailureKind.LOST),
        (asyncpg.InterfaceError("odd"), HoldfastError, FailureKind.OTHER),
        (ConnectionResetError(), Unavailable, FailureKind.LOST),
        (OSError("no route"), Unavailable, FailureKind.LOST),
        (TimeoutError(), Unavailable, FailureKind.OTHER),
    ],
    ids=repr,
)
def test_every_error_of_the_driver_becomes_a_holdfast_error(
    error: Exception, expected: type, kind: FailureKind
) -> None:
    found = translated(error, "host/db")
    assert type(found) is expected
    assert found.outcome == "not_applied"
    assert found.__cause__ is error
    assert "host/db" in str(found)
    assert failure_kind(error) is kind
    assert isinstance(error, DRIVER_ERRORS)
    doubt = translated(error, "host/db", "unknown")
    assert (type(doubt), doubt.outcome) == (Unavailable, "unknown")


def test_a_wrong_password_is_an_invalid_request_that_does_not_repeat_it(own_server: Any) -> None:
    rules = own_server.folder / "data" / "pg_hba.conf"
    rules.write_text("local all all scram-sha-256\n")
    own_server.restart_quietly()
    with pytest.raises(InvalidRequest) as refused:
        holdfast.open_blocking(own_server.url.replace("postgres@", "postgres:sesame@"))
    assert "sesame" not in str(refused.value) + repr(refused.value.__cause__)


def test_options_out_of_range_are_refused(clean_postgres_url: str) -> None:
    for name in ("max_connections", "acquire_timeout_ms", "statement_timeout_ms", "lock_timeout_ms"):
        with pytest.raises(InvalidRequest, match=name):
            holdfast.open_blocking(clean_postgres_url, options=PostgresOptions(**{name: 0}))
    with pytest.raises(InvalidRequest, match="pooler"):
        holdfast.open_blocking(clean_postgres_url, options=PostgresOptions(pooler="session"))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="listen_url"):
        holdfast.open_blocking(clean_postgres_url, options=PostgresOptions(listen_url="http://x"))
    with pytest.raises(InvalidRequest, match="options"):
        holdfast.open_blocking(clean_postgres_url, options=holdfast.SqliteOptions())
    assert PostgresBackend.durability == "durable"
