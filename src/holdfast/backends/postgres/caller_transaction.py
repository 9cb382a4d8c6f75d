"""Run operations in savepoints of a caller's transaction, which the store neither ends nor runs again.

Operations lock first, and then read what was committed meanwhile. A transaction at REPEATABLE READ or SERIALIZABLE
keeps reading its old snapshot. So it runs only operations whose every fact is locked, written or guarded by a unique
index: then any change since the snapshot is a serialization failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar, Unpack, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast import rows as r
from holdfast.backends.postgres.connection import Connection, Counter, Distribution, StatementRunner, Values, cut_off
from holdfast.backends.postgres.driver_errors import (
    STATEMENT_MISPLACED,
    DriverFailure,
    FailureKind,
    failure_kind,
    names_shared,
    rows_hidden,
    state_of,
    translated,
)
from holdfast.backends.postgres.notifier import TOPICS_A_PAYLOAD, channel_of, digest
from holdfast.backends.postgres.pooler_check import check_names
from holdfast.backends.postgres.schema_setup import SCHEMA_VERSION, ddl_text
from holdfast.backends.postgres.thread_offload import Steps
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.errors import HoldfastError, InvalidRequest, Unavailable
from holdfast.open_transaction import CallerTransaction
from holdfast.ports import Clock, Operation, OperationFlags
from holdfast.ports.queries import PrefetchQuery
from holdfast.statements import Statements
from holdfast.table_catalog import table_names
from holdfast.wait import Waiting

T = TypeVar("T")

FRESH: Final = ("read committed", "read uncommitted")
"""Isolation levels at which each statement sees all commits before its begin."""

SETTINGS: Final = (
    *("synchronous_commit", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"),
    *("transaction_isolation", "transaction_read_only", "transaction_deferrable", "default_transaction_isolation"),
    *("default_transaction_read_only", "row_security", "search_path", "role", "session_replication_role"),
    *("client_min_messages", "application_name", "jit", "plan_cache_mode", "enable_seqscan", "enable_bitmapscan"),
)
"""Settings that affect durability, visibility and limits, and all that Holdfast sets on its own connections."""

SAFE_IN_A_SNAPSHOT: Final = frozenset(
    {
        "identify",
        "position",
        "enqueue_batch",
        "claim_batches",
        "claim_next",
        "settle_claim",
        "settle_and_claim",
        "touch_ready",
        "lock_ready",
        "show_head",
        "commit_turn",
        "append_event",
        "renew_claim",
        "take_lease",
        "renew_lease",
        "find_session",
        "insert_session",
        "save_session",
        "session_ids",
        "find_families",
        "share_blobs",
        "load_blobs",
        "hold_key_frames",
        "load_commit_facts",
        "read_ledger",
        "read_nodes",
        "read_nodes+",
        "read_nodes_by_id",
        "read_nodes_by_id+",
        "find_nodes",
        "insert_nodes",
        "insert_blob",
        "insert_blobs",
        "find_sources",
        "insert_batches",
        "lock_batches",
        "save_batches",
        "find_lease",
        "share_lease",
        "release_lease",
        "save_lease",
        "find_process",
        "insert_process",
        "save_process",
        "find_event",
        "find_replay",
        "find_replays",
        "insert_events",
        "insert_event",
        "ack_wake",
        "find_subscription",
        "find_subscription_key",
        "insert_subscription",
        "save_subscription",
        "list_subscriptions_of_source",
        "find_occurrence",
        "insert_occurrence",
        "insert_deliveries",
        "find_delivery",
        "find_process_delivery",
        "save_delivery",
        "find_schedule",
        "insert_schedule",
        "save_schedule",
        "drop_schedule",
        "find_grant",
        "save_grant",
        "drop_grant",
        "find_artifact",
        "save_artifact",
        "add_artifact",
        "replace_artifact",
        "drop_artifact",
        "drop_artifacts",
    }
)
"""Statements of a writer that fail when their snapshot is too old, or lead to a write that a unique index refuses."""


class AnotherDatabase(Exception):
    """The caller's connection leads to another database than the store's cached identity."""


class Identity(Protocol):
    """Returns the identity of the store's schema and database."""

    async def __call__(self, *, anew: bool) -> Values: ...


class StoreParts(NamedTuple):
    """Parts of a store that operations on a caller's connection use."""

    texts: Statements
    schema: str
    label: str
    timeout_s: float | None
    counter: Counter
    system: str
    clock: Clock | None
    waiting: Waiting
    loop: asyncio.AbstractEventLoop
    check_usable: Callable[[], None]
    identity: Identity
    distribution: Distribution


class SnapshotRunner(StatementRunner):
    """Statement runner of a writer with an old snapshot. Refuses every statement that could decide on stale rows."""

    __slots__ = ()

    async def all(self, name: str, *bindings: Any) -> list[Values]:
        """Return every row of a statement."""
        _require_safe(name)
        return await super().all(name, *bindings)

    async def run(self, name: str, *bindings: Any) -> int:
        """Run a statement that changes rows. Return how many."""
        _require_safe(name)
        return await super().run(name, *bindings)


def _require_safe(name: str) -> None:
    if name not in SAFE_IN_A_SNAPSHOT:
        raise InvalidRequest(
            "connection", "this operation must see commits of other transactions: BEGIN at READ COMMITTED for it"
        )


class SnapshotTransaction(PostgresTransaction):
    """A writer with an old snapshot. Locks the rows that the facts of a commit rest on."""

    __slots__ = ()

    # A shared key lock would not fail if the session was changed since the snapshot.
    KEY_LOCK = "find_session"

    async def load_commit_facts(self, query: r.CommitQuery) -> r.CommitFacts:
        """Return the facts that a commit is judged by. They are current, or this is a serialization failure."""
        if query.hashes:
            await self._values("share_blobs", query.session.family, list(query.hashes))
        return await super().load_commit_facts(query)


class PostgresCallerTransaction(CallerTransaction):
    """Implements `ports.Backend` inside transactions of one caller's connection."""

    durability: Literal["ephemeral", "durable"] = "durable"
    schema_version = SCHEMA_VERSION

    def __init__(self, connection: object, parts: StoreParts, *, identified: bool) -> None:
        self._parts = parts
        self._connection = checked(connection, parts.loop)
        self._lock = asyncio.Lock()
        self._identified = identified
        self._closed = False

    def __repr__(self) -> str:
        return f"postgresql://{self._parts.label} within a transaction"

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return ddl_text(self._parts.schema)

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in the caller's transaction. If it raises, the transaction is as it was before."""
        return await self._run(operation, writes=True, heavy=flags.get("heavy", False))

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in the snapshot of the caller's transaction if it has one."""
        return await self._run(operation, writes=False)

    async def _run(self, operation: Operation[T], *, writes: bool, heavy: bool = False) -> T:
        self._parts.check_usable()
        # Savepoints are nested: two concurrent operations would end each other's.
        async with self._lock:
            if self._closed:
                raise InvalidRequest("store", "was closed: call within() again")
            checked(self._connection, self._parts.loop)
            for anew in (False, True):
                # Before the savepoint, because it takes one of the store's own connections and may wait for it.
                expected = None if self._identified else await self._parts.identity(anew=anew)
                try:
                    return await self._attempt(operation, writes, expected, heavy=heavy)
                except AnotherDatabase:
                    continue
                except DriverFailure as failure:
                    raise self._translated(failure.cause) from failure.cause
            raise InvalidRequest("connection", "leads to another database than the store's")

    async def _attempt(self, operation: Operation[T], writes: bool, expected: Values | None, *, heavy: bool) -> T:
        runner = self._runner(StatementRunner)
        await runner.control("save_operation")
        try:
            if expected is not None:
                await self._identify(runner, expected)
            transaction, settings, own = await self._begin(runner, writes)
            result = await Steps(own, heavy=heavy).run(operation(transaction))
            await self._leave(runner, transaction.topics, settings)
            await runner.control("release_write" if writes else "release_operation")
        except BaseException:
            await self._undo(runner)
            raise
        return result

    def _runner(self, kind: type[StatementRunner]) -> StatementRunner:
        parts = self._parts
        return kind(
            self._connection,
            parts.texts,
            parts.timeout_s,
            parts.counter,
            parts.system,
            distribution=parts.distribution,
        )

    async def _identify(self, runner: StatementRunner, expected: Values) -> None:
        [found] = await runner.all("identify", self._parts.schema)
        if tuple(found) != tuple(expected):
            raise AnotherDatabase
        self._identified = True

    async def _begin(
        self, runner: StatementRunner, writes: bool
    ) -> tuple[PostgresTransaction, list[str | None], StatementRunner]:
        """Return the operation's transaction, the caller's settings before it, and its statement runner."""
        schema = self._parts.schema
        entered = await runner.all("enter_transaction", list(SETTINGS), schema, table_names())
        [(now_ms, isolation, read_only, server_pid, settings, filtered)] = entered
        if server_pid != runner.server_pid():
            await check_names(runner, "connection")
        if filtered is not None:
            raise rows_hidden(self._parts.label, f"{schema}.{filtered}")
        if self._parts.clock is not None:
            now_ms = self._parts.clock.now_ms()
        fresh = isolation in FRESH
        if read_only == "on" and (writes or fresh):
            raise InvalidRequest(
                "connection", "its transaction is read-only: reads need REPEATABLE READ, writes need more"
            )
        kind, own = PostgresTransaction, runner
        if writes and not fresh:
            kind, own = SnapshotTransaction, self._runner(SnapshotRunner)
        # Without a snapshot a reader locks the rows it reads, so that its statements agree.
        locks = writes or fresh
        return kind(own, now_ms, schema, writes=locks, clock=self._parts.clock), settings, own

    async def _leave(self, runner: StatementRunner, topics: list[str], settings: list[str | None]) -> None:
        """Queue notifications, and check that the caller's settings are unchanged.

        The server delivers notifications at the caller's commit. They carry no origin: this store has not woken its own
        waiters yet, and must receive the notification like all others.
        """
        digests = list(dict.fromkeys(digest(topic) for topic in topics))
        payloads = [
            ":" + ",".join(digests[first : first + TOPICS_A_PAYLOAD])
            for first in range(0, len(digests), TOPICS_A_PAYLOAD)
        ]
        [(after, _)] = await runner.all("leave_transaction", list(SETTINGS), channel_of(self._parts.schema), payloads)
        changed = [name for name, old, new in zip(SETTINGS, settings, after, strict=True) if old != new]
        if changed:
            # Rolling back the savepoint undoes the change as well.
            raise HoldfastError(
                f"{self._parts.label}: {', '.join(changed)} of your transaction changed during the operation, which "
                "was undone: remove the trigger that sets it, or report this as a bug of Holdfast"
            )

    async def _undo(self, runner: StatementRunner) -> None:
        """Roll the operation back, even if the task is cancelled meanwhile, also repeatedly."""
        undoing = asyncio.ensure_future(self._take_back(runner))
        interruption: asyncio.CancelledError | None = None
        while not undoing.done():
            try:
                await asyncio.wait([undoing])
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            raise interruption

    async def _take_back(self, runner: StatementRunner) -> None:
        try:
            await runner.control("undo_operation")
        except DriverFailure:
            # Half an operation must not be committed, not even by a caller that ignores errors.
            cut_off(self._connection)

    def _translated(self, cause: BaseException) -> HoldfastError:
        place = self._parts.label
        if state_of(cause) == "25P02":
            return InvalidRequest("connection", "its transaction has failed already: roll it back")
        if state_of(cause) in STATEMENT_MISPLACED:
            return names_shared("connection")
        match failure_kind(cause):
            case FailureKind.CONTENTION | FailureKind.RACE | FailureKind.LOCKED:
                return Unavailable(f"{place}: another transaction interfered: roll yours back and run it again")
            case FailureKind.LOST | FailureKind.SILENT:
                return Unavailable(f"{place}: the connection was lost, and your transaction with it: run it again")
            case FailureKind.OTHER:
                return translated(cause, place)

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a pure call. Return its result, and whether it was heavy."""
        return await self._parts.waiting.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without blocking other operations."""
        return await self._parts.waiting.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Never reached: callers pass connections only to stores that run on an event loop."""
        close = getattr(work, "close", None)
        if callable(close):
            close()
        raise InvalidRequest("store", "was opened for an event loop: await it there")

    async def close(self) -> None:
        """Refuse later calls. The transaction and the connection stay the caller's."""
        self._closed = True


def checked(connection: Any, loop: asyncio.AbstractEventLoop) -> Connection:
    """Return the connection if it is asyncpg's, or its pool's, in a transaction and of this event loop."""
    if not isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        raise InvalidRequest("connection", f"must be a connection of asyncpg, not {type(connection).__name__}")
    given = cast("Any", connection)
    try:
        closed = given.is_closed()
    except asyncpg.InterfaceError:
        raise InvalidRequest("connection", "was given back to its pool") from None
    if closed:
        raise InvalidRequest("connection", "is closed")
    if getattr(given, "_loop", loop) is not loop:
        raise InvalidRequest("connection", "belongs to another event loop than the store")
    if not given.is_in_transaction():
        raise InvalidRequest("connection", "is in no transaction: begin one first")
    found: Connection = given
    return found
