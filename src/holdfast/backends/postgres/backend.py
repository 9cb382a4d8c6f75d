"""The PostgreSQL backend. Retries an operation while that is safe: it was not applied, or it is idempotent."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, Unpack, cast

import msgspec

from holdfast.backends.postgres.caller_transaction import PostgresCallerTransaction, StoreParts
from holdfast.backends.postgres.connection import Connection, Values, statements_of
from holdfast.backends.postgres.connector import Address
from holdfast.backends.postgres.driver_errors import (
    TRIES,
    DriverFailure,
    FailureKind,
    failure_kind,
    is_in_doubt,
    translated,
)
from holdfast.backends.postgres.executor import Executor, RetryState
from holdfast.backends.postgres.listener import Listener
from holdfast.backends.postgres.loop_thread import LoopThread
from holdfast.backends.postgres.notifier import Notifier, channel_of, digest
from holdfast.backends.postgres.open_transaction import PostgresOpenTransaction
from holdfast.backends.postgres.pool import CallerPool, Connections, Pool, close_gracefully
from holdfast.backends.postgres.positions import UNKNOWN, position_of, system_text
from holdfast.backends.postgres.replica import ACQUIRE_MS, FreshReads, TimelineCheck, VerifiedConnections
from holdfast.backends.postgres.schema_setup import SCHEMA_VERSION, ddl_text, prepare
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.session_queue import SessionQueue
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.errors import DurabilityUncertain, HoldfastError, InvalidRequest, StoreClosed, StoreForked, Unavailable
from holdfast.log import DEBUG, INFO, log_event
from holdfast.loop_budget import BUDGET_BYTES, OWN_LOOP_BYTES
from holdfast.open_transaction import refuse_inside
from holdfast.ports import Backend, Begun, Clock, IsLeft, Operation, OperationFlags, Transaction
from holdfast.ports.queries import Freshness, PrefetchQuery
from holdfast.read_only import ReadingBackend
from holdfast.records.options import PostgresOptions
from holdfast.signals import Signals
from holdfast.wait import AsyncWaiting, Deferred

T = TypeVar("T")

RETRY_FIRST_S, RETRY_LONGEST_S = 0.002, 0.25


class PostgresBackend:
    """Implements `ports.Backend`. Belongs to the event loop on which it was opened; see `any_loop` for others."""

    durability: Literal["ephemeral", "durable"] = "durable"
    schema_version = SCHEMA_VERSION
    pool_class: ClassVar[type[Pool]] = Pool
    """Pool of a store that connects by itself."""

    def __init__(
        self,
        address: Address,
        connections: Connections,
        options: PostgresOptions,
        clock: Clock | None,
        thread: LoopThread | None,
    ) -> None:
        self._address = address
        self._connections = connections
        self._options = options
        self._clock = clock
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._process_id = os.getpid()
        self._texts = statements_of(options.schema)
        self._watch = ServerWatch(self._start_over)
        budget_bytes = BUDGET_BYTES if thread is None else OWN_LOOP_BYTES
        self._executor = Executor(connections, self._texts, options, clock, self._watch, budget_bytes)
        if isinstance(connections, Pool) and not self._executor.pooled:
            connections.identify_server = self._executor.identify_server
        self._session_queue = SessionQueue()
        self._waiting = AsyncWaiting(budget_bytes)
        self._signals = Signals()
        self._notifier = Notifier(self._send)
        self._listener = Listener(
            self._signals,
            self._receive,
            self.read,
            channel=channel_of(options.schema),
            ping=self._texts["ping"],
            connect=self._connect_listener() if address.can_listen else None,
            disconnect=self._disconnect_listener,
        )
        timeline_check = TimelineCheck(self._find_timeline, address.read_label or "")
        self._replica = None if address.read_label is None else self._open_replica(timeline_check)
        self._fresh = FreshReads(
            partial(self._reading_executor, connections, options),
            self._retried,
            None if self._replica is None else partial(self._reading_executor, self._replica, _direct(options)),
            timeline_check,
            address.read_label or "",
        )
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._identity: Values | None = None
        subscribe = getattr(clock, "subscribe", None)
        if callable(subscribe):
            # A manual clock notifies when it moves: waits for a point in time must look again.
            subscribe(self._signals.publish_all)

    def __repr__(self) -> str:
        return f"postgresql://{self._address.label}"

    @classmethod
    async def open(
        cls, url: Any, options: PostgresOptions, clock: Clock | None, thread: LoopThread | None = None
    ) -> PostgresBackend:
        """Connect, and create or migrate the schema if needed. Without a clock, use the server's."""
        address = Address(url, options)
        connections: Connections
        if address.caller_pool is None:
            connections = cls.pool_class(address.connect, options)
        else:
            connections = CallerPool(address.caller_pool, options)
        backend = cls(address, connections, options, clock, thread)
        try:
            await backend._retried(backend._prepare)
            if isinstance(connections, Pool):
                await backend._retried(connections.fill)
            if backend._replica is not None:
                await backend._replica.learn()
                await backend._fresh.probe()
        except BaseException:
            await backend.close()
            raise
        return backend

    @classmethod
    def open_blocking(cls, url: Any, options: PostgresOptions, clock: Clock | None) -> PostgresBackend:
        """Like `open`, for threads: runs on an event loop of its own."""
        thread = LoopThread()
        try:
            thread.start()
            return thread.drive(Deferred(partial(cls.open, url, options, clock, thread)))
        except BaseException:
            thread.stop()
            raise

    @property
    def statements_run(self) -> int:
        """Number of statements that operations have run, without those that begin and end transactions."""
        return self._executor.counter.statements

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return ddl_text(self._options.schema)

    # Operations.

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in a transaction and return once it is durable. An operation that raises leaves no trace.

        With `single_write`, a server function first tries it without a transaction (see `single_trip`).
        """
        refuse_inside(self, "this write")
        serialize_on = flags.get("serialize_on")
        state = RetryState(idempotent=flags.get("idempotent", False), heavy=flags.get("heavy", False))

        async def run() -> tuple[T, list[str]]:
            held = serialize_on is not None and await self._session_queue.enter(serialize_on)
            try:
                in_one_trip = flags.get("single_write", False) and not state.is_retry
                answer = await self._executor.in_one_trip(operation, state) if in_one_trip else None
                return await self._executor.in_transaction(operation, state, writes=True) if answer is None else answer
            finally:
                if held:
                    self._session_queue.leave(cast("str", serialize_on))

        return await self._run(run, state)

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in one snapshot. One statement fetches the rows of `view`."""
        state = RetryState(idempotent=False)

        async def run() -> tuple[T, list[str]]:
            answer = None if view is None else await self._executor.prefetched(operation, view)
            return await self._executor.in_transaction(operation, state, writes=False) if answer is None else answer

        return await self._run(run, state)

    async def _run(self, call: Callable[[], Awaitable[tuple[T, list[str]]]], state: RetryState) -> T:
        try:
            result, topics = await self._counted(partial(self._retried, call, state))
        except DurabilityUncertain:
            self._notify_committed(state.topics)
            raise
        except Unavailable as error:
            if state.is_retry and error.outcome == "not_applied":
                # The check if the first run was applied has failed.
                raise Unavailable(error.text, *error.next_step, outcome="unknown") from error
            raise
        self._notify_committed(topics)
        return result

    async def _counted(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call that `close` waits for."""
        self._check_usable()
        self._enter()
        try:
            return await call()
        finally:
            self._leave()

    def _enter(self) -> None:
        self._active += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._active -= 1
        if self._active == 0:
            self._idle.set()

    def _notify_committed(self, topics: list[str]) -> None:
        """Wake the waiters of a committed change, here and in other processes."""
        if topics:
            digests = {digest(topic) for topic in topics}
            self._signals.publish(digests)
            self._notifier.add(digests)

    async def _retried(self, call: Callable[[], Awaitable[T]], state: RetryState | None = None) -> T:
        """Run a call. Retry while that is safe: not applied, or idempotent."""
        tried = 0
        wait_s = RETRY_FIRST_S
        while True:
            tried += 1
            try:
                return await call()
            except DriverFailure as failure:
                kind = failure_kind(failure.cause)
                if kind in {FailureKind.LOST, FailureKind.SILENT}:
                    # The server may have gone, and every connection with it.
                    await self._connections.discard_idle()
                    self._executor.forget()
                if state is not None and state.committing and is_in_doubt(failure.cause):
                    if not state.idempotent:
                        raise translated(failure.cause, self._address.label, "unknown") from failure.cause
                    state.is_retry = True
                if tried >= TRIES[kind]:
                    raise translated(failure.cause, self._address.label) from failure.cause
                level = INFO if kind in {FailureKind.LOST, FailureKind.SILENT} else DEBUG
                log_event("retries", level, "run again after %(error_class)s", error_class=type(failure.cause).__name__)
            # Jitter keeps transactions that conflicted from conflicting again.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311
            wait_s = min(wait_s * 2, RETRY_LONGEST_S)

    async def _prepare(self) -> None:
        connection = await self._connections.acquire()
        runner = self._executor.runner(connection)
        try:
            self._executor.distribution = await prepare(runner, self._options, self._executor.probe)
            if self._executor.distribution:
                self._texts = self._executor.texts = statements_of(self._options.schema, self._executor.distribution)
            if self._executor.distribution and isinstance(self._connections, Pool) and not self._executor.pooled:
                self._address.plans_once = False
                await runner.control("plan_each_time")
        except BaseException:
            await self._connections.discard(connection)
            raise
        await self._connections.release(connection)

    def _start_over(self) -> None:
        """Drop all hints, and let waiters look again, because another server or database answers."""
        self._executor.forget()
        self._executor.system = UNKNOWN
        self._identity = None
        self._signals.publish_all()

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None, outer: Backend | None = None) -> Begun:
        """Begin a transaction for several operations, on a connection of its own. It belongs to `outer`, if given."""
        self._check_usable()
        refuse_inside(outer or self, "another transaction")
        begun = PostgresOpenTransaction(
            outer or self,
            self._executor,
            self._waiting,
            timeout_ms,
            is_left,
            label=self._address.label,
            notify=self._notify_committed,
            ended=self._leave,
        )
        # With `outer`, this backend serves tasks of other event loops.
        begun.lets_tasks_wait = self._thread is None or outer is not None
        self._enter()
        try:
            await self._retried(begun.open)
        except BaseException:
            self._leave()
            raise
        return Begun(begun, begun)

    # Reads with a given freshness.

    def reader(self, freshness: Freshness) -> Backend:
        """Return this store for reads only, by the replica if there is one and it has reached the position."""
        self._check_usable(anywhere=True)
        position = None if freshness.position is None else position_of(freshness.position, self._executor.system)

        async def read(operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
            return await self._counted(partial(self._fresh.read, operation, view, freshness, position))

        return ReadingBackend(self, read)

    def _open_replica(self, timeline_check: TimelineCheck) -> VerifiedConnections:
        pool = Pool(self._address.connect_reader, _direct(self._options))
        return VerifiedConnections(pool, self._executor.runner, self._options.schema, self._identify, timeline_check)

    def _reading_executor(self, connections: Connections, options: PostgresOptions) -> Executor:
        executor = Executor(connections, self._texts, options, self._clock, ServerWatch(_nothing))
        executor.distribution = self._executor.distribution
        return executor

    def watch(self, topic: str) -> Future[None]:
        """Return a future that is done at the next change of the topic, in any process."""
        self._check_usable(anywhere=True)
        change = self._signals.watch(digest(topic))
        # The listener stops at once if there is no watch, so it is woken after this one was registered.
        self._loop.call_soon_threadsafe(self._listener.wake)
        return change

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change. Return False if the time ran out first."""
        return await self._waiting.pause(change, timeout_ms)

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a pure call. Return its result, and whether it was heavy."""
        return await self._waiting.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without blocking other operations."""
        return await self._waiting.offload(call)

    def _receive(self, payload: str) -> None:
        self._signals.publish(self._notifier.from_others(payload))

    async def _send(self, payload: str) -> None:
        connection = await self._connections.acquire()
        runner = self._executor.runner(connection)
        try:
            if self._executor.pooled:
                # Behind a pooler, only a transaction sends the two messages of one statement to the same server.
                await self._executor.begin(runner, writes=True)
            await runner.all("notify", channel_of(self._options.schema), payload)
            if self._executor.pooled:
                await runner.end()
        except BaseException:
            await self._connections.discard(connection)
            raise
        await self._connections.release(connection)

    def _connect_listener(self) -> Callable[[], Awaitable[Connection]]:
        if self._address.listens_apart:
            return self._address.connect_listener
        return self._connections.acquire

    async def _disconnect_listener(self, connection: Connection) -> None:
        if self._address.listens_apart:
            await close_gracefully(connection)
        else:
            await self._connections.discard(connection)

    # Transactions of the caller.

    def within(self, connection: object) -> PostgresCallerTransaction:
        """Return this store inside a transaction of a caller's asyncpg connection to the same database."""
        self._check_usable(anywhere=self._thread is not None)
        if self._thread is not None:
            raise InvalidRequest(
                "store",
                "a blocking store runs its own event loop, and your connection belongs to another: use holdfast.open",
            )
        parts = StoreParts(
            self._texts,
            self._options.schema,
            self._address.label,
            None if self._options.statement_timeout_ms is None else self._options.statement_timeout_ms / 1000,
            self._executor.counter,
            self._executor.system,
            self._clock,
            self._waiting,
            self._loop,
            self._check_usable,
            self._identify,
            self._executor.distribution,
        )
        # A connection of the store's pool needs no proof, which would take a second connection of that pool.
        pool = getattr(getattr(connection, "_holder", None), "_pool", None)
        identified = pool is not None and pool is self._address.caller_pool
        return PostgresCallerTransaction(connection, parts, identified=identified)

    async def _identify(self, *, anew: bool = False) -> Values:
        """Return the identity of the schema and its database, cached unless `anew`."""
        if self._identity is None or anew:

            async def identify(transaction: Transaction) -> Values:
                assert isinstance(transaction, PostgresTransaction)
                return await transaction.identify()

            self._identity = await self.read(identify)
            self._executor.system = system_text(self._identity[0])
        return self._identity

    async def _find_timeline(self) -> int | None:
        """Return the timeline of the primary, None if the primary does not report it."""

        async def find(transaction: Transaction) -> int:
            assert isinstance(transaction, PostgresTransaction)
            return await transaction.timeline()

        return await self.read(find) if self._executor.reports_log else None

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        if self._thread is None:
            raise InvalidRequest("store", "was opened for an event loop: open it with open_blocking for threads")
        if os.getpid() != self._process_id:
            close = getattr(work, "close", None)
            if callable(close):
                close()
            raise self._forked()
        result = self._thread.drive(work)
        if self._closing is not None and self._closing.done():
            self._thread.stop()
        return result

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table, for tests that compare before with after."""
        self._check_usable(anywhere=True)
        return asyncio.run_coroutine_threadsafe(self.read(_dump), self._loop).result()

    async def close(self) -> None:
        """Finish accepted calls, refuse later ones, and close all connections. A repeated call waits for the first."""
        if os.getpid() != self._process_id:
            return
        refuse_inside(self, "the close")
        self._closed = True
        await self.close_here()

    async def close_here(self) -> None:
        """Finish accepted calls and close the connections, on their own event loop."""
        closing = self.begin_closing()
        if not closing.done():
            await asyncio.shield(closing)

    def begin_closing(self) -> asyncio.Future[None]:
        """Start to close the connections, once."""
        if self._closing is None:
            # In a task of its own, so that a cancelled or interrupted call leaves nothing half closed.
            self._closing = asyncio.ensure_future(self._close_connections())
        return self._closing

    async def _close_connections(self) -> None:
        await self._idle.wait()
        for part in (self._executor.shared, self._notifier, self._listener, self._connections):
            await part.close()
        if self._replica is not None:
            await self._replica.close()
        self._signals.fail_all(StoreClosed)

    def _check_usable(self, *, anywhere: bool = False) -> None:
        if os.getpid() != self._process_id:
            raise self._forked()
        if self._closed:
            raise StoreClosed
        if not anywhere and asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest("store", "belongs to the event loop on which it was opened: open one for this loop")

    def _forked(self) -> HoldfastError:
        return StoreForked("this store was opened before the process forked: open it again in the child")


def _direct(options: PostgresOptions) -> PostgresOptions:
    """Return the options of connections to a replica: no pooler, opened on demand, with a short wait for one."""
    acquire_ms = min(options.acquire_timeout_ms, ACQUIRE_MS)
    return msgspec.structs.replace(options, pooler="none", min_connections=0, acquire_timeout_ms=acquire_ms)


def _nothing() -> None:
    """Do nothing when another server answers reads: readers keep no hints."""


async def _dump(transaction: Transaction) -> dict[str, list[tuple[Any, ...]]]:
    assert isinstance(transaction, PostgresTransaction)
    return await transaction.dump()
