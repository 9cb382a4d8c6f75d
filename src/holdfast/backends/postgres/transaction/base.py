"""Base of the transaction: a connection, one clock reading, and topics to publish. Writers lock the rows they find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.connection import StatementRunner, Values
from holdfast.backends.postgres.transaction.function_calls import NO_FAMILY, FunctionCalls
from holdfast.errors import Corrupt
from holdfast.ports import Clock
from holdfast.records.limits import MIB
from holdfast.table_catalog import all_fetched, fetched

R = TypeVar("R", bound=r.Row)

PORTION_BYTES: Final = 8 * MIB
PORTION_ROWS: Final = 2_000
"""Most bytes and rows of one statement, if it can be divided."""


class Seen(msgspec.Struct):
    """Rows that a transaction wrote or saw, to be cached once it is durable."""

    heads: list[tuple[r.SessionRow, r.RevisionRow | None]] = []
    processes: list[r.ProcessRow] = []


def columns_of(rows: Sequence[r.Row], count: int, *, first: int = 0) -> list[list[Any]]:
    """Return `count` columns of the rows as arrays, from the field `first` on."""
    if not rows:
        return [[] for _ in range(count)]
    columns = list(zip(*(msgspec.structs.astuple(row) for row in rows), strict=True))
    return [list(column) for column in columns[first : first + count]]


def unpacked_bytes(rows: Sequence[object]) -> int:
    """Return the size of the rows' contents after decompression."""
    return sum(row.size for row in rows if isinstance(row, r.BlobRow | r.ObjectRow | r.ArtifactRow))


def fits(rows: Sequence[r.Row]) -> bool:
    """Return whether one statement may carry all of these rows."""
    return len(rows) <= PORTION_ROWS and sum(map(_weight, rows)) <= PORTION_BYTES


def _weight(row: r.Row) -> int:
    return columns.weight(msgspec.structs.astuple(row))


def portions(rows: Sequence[R]) -> list[Sequence[R]]:
    """Divide rows so that the driver, which encodes on the event loop, blocks it for one part at a time."""
    parts: list[Sequence[R]] = []
    first = size = 0
    for place, row in enumerate(rows):
        weight = _weight(row)
        if place > first and (size + weight > PORTION_BYTES or place - first >= PORTION_ROWS):
            parts.append(rows[first:place])
            first, size = place, 0
        size += weight
    return [*parts, rows[first:]]


class Base(FunctionCalls):
    """Common base of the transaction's parts."""

    __slots__ = (
        "_clock",
        "_families",
        "_locked_families",
        "_now_ms",
        "_now_was_used",
        "_runner",
        "_schema",
        "_writes",
        "declined",
        "is_retry",
        "seen",
        "topics",
    )  # fmt: skip

    def __init__(
        self,
        runner: StatementRunner,
        now_ms: int,
        schema: str,
        *,
        writes: bool,
        is_retry: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._runner = runner
        self._now_ms = now_ms
        self._now_was_used = False
        self._clock = clock
        # Cached for one transaction only: after a failover or a restore, another session may have a lost one's key.
        self._families: dict[int, int] = {}
        self._schema = schema
        self._writes = writes
        self._locked_families: set[int] = set()
        self.is_retry = is_retry
        self.declined = False
        self.topics: list[str] = []
        self.seen = Seen()

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading: the last one taken before its first use."""
        self._now_was_used = True
        return self._now_ms

    @property
    def given_ms(self) -> int | None:
        """The time of a test clock; None lets a server function read the server's clock, after its locks."""
        return None if self._clock is None else self._clock.now_ms()

    async def _call(self, name: str, *bindings: Any) -> Sequence[Sequence[Any]]:
        return await self._runner.all(name, *bindings)

    def notify(self, topic: str) -> None:
        """Wake the waiters on a topic, once and after the transaction is durable."""
        self.topics.append(topic)

    def _locking(self, name: str) -> str:
        """Return the statement for a writer or, for a reader, the same without its lock."""
        return name if self._writes else f"{name}+"

    async def _one(self, kind: type[R], name: str, *bindings: Any) -> R | None:
        found = await self._runner.all(name, *bindings)
        row = fetched(kind, found[0]) if found else None
        await self._runner.before_unpacking(unpacked_bytes([row]))
        return row

    async def _locked(self, kind: type[R], name: str, *bindings: Any, find: str | None = None) -> R | None:
        """Return the row, and lock it for a writer."""
        found = await self._all_locked(kind, name, *bindings, find=find)
        return found[0] if found else None

    async def _all_locked(self, kind: type[R], name: str, *bindings: Any, find: str | None = None) -> list[R]:
        """Return the rows, and lock them for a writer. A reader runs `find` or else the statement without its lock.

        The statement that locks returns the server's clock after the columns, so that expiry is judged by a reading
        that is younger than the lock.
        """
        if not self._writes:
            return await self._all(kind, find or f"{name}+", *bindings)
        found = await self._runner.all(name, *bindings)
        if found:
            # Rows are locked one after the other: only the last reading is younger than all of the locks.
            self._read_behind_lock(found[-1][-1])
        return all_fetched(kind, [tuple(values)[:-1] for values in found])

    def _read_behind_lock(self, server_ms: int) -> None:
        """Take a later reading of the clock, unless the operation has used one already."""
        if not self._now_was_used:
            self._now_ms = server_ms if self._clock is None else self._clock.now_ms()

    async def _all(self, kind: type[R], name: str, *bindings: Any) -> list[R]:
        rows = all_fetched(kind, await self._runner.all(name, *bindings))
        await self._runner.before_unpacking(unpacked_bytes(rows))
        return rows

    async def _run(self, name: str, *bindings: Any) -> int:
        return await self._runner.run(name, *bindings)

    async def _values(self, name: str, *bindings: Any) -> list[Values]:
        return await self._runner.all(name, *bindings)

    async def _numbers(self, name: str, *bindings: Any) -> list[Values]:
        """Return rows of whole numbers. Raises Corrupt for other values: a column's type may have been changed."""
        found = await self._runner.all(name, *bindings)
        if any(type(number) is not int for values in found for number in values):
            raise Corrupt("database", self._schema, "a column of numbers holds something else")
        return found

    async def _number(self, name: str, *bindings: Any) -> int:
        [(number,)] = await self._runner.all(name, *bindings)
        return int(number)

    async def _store(self, name: str, row: r.Row) -> int:
        return await self._runner.run(name, *msgspec.structs.astuple(row))

    async def _family(self, session_key: int) -> int:
        """Return the family of a session. Keys of all that the session owns begin with it."""
        return (await self._families_of([session_key]))[session_key]

    async def _families_of(self, session_keys: Iterable[int]) -> dict[int, int]:
        wanted = set(session_keys)
        unknown = [key for key in wanted if key not in self._families]
        if unknown:
            self._families.update((key, family) for key, family in await self._runner.all("find_families", unknown))
        return {key: self._families.get(key, NO_FAMILY) for key in wanted}

    async def _lock_family(self, family: int) -> None:
        """Lock every session of the family, so that rows they share can be judged. Does nothing for a reader."""
        if not self._writes or family in self._locked_families:
            return
        held: list[Values] | None = None
        # A fork locks its source. So a fork whose lock was waited for here appears in the next round.
        while True:
            found = [tuple(values) for values in await self._runner.all("lock_family", family)]
            if found == held:
                break
            held = found
        self._locked_families.add(family)
