"""An operation is run once, in one statement or in a transaction: then it is durable, left no trace, or is in doubt."""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from holdfast.backends.postgres.connecting import CONNECT_TIMEOUT_S
from holdfast.backends.postgres.gathering import gather
from holdfast.backends.postgres.link import Connection, Counter, Link
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.row_cache import RowCache
from holdfast.backends.postgres.server_watch import ServerWatch
from holdfast.backends.postgres.single_trip import NeedsTransaction, SingleTrip
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.backends.postgres.translation import DriverFailure, is_in_doubt
from holdfast.errors import DurabilityUncertain, HoldfastError
from holdfast.ports import Clock, Operation, Transaction
from holdfast.records.options import PostgresOptions
from holdfast.rows import EventFilter, ViewQuery
from holdfast.statements import Statements

T = TypeVar("T")

GRACE_S: Final = 5.0
"""How much longer than the server's own limit we wait for its answer before we give the connection up."""


NO_LIMIT: Final = 0
"""How the server spells a timeout that never comes."""


class Attempt:
    """How far the runs of one operation came.

    `committing` says that the last run may have been applied, `again` that an earlier one may have been, and `declined`
    that a server function did not decide it.
    """

    __slots__ = ("again", "committing", "declined", "repeatable", "topics")

    def __init__(self, *, repeatable: bool) -> None:
        self.repeatable = repeatable
        self.committing = False
        self.again = False
        self.declined = False
        self.topics: list[str] = []


class Step:
    """How far a single trip came: whether it began a transaction, and whether that is being committed."""

    __slots__ = ("begun", "committing", "trip")

    def __init__(self, trip: SingleTrip) -> None:
        self.trip = trip
        self.begun = False
        self.committing = False


class Runs:
    """Runs operations on connections of a pool, and remembers what they saw."""

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
        self.cache = RowCache(clock)
        self.counter = Counter()
        self.watch = watch
        # Without the position of the log, until the server is known to tell it.
        self._clock_text = "now_ms+"
        self.pooled = options.pooler == "transaction"
        self._texts = texts
        self._options = options
        self._clock = clock
        self._limits_each_time = self.pooled or lent
        limits = limits_text(options) if self._limits_each_time else ""
        self._begin_write, self._begin_read = texts["begin_write"] + limits, texts["begin_read"] + limits
        limit_ms = options.statement_timeout_ms
        self.timeout_s = None if limit_ms is None else limit_ms / 1000 + GRACE_S

    def forget(self) -> None:
        """Forget every row: after a failover, the new primary may lack recent commits."""
        self.cache.forget()

    async def one_step(self, operation: Operation[T], attempt: Attempt) -> tuple[T, list[str]] | None:
        """Run an operation without a transaction; None if it needs one, and then there is no trace of it."""
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            step = Step(SingleTrip(link, self.cache, test_ms=None if self._clock is None else self._clock.now_ms()))
        except BaseException:
            await self.connections.release(connection)
            raise
        try:
            result = await self._proceed(link, operation, step)
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

    async def _proceed(self, link: Link, operation: Operation[T], step: Step) -> T:
        # Behind a pooler, the two messages of one statement reach the same server only in a transaction; the limits of
        # a connection that is not ours hold for one, too. And a clock of a test cannot be read inside the function: if
        # it was moved meanwhile, the trip is taken back.
        step.begun = self._limits_each_time or self._clock is not None
        if step.begun:
            await self.begin(link, writes=True)
        result = await operation(cast("Transaction", step.trip))
        if not step.trip.answered:
            # Found by plain reads, which wait for no standby: a transaction locks what it finds and waits.
            raise NeedsTransaction("an answer without a verdict")
        if self._clock is not None and self._clock.now_ms() != step.trip.given_ms:
            step.trip.answered = False
            raise NeedsTransaction("the clock was moved")
        if step.begun:
            step.committing = True
            await link.commit()
        return result

    async def _end_step(self, link: Link, step: Step) -> None:
        """Give the connection of a step back that hands nothing out."""
        if step.begun:
            await self._recover(link, in_doubt=False)
            return
        try:
            await step.trip.take_back()
        except DriverFailure:
            # The claim stays and ends by itself; why it was not handed out is what the caller needs to know.
            await self.connections.discard(link.connection)
        except BaseException:
            await self.connections.discard(link.connection)
            raise
        else:
            await self.connections.release(link.connection)

    async def gathered(self, operation: Operation[T], view: ViewQuery | EventFilter) -> tuple[T, list[str]] | None:
        """Run an operation that reads a view on what one statement gave; None if it needs a transaction."""
        connection = await self.connections.acquire()
        link = self.link(connection)
        begun = self._limits_each_time
        try:
            if begun:
                await self.begin(link, writes=False)
            gathered: Any = await gather(link, view, self.cache)
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
            return await operation(gathered), []
        except NeedsTransaction:
            return None

    async def in_transaction(self, operation: Operation[T], attempt: Attempt, *, writes: bool) -> tuple[T, list[str]]:
        """Run an operation once: afterwards it is durable, or there is no trace of it, or the commit is in doubt."""
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            transaction = await self._transaction(link, writes, again=attempt.again)
            transaction.declined = attempt.declined
            result = await operation(transaction)
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
            # Whoever was cancelled does not wait for a rollback: without its connection the server does it.
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        self._remember(transaction)
        return result, transaction.topics

    def _remember(self, transaction: PostgresTransaction) -> None:
        for session, revision in transaction.seen.heads:
            self.cache.learn_head(session, revision)
        for process in transaction.seen.processes:
            self.cache.learn_process(process)

    async def begin(self, link: Link, *, writes: bool) -> None:
        """Begin a transaction, with its limits where the connection does not have them."""
        await link.script(self._begin_write if writes else self._begin_read)

    async def _transaction(self, link: Link, writes: bool, *, again: bool) -> PostgresTransaction:
        await self.begin(link, writes=writes)
        now_ms = await self._read_clock(link) if self._clock is None else self._clock.now_ms()
        self.cache.learn_clock(now_ms)
        return PostgresTransaction(link, now_ms, self._options.schema, writes=writes, again=again, clock=self._clock)

    async def _read_clock(self, link: Link) -> int:
        """The server's clock; another server than before is noticed on the way."""
        [(now_ms, *origin)] = await link.all(self._clock_text)
        self.watch.see(tuple(origin))
        return int(now_ms)

    async def greet(self, connection: Connection, timeout_s: float) -> bool:
        """Look at what a new connection leads to. Returns whether it is another server or database than before."""
        patience_s = min(timeout_s, CONNECT_TIMEOUT_S)
        [(_, *origin)] = await connection.fetch(self._texts[self._clock_text], timeout=patience_s)
        return self.watch.see(tuple(origin))

    async def probe(self, link: Link) -> None:
        """Look at the server for the first time. Fails the transaction if the server does not tell of its log."""
        try:
            [(_, *origin)] = await link.all("now_ms")
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                raise
        else:
            self._clock_text = "now_ms"
            self.watch.see(tuple(origin))

    async def _recover(self, link: Link, *, in_doubt: bool) -> None:
        """Take everything back and keep the connection, or drop it with all that it did."""
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
        """The connection with its statements and limits."""
        return Link(connection, self._texts, self.timeout_s, self.counter)


def limits_text(options: PostgresOptions) -> str:
    """Give the transaction that was just begun its settings: SET takes no parameters, but these are whole numbers."""
    return (
        f"; SET LOCAL lock_timeout = {int(options.lock_timeout_ms or NO_LIMIT)}"
        f"; SET LOCAL statement_timeout = {int(options.statement_timeout_ms or NO_LIMIT)}"
        # A role may hide warnings, and one of them says that a commit's replication was not confirmed.
        "; SET LOCAL client_min_messages = warning"
        # Rows that a policy hides must not read as rows that do not exist.
        "; SET LOCAL row_security = off"
    )
