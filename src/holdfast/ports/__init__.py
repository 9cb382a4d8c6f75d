"""A database must provide this: transactions on one session never interleave, and one that raises leaves no trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from holdfast.ports.shortcuts import Shortcuts
from holdfast.ports.tables import (
    AttachmentTables,
    GrantTables,
    GraphTables,
    HousekeepingTables,
    ProcessTables,
    SessionTables,
    WorkTables,
)
from holdfast.ports.trigger_tables import TriggerTables
from holdfast.rows import EventFilter, ViewQuery

T = TypeVar("T")


class Transaction(
    Shortcuts,
    SessionTables,
    GraphTables,
    WorkTables,
    AttachmentTables,
    ProcessTables,
    GrantTables,
    TriggerTables,
    HousekeepingTables,
    Protocol,
):
    """Everything an operation may do, in one transaction and at one clock reading."""

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading."""
        ...

    def notify(self, topic: str) -> None:
        """Wake those who wait on a topic, once and after the transaction is durable."""
        ...


Operation = Callable[[Transaction], Coroutine[Any, Any, T]]
"""One operation: given a transaction, it loads, decides and applies."""


class Clock(Protocol):
    """What time it is."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class AttachmentBytes(Protocol):
    """Where attachment bytes live when it is not the database. Names are hashes and never come from a caller."""

    def put(self, space: str, name: str, data: bytes) -> None:
        """Store durably; over bytes of the name that differ, because those are damaged."""
        ...

    def get(self, space: str, name: str) -> bytes | None:
        """The bytes, or None if there are none."""
        ...

    def delete(self, space: str, name: str) -> int | None:
        """Remove. Returns how many bytes that freed, None if there were none.

        It runs outside of every transaction and takes less than an hour. Once it raised, the bytes must stay.
        """
        ...


@runtime_checkable
class UnfinishedBytes(Protocol):
    """A place for attachment bytes that knows what killed writers left behind. Optional."""

    def sweep_unfinished(self, older_than_ms: int) -> tuple[int, int]:
        """Remove what was begun that long ago and never finished. Returns how many, and their bytes."""
        ...


@runtime_checkable
class BoundedBytes(Protocol):
    """A place for attachment bytes that reads no more than it is asked for. Optional."""

    def get_at_most(self, space: str, name: str, most_bytes: int) -> bytes | None:
        """The bytes, or None if there are none; `Corrupt`, without reading them, if there are more."""
        ...


class Backend(Protocol):
    """A database behind a store. Its coroutines suspend only where its way of waiting does."""

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """Whether what is acknowledged survives the process."""
        ...

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        ...

    def ddl(self) -> str:
        """The statements that make the schema; empty where there is none."""
        ...

    async def write(
        self, operation: Operation[T], *, one_step: bool = False, repeatable: bool = False, line: str | None = None
    ) -> T:
        """Run an operation in a transaction and return once it is durable; a raise leaves no trace.

        `one_step` promises that the operation writes once, at its end, so that a database may let it decide on what it
        remembers and prove that in the writing statement. `repeatable` promises that a second run finds what the first
        one did, so that it may be run again when the answer to the first was lost. `line` names what it locks first, so
        that those of one store who want the same need not wait for each other in the database.
        """
        ...

    async def read(self, operation: Operation[T], *, view: ViewQuery | EventFilter | None = None) -> T:
        """Run an operation that only reads, in one snapshot. With `view` it says what it is going to read."""
        ...

    def watch(self, topic: str) -> Future[None]:
        """A future of the topic's next change, in whatever process that happens. Cancel it when it is not needed."""
        ...

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change; False when the time ran out first."""
        ...

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up anybody else."""
        ...

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        ...

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, for tests that compare before with after."""
        ...

    def borrow(self, connection: object) -> Backend:
        """This backend inside a transaction that the caller began on a connection of his own, and will end himself."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, refuse what comes later, and let everything go."""
        ...
