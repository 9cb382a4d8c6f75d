"""A transaction is a connection, one clock reading and the topics that it will publish; writers lock what they find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from holdfast import rows as r
from holdfast.backends.postgres.link import Link, Values
from holdfast.errors import Corrupt
from holdfast.ports import Clock

R = TypeVar("R", bound=r.Row)

TABLES: Final[dict[type[r.Row], tuple[str, int]]] = {
    r.SessionRow: ("sessions", 1),
    r.RevisionRow: ("revisions", 2),
    r.NodeRow: ("nodes", 1),
    r.UsageRow: ("usage", 2),
    r.BlobRow: ("blobs", 1),
    r.ObjectRow: ("attachment_objects", 1),
    r.BatchRow: ("work", 1),
    r.LeaseRow: ("leases", 2),
    r.AttachmentRow: ("attachments", 2),
    r.ProcessRow: ("processes", 1),
    r.EventRow: ("events", 2),
    r.GrantRow: ("grants", 3),
    r.SubscriptionRow: ("subscriptions", 1),
    r.OccurrenceRow: ("occurrences", 1),
    r.DeliveryRow: ("deliveries", 2),
    r.ArtifactRow: ("artifacts", 2),
    r.ArtifactHead: ("artifacts", 2),
}
"""The table of each kind of row, and how many of its first columns name a row in a message."""

NO_FAMILY: Final = 0
"""Of a session that does not exist: it owns nothing."""


class Seen(msgspec.Struct):
    """What a transaction leaves behind, as later ones may count on it once it is durable."""

    heads: list[tuple[r.SessionRow, r.RevisionRow | None]] = []
    processes: list[r.ProcessRow] = []


def fetched(kind: type[R], record: Sequence[Any]) -> R:
    """The row that these columns are, checked."""
    table, key_columns = TABLES[kind]
    values = tuple(record)
    return r.row_of(kind, values, table=table, key=values[:key_columns])


def all_fetched(kind: type[R], records: Sequence[Sequence[Any]]) -> list[R]:
    """The rows that these columns are, checked."""
    table, key_columns = TABLES[kind]
    return r.rows_of(kind, list(map(tuple, records)), table=table, key_columns=key_columns)


def columns_of(rows: Sequence[r.Row], count: int, *, first: int = 0) -> list[list[Any]]:
    """`count` columns of the rows as arrays, from the field `first` on."""
    if not rows:
        return [[] for _ in range(count)]
    columns = list(zip(*(msgspec.structs.astuple(row) for row in rows), strict=True))
    return [list(column) for column in columns[first : first + count]]


class Base:
    """What every family of tables builds on."""

    __slots__ = (
        "_clock", "_families", "_link", "_locked_families", "_now_ms", "_now_was_used", "_places", "_schema", "_writes",
        "again", "declined", "seen", "topics",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        now_ms: int,
        schema: str,
        *,
        writes: bool,
        again: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._link = link
        self._now_ms = now_ms
        self._now_was_used = False
        self._clock = clock
        # Kept for one transaction: after a failover or a restore, another session may have a lost one's key.
        self._families: dict[int, int] = {}
        self._schema = schema
        self._writes = writes
        self._locked_families: set[int] = set()
        self._places: dict[int, tuple[int, int]] = {}
        self.again = again
        self.declined = False
        self.topics: list[str] = []
        self.seen = Seen()

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading: the last one before it was first asked for."""
        self._now_was_used = True
        return self._now_ms

    @property
    def given_ms(self) -> int | None:
        """The time of a test's clock; None lets a server function read the server's, after its locks."""
        return None if self._clock is None else self._clock.now_ms()

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        return await self._link.all(name, *bindings)

    def notify(self, topic: str) -> None:
        """Wake those who wait on a topic, once and after the transaction is durable."""
        self.topics.append(topic)

    def _locking(self, find: str, lock: str) -> str:
        """The name of the statement that reads, and for a writer the one that locks what it reads."""
        return lock if self._writes else find

    async def _one(self, kind: type[R], name: str, *bindings: Any) -> R | None:
        found = await self._link.all(name, *bindings)
        return fetched(kind, found[0]) if found else None

    async def _locked(self, kind: type[R], find: str, lock: str, *bindings: Any) -> R | None:
        """Return the row, and lock it for a writer."""
        found = await self._all_locked(kind, find, lock, *bindings)
        return found[0] if found else None

    async def _all_locked(self, kind: type[R], find: str, lock: str, *bindings: Any) -> list[R]:
        """Return the rows, and lock them for a writer.

        The statement that locks returns the server's clock behind the columns, so that whatever expires is judged by a
        reading that is younger than its lock.
        """
        if not self._writes:
            return await self._all(kind, find, *bindings)
        found = await self._link.all(lock, *bindings)
        if found:
            # Rows are locked one after the other: only the last reading is younger than all of the locks.
            self._read_behind_lock(found[-1][-1])
        return all_fetched(kind, [tuple(values)[:-1] for values in found])

    def _read_behind_lock(self, server_ms: int) -> None:
        """Take a later reading of the clock, unless the operation has used one already."""
        if not self._now_was_used:
            self._now_ms = server_ms if self._clock is None else self._clock.now_ms()

    async def _all(self, kind: type[R], name: str, *bindings: Any) -> list[R]:
        return all_fetched(kind, await self._link.all(name, *bindings))

    async def _run(self, name: str, *bindings: Any) -> int:
        return await self._link.run(name, *bindings)

    async def _values(self, name: str, *bindings: Any) -> list[Values]:
        return await self._link.all(name, *bindings)

    async def _numbers(self, name: str, *bindings: Any) -> list[Values]:
        """Rows of nothing but whole numbers: a column whose type was changed may hold anything."""
        found = await self._link.all(name, *bindings)
        if any(type(number) is not int for values in found for number in values):
            raise Corrupt("database", self._schema, "a column of numbers holds something else")
        return found

    async def _number(self, name: str, *bindings: Any) -> int:
        [(number,)] = await self._link.all(name, *bindings)
        return int(number)

    async def _store(self, name: str, row: r.Row) -> int:
        return await self._link.run(name, *msgspec.structs.astuple(row))

    async def _family(self, session_key: int) -> int:
        """The family that a session belongs to; every key of what it owns begins with it."""
        return (await self._families_of([session_key]))[session_key]

    async def _families_of(self, session_keys: Iterable[int]) -> dict[int, int]:
        wanted = set(session_keys)
        unknown = [key for key in wanted if key not in self._families]
        if unknown:
            self._families.update((key, family) for key, family in await self._link.all("find_families", unknown))
        return {key: self._families.get(key, NO_FAMILY) for key in wanted}

    async def _lock_family(self, family: int) -> None:
        """Hold every session of the family, so that what they share can be judged. Does nothing for a reader."""
        if not self._writes or family in self._locked_families:
            return
        held: list[Values] | None = None
        # Whoever forks holds the session that it forks, so that a fork that we waited for shows in the next round.
        while True:
            found = [tuple(values) for values in await self._link.all("lock_family", family)]
            if found == held:
                break
            held = found
        self._locked_families.add(family)
