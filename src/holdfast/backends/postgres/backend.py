"""A PostgreSQL schema is a backend: an operation is tried again whenever it left no trace, or finds its own."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, cast

from holdfast.backends.postgres.attempts import Attempt, Runs
from holdfast.backends.postgres.borrowed import BorrowedPostgres, Terms
from holdfast.backends.postgres.connecting import Address
from holdfast.backends.postgres.lines import Lines
from holdfast.backends.postgres.link import Connection, Values, statements_of
from holdfast.backends.postgres.listener import Listener
from holdfast.backends.postgres.looping import LoopThread
from holdfast.backends.postgres.notifier import Notifier, channel_of, digest
from holdfast.backends.postgres.opening import SCHEMA_VERSION, ddl_text, prepare
from holdfast.backends.postgres.pool import Connections, LentPool, Pool, farewell
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.translation import DriverFailure, Trouble, is_in_doubt, translated, trouble_of
from holdfast.errors import DurabilityUncertain, HoldfastError, InvalidRequest, StoreClosed, StoreForked, Unavailable
from holdfast.noting import DEBUG, INFO, note
from holdfast.ports import Clock, Operation, Transaction
from holdfast.records.options import PostgresOptions
from holdfast.rows import EventFilter, ViewQuery
from holdfast.waiting import AsyncWaiting, Signals

T = TypeVar("T")

TRIES = {
    Trouble.CONTENTION: 12,
    Trouble.RACE: 12,
    Trouble.LOST: 12,
    Trouble.LOCKED: 3,
    Trouble.SILENT: 2,
    Trouble.OTHER: 1,
}
"""How often an operation that left no trace is run, or one that finds its own: about a second in all, with growing
pauses. A wait for a lock or for an answer is long already."""

RETRY_FIRST_S, RETRY_LONGEST_S = 0.002, 0.25


class PostgresBackend:
    """Implements `ports.Backend`. Belongs to the event loop on which it was opened."""

    durability: Literal["ephemeral", "durable"] = "durable"
    schema_version = SCHEMA_VERSION

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
        self._runs = Runs(connections, self._texts, options, clock, self._watch, lent=address.lent is not None)
        if isinstance(connections, Pool) and not self._runs.pooled:
            connections.greet = self._runs.greet
        self._lines = Lines()
        self._waiting = AsyncWaiting()
        self._signals = Signals()
        self._notifier = Notifier(self._send)
        self._listener = Listener(
            self._signals,
            self._hear,
            channel=channel_of(options.schema),
            ping=self._texts["ping"],
            connect=self._connect_listener() if address.can_listen else None,
            disconnect=self._disconnect_listener,
        )
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._identity: Values | None = None
        subscribe = getattr(clock, "subscribe", None)
        if callable(subscribe):
            # A clock that is moved by hand tells when it moved: those who wait for a time must look again.
            subscribe(self._signals.publish_all)

    def __repr__(self) -> str:
        return f"postgresql://{self._address.label}"

    @classmethod
    async def open(
        cls, url: Any, options: PostgresOptions, clock: Clock | None, thread: LoopThread | None = None
    ) -> PostgresBackend:
        """Connect, and create or migrate the schema if need be. Without a clock, the server's is used."""
        address = Address(url, options)
        connections: Connections
        if address.lent is None:
            connections = Pool(address.connect, options)
        else:
            connections = LentPool(address.lent, options)
        backend = cls(address, connections, options, clock, thread)
        try:
            await backend._retried(backend._prepare)
            if isinstance(connections, Pool):
                await backend._retried(connections.fill)
        except BaseException:
            await backend.close()
            raise
        return backend

    @classmethod
    def open_blocking(cls, url: Any, options: PostgresOptions, clock: Clock | None) -> PostgresBackend:
        """The same for threads, on an event loop of its own."""
        thread = LoopThread()
        try:
            return thread.drive(cls.open(url, options, clock, thread))
        except BaseException:
            thread.stop()
            raise

    @property
    def statements_run(self) -> int:
        """How many statements operations have run, beside those that begin and end transactions."""
        return self._runs.counter.statements

    def ddl(self) -> str:
        """The statements that make the schema."""
        return ddl_text(self._options.schema)

    # Operations.

    async def write(
        self, operation: Operation[T], *, one_step: bool = False, repeatable: bool = False, line: str | None = None
    ) -> T:
        """Run an operation in a transaction and return once it is durable; a raise leaves no trace.

        One that writes in one step is first tried without a transaction, by a server function (see `single_trip`).
        """
        attempt = Attempt(repeatable=repeatable)

        async def run() -> tuple[T, list[str]]:
            held = line is not None and await self._lines.enter(line)
            try:
                answer = await self._runs.one_step(operation, attempt) if one_step and not attempt.again else None
                return await self._runs.in_transaction(operation, attempt, writes=True) if answer is None else answer
            finally:
                if held:
                    self._lines.leave(cast("str", line))

        return await self._run(run, attempt)

    async def read(self, operation: Operation[T], *, view: ViewQuery | EventFilter | None = None) -> T:
        """Run an operation that only reads, in one snapshot. What it says it will read comes in one statement."""
        attempt = Attempt(repeatable=False)

        async def run() -> tuple[T, list[str]]:
            answer = None if view is None else await self._runs.gathered(operation, view)
            return await self._runs.in_transaction(operation, attempt, writes=False) if answer is None else answer

        return await self._run(run, attempt)

    async def _run(self, call: Callable[[], Awaitable[tuple[T, list[str]]]], attempt: Attempt) -> T:
        self._check_usable()
        self._active += 1
        self._idle.clear()
        try:
            result, topics = await self._retried(call, attempt)
        except DurabilityUncertain:
            self._tell(attempt.topics)
            raise
        except Unavailable as error:
            if attempt.again and error.outcome == "not_applied":
                # Looking whether the first run was applied has failed.
                raise Unavailable(str(error), outcome="unknown") from error
            raise
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle.set()
        self._tell(topics)
        return result

    def _tell(self, topics: list[str]) -> None:
        """Wake those who wait for a change that is stored."""
        if topics:
            digests = {digest(topic) for topic in topics}
            self._signals.publish(digests)
            self._notifier.add(digests)

    async def _retried(self, call: Callable[[], Awaitable[T]], attempt: Attempt | None = None) -> T:
        """What the call gives, tried again while nothing was applied, or a second run finds what was."""
        tried = 0
        wait_s = RETRY_FIRST_S
        while True:
            tried += 1
            try:
                return await call()
            except DriverFailure as failure:
                trouble = trouble_of(failure.cause)
                if trouble in {Trouble.LOST, Trouble.SILENT}:
                    # The server may have gone, and every connection with it.
                    await self._connections.distrust()
                    self._runs.forget()
                if attempt is not None and attempt.committing and is_in_doubt(failure.cause):
                    if not attempt.repeatable:
                        raise translated(failure.cause, self._address.label, "unknown") from failure.cause
                    attempt.again = True
                if tried >= TRIES[trouble]:
                    raise translated(failure.cause, self._address.label) from failure.cause
                level = INFO if trouble in {Trouble.LOST, Trouble.SILENT} else DEBUG
                note("retries", level, "run again after %(error_class)s", error_class=type(failure.cause).__name__)
            # Jitter keeps those who got into each other's way from doing it again.
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311
            wait_s = min(wait_s * 2, RETRY_LONGEST_S)

    async def _prepare(self) -> None:
        connection = await self._connections.acquire()
        link = self._runs.link(connection)
        try:
            await prepare(link, self._options, self._runs.probe)
        except BaseException:
            await self._connections.discard(connection)
            raise
        await self._connections.release(connection)

    def _start_over(self) -> None:
        """Another server or database answers: drop what the earlier one told, and let waiters look again."""
        self._runs.forget()
        self._identity = None
        self._signals.publish_all()

    # Waiting.

    def watch(self, topic: str) -> Future[None]:
        """A future that is done at the next change of the topic, in whatever process it happens."""
        self._check_usable(anywhere=True)
        change = self._signals.watch(digest(topic))
        # The listener looks whether somebody watches when it starts, so that it starts after this.
        self._loop.call_soon_threadsafe(self._listener.wake)
        return change

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change; False when the time ran out first."""
        return await self._waiting.pause(change, timeout_ms)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up anybody else."""
        return await self._waiting.offload(call)

    def _hear(self, payload: str) -> None:
        self._signals.publish(self._notifier.heard(payload))

    async def _send(self, payload: str) -> None:
        connection = await self._connections.acquire()
        link = self._runs.link(connection)
        try:
            if self._runs.pooled:
                # Behind a pooler, the two messages of one statement reach the same server only in a transaction.
                await self._runs.begin(link, writes=True)
            await link.all("notify", channel_of(self._options.schema), payload)
            if self._runs.pooled:
                await link.end()
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
            await farewell(connection)
        else:
            await self._connections.discard(connection)

    # Lending.

    def borrow(self, connection: object) -> BorrowedPostgres:
        """This store inside a transaction of a caller's asyncpg connection to the same database."""
        self._check_usable(anywhere=self._thread is not None)
        if self._thread is not None:
            raise InvalidRequest(
                "store", "a blocking store has an event loop of its own, and your connection another: use holdfast.open"
            )
        terms = Terms(
            self._texts,
            self._options.schema,
            self._address.label,
            None if self._options.statement_timeout_ms is None else self._options.statement_timeout_ms / 1000,
            self._runs.counter,
            self._clock,
            self._waiting,
            self._loop,
            self._check_usable,
            self._identify,
        )
        # A connection of the very pool that the store works with needs no proof, which would take a second one of it.
        pool = getattr(getattr(connection, "_holder", None), "_pool", None)
        return BorrowedPostgres(connection, terms, identified=pool is not None and pool is self._address.lent)

    async def _identify(self, *, anew: bool = False) -> Values:
        """Which schema of which database this is, as it was seen before, or as it is now."""
        if self._identity is None or anew:

            async def identify(transaction: Transaction) -> Values:
                assert isinstance(transaction, PostgresTransaction)
                return await transaction.identify()

            self._identity = await self.read(identify)
        return self._identity

    # Ends.

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
        """Every row of every table, for tests that compare before with after."""
        self._check_usable(anywhere=True)
        return asyncio.run_coroutine_threadsafe(self.read(_dump), self._loop).result()

    async def close(self) -> None:
        """Finish what was accepted, refuse what comes later, and let everything go; again, wait for the end of that."""
        if os.getpid() != self._process_id:
            return
        if self._closing is None:
            self._closed = True
            # A task of its own: a call that is cancelled or interrupted stops waiting, and nothing stays half closed.
            self._closing = asyncio.ensure_future(self._let_go())
        if not self._closing.done():
            await asyncio.shield(self._closing)

    async def _let_go(self) -> None:
        await self._idle.wait()
        await self._notifier.close()
        await self._listener.close()
        await self._connections.close()
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


async def _dump(transaction: Transaction) -> dict[str, list[tuple[Any, ...]]]:
    assert isinstance(transaction, PostgresTransaction)
    return await transaction.dump()
