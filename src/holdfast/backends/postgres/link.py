"""One connection, used by one operation at a time: statements go in by name, and every wait has an end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from holdfast.backends.postgres.translation import DRIVER_ERRORS, DriverFailure, Silence
from holdfast.errors import DurabilityUncertain, Unavailable
from holdfast.statements import Statements, load_statements

T = TypeVar("T")

Values: TypeAlias = tuple[Any, ...]

REPLICATION_WAIT = "SyncRepWaitForLSN"
"""Where in the server a commit waits for its standbys: its warnings come from there, in whatever language."""

STATEMENT_CACHE = 512
"""More than there are statements, so that each is prepared once for a connection."""


class Connection(Protocol):
    """What we use of a connection of asyncpg, whether it is our own or lent by a pool."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...
    async def add_listener(self, channel: str, callback: Any) -> None: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def add_termination_listener(self, callback: Any) -> None: ...
    def add_log_listener(self, callback: Any) -> None: ...
    def remove_log_listener(self, callback: Any) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...


class Counter:
    """How many statements operations have run."""

    __slots__ = ("statements",)

    def __init__(self) -> None:
        self.statements = 0


@lru_cache(maxsize=64)
def statements_of(schema: str) -> Statements:
    """Every statement of this backend, for one schema."""
    return load_statements("holdfast.backends.postgres", schema=schema)


class Link:
    """A connection with its statements and a deadline for each of them."""

    __slots__ = ("_counter", "_timeout_s", "connection", "texts")

    def __init__(self, connection: Connection, texts: Statements, timeout_s: float | None, counter: Counter) -> None:
        self.connection = connection
        self.texts = texts
        self._timeout_s = timeout_s
        self._counter = counter

    async def all(self, name: str, *bindings: Any) -> list[Values]:
        """Every row that a statement returns."""
        self._counter.statements += 1
        try:
            return await self.connection.fetch(self.texts[name], *bindings, timeout=self._timeout_s)
        except DRIVER_ERRORS as error:
            raise _failure(error) from error

    async def run(self, name: str, *bindings: Any) -> int:
        """Run a statement that changes rows, and say how many."""
        self._counter.statements += 1
        try:
            status = await self.connection.execute(self.texts[name], *bindings, timeout=self._timeout_s)
        except DRIVER_ERRORS as error:
            raise _failure(error) from error
        return int(status.rpartition(" ")[2])

    async def control(self, name: str) -> None:
        """Run a statement that begins or ends a transaction, or several statements without parameters."""
        await self.script(self.texts[name])

    async def script(self, text: str, timeout_s: float | None = None) -> str:
        """Run statements without parameters; what the last one answered."""
        try:
            return await self.connection.execute(text, timeout=timeout_s or self._timeout_s)
        except DRIVER_ERRORS as error:
            raise _failure(error) from error

    async def commit(self) -> None:
        """Make the transaction durable, and with it all that it has seen. Raises if it is not."""
        _require_committed(await self._heeding(self.script(self.texts["commit"])))

    async def end(self) -> None:
        """End a transaction whose caller waits for no standby."""
        _require_committed(await self.script(self.texts["end_transaction"]))

    async def write_at_once(self, name: str, *bindings: Any) -> list[Values]:
        """Call a function in a transaction of its own, and say what it returned once it is durable."""
        return await self._heeding(self.all(name, *bindings), _is_refusal)

    def server_pid(self) -> int:
        """Return the process id that the server gave at the start of the connection."""
        try:
            return self.connection.get_server_pid()
        except DRIVER_ERRORS as error:
            raise _failure(error) from error

    async def _heeding(self, committing: Coroutine[Any, Any, T], is_harmless: Callable[[T], bool] | None = None) -> T:
        """What a commit answers, unless the server warns that somebody ended its wait for a standby.

        An answer that is harmless promises nothing that a standby could lack.
        """
        warnings: list[object] = []

        def heed(_: object, message: Any) -> None:
            if getattr(message, "server_source_function", None) == REPLICATION_WAIT:
                warnings.append(message)

        try:
            self.connection.add_log_listener(heed)
        except DRIVER_ERRORS as error:
            committing.close()
            raise _failure(error) from error
        try:
            answer = await committing
        finally:
            # A caller's pool takes a lost connection back at once, and then refuses every call on it. That must not
            # replace the error that tells of the loss.
            with suppress(*DRIVER_ERRORS):
                self.connection.remove_log_listener(heed)
        if warnings and (is_harmless is None or not is_harmless(answer)):
            raise DurabilityUncertain("the commit is stored, but its replication was not confirmed", outcome="applied")
        return answer


REFUSALS = frozenset(
    {
        *("absent", "claim_lost", "declined", "deleted", "ended", "held", "isolation", "lease_lost", "moved", "none"),
        *("target_absent", "target_deleted", "unknown"),
    }
)
"""Verdicts of server functions that have locked rows and changed none."""


def _is_refusal(found: list[Values]) -> bool:
    return bool(found) and found[0][0] in REFUSALS


def cut_off(connection: Connection) -> None:
    """Terminate a connection, unless the caller's pool has taken it back already."""
    with suppress(*DRIVER_ERRORS):
        connection.terminate()


def _require_committed(status: str) -> None:
    if status != "COMMIT":
        raise Unavailable("the server gave the transaction up: retry")


def _failure(error: BaseException) -> DriverFailure:
    """The driver's error; a connection on which no answer comes, not even that of the server's own limit, is silent."""
    return DriverFailure(Silence() if isinstance(error, TimeoutError) else error)
