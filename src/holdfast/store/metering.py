"""Count the rows and bytes that observed operations read and write, at the port, alike on every backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast

import msgspec

from holdfast import rows as r
from holdfast.ports import Backend, Begun, IsLeft, Operation, OperationFlags, Transaction
from holdfast.ports.fast_paths import FastPaths
from holdfast.ports.queries import Freshness, PrefetchQuery

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

WRITTEN = (r.CommitPlan, r.EventWrite)
"""Values that an operation gives to be written, besides rows themselves."""


FAST_PATHS = frozenset(vars(FastPaths))
"""Methods that have done nothing if they return None."""

PLANNED: dict[str, Callable[[Any], object]] = {
    "commit_turn": lambda params: params.plan,
    "add_nodes": lambda params: (params.head.session, params.rows),
    "append_event": lambda params: (params.event, params.process, params.batch),
}
"""Methods whose parameters hold the rows that the database writes, unless its verdict is another than these."""
WROTE = frozenset({"committed", "added", "appended"})


class Tally:
    """Costs of one operation so far."""

    __slots__ = ("bytes_read", "bytes_written", "reruns", "rows_read", "rows_written", "transactions")

    def __init__(self) -> None:
        self.transactions = self.reruns = 0
        self.rows_read = self.rows_written = self.bytes_read = self.bytes_written = 0

    def add(self, run: Tally) -> None:
        """Count a run that has ended."""
        self.rows_read += run.rows_read
        self.rows_written += run.rows_written
        self.bytes_read += run.bytes_read
        self.bytes_written += run.bytes_written


TALLY: ContextVar[Tally | None] = ContextVar("holdfast_tally", default=None)
"""The tally of the operation that this task or thread is in."""


def measure(value: object, *, given: bool) -> tuple[int, int]:
    """Count the rows in a value, and the bytes of content in them.

    Of arguments (`given`), a query is not counted: it may contain rows, but writes none.
    """
    if isinstance(value, r.Row):
        if isinstance(value, r.Segment):
            return 0, 0
        return 1, sum(len(part) for part in msgspec.structs.astuple(value) if isinstance(part, bytes))
    parts: tuple[Any, ...] | list[Any] = ()
    if isinstance(value, tuple | list):
        parts = cast("list[Any]", value)
    elif isinstance(value, msgspec.Struct) and (not given or isinstance(value, WRITTEN)):
        parts = msgspec.structs.astuple(value)
    sizes = [measure(part, given=given) for part in parts]
    return sum(rows for rows, _ in sizes), sum(size for _, size in sizes)


class CountingTransaction:
    """Implements `ports.Transaction` over another one, and counts the rows that pass."""

    def __init__(self, transaction: Transaction, run: Tally, *, writes: bool) -> None:
        self._transaction = transaction
        self._run = run
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        from inspect import iscoroutinefunction  # slow to load, and an unobserved store does not need it

        found = getattr(self._transaction, name)
        if not iscoroutinefunction(found):
            return found
        run, writes = self._run, self._writes

        async def counted(*args: Any, **kwargs: Any) -> Any:
            answer = await found(*args, **kwargs)
            given: list[object] = [*args, *kwargs.values()]
            if name in PLANNED:
                given = [PLANNED[name](args[0])] if answer is not None and answer.verdict in WROTE else []
            declined = answer is None and name in FAST_PATHS
            rows, size = measure(given, given=True) if writes and not declined else (0, 0)
            if writes and not rows and type(answer) is int and not name.startswith("count"):
                rows = answer  # the row count of an update by condition
            run.rows_written += rows
            run.bytes_written += size
            rows, size = measure(answer, given=False)
            run.rows_read += rows
            run.bytes_read += size
            return answer

        # Cached on the instance, so that further calls in the transaction skip this lookup.
        object.__setattr__(self, name, counted)
        return counted


class CountingBackend:
    """Implements `ports.Backend` over another one, and counts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return repr(self._backend)

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        return self._backend.durability

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return self._backend.schema_version

    def ddl(self) -> str:
        """Return the statements that create the schema."""
        return self._backend.ddl()

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:
        """Run an operation, and count the writes and reads of its last run."""
        tally = TALLY.get()
        if tally is None:
            return await self._backend.write(operation, **flags)
        with Counts(operation, tally, writes=True) as counts:
            return await self._backend.write(counts.run, **flags)

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, and count the reads of its last run."""
        tally = TALLY.get()
        if tally is None:
            return await self._backend.read(operation, view=view)
        with Counts(operation, tally, writes=False) as counts:
            return await self._backend.read(counts.run, view=view)

    def watch(self, topic: str) -> Future[None]:
        """Return a future of the topic's next change."""
        return self._backend.watch(topic)

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:
        """Wait for a watched change. Return False if the time ran out first."""
        return await self._backend.pause(change, timeout_ms)

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a pure call. Return its result, and whether it was heavy."""
        return await self._backend.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without blocking other operations."""
        return await self._backend.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return self._backend.drive(work)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        return self._backend.dump()

    def within(self, connection: object) -> Backend:
        """Return the same inside a caller's transaction."""
        return CountingBackend(self._backend.within(connection))

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> Begun:
        """Begin a transaction whose operations are counted, too."""
        begun = await self._backend.begin(timeout_ms, is_left)
        return begun._replace(backend=CountingBackend(begun.backend))

    def reader(self, freshness: Freshness) -> Backend:
        """Return the same for reads only."""
        return CountingBackend(self._backend.reader(freshness))

    async def close(self) -> None:
        """Close the backend."""
        await self._backend.close()


class Counts:
    """The runs of one operation. Only the last run counts: the earlier ones were rolled back."""

    def __init__(self, operation: Operation[Any], tally: Tally, *, writes: bool) -> None:
        self._operation = operation
        self._tally = tally
        self._writes = writes
        self._runs = 0
        self._last = Tally()

    def run(self, transaction: Transaction) -> Any:
        """Begin a run."""
        self._runs += 1
        self._last = Tally()
        counting = CountingTransaction(transaction, self._last, writes=self._writes)
        return self._operation(cast("Transaction", counting))

    def __enter__(self) -> Counts:
        return self

    def __exit__(self, *_: object) -> None:
        self._tally.transactions += 1
        self._tally.reruns += max(0, self._runs - 1)
        self._tally.add(self._last)
