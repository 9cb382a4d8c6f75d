"""A connection in use by one operation: runs statements by name, each with a deadline."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from holdfast.backends.postgres.driver_errors import DRIVER_ERRORS, DriverFailure, NoResponse
from holdfast.backends.postgres.positions import UNKNOWN
from holdfast.backends.postgres.thread_offload import LeaveLoop, LoopCall
from holdfast.errors import DurabilityUncertain, HoldfastError, Unavailable
from holdfast.loop_budget import BUDGET_BYTES
from holdfast.statements import Statements, load_statements

T = TypeVar("T")

Values: TypeAlias = tuple[Any, ...]

REPLICATION_WAIT = "SyncRepWaitForLSN"
"""The server function that waits for standbys at commit. Identifies its warnings in any language."""

STATEMENT_CACHE = 512
"""Larger than the number of statements, so that each is prepared once per connection."""


class Connection(Protocol):
    """The part of an asyncpg connection that is used here, for own connections and those of callers."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...
    async def fetchmany(self, query: str, args: Any, *, timeout: float | None = None) -> list[Any]: ...
    async def add_listener(self, channel: str, callback: Any) -> None: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def add_termination_listener(self, callback: Any) -> None: ...
    def add_log_listener(self, callback: Any) -> None: ...
    def remove_log_listener(self, callback: Any) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...


class Counter:
    """Counts the statements that operations have run."""

    __slots__ = ("statements",)

    def __init__(self) -> None:
        self.statements = 0


class Distribution(enum.IntEnum):
    """The distribution of a schema over the nodes of a cluster, as stored in `settings` by the script that made it."""

    NONE = 0
    BY_SCHEMA = 1
    BY_FAMILY = 2

    @property
    def parts(self) -> dict[str, bool]:
        """The parts of statements and functions that apply: a cluster's rows are found by their family."""
        return {
            "one_server": self is Distribution.NONE,
            "cluster": self is not Distribution.NONE,
            "one_place": self is not Distribution.BY_FAMILY,
            "by_family": self is Distribution.BY_FAMILY,
        }


@lru_cache(maxsize=64)
def statements_of(schema: str, distribution: Distribution = Distribution.NONE) -> Statements:
    """Return every statement of this backend, for one schema."""
    # On one server, the sum keeps the planner from an index that begins with the family.
    swaps = {"family + 0 =": "family ="} if distribution is Distribution.BY_FAMILY else {}
    return load_statements("holdfast.backends.postgres", schema=schema, settled=distribution.parts, swaps=swaps)


class StatementRunner:
    """A connection with its statements and a deadline for each of them."""

    __slots__ = (
        *("_counter", "_timeout_s", "budget_bytes", "connection", "distribution", "heavy", "is_connected"),
        *("reached", "stepping", "system", "texts"),
    )

    def __init__(
        self,
        connection: Connection,
        texts: Statements,
        timeout_s: float | None,
        counter: Counter,
        system: str = UNKNOWN,
        *,
        distribution: Distribution = Distribution.NONE,
    ) -> None:
        self.connection = connection
        self.is_connected = True
        self.distribution = distribution
        self.system = system
        """The name of the database cluster in positions."""
        self.reached: str | None = None
        """The position that a server function returned, without the name of the cluster."""
        self.texts = texts
        self._timeout_s = timeout_s
        self._counter = counter
        self.heavy = False
        """Steps of the operation run in a thread."""
        self.budget_bytes = BUDGET_BYTES
        """Most bytes that a step may unpack on the loop."""
        self.stepping = False
        """A step of the operation runs now, in any thread. Only the event loop may use the connection."""

    async def _ask(self, call: Callable[..., Awaitable[T]], *arguments: Any, timeout_s: float | None) -> T:
        work = partial(call, *arguments, timeout=timeout_s)
        try:
            return await (LoopCall(work) if self.stepping else work())
        except DRIVER_ERRORS as error:
            raise _failure(error) from error

    async def before_unpacking(self, size: int) -> None:
        """Leave the event loop if the operation will unpack more than `budget_bytes` next."""
        if self.stepping and size > self.budget_bytes:
            await LeaveLoop()

    async def all(self, name: str, *bindings: Any) -> list[Values]:
        """Return every row of a statement."""
        self._counter.statements += 1
        return await self._ask(self.connection.fetch, self.texts[name], *bindings, timeout_s=self._timeout_s)

    async def run(self, name: str, *bindings: Any) -> int:
        """Run a statement that changes rows. Return how many."""
        self._counter.statements += 1
        status = await self._ask(self.connection.execute, self.texts[name], *bindings, timeout_s=self._timeout_s)
        return int(status.rpartition(" ")[2])

    async def control(self, name: str) -> None:
        """Run a statement that begins or ends a transaction, or several statements without parameters."""
        await self.script(self.texts[name])

    async def script(self, text: str, timeout_s: float | None = None) -> str:
        """Run statements without parameters. Return the status of the last one."""
        return await self._ask(self.connection.execute, text, timeout_s=timeout_s or self._timeout_s)

    async def commit(self) -> None:
        """Commit, which also makes durable all that the transaction has seen. Raises if that is not certain."""
        _require_committed(await self._check_replication(self.script(self.texts["commit"])))

    async def end(self) -> None:
        """Commit a transaction that need not wait for standbys, so no warning is checked."""
        _require_committed(await self.script(self.texts["end_transaction"]))

    async def call_function(self, name: str, *bindings: Any) -> list[Values]:
        """Call a function in a transaction of its own. Return its rows once that is durable."""
        return await self._check_replication(self.all(name, *bindings), _is_refusal)

    async def call_together(self, name: str, calls: Sequence[Sequence[Any]]) -> list[Values | DurabilityUncertain]:
        """Call a function that returns one row several times in one transaction. Return the rows once it is durable."""
        self._counter.statements += len(calls)
        warnings: list[object] = getattr(self.connection, "replication_warnings", [])
        warnings.clear()
        found = await self._ask(self.connection.fetchmany, self.texts[name], calls, timeout_s=self._timeout_s)
        if not warnings:
            return found
        return [row if row[0] in REFUSALS else _uncertain() for row in found]

    def server_pid(self) -> int:
        """Return the process id that the server gave at the start of the connection."""
        try:
            return self.connection.get_server_pid()
        except DRIVER_ERRORS as error:
            raise _failure(error) from error

    async def _check_replication(
        self, committing: Coroutine[Any, Any, T], is_harmless: Callable[[T], bool] | None = None
    ) -> T:
        """Return a commit's answer. Raises DurabilityUncertain if the server warns that it did not wait for standbys.

        A harmless answer promises nothing that a standby could lack, and is returned anyway.
        """
        warnings: list[object] | None = getattr(self.connection, "replication_warnings", None)
        if warnings is None:
            answer, warnings = await self._listening(committing)
        else:
            warnings.clear()
            answer = await committing
        if warnings and (is_harmless is None or not is_harmless(answer)):
            raise _uncertain()
        return answer

    async def _listening(self, committing: Coroutine[Any, Any, T]) -> tuple[T, list[object]]:
        """Return a commit's answer and the warnings about replication. A caller's connection has no own listener."""
        warnings: list[object] = []
        collect = partial(collect_replication_warning, warnings)
        try:
            self.connection.add_log_listener(collect)
        except DRIVER_ERRORS as error:
            committing.close()
            raise _failure(error) from error
        try:
            return await committing, warnings
        finally:
            # A caller's pool takes a lost connection back at once, and then refuses every call on it. That error must
            # not replace the one that reports the loss.
            with suppress(*DRIVER_ERRORS):
                self.connection.remove_log_listener(collect)


class LateRunner(StatementRunner):
    """A runner that takes a connection when it first needs one."""

    __slots__ = ("_acquire", "failure")

    def __init__(self, acquire: Callable[[], Awaitable[Connection]], *parts: Any, **more: Any) -> None:
        super().__init__(cast("Connection", None), *parts, **more)
        self._acquire = acquire
        self.is_connected = False
        self.failure: HoldfastError | None = None
        """The error for which there is no connection."""

    async def connect(self) -> None:
        """Take a connection, unless there is one."""
        if self.is_connected:
            return
        work = self._acquire
        try:
            self.connection = await (LoopCall(work) if self.stepping else work())
        except HoldfastError as error:
            self.failure = error
            raise
        self.is_connected = True

    async def all(self, name: str, *bindings: Any) -> list[Values]:
        await self.connect()
        return await super().all(name, *bindings)


def _uncertain() -> DurabilityUncertain:
    return DurabilityUncertain("the commit is stored, but its replication was not confirmed", outcome="applied")


def collect_replication_warning(warnings: list[object], _: object, message: Any) -> None:
    """Add a message of the server to the warnings if it reports that a commit did not wait for standbys."""
    if getattr(message, "server_source_function", None) == REPLICATION_WAIT:
        warnings.append(message)


REFUSALS = frozenset(
    {
        *("absent", "busy", "claim_lost", "claim_widened", "claimable", "declined", "deleted", "ended", "held"),
        *("isolation", "lease_lost", "moved", "none", "target_absent", "target_deleted", "unknown"),
    }
)
"""Verdicts of server functions that changed nothing, or only updated ready rows. They promise nothing."""


def _is_refusal(found: list[Values]) -> bool:
    return bool(found) and found[0][0] in REFUSALS


def cut_off(connection: Connection) -> None:
    """Terminate a connection, unless the caller's pool has taken it back already."""
    with suppress(*DRIVER_ERRORS):
        connection.terminate()


def _require_committed(status: str) -> None:
    if status != "COMMIT":
        raise Unavailable("the server aborted the transaction: retry")


def _failure(error: BaseException) -> DriverFailure:
    """Wrap the driver's error. A timeout means silence: not even the server's own limit has produced an answer."""
    return DriverFailure(NoResponse() if isinstance(error, TimeoutError) else error)
