"""An operation is run once, in one statement or in a transaction: then it is durable, left no trace, or is in doubt."""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from holdfast.backends.postgres.connecting import CONNECT_TIMEOUT_S
from holdfast.backends.postgres.foresight import ClockNeeded, Foresight, Unforeseen
from holdfast.backends.postgres.fresh import Fresh
from holdfast.backends.postgres.gathering import gather
from holdfast.backends.postgres.link import Connection, Counter, Link
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.remembered import Remembered
from holdfast.backends.postgres.server_watch import ServerWatch
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

    `committing` says that the last run may have been applied, `again` that an earlier one may have been, and
    `found_session` that the last step got as far as a session, as every turn does that is not the first of its session.
    """

    __slots__ = ("again", "committing", "found_session", "repeatable", "topics")

    def __init__(self, *, repeatable: bool) -> None:
        self.repeatable = repeatable
        self.committing = False
        self.again = False
        self.found_session = False
        self.topics: list[str] = []


class Step:
    """How far one step came: what it foresaw, whether it began a transaction, and whether that is being committed."""

    __slots__ = ("begun", "committing", "foresight")

    def __init__(self, foresight: Foresight) -> None:
        self.foresight = foresight
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
        self.remembered = Remembered(clock)
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
        """Forget everything that was seen: the server went away, and another one may have come that knows less."""
        self.remembered.forget()

    async def one_step(self, operation: Operation[T], attempt: Attempt) -> tuple[T, list[str]] | None:
        """Run an operation without a transaction; None if it needs one, and then there is no trace of it.

        First it is decided on what is remembered, and if that does not hold, a turn is decided on what is read now.
        """
        answer = await self._step(Foresight, operation, attempt)
        if answer is None and attempt.found_session:
            answer = await self._step(Fresh, operation, attempt)
        return answer

    async def _step(
        self, kind: type[Foresight], operation: Operation[T], attempt: Attempt
    ) -> tuple[T, list[str]] | None:
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            step = Step(self._foresight(kind, link, None))
        except BaseException:
            await self.connections.release(connection)
            raise
        try:
            result = await self._proceed(link, kind, operation, step)
        except DurabilityUncertain:
            attempt.topics = step.foresight.topics
            await self._end_step(link, step)
            raise
        except (Unforeseen, HoldfastError) as error:
            await self._end_step(link, step)
            if step.foresight.done or (step.foresight.tells_the_truth and isinstance(error, HoldfastError)):
                raise
            attempt.found_session = step.foresight.found_session
            return None
        except DriverFailure as failure:
            attempt.committing = step.foresight.proving and (step.committing or not step.begun)
            if is_in_doubt(failure.cause):
                await self.connections.discard(connection)
            else:
                await self._end_step(link, step)
            raise
        except BaseException:
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        step.foresight.learn()
        return result, step.foresight.topics

    async def _proceed(self, link: Link, kind: type[Foresight], operation: Operation[T], step: Step) -> T:
        # Behind a pooler, the two messages of one statement reach the same server only in a transaction; the limits of
        # a connection that is not ours hold for one, too. And a clock of a test cannot be read inside the statement:
        # if it was moved meanwhile, the step is taken back.
        step.begun = self._limits_each_time or self._clock is not None
        if step.begun:
            await self.begin(link, writes=True)
        try:
            result = await operation(cast("Transaction", step.foresight))
        except ClockNeeded:
            step.foresight = self._foresight(kind, link, await self._read_clock(link))
            result = await operation(cast("Transaction", step.foresight))
        if not step.foresight.done:
            # Found as a replay by plain reads, which wait for no standby: a transaction locks it and waits.
            raise Unforeseen("an answer without a write")
        if self._clock is not None and self._clock.now_ms() != step.foresight.given_ms:
            step.foresight.done = False
            raise Unforeseen("the clock was moved")
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
            await step.foresight.take_back()
        except DriverFailure:
            # The claim stays and ends by itself; why it was not handed out is what the caller needs to know.
            await self.connections.discard(link.connection)
        except BaseException:
            await self.connections.discard(link.connection)
            raise
        else:
            await self.connections.release(link.connection)

    def _foresight(self, kind: type[Foresight], link: Link, server_ms: int | None) -> Foresight:
        test_ms = None if self._clock is None else self._clock.now_ms()
        return kind(link, self.remembered, test_ms=test_ms, server_ms=server_ms)

    async def gathered(self, operation: Operation[T], view: ViewQuery | EventFilter) -> tuple[T, list[str]] | None:
        """Run an operation that reads a view on what one statement gave; None if it needs a transaction."""
        connection = await self.connections.acquire()
        link = self.link(connection)
        begun = self._limits_each_time
        try:
            if begun:
                await self.begin(link, writes=False)
            gathered: Any = await gather(link, view, self.remembered)
            if begun:
                await link.end()
        except Unforeseen:
            await (self._recover(link, in_doubt=False) if begun else self.connections.release(connection))
            return None
        except BaseException:
            await self.connections.discard(connection)
            raise
        await self.connections.release(connection)
        try:
            return await operation(gathered), []
        except Unforeseen:
            return None

    async def in_transaction(self, operation: Operation[T], attempt: Attempt, *, writes: bool) -> tuple[T, list[str]]:
        """Run an operation once: afterwards it is durable, or there is no trace of it, or the commit is in doubt."""
        attempt.committing = False
        connection = await self.connections.acquire()
        link = self.link(connection)
        try:
            transaction = await self._transaction(link, writes, again=attempt.again)
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
            self.remembered.learn_head(session, revision)
        for process in transaction.seen.processes:
            self.remembered.learn_process(process)
        for lease in transaction.seen.leases:
            self.remembered.learn_lease(lease)

    async def begin(self, link: Link, *, writes: bool) -> None:
        """Begin a transaction, with its limits where the connection does not have them."""
        await link.script(self._begin_write if writes else self._begin_read)

    async def _transaction(self, link: Link, writes: bool, *, again: bool) -> PostgresTransaction:
        await self.begin(link, writes=writes)
        now_ms = await self._read_clock(link) if self._clock is None else self._clock.now_ms()
        self.remembered.learn_clock(now_ms)
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
