"""Scan every table by its primary key. Rows that cannot be read can be skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.postgres.transaction.base import Base
from holdfast.label_rows import LabelRow
from holdfast.limit_rows import LimitRow, SlotRow, WaitingKeyRow
from holdfast.records.limits import SMALLEST_INTEGER
from holdfast.table_catalog import Key, ObjectDeletion, Setting, StoredUsage, all_fetched, smallest_key, table_of

R = TypeVar("R", bound=r.Row)

FAMILY_FIRST: Final[dict[type[r.Row], Key]] = {
    r.RevisionRow: (SMALLEST_INTEGER, SMALLEST_INTEGER, SMALLEST_INTEGER),
    r.NodeRow: (SMALLEST_INTEGER, SMALLEST_INTEGER),
    StoredUsage: (SMALLEST_INTEGER, SMALLEST_INTEGER, "", ""),
    r.BatchRow: (SMALLEST_INTEGER, SMALLEST_INTEGER, SMALLEST_INTEGER),
    r.ReadyRow: (SMALLEST_INTEGER, SMALLEST_INTEGER),
    r.AttachmentRow: (SMALLEST_INTEGER, SMALLEST_INTEGER, ""),
}
"""Tables whose rows do not begin with the primary key, and the smallest value of that key."""

NARROW: Final = (
    StoredUsage,
    r.ReadyRow,
    LimitRow,
    SlotRow,
    WaitingKeyRow,
    r.LeaseRow,
    r.AttachmentRow,
    LabelRow,
    ObjectDeletion,
    r.DeliveryRow,
    Setting,
)
"""Tables without a column of bytes: their pages are limited by rows only."""


class Verification(Base):
    """Reads of every table, without trust in their contents."""

    __slots__ = ()

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        least = FAMILY_FIRST.get(kind) or tuple(smallest_key(kind).values())
        start = least if after is None else after
        most_bytes = () if kind in NARROW else (columns.PAGE_BYTES,)
        found = await self._values(f"walk_{table_of(kind)}", *start, after is None, skip, limit, *most_bytes)
        key_columns = len(least) if kind in FAMILY_FIRST else 0
        rows = all_fetched(kind, [tuple(values)[key_columns:] for values in found])
        return rows, tuple(found[-1])[: len(least)] if found else None

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        if not keys:
            return []
        columns = [list(column) for column in zip(*keys, strict=True)]
        if kind in FAMILY_FIRST:
            owners = [int(key) >> r.POSITION_BITS if kind is r.NodeRow else int(key) for key in columns[0]]
            families = await self._families_of(owners)
            columns.insert(0, [families[owner] for owner in owners])
        return all_fetched(kind, await self._values(f"{table_of(kind)}_with_keys", *columns))

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        return {tuple(row) for row in await self._values(f"keys_of_{table_of(kind)}", *columns)} if columns else set()

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        bindings: list[int | str] = [key]
        if kind in FAMILY_FIRST:
            bindings.append(await self._family(int(key)))
        [(least, greatest, count)] = await self._values(f"span_of_{table_of(kind)}", *bindings)
        return least, greatest, count

    async def count_endings(self, process_id: str) -> int:
        return await self._number("count_endings", process_id)

    async def check_structures(self) -> list[str]:
        """Return problems of this schema. For pages and indexes, PostgreSQL has its own tools (checksums, amcheck)."""
        return [problem for (problem,) in await self._values("check_structures")]
