"""A store is one database seen through its facets; every method but housekeeping and waits is one transaction."""

from __future__ import annotations

from types import TracebackType
from typing import Literal

import msgspec

from holdfast.ports import Transaction
from holdfast.records.limits import Limits
from holdfast.store.artifacts import Artifacts
from holdfast.store.attachments import Attachments, SessionAttachments
from holdfast.store.context import Context
from holdfast.store.grants import Grants, Leases
from holdfast.store.maintenance import Maintenance
from holdfast.store.processes import Events, Processes
from holdfast.store.queue import Queue
from holdfast.store.session import Session
from holdfast.store.sessions import Sessions
from holdfast.store.triggers import Triggers

__all__ = [
    "Artifacts",
    "Attachments",
    "Context",
    "Events",
    "Grants",
    "Leases",
    "Maintenance",
    "Processes",
    "Queue",
    "Session",
    "SessionAttachments",
    "Sessions",
    "Store",
    "Triggers",
]


class Store:
    """An open store. Use it as an async context manager, or `close` it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.sessions = context.facet(Sessions)(context)
        self.queue = context.facet(Queue)(context)
        self.attachments = context.facet(Attachments)(context)
        self.processes = context.facet(Processes)(context)
        self.events = context.facet(Events)(context)
        self.grants = context.facet(Grants)(context)
        self.leases = context.facet(Leases)(context)
        self.triggers = context.facet(Triggers)(context)
        self.artifacts = context.facet(Artifacts)(context)
        self.maintenance = context.facet(Maintenance)(context)

    def __repr__(self) -> str:
        return f"Store({self._context.backend!r})"

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """Whether what is acknowledged survives the process."""
        return self._context.backend.durability

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return self._context.backend.schema_version

    @property
    def limits(self) -> Limits:
        """The bounds of one call, as the store was opened with.

        >>> store.limits.commit_nodes
        10000
        """
        return self._context.limits

    async def now_ms(self) -> int:
        """The time by this store's clock: on PostgreSQL the server's, otherwise the one that it was opened with.

        Ages of what is stored are reckoned from it, because the clock of this machine may be another.

        >>> work = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hello"]))
        >>> store.now_ms() >= work.enqueued_at_ms
        True
        """

        async def read(tx: Transaction) -> int:
            return tx.now_ms

        return await self._context.backend.read(read)

    def ddl(self) -> str:
        """The statements that make the schema, for those who run them by hand."""
        return self._context.backend.ddl()

    def within(self, connection: object) -> Store:
        """The same store inside a transaction that you began on a connection of your own to the same database.

        Rows of yours and what the store does then become durable together, or not at all. You end the transaction; the
        store never commits it, rolls it back or runs it again. A refused operation leaves the transaction as it was.
        The connection is asyncpg's, or apsw's with a write transaction; other connections, and a store in memory, are
        `InvalidRequest`. So are waits, housekeeping and bytes outside of the database.

        >>> import apsw
        >>> with holdfast.open_blocking("orders.db") as store:
        ...     connection = apsw.Connection("orders.db")
        ...     _ = connection.execute("CREATE TABLE orders (id TEXT)")
        ...     _ = connection.execute("BEGIN IMMEDIATE")
        ...     _ = connection.execute("INSERT INTO orders (id) VALUES ('order-1')")
        ...     work = holdfast.WorkDraft(session_id="chat-42", payloads=["ship it"], source_key="order-1")
        ...     _ = store.within(connection).queue.enqueue(work)
        ...     before = len(store.queue.list("chat-42"))
        ...     _ = connection.execute("COMMIT")
        ...     before, len(store.queue.list("chat-42"))
        (0, 1)
        """
        backend = self._context.backend.borrow(connection)
        return self._context.facet(Store)(msgspec.structs.replace(self._context, backend=backend, borrowed=True))

    async def close(self) -> None:
        """Finish what was accepted and let the database go; later calls are `StoreClosed`."""
        await self._context.backend.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
