"""Run an operation once, by one server function or in a transaction.

Afterwards it is durable, or it left no trace, or its commit is in doubt.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from holdfast.backends.postgres.connection import Connection, Counter, Distribution, Link
from holdfast.backends.postgres.connector import CONNECT_TIMEOUT_S
from holdfast.backends.postgres.driver_errors import DriverFailure, is_in_doubt
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.positions import UNKNOWN, system_text
from holdfast.backends.postgres.prefetch import gather
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.single_trip import TRIPS, NeedsTransaction, SingleTrip
from holdfast.backends.postgres.thread_offload import Steps
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.errors import DurabilityUncertain, HoldfastError
from holdfast.ports import Clock, Operation, Transaction
from holdfast.records.options import PostgresOptions
from holdfast.rows import EventFilter, ViewQuery
from holdfast.statements import Statements

T = TypeVar("T")

GRACE_S: Final = 5.0
"""Client-side wait for an answer, beyond the server's own limit, before the connection is dropped."""


NO_LIMIT: Final = 0
"""The server's value for no timeout."""


class Attempt:
    """State of the runs of one operation.

    `committing`: the last run may have been applied. `again`: an earlier run may have been applied. `declined`: a
    server function did not decide the operation.
    """

    __slots__ = ("again", "committing", "declined", "heavy", "repeatable", "topics")

    def __init__(self, *, repeatable: bool, heavy: bool = False) -> None:
        self.repeatable = repeatable
        self.heavy = heavy
        self.committing = False
        self.again = False
        self.declined = False
        self.topics: list[str] = []


class Step:
    """State of a single trip: `begun` if it began a transaction, `committing` while that is being committed."""

    __slots__ = ("begun", "committing", "trip")

    def __init__(self, trip: SingleTrip) -> None:
        self.trip = trip
        self.begun = False
        self.committing = False


class Runs:
    """Runs operations on connections of a pool, and caches the rows they saw."""

    def __init__(
        self,
        connections: Connections,
        texts: Statements,
        options: PostgresOptions,
        clock: Clock | None,
        watch: ServerWatch,
        *,
        lent: bool,
    ) -> None:
        self.connections = connections
        self.cache = RowCache(clock, watch.remember)
        self.counter = Counter()
        self.watch = watch
        self.system = UNKNOWN
        # The statement without the log position, until the server is known to report that.
        self._clock_text = "now_ms+"
        self.distribution = Distribution.NONE
        self.pooled = options.pooler == "transaction"
        self.texts = texts
        self._options = options
        self._clock = clock
        self._limits_each_time = self.pooled or lent
        limits = limits_text(options) if self._limits_each_time else ""
        self._begin_write, self._begin_read = texts["begin_write"] + limits, texts["begin_read"] + limits
        limit_ms = options.statement_timeout_ms
        self.timeout_s = None if limit_ms is None else limit_ms / 1000 + GRACE_S

    def forget(self) -> None:
        """Forget every row: after a failover, the new primary may lack recent commits."""
        self.watch.hold()
        self.cache.forget()

    async def one_step(self, operation: Operation[T], attempt: Attempt) -> tuple[T, list[str]] | None:
        """Run an operation without a transaction. Return None, with no trace left, if it needs one."""
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            test_ms = None if self._clock is None else self._clock.now_ms()
            step = Step(TRIPS[self.distribution](link, self.cache, test_ms=test_ms))
        except BaseException:
            await self.connections.release(connection)
            raise
        try:
            result = await self._proceed(link, operation, step, Steps(link, heavy=attempt.heavy))
        except DurabilityUncertain:
            attempt.topics = step.trip.topics
            await self._end_step(link, step)
            raise
        except NeedsTransaction:
            await self._end_step(link, step)
            attempt.declined = True
            return None
        except HoldfastError:
            await self._end_step(link, step)
            if step.trip.answered:
                raise
            attempt.declined = True
            return None
        except DriverFailure as failure:
            attempt.committing = step.trip.calling and (step.committing or not step.begun)
            if is_in_doubt(failure.cause):
                await self.connections.discard(connection)
            else:
                await self._end_step(link, step)
            raise
        except BaseException:
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        step.trip.learn()
        return result, step.trip.topics

    async def _proceed(self, link: Link, operation: Operation[T], step: Step, steps: Steps) -> T:
        # Needs a transaction behind a pooler, where otherwise the two messages of one statement may reach two servers;
        # on a lent connection, for its limits; and with a test clock, which the function cannot read: if the clock was
        # moved meanwhile, the trip is rolled back. Not for a test clock on a cluster: a client transaction would keep
        # the function from running on the node that has the rows.
        step.begun = self._limits_each_time or (self._clock is not None and not self.distribution)
        if step.begun:
            await self.begin(link, writes=True)
        result = await steps.run(operation(cast("Transaction", step.trip)))
        if not step.trip.answered:
            # The result rests on plain reads, which wait for no standby. A transaction locks the rows it reads, and
            # waits.
            raise NeedsTransaction("an answer without a verdict")
        if step.begun and self._clock is not None and self._clock.now_ms() != step.trip.given_ms:
            step.trip.answered = False
            raise NeedsTransaction("the clock was moved")
        if step.begun:
            step.committing = True
            await link.commit()
        return result

    async def _end_step(self, link: Link, step: Step) -> None:
        """Give back the connection of a step whose result is not returned."""
        if step.begun:
            await self._recover(link, in_doubt=False)
            return
        try:
            await step.trip.take_back()
        except DriverFailure:
            # The claim stays and expires by itself. The caller needs the error for which it was not handed out.
            await self.connections.discard(link.connection)
        except BaseException:
            await self.connections.discard(link.connection)
            raise
        else:
            await self.connections.release(link.connection)

    async def gathered(self, operation: Operation[T], view: ViewQuery | EventFilter) -> tuple[T, list[str]] | None:
        """Run a read on rows fetched by one statement. Return None if it needs a transaction."""
        if self.distribution:
            # The nodes of a cluster cannot send each other rows inside arrays.
            return None
        connection = await self.connections.acquire()
        link = self.link(connection)
        steps = Steps(link)
        begun = self._limits_each_time
        try:
            if begun:
                await self.begin(link, writes=False)
            gathered: Any = await steps.run(gather(link, view, self.cache))
            if begun:
                await link.end()
        except NeedsTransaction:
            await (self._recover(link, in_doubt=False) if begun else self.connections.release(connection))
            return None
        except BaseException:
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        try:
            return await steps.run(operation(gathered)), []
        except NeedsTransaction:
            return None

    async def in_transaction(self, operation: Operation[T], attempt: Attempt, *, writes: bool) -> tuple[T, list[str]]:
        """Run an operation once in a transaction: it is durable then, or left no trace, or the commit is in doubt."""
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            transaction = await self._transaction(link, writes, again=attempt.again)
            transaction.declined = attempt.declined
            result = await Steps(link, heavy=attempt.heavy).run(operation(transaction))
            attempt.committing, attempt.topics = writes, transaction.topics
            await (link.commit() if writes else link.end())
        except DriverFailure as failure:
            await self._recover(link, in_doubt=is_in_doubt(failure.cause))
            raise
        except Exception:
            attempt.committing = False
            await self._recover(link, in_doubt=False)
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

    async def begin(self, link: Link, *, writes: bool) -> None:
        """Begin a transaction, and set its limits if the connection does not have them."""
        await link.script(self._begin_write if writes else self._begin_read)

    async def begin_held(self, link: Link, *, idle_ms: int) -> None:
        """Begin a transaction of several operations, with its first savepoint and a limit for each pause of it."""
        limit = f"; SET LOCAL idle_in_transaction_session_timeout = {int(idle_ms)}; "
        await link.script(self._begin_write + limit + self.texts["save_operation"])

    async def joined(self, link: Link) -> PostgresTransaction:
        """Return the next operation's view of a transaction that has begun. Its reads lock, so that they agree."""
        return await self._view(link, writes=True, again=False)

    async def _transaction(self, link: Link, writes: bool, *, again: bool) -> PostgresTransaction:
        await self.begin(link, writes=writes)
        return await self._view(link, writes=writes, again=again)

    async def _view(self, link: Link, *, writes: bool, again: bool) -> PostgresTransaction:
        now_ms = await self._read_clock(link) if self._clock is None else self._clock.now_ms()
        self.cache.learn_clock(now_ms)
        return PostgresTransaction(link, now_ms, self._options.schema, writes=writes, again=again, clock=self._clock)

    async def _read_clock(self, link: Link) -> int:
        """Return the time of the server's clock, and note if another server answers than before."""
        [(now_ms, *origin)] = await link.all(self._clock_text)
        self.watch.see(tuple(origin))
        if self.watch.question is not None:
            [(known,)] = await link.all("knows_head", *self.watch.question)
            self.watch.answer(known=known)
        return int(now_ms)

    async def greet(self, connection: Connection, timeout_s: float) -> bool:
        """Identify the server behind a new connection. Return whether it is another server or database than before."""
        patience_s = min(timeout_s, CONNECT_TIMEOUT_S)
        [(_, *origin)] = await connection.fetch(self.texts[self._clock_text], timeout=patience_s)
        changed = self.watch.see(tuple(origin))
        if self.watch.question is not None:
            asked = self.texts["knows_head"], *self.watch.question
            [(known,)] = await connection.fetch(*asked, timeout=patience_s)
            self.watch.answer(known=known)
        return changed

    async def probe(self, link: Link) -> None:
        """Identify the server for the first time. Fails the transaction if the server reports no log position."""
        try:
            [(_, *origin)] = await link.all("now_ms")
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                raise
        else:
            self._clock_text = "now_ms"
            self.watch.see(tuple(origin))
            await self._identify(link)

    @property
    def tells_log(self) -> bool:
        """True if the server reports its log position."""
        return self._clock_text == "now_ms"

    async def _identify(self, link: Link) -> None:
        """Read the identifier of this cluster for positions. Fails the transaction if the role may not read it."""
        try:
            [(identifier, *_)] = await link.all("identify", self._options.schema)
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                raise
        else:
            self.system = system_text(identifier)

    async def _recover(self, link: Link, *, in_doubt: bool) -> None:
        """Roll back and keep the connection, or drop the connection, which rolls back, too."""
        kept = False
        try:
            if not in_doubt:
                await link.control("rollback")
                kept = True
        except DriverFailure:
            pass  # it is dropped below, and with it the transaction
        finally:
            await (self.connections.release if kept else self.connections.discard)(link.connection)

    def link(self, connection: Connection) -> Link:
        """Return the connection with its statements and limits."""
        return Link(connection, self.texts, self.timeout_s, self.counter, self.system, distribution=self.distribution)


def limits_text(options: PostgresOptions) -> str:
    """Return statements that set the limits of a new transaction. SET takes no parameters: these are whole numbers."""
    return (
        f"; SET LOCAL lock_timeout = {int(options.lock_timeout_ms or NO_LIMIT)}"
        f"; SET LOCAL statement_timeout = {int(options.statement_timeout_ms or NO_LIMIT)}"
        # A role may suppress warnings, and one of them reports that a commit's replication was not confirmed.
        "; SET LOCAL client_min_messages = warning"
        # Rows that a policy hides must not read as rows that do not exist.
        "; SET LOCAL row_security = off"
    )
