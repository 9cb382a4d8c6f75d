"""The store: one database, seen through its facets.

Every method but housekeeping and waits is one transaction.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal

import msgspec

from holdfast.operations import positions
from holdfast.ports import Transaction
from holdfast.ports.observer import Observer
from holdfast.ports.queries import Freshness
from holdfast.records.common import Receipt
from holdfast.records.limits import Limits
from holdfast.rules import checks
from holdfast.rules import positions as position_rules
from holdfast.store.artifacts import Artifacts
from holdfast.store.attachments import Attachments, SessionAttachments
from holdfast.store.context import Context
from holdfast.store.events import Events
from holdfast.store.grants import Grants
from holdfast.store.leases import Leases
from holdfast.store.maintenance import Maintenance
from holdfast.store.processes import Processes
from holdfast.store.queue import Queue
from holdfast.store.schedules import Schedules
from holdfast.store.session import Session
from holdfast.store.sessions import Sessions
from holdfast.store.transaction import MOST_MS, TransactionBlock
from holdfast.store.triggers import Triggers
from holdfast.store.workers import Workers

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
    "Schedules",
    "Session",
    "SessionAttachments",
    "Sessions",
    "Store",
    "Triggers",
    "Workers",
]


READ_WAIT_MS = 100
"""Time for a replica to reach a position: longer than replication takes as a rule, shorter than a user notices."""


TRANSACTION_MS = 5_000
"""Time limit of a transaction: long for a database, and shorter than other processes wait for a SQLite file."""


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
        self.schedules = context.facet(Schedules)(context)
        self.artifacts = context.facet(Artifacts)(context)
        self.workers = context.facet(Workers)(context)
        self.maintenance = context.facet(Maintenance)(context)

    def __repr__(self) -> str:
        return f"Store({self._context.backend!r})"

    @property
    def durability(self) -> Literal["ephemeral", "durable"]:
        """`durable` if acknowledged writes survive the process, else `ephemeral`."""
        return self._context.backend.durability

    @property
    def schema_version(self) -> int:
        """The version of the stored schema."""
        return self._context.backend.schema_version

    @property
    def limits(self) -> Limits:
        """The bounds of one call that the store was opened with.

        >>> store.limits.commit_nodes
        10000
        """
        return self._context.limits

    @property
    def observers(self) -> tuple[Observer, ...]:
        """The observers that the store was opened with."""
        return () if self._context.observing is None else self._context.observing.observers

    async def now_ms(self) -> int:
        """Return the time of this store's clock: the server's on PostgreSQL, otherwise the clock it was opened with.

        Compute ages of stored data from this time: the clock of this machine may differ.

        >>> work = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hello"]))
        >>> store.now_ms() >= work.enqueued_at_ms
        True
        """

        async def read(tx: Transaction) -> int:
            return tx.now_ms

        return await self._context.backend.read(read)

    def ddl(self) -> str:
        """Return the statements that create the schema, to be run by hand."""
        return self._context.backend.ddl()

    def within(self, connection: object) -> Store:
        """Return this store inside a transaction that you began on your own connection to the same database.

        Your rows and the store's then become durable together, or not at all. You end the transaction; the store never
        commits it, rolls it back or runs it again. A refused operation leaves the transaction as it was.
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
        backend = self._context.backend.within(connection)
        return self._context.facet(Store)(
            msgspec.structs.replace(self._context, backend=backend, enclosing="connection")
        )

    def transaction(self, *, timeout_ms: int = TRANSACTION_MS) -> TransactionBlock:
        """Return a block in which `tx`, a store like this one, makes several calls as one transaction.

        The end of the block commits all of them, and returns once they are durable. An exception rolls all of them
        back. A call that is refused leaves the transaction as it was: continue, or raise. Each call of `tx` must end
        before the next begins. Waits, housekeeping and bytes outside of the database are `InvalidRequest`, and so are
        writes through this store inside the block: they would wait for its end. Reads through this store show the state
        before it.

        Until its end no other transaction writes in memory and on SQLite, or writes to the same sessions on PostgreSQL.
        So a block that is open for longer than `timeout_ms` is rolled back: `TransactionExpired` at its next call or at
        its end. The body is never run again. `Unavailable` with the outcome `unknown` says that the commit may have
        happened.

        >>> with store.transaction() as tx:
        ...     _ = tx.sessions.create("chat-42")
        ...     _ = tx.queue.enqueue(holdfast.WorkDraft(session_id="mail", payloads=["chat-42 is new"]))
        >>> store.sessions.handle("chat-42").meta().session_id, len(store.queue.list("mail"))
        ('chat-42', 1)
        """
        self._context.refuse_within("another transaction")
        allowed_ms = checks.whole("timeout_ms", timeout_ms, least=1, most=MOST_MS)
        return TransactionBlock(self._context, self._context.facet(Store), allowed_ms)

    async def position(self) -> str:
        """Return a position, for `reading(after=...)`, that is not older than any call acknowledged until now.

        A receipt has its own position. Use this after calls that return no receipt, such as `queue.enqueue`. On
        PostgreSQL it is a small write.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hello"]))
        >>> len(store.reading(after=store.position()).queue.list("chat-42"))
        1
        """
        return await self._context.backend.write(positions.position)

    def reading(
        self, *, after: Receipt | str | None = None, wait_ms: int = READ_WAIT_MS, fall_back: bool = True
    ) -> Store:
        """Return this store for reads only, answered by the replica that `PostgresOptions(read_url=...)` names.

        With `after`, a receipt or its position, no answer is older than that. A replica gets `wait_ms` milliseconds to
        catch up. Then the primary answers, also if there is no replica or it cannot be reached; with `fall_back=False`
        the read is refused instead (`ReplicaBehind`, `Unavailable`). A position whose write was rolled back or lost is
        `UnknownPosition`. Writes, waits and housekeeping are `InvalidRequest`: nothing is decided on a stale answer. In
        memory and on SQLite every answer is the newest.

        >>> session = store.sessions.create("chat-42")
        >>> receipt = session.commit(holdfast.Commit(turn_id="turn-1"))
        >>> store.reading(after=receipt).sessions.handle("chat-42").load().revision
        1
        """
        self._context.refuse_within("a read from a replica")
        freshness = Freshness(
            position_rules.position_of(after), checks.timeout("wait_ms", wait_ms), checks.flag("fall_back", fall_back)
        )
        backend = self._context.backend.reader(freshness)
        return self._context.facet(Store)(msgspec.structs.replace(self._context, backend=backend))

    async def close(self) -> None:
        """Finish accepted calls and close the database. Later calls are `StoreClosed`."""
        await self._context.backend.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
