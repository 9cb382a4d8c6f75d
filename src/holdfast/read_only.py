"""A backend for reads only: it refuses every call that writes, waits or decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, Unpack

from holdfast.errors import InvalidRequest
from holdfast.ports import Backend, Begun, IsLeft, Operation, OperationFlags
from holdfast.ports.queries import Freshness, PrefetchQuery

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Read(Protocol):
    """Runs an operation that only reads, as `ports.Backend.read` does."""

    async def __call__(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run it in one snapshot."""
        ...


class ReadingBackend:
    """Implements `ports.Backend` over another one, whose reads may come from elsewhere."""

    def __init__(self, backend: Backend, read: Read) -> None:
        self._backend = backend
        self._read = read

    def __repr__(self) -> str:
        return f"{self._backend!r} for reads"

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

    async def read(self, operation: Operation[T], *, view: PrefetchQuery | None = None) -> T:
        """Run an operation that only reads, in one snapshot."""
        return await self._read(operation, view=view)

    async def write(self, operation: Operation[T], **flags: Unpack[OperationFlags]) -> T:  # noqa: ARG002 - the port's signature
        """Refuse: an answer may be old, so that nothing may be decided on it."""
        self._refuse("writes and decides nothing")

    def watch(self, topic: str) -> Future[None]:  # noqa: ARG002 - the port's signature
        """Refuse: a change is announced before a replica shows it."""
        self._refuse("cannot wait for changes")

    async def pause(self, change: Future[None], timeout_ms: int) -> bool:  # noqa: ARG002 - the port's signature
        """Refuse, like `watch`."""
        self._refuse("cannot wait for changes")

    async def compute(self, call: Callable[[], T]) -> tuple[T, bool]:
        """Run a call without effects. Return its result, and True if it was heavy."""
        return await self._backend.compute(call)

    async def offload(self, call: Callable[[], T]) -> T:
        """Run blocking file work without holding up other callers."""
        return await self._backend.offload(call)

    def drive(self, work: Awaitable[T]) -> T:
        """Run a coroutine of this backend to its end for a blocking caller."""
        return self._backend.drive(work)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        return self._backend.dump()

    def within(self, connection: object) -> Backend:  # noqa: ARG002 - the port's signature
        """Refuse: a transaction of the caller's is for writes."""
        self._refuse("takes no transaction")

    async def begin(self, timeout_ms: int, is_left: IsLeft | None = None) -> Begun:  # noqa: ARG002 - the port
        """Refuse: a transaction is for writes."""
        self._refuse("begins no transaction")

    def reader(self, freshness: Freshness) -> Backend:
        """Return a reader of the same backend with another freshness."""
        return self._backend.reader(freshness)

    async def close(self) -> None:
        """Do nothing: the store that was opened owns the connections."""

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest("store", f"store.reading() {what}: call it on the store that was opened")
