"""Every table can be walked by its key, and a row that cannot be read can be stepped over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import apsw

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.sqlite.link import Values, statements
from holdfast.backends.sqlite.opening import MEMORY, schema_text
from holdfast.backends.sqlite.transaction.base import Base, json_list
from holdfast.inventory import Key, key_of, rows_of, smallest_key, table_of

R = TypeVar("R", bound=r.Row)


class Verification(Base):
    """Everything, to be read and not to be trusted."""

    __slots__ = ()

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        start = smallest_key(kind)
        if after is not None:
            start = dict(zip(start, after, strict=True))
        bindings = {**start, "inclusive": after is None, "skip": skip, "limit": limit}
        rows = rows_of(kind, self._link.page(f"walk_{table_of(kind)}", bindings, columns.PAGE_BYTES))
        return rows, key_of(rows[-1]) if rows else None

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        return rows_of(kind, self._values(f"{table_of(kind)}_with_keys", (json_list(keys),)))

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        return set(self._values(f"keys_of_{table_of(kind)}", (json_list(keys),)))

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        [(least, greatest, count)] = self._numbers(f"span_of_{table_of(kind)}", (key,))
        return least, greatest, count

    async def count_nodes(self, segment: r.Segment) -> int:
        bindings = (segment.session_key, segment.epoch, segment.first_key, segment.last_key)
        return self._number("count_nodes", bindings)

    async def count_endings(self, process_id: str) -> int:
        return self._number("count_endings", (process_id,))

    async def check_structures(self) -> list[str]:
        """What SQLite finds wrong with its pages and indexes, and which tables lost their rules."""
        found = [problem for (problem,) in self._values("check_structures", ()) if problem != "ok"]
        declared = _by_table(self._values("declared_columns", ()))
        # A table that forbids nothing may hold anything, and then SQLite finds nothing wrong with it.
        return found + [
            f"table {table} is not declared as it should be: its rules are lost"
            for table, columns in _declared().items()
            if table in declared and declared[table] != columns
        ]


@lru_cache(maxsize=1)
def _declared() -> dict[str, set[Values]]:
    """Every column of every table as our schema declares it."""
    connection = apsw.Connection(MEMORY)
    try:
        connection.execute(schema_text())
        return _by_table(connection.execute(statements()["declared_columns"]).fetchall())
    finally:
        connection.close()


def _by_table(columns: Iterable[Values]) -> dict[str, set[Values]]:
    found: dict[str, set[Values]] = {}
    for table, *column in columns:
        found.setdefault(table, set()).add(tuple(column))
    return found
