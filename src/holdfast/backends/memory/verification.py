"""Scan every table of a memory store. Rows in memory are never unreadable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from holdfast import rows as r
from holdfast import table_catalog
from holdfast.backends.memory.tables import Table, Tables, starting_with
from holdfast.table_catalog import Key

R = TypeVar("R", bound=r.Row)

_columns = msgspec.structs.astuple


class MemoryVerification:
    """Implements `ports.VerificationTables`."""

    tables: Tables

    def _table(self, kind: type[r.Row]) -> Table[Any, Any]:
        return self.tables.all()[table_catalog.table_of(kind)]

    def _whole(self, kind: type[R], key: Any, row: Any) -> R:
        """Return the row by the columns of the table catalog."""
        if kind is table_catalog.StoredUsage:
            return cast("R", table_catalog.StoredUsage(key[0], *_columns(row)))
        if kind is table_catalog.StoredBlob:
            blob = table_catalog.StoredBlob(key[0], row.hash, row.encoding, row.base_hash, row.size, row.body)
            return cast("R", blob)
        if kind is table_catalog.StoredObject:
            return cast("R", table_catalog.StoredObject(*key, *_columns(row)))
        if kind is table_catalog.ObjectDeletion:
            return cast("R", table_catalog.ObjectDeletion(*key))
        if kind is table_catalog.Setting:
            return cast("R", table_catalog.Setting(key, row))
        if isinstance(row, r.NodeRow):
            parent = None if row.parent_key is None else self.tables.nodes.get(row.parent_key)
            return cast("R", msgspec.structs.replace(row, parent_id=None if parent is None else parent.node_id))
        return cast("R", row)

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        table = self._table(kind)
        first = None if after is None else _plain(after)
        keys = [key for key in table.keys_between(first) if key != first][skip : skip + limit]
        rows = [self._whole(kind, key, table.get(key)) for key in keys]
        return rows, table_catalog.key_of(rows[-1]) if rows else None

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        table = self._table(kind)
        plain = [_plain(key) for key in keys]
        return [self._whole(kind, key, row) for key in plain if (row := table.get(key)) is not None]

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        table = self._table(kind)
        return {key for key in keys if table.get(_plain(key)) is not None}

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        if kind is r.SessionRow:
            found = [row.incarnation for row in self.tables.sessions.of(key)]
        elif kind is r.NodeRow:
            first = int(key) << r.POSITION_BITS
            last = first + (1 << r.POSITION_BITS) - 1
            found = self.tables.nodes.keys_between(first, last)
        else:
            found = [int(place[1]) for place in self._table(kind).keys_between(*starting_with(key))]
        return (min(found), max(found), len(found)) if found else (0, 0, 0)

    async def count_endings(self, process_id: str) -> int:
        found = self.tables.events.between(*starting_with(process_id))
        return sum(row.terminal_state is not None for row in found)

    async def check_structures(self) -> list[str]:
        return []


def _plain(key: Key) -> Any:
    """Return a key in the form of the tables: not as a tuple if it is one column."""
    return key[0] if len(key) == 1 else key
