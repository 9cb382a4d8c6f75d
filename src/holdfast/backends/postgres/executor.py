"""Run an operation once, by one server function or in a transaction.

Afterwards it is durable, or it left no trace, or its commit is in doubt.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from holdfast.backends.postgres.connection import Connection, Counter, Distribution, LateRunner, StatementRunner
from holdfast.backends.postgres.connector import CONNECT_TIMEOUT_S, silence_ms
from holdfast.backends.postgres.driver_errors import DriverFailure, is_in_doubt
from holdfast.backends.postgres.pool import CallerPool, Connections
from holdfast.backends.postgres.positions import UNKNOWN, system_text
from holdfast.backends.postgres.prefetch import prefetch
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.shared_trips import SharedTrips
from holdfast.backends.postgres.single_trip import TRIPS, NeedsTransaction, SingleTrip
from holdfast.backends.postgres.thread_offload import Steps
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.errors import DurabilityUncertain, HoldfastError
from holdfast.loop_budget import BUDGET_BYTES
from holdfast.ports import Clock, Operation, Transaction
from holdfast.ports.queries import PrefetchQuery
from holdfast.records.options import PostgresOptions
from holdfast.statements import Statements

T = TypeVar("T")

GRACE_S: Final = 5.0
"""Client-side wait for an answer, beyond the server's own limit, before the connection is dropped."""


NO_LIMIT: Final = 0
"""The server's value for no timeout."""


class RetryState:
    """State of the runs of one operation.

    `committing`: the last run may have been applied. `is_retry`: an earlier run may have been applied. `declined`: a
    server function did not decide the operation.
    """

    __slots__ = ("committing", "declined", "heavy", "idempotent", "is_retry", "topics")

    def __init__(self, *, idempotent: bool, heavy: bool = False) -> None:
        self.idempotent = idempotent
        self.heavy = heavy
        self.committing = False
        self.is_retry = False
        self.declined = False
        self.topics: list[str] = []


class TripState:
    """State of a single trip: `begun` if it began a transaction, `committing` while that is being committed."""

    __slots__ = ("begun", "committing", "trip")

    def __init__(self, trip: SingleTrip) -> None:
        self.trip = trip
        self.begun = False
        self.committing = False


class Executor:
    """Runs operations on connections of a pool, and caches the rows they saw."""

    def __init__(
        self,
        connections: Connections,
        texts: Statements,
        options: PostgresOptions,
        clock: Clock | None,
        watch: ServerWatch,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.connections = connections
        self.cache = RowCache(clock, watch.remember)
        self.counter = Counter()
        self.shared = SharedTrips(connections, self.runner)
        self.watch = watch
        self.system = UNKNOWN
        # The statement without the log position, until the server is known to report that.
        self._clock_text = "now_ms+"
        self.distribution = Distribution.NONE
        self.pooled = options.pooler == "transaction"
        self.texts = texts
        self.budget_bytes = budget_bytes
        self._options = options
        self._clock = clock
        self._limits_each_time = self.pooled or isinstance(connections, CallerPool)
        self._limits = limits_text(options) if self._limits_each_time else ""
        limit_ms = options.statement_timeout_ms
        self.timeout_s = None if limit_ms is None else limit_ms / 1000 + GRACE_S

    def forget(self) -> None:
        """Forget every row: after a failover, the new primary may lack recent commits."""
        self.watch.keep_known_head()
        self.cache.forget()

    async def in_one_trip(self, operation: Operation[T], state: RetryState) -> tuple[T, list[str]] | None:
        """Run an operation without a transaction. Return None, with no trace left, if it needs one."""
        state.committing = False
        test_ms = None if self._clock is None else self._clock.now_ms()
        runner = self._late_runner()
        # A shared trip is a transaction of its own, without the limits and the clock of one that begins here.
        shared = None if self.distribution or self._begins_trips else self.shared
        trip_state = TripState(TRIPS[self.distribution](runner, self.cache, test_ms=test_ms, shared=shared))
        try:
            result = await self._proceed(runner, operation, trip_state, self.steps(runner, heavy=state.heavy))
        except DurabilityUncertain:
            state.topics = trip_state.trip.topics
            await self._end_trip(runner, trip_state)
            raise
        except NeedsTransaction:
            await self._end_trip(runner, trip_state)
            if runner.failure is not None:
                raise runner.failure from None
            state.declined = True
            return None
        except HoldfastError:
            await self._end_trip(runner, trip_state)
            if trip_state.trip.answered or runner.failure is not None:
                raise
            state.declined = True
            return None
        except DriverFailure as failure:
            state.committing = trip_state.trip.calling and (trip_state.committing or not trip_state.begun)
            if is_in_doubt(failure.cause):
                await self._drop(runner)
            else:
                await self._end_trip(runner, trip_state)
            raise
        except BaseException:
            await self._drop(runner)
            raise
        if runner.is_connected:
            await self.connections.release(runner.connection)
        trip_state.trip.learn()
        return result, trip_state.trip.topics

    async def _drop(self, runner: LateRunner) -> None:
        if runner.is_connected:
            await self.connections.discard(runner.connection)

    @property
    def _begins_trips(self) -> bool:
        """True if a single trip needs a transaction around it."""
        return self._limits_each_time or (self._clock is not None and not self.distribution)

    async def _proceed(self, runner: LateRunner, operation: Operation[T], trip_state: TripState, steps: Steps) -> T:
        # Needs a transaction behind a pooler, where otherwise the two messages of one statement may reach two servers;
        # on a caller's connection, for its limits; and with a test clock, which the function cannot read: if the clock
        # was moved meanwhile, the trip is rolled back. Not for a test clock on a cluster: a client transaction would
        # keep the function from running on the node that has the rows.
        trip_state.begun = self._begins_trips
        if trip_state.begun:
            await runner.connect()
            await self.begin(runner, writes=True)
        result = await steps.run(operation(cast("Transaction", trip_state.trip)))
        if not trip_state.trip.answered:
            # The result rests on plain reads, which wait for no standby. A transaction locks the rows it reads, and
            # waits.
            raise NeedsTransaction("an answer without a verdict")
        if trip_state.begun and self._clock is not None and self._clock.now_ms() != trip_state.trip.given_ms:
            trip_state.trip.answered = False
            raise NeedsTransaction("the clock was moved")
        if trip_state.begun:
            trip_state.committing = True
            await runner.commit()
        return result

    async def _end_trip(self, runner: LateRunner, trip_state: TripState) -> None:
        """Give back the connection of a trip whose result is not returned."""
        if trip_state.begun:
            if runner.is_connected:
                await self._recover(runner, in_doubt=False)
            return
        try:
            await trip_state.trip.take_back()
        except (DriverFailure, HoldfastError):
            # The claim stays and expires by itself. The caller needs the error for which it was not handed out.
            await self._drop(runner)
        except BaseException:
            await self._drop(runner)
            raise
        else:
            if runner.is_connected:
                await self.connections.release(runner.connection)

    async def prefetched(self, operation: Operation[T], view: PrefetchQuery) -> tuple[T, list[str]] | None:
        """Run a read on rows fetched by one statement. Return None if it needs a transaction."""
        if self.distribution:
            # The nodes of a cluster cannot send each other rows inside arrays.
            return None
        connection = await self.connections.acquire()
        runner = self.runner(connection)
        steps = self.steps(runner)
        begun = self._limits_each_time
        try:
            if begun:
                await self.begin(runner, writes=False)
            test_ms = None if self._clock is None else self._clock.now_ms()
            prefetched: Any = await steps.run(prefetch(runner, view, self.cache, test_ms=test_ms))
            if begun:
                await runner.end()
        except NeedsTransaction:
            await (self._recover(runner, in_doubt=False) if begun else self.connections.release(connection))
            return None
        except BaseException:
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        try:
            return await steps.run(operation(prefetched)), []
        except NeedsTransaction:
            return None

    async def in_transaction(self, operation: Operation[T], state: RetryState, *, writes: bool) -> tuple[T, list[str]]:
        """Run an operation once in a transaction: it is durable then, or left no trace, or the commit is in doubt."""
        state.committing = False
        connection = await self.connections.acquire()
        runner = self.runner(connection)
        try:
            transaction = await self._transaction(runner, writes, is_retry=state.is_retry)
            transaction.declined = state.declined
            result = await self.steps(runner, heavy=state.heavy).run(operation(transaction))
            state.committing, state.topics = writes, transaction.topics
            await (runner.commit() if writes else runner.end())
        except DriverFailure as failure:
            await self._recover(runner, in_doubt=is_in_doubt(failure.cause))
            raise
        except Exception:
            state.committing = False
            await self._recover(runner, in_doubt=False)
            raise
        except BaseException:
            # A cancelled task does not wait for a rollback: the server does that when the connection is gone.
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        self.remember(transaction)
        return result, transaction.topics

    def remember(self, transaction: PostgresTransaction) -> None:
        """Cache the rows that a committed transaction saw."""
        for session, revision in transaction.seen.heads:
            self.cache.learn_head(session, revision)
        for process in transaction.seen.processes:
            self.cache.learn_process(process)

    async def begin(self, runner: StatementRunner, *, writes: bool) -> None:
        """Begin a transaction, and set its limits if the connection does not have them."""
        await runner.script(self.texts["begin_write" if writes else "begin_read"] + self._limits)

    async def begin_held(self, runner: StatementRunner, *, idle_ms: int) -> None:
        """Begin a transaction of several operations, with its first savepoint and a limit for each pause of it."""
        limit = f"; SET LOCAL idle_in_transaction_session_timeout = {int(idle_ms)}; "
        await runner.script(self.texts["begin_write"] + self._limits + limit + self.texts["save_operation"])

    async def joined(self, runner: StatementRunner) -> PostgresTransaction:
        """Return the next operation's view of a transaction that has begun. Its reads lock, so that they agree."""
        return await self._view(runner, writes=True, is_retry=False)

    async def _transaction(self, runner: StatementRunner, writes: bool, *, is_retry: bool) -> PostgresTransaction:
        await self.begin(runner, writes=writes)
        return await self._view(runner, writes=writes, is_retry=is_retry)

    async def _view(self, runner: StatementRunner, *, writes: bool, is_retry: bool) -> PostgresTransaction:
        now_ms = await self._read_clock(runner) if self._clock is None else self._clock.now_ms()
        self.cache.learn_clock(now_ms)
        return PostgresTransaction(
            runner, now_ms, self._options.schema, writes=writes, is_retry=is_retry, clock=self._clock
        )

    async def _read_clock(self, runner: StatementRunner) -> int:
        """Return the time of the server's clock, and note if another server answers than before."""
        [(now_ms, *origin)] = await runner.all(self._clock_text)
        self.watch.compare(tuple(origin))
        if self.watch.question is not None:
            [(known,)] = await runner.all("knows_head", *self.watch.question)
            self.watch.answer(known=known)
        return int(now_ms)

    async def identify_server(self, connection: Connection, timeout_s: float) -> bool:
        """Identify the server behind a new connection. Return whether it is another server or database than before."""
        limit_s = min(timeout_s, CONNECT_TIMEOUT_S)
        [(_, *origin)] = await connection.fetch(self.texts[self._clock_text], timeout=limit_s)
        changed = self.watch.compare(tuple(origin))
        if self.watch.question is not None:
            asked = self.texts["knows_head"], *self.watch.question
            [(known,)] = await connection.fetch(*asked, timeout=limit_s)
            self.watch.answer(known=known)
        return changed

    async def probe(self, runner: StatementRunner) -> None:
        """Identify the server for the first time. Fails the transaction if the server reports no log position."""
        try:
            [(_, *origin)] = await runner.all("now_ms")
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                raise
        else:
            self._clock_text = "now_ms"
            self.watch.compare(tuple(origin))
            await self._identify(runner)

    @property
    def reports_log(self) -> bool:
        """True if the server reports its log position."""
        return self._clock_text == "now_ms"

    async def _identify(self, runner: StatementRunner) -> None:
        """Read the identifier of this cluster for positions. Fails the transaction if the role may not read it."""
        try:
            [(identifier, *_)] = await runner.all("identify", self._options.schema)
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                raise
        else:
            self.system = system_text(identifier)

    async def _recover(self, runner: StatementRunner, *, in_doubt: bool) -> None:
        """Roll back and keep the connection, or drop the connection, which rolls back, too."""
        kept = False
        try:
            if not in_doubt:
                await runner.control("rollback")
                kept = True
        except DriverFailure:
            pass  # it is dropped below, and with it the transaction
        finally:
            await (self.connections.release if kept else self.connections.discard)(runner.connection)

    def runner(self, connection: Connection) -> StatementRunner:
        """Return the connection with its statements and limits."""
        return StatementRunner(
            connection, self.texts, self.timeout_s, self.counter, self.system, distribution=self.distribution
        )

    def steps(self, runner: StatementRunner, *, heavy: bool = False) -> Steps:
        """Return the steps of an operation, on the loop of this store."""
        return Steps(runner, heavy=heavy, budget_bytes=self.budget_bytes)

    def _late_runner(self) -> LateRunner:
        parts = (self.connections.acquire, self.texts, self.timeout_s, self.counter, self.system)
        return LateRunner(*parts, distribution=self.distribution)


def limits_text(options: PostgresOptions) -> str:
    """Return statements that set the limits of a new transaction. SET takes no parameters: these are whole numbers."""
    return (
        f"; SET LOCAL lock_timeout = {int(options.lock_timeout_ms or NO_LIMIT)}"
        f"; SET LOCAL statement_timeout = {int(options.statement_timeout_ms or NO_LIMIT)}"
        # Otherwise a process that is stopped here keeps its locks, and a server connection of the pooler, for ever.
        f"; SET LOCAL idle_in_transaction_session_timeout = {int(silence_ms(options))}"
        # A role may suppress warnings, and one of them reports that a commit's replication was not confirmed.
        "; SET LOCAL client_min_messages = warning"
        # Rows that a policy hides must not read as rows that do not exist.
        "; SET LOCAL row_security = off"
    )
