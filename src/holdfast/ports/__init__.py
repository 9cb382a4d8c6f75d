"""The protocols of a database: transactions on one session never interleave, and one that raises leaves no trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    runtime_checkable,
)

from holdfast.errors import InvalidRequest
from holdfast.ports.fast_paths import FastPaths
from holdfast.ports.lease_tables import LeaseTables
from holdfast.ports.limit_tables import LimitTables
from holdfast.ports.process_tables import GrantTables, ProcessTables
from holdfast.ports.queries import Freshness, PrefetchQuery
from holdfast.ports.stream_tables import StreamTables
from holdfast.ports.tables import (
    AttachmentTables,
    GraphTables,
    HousekeepingTables,
    LabelTables,
    QueueTables,
    SessionTables,
)
from holdfast.ports.trigger_tables import ScheduleTables, TriggerTables
from holdfast.ports.worker_tables import WorkerTables

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Transaction(
    FastPaths,
    SessionTables,
    LabelTables,
    GraphTables,
    QueueTables,
    LeaseTables,
    LimitTables,
    AttachmentTables,
    ProcessTables,
    GrantTables,
    TriggerTables,
    ScheduleTables,
    WorkerTables,
    StreamTables,
    HousekeepingTables,
    Protocol,
):
    """Everything that an operation may do, in one transaction and at one clock reading."""

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading."""
        ...

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic, once and after the transaction is durable."""
        ...

    async def position(self) -> str:
        """Return a position that a server reaches once it shows this transaction and all that was durable before."""
        ...


Operation = Callable[[Transaction], Coroutine[Any, Any, T]]
"""One operation: given a transaction, it loads, decides and applies."""


class Clock(Protocol):
    """A source of the time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...


class AttachmentBytes(Protocol):
    """A place for attachment bytes outside the database. Names are hashes and never come from a caller."""

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store durably, and overwrite bytes of the name that differ: those are damaged."""
        ...

    def get(self, space: str, name: str) -> bytes | None:
        """Return the bytes, or None."""
        ...

    def delete(self, space: str, name: str) -> int | None:
        """Remove the bytes. Return the number freed, None if no bytes were stored.

        It runs outside of every transaction and must take less than an hour. Once it has raised, the bytes must stay.
        """
        ...


@runtime_checkable
class UnfinishedBytes(Protocol):
    """A place for attachment bytes that can find what killed writers left behind. Optional."""

    def sweep_unfinished(self, older_than_ms: int) -> tuple[int, int]:
        """Remove what was begun that long ago and never finished. Return the number of files and of their bytes."""
        ...


@runtime_checkable
class BoundedBytes(Protocol):
    """A place for attachment bytes that reads no more than it is asked for. Optional."""

    def get_at_most(self, space: str, name: str, most_bytes: int) -> bytes | None:
        """Return the bytes, or None. If there are more, raise `Corrupt` without reading them."""
        ...


IsLeft: TypeAlias = Callable[[], bool]
"""Tells whether the block of a transaction was left. Safe to call in any thread."""


class OperationFlags(TypedDict, total=False):
    """Facts that hold for an operation that writes. A database may use them, or ignore them."""

    single_write: bool
    """It writes once, at its end: a database may let it decide on cached rows, and prove them where it writes."""
    idempotent: bool
    """A second run finds what the first one did: it may be run again when the answer to the first was lost."""
    serialize_on: str | None
    """The session that it locks first: waiters of one store for the same lock need not wait in the database."""
    heavy: bool
    """It computes for long: it must not run on an event loop."""


class Backend(Protocol):
    """A database behind a store. Its coroutines suspend only where its way of waiting does."""

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        ...

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        ...

    def ddl(self) -> str:
        """Return the statements that create the schema; empty for a backend without one."""
        ...

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation in a transaction and return once it is durable; a raise leaves no trace."""
        ...

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in one snapshot. `view` announces what it is going to read."""
        ...

    def watch(self, topic: str) -> Future[None]:
        """Return a future of the topic's next change, in any process. Cancel it when it is not needed."""
        ...

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change. Return False if the time ran out first."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up other calls."""
        ...

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a call without holding an event loop for long. Return its result, and True if it was heavy.

        The call must have no effects: it starts on the loop, and starts over in another thread if it is heavy.
        """
        ...

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        ...

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table, for tests that compare before with after."""
        ...

    def within(self, connection: object) -> Backend:
        """Return this backend inside a transaction that the caller began on a connection of its own, and will end."""
        ...

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> Begun:
        """Begin a transaction for several operations. It is rolled back if it is open for longer than the limit.

        It is also rolled back, soon, once `is_left` returns True: its block was left without ending it.
        """
        ...

    def reader(self, freshness: Freshness) -> Backend:
        """Return this backend for reads only, by a replica if there is one; `InvalidRequest` for a foreign position."""
        ...

    async def close(self) -> None:
        """Finish accepted operations, refuse later ones, and release all resources."""
        ...


class Ending(Protocol):
    """The end of a transaction of several operations."""

    @property
    def outer(self) -> Backend:
        """The backend that began it, whose writes wait for its end."""
        ...

    @property
    def is_open(self) -> bool:
        """True until its end is decided."""
        ...

    async def commit(self) -> None:
        """Commit, and return once all is durable."""
        ...

    async def roll_back(self) -> None:
        """Roll everything back, unless it has ended. Idempotent."""
        ...


class Begun(NamedTuple):
    """A transaction of several operations: a backend that runs them, and its end."""

    backend: Backend
    ending: Ending


class NoReader:
    """A backend inside a transaction of the caller's, which reads its own writes."""

    def reader(self, freshness: Freshness) -> NoReturn:
        """Refuse: no replica shows uncommitted writes."""
        raise InvalidRequest("store", "works inside a transaction: call reading() on the store that was opened")
