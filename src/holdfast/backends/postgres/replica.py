"""Read from a replica that has reached a position, or fall back to the primary. Replica reads leave no hints.

An operation gets a connection only after its server was seen to have reached the position: every later snapshot on it
shows that and more. A new connection to a replica is first checked: it must lead to the store's database, and not to a
timeline that the primary has not reached. Another cluster, a logical copy or a promoted server numbers its
transactions differently.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar
from weakref import WeakSet

from holdfast.backends.postgres.connection import Connection, StatementRunner, Values
from holdfast.backends.postgres.driver_errors import DriverFailure, FailureKind, failure_kind, state_of, translated
from holdfast.backends.postgres.executor import Executor, RetryState
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.positions import Position, TransactionStatus
from holdfast.backends.postgres.schema_setup import SCHEMA_VERSION
from holdfast.errors import HoldfastError, InvalidRequest, ReplicaBehind, Unavailable, UnknownPosition
from holdfast.log import INFO, WARNING, log_event
from holdfast.ports import Operation
from holdfast.ports.queries import Freshness, PrefetchQuery

T = TypeVar("T")

ACQUIRE_MS: Final = 2_000
"""Longest wait for a connection to a replica. Short, because the primary can answer, too."""

AWAY_S: Final = 5.0
"""Pause before an unreachable replica is tried again, while the primary may answer."""

POLL_FIRST_S, POLL_LONGEST_S = 0.001, 0.05

STOPPED: Final = "57014"
"""SQLSTATE of a statement that took too long: it would take the primary as long."""


class NotReached(Exception):
    """The server has not reached the position, or the schema, yet."""


class Identity(Protocol):
    """Returns the identity of the store's schema, database and cluster."""

    async def __call__(self, *, anew: bool = False) -> Values: ...


class RetryingCall(Protocol):
    """Runs a call on the primary, retries it if needed, and translates its errors."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T: ...


class TimelineCheck:
    """Checks by its timeline that a replica follows the primary. The timeline of a primary only rises."""

    def __init__(self, find_timeline: Callable[[], Awaitable[int | None]], label: str) -> None:
        self._find_timeline = find_timeline
        self._label = label
        self._highest = 0

    async def require(self, timeline: int) -> None:
        """Refuse a timeline that the primary has not reached. If the primary reports none, accept any."""
        if timeline > self._highest:
            found = await self._find_timeline()
            self._highest = max(self._highest, timeline if found is None else found)
        if timeline > self._highest:
            message = "the replica was promoted: it is on timeline %(timeline)s, the primary on %(primary)s"
            log_event("replica", WARNING, message, timeline=timeline, primary=self._highest)
            raise Unavailable(
                f"{self._label}: the replica was promoted and does not follow the primary: it is on timeline "
                f"{timeline}, the primary on {self._highest}: correct options.read_url"
            )


class VerifiedConnections:
    """Implements `Connections` over others. Returns only connections to a replica of the store's database."""

    def __init__(
        self,
        connections: Connections,
        runner: Callable[[Connection], StatementRunner],
        schema: str,
        own: Identity,
        timeline_check: TimelineCheck,
    ) -> None:
        self._connections = connections
        self._runner = runner
        self._schema = schema
        self._own = own
        self.timeline_check = timeline_check
        self._expected: Values | None = None
        self._proven: WeakSet[Connection] = WeakSet()
        self.release = connections.release
        self.discard = connections.discard
        self.discard_idle = connections.discard_idle
        self.close = connections.close

    async def learn(self) -> None:
        """Read the identity of the store's database now: the primary may be away later while the replica answers."""
        self._expected = tuple(await self._own())

    async def acquire(self) -> Connection:
        """Return a connection to the same schema of the same database, by physical replication."""
        connection = await self._connections.acquire()
        try:
            if connection not in self._proven:
                await self._verify(self._runner(connection))
                self._proven.add(connection)
        except BaseException:
            await self._connections.discard(connection)
            raise
        return connection

    async def _verify(self, runner: StatementRunner) -> None:
        [found] = await runner.all("identify", self._schema)
        *database, schema = found
        expected = self._expected
        if expected is None or tuple(found) != expected:
            expected = self._expected = tuple(await self._own(anew=True))
        if tuple(database) != expected[:-1] or schema not in {None, expected[-1]}:
            raise InvalidRequest(
                "options.read_url",
                "leads to another database than the store's: use a server that replicates it as a whole (streaming "
                "replication), with the same database name",
            )
        [(_, timeline)] = await runner.all("find_standing+timeline+")
        await self.timeline_check.require(timeline)
        if schema is None or (await runner.all("find_version"))[0][0] < SCHEMA_VERSION:
            raise NotReached


class ReachedConnections:
    """Implements `Connections` over others. Returns only connections whose server has reached a position.

    `timeline_check` checks a replica's timeline against the primary's. Without it, the connections are to the primary.
    """

    def __init__(
        self, connections: Connections, executor: Executor, position: Position, timeline_check: TimelineCheck | None
    ) -> None:
        self._connections = connections
        self._executor = executor
        self._position = position
        self._following = timeline_check
        self.release = connections.release
        self.discard = connections.discard
        self.discard_idle = connections.discard_idle
        self.close = connections.close

    async def acquire(self) -> Connection:
        """Return a connection that shows the position; `NotReached`, or `UnknownPosition` if the primary lacks it."""
        connection = await self._connections.acquire()
        try:
            runner = self._executor.runner(connection)
            standing = await self._read_status(runner)
            if self._following is not None and standing.timeline > self._position.timeline:
                # A promoted server gives the numbers of the primary's later transactions to others.
                await self._following.require(standing.timeline)
            is_unknown = self._following is None and standing.lacks(self._position)
            if is_unknown:
                # A transaction that ended during the check no longer held a lock, and its end was not seen yet: check
                # again.
                standing = await self._read_status(runner)
                is_unknown = standing.lacks(self._position)
        except BaseException:
            await self._connections.discard(connection)
            raise
        if standing.shows(self._position):
            return connection
        await self._connections.release(connection)
        if is_unknown:
            raise UnknownPosition(self._position.text)
        raise NotReached

    async def _read_status(self, runner: StatementRunner) -> TransactionStatus:
        if self._executor.pooled:
            # Behind a pooler, only a transaction sends the two messages of one statement to the same server.
            await self._executor.begin(runner, writes=False)
        if self._position.timeline:
            [found] = await runner.all("find_standing+timeline+transaction+", self._position.transaction)
            standing = TransactionStatus(*found)
        else:
            [(is_standby, status)] = await runner.all("find_standing+transaction+", self._position.transaction)
            standing = TransactionStatus(is_standby, 0, status)
        if self._executor.pooled:
            await runner.end()
        return standing


class FreshReads:
    """Runs reads that are not older than a position. Each has a `Executor` of its own, so that it leaves no hints."""

    def __init__(
        self,
        primary: Callable[[], Executor],
        retried: RetryingCall,
        replica: Callable[[], Executor] | None,
        timeline_check: TimelineCheck,
        label: str,
    ) -> None:
        self._primary = primary
        self._retried = retried
        self._replica = replica
        self._following = timeline_check
        self._label = label
        self._away_until_s = 0.0

    async def read(
        self,
        operation: Operation[T],
        view: PrefetchQuery | None,
        freshness: Freshness,
        position: Position | None,
    ) -> T:
        """Run an operation on the replica if it may answer, otherwise on the primary."""
        deadline_s = time.monotonic() + freshness.wait_ms / 1000
        replica = self._replica
        if replica is not None and self._may_ask(freshness):
            try:
                call = partial(self._once, replica, partial(_run, operation, view), position, self._following)
                return await _until(partial(self._on_replica, call), freshness, deadline_s)
            except Unavailable as error:
                if isinstance(error, ReplicaBehind) and not freshness.fall_back:
                    await self._require_known(position)
                if not freshness.fall_back or state_of(error.__cause__ or error) == STOPPED:
                    raise
                log_event(
                    "replica", INFO, "the primary answers after %(error_class)s", error_class=type(error).__name__
                )
        call = partial(self._once, self._primary, partial(_run, operation, view), position)
        return await _until(partial(self._retried, call), freshness, deadline_s)

    def _may_ask(self, freshness: Freshness) -> bool:
        """Return whether to ask the replica. While it is down, one read at a time probes whether it is back."""
        now_s = time.monotonic()
        if not freshness.fall_back:
            return True
        if now_s < self._away_until_s:
            return False
        if self._away_until_s:
            self._away_until_s = now_s + AWAY_S
        return True

    async def probe(self) -> None:
        """Check the replica once. Refuse a URL of another database, but accept a server that is down."""
        if self._replica is not None:
            try:
                await self._on_replica(partial(self._once, self._replica, _nothing, None))
            except NotReached:
                pass
            except Unavailable as error:
                log_event("replica", WARNING, "the replica is down (%(error_class)s)", error_class=type(error).__name__)

    async def _once(
        self,
        make: Callable[[], Executor],
        run: Callable[[Executor], Awaitable[T]],
        position: Position | None,
        timeline_check: TimelineCheck | None = None,
    ) -> T:
        executor = make()
        # A cluster has no replicas, and its coordinator shows each write once that is acknowledged. The position of a
        # write that a node made by itself names a transaction of that node.
        if position is not None and not executor.distribution:
            executor.connections = ReachedConnections(executor.connections, executor, position, timeline_check)
        return await run(executor)

    async def _on_replica(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call on the replica, and once more if the server was restarted or replay cancelled the call."""
        for last in (False, True):
            try:
                answer = await call()
            except DriverFailure as failure:
                kind = failure_kind(failure.cause)
                if kind in {FailureKind.LOST, FailureKind.SILENT} and self._replica is not None:
                    await self._replica().connections.discard_idle()
                if not last and kind in {FailureKind.LOST, FailureKind.CONTENTION}:
                    continue
                if kind is not FailureKind.CONTENTION and state_of(failure.cause) != STOPPED:
                    self._away_until_s = time.monotonic() + AWAY_S
                raise _of_replica(translated(failure.cause, self._label)) from failure.cause
            except Unavailable:
                self._away_until_s = time.monotonic() + AWAY_S
                raise
            except NotReached:
                self._away_until_s = 0.0
                raise
            else:
                self._away_until_s = 0.0
                return answer
        raise AssertionError("unreachable")  # pragma: no cover

    async def _require_known(self, position: Position | None) -> None:
        """Raise `UnknownPosition` if no server will ever show the position, as far as the primary can tell."""
        # If the primary cannot tell, ReplicaBehind is the better error.
        with suppress(NotReached, Unavailable):
            await self._retried(partial(self._once, self._primary, _nothing, position))


async def _run(operation: Operation[T], view: PrefetchQuery | None, executor: Executor) -> T:
    """Run an operation in one snapshot."""
    answer = None if view is None else await executor.prefetched(operation, view)
    if answer is None:
        answer = await executor.in_transaction(operation, RetryState(idempotent=False), writes=False)
    return answer[0]


async def _nothing(executor: Executor) -> None:
    """Take a connection and give it back."""
    await executor.connections.release(await executor.connections.acquire())


async def _until(call: Callable[[], Awaitable[T]], freshness: Freshness, deadline_s: float) -> T:
    """Run a call until its server has reached the position, or the time is up."""
    wait_s = POLL_FIRST_S
    while True:
        try:
            return await call()
        except NotReached:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ReplicaBehind(freshness.position, freshness.wait_ms) from None
        await asyncio.sleep(min(wait_s, left_s))
        wait_s = min(wait_s * 2, POLL_LONGEST_S)


def _of_replica(error: HoldfastError) -> HoldfastError:
    if isinstance(error, InvalidRequest) and error.field == "url":
        return InvalidRequest("options.read_url", error.problem, *error.next_step)
    return error
