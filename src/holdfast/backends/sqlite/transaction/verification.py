"""Scan every table by its key. Rows that cannot be read can be skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import apsw

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.sqlite.budget import Values
from holdfast.backends.sqlite.connection import statements
from holdfast.backends.sqlite.schema_setup import MEMORY, schema_text, table_names
from holdfast.backends.sqlite.transaction.base import BLOCK, Base, json_list
from holdfast.table_catalog import Key, all_fetched, key_of, smallest_key, table_of

R = TypeVar("R", bound=r.Row)


class Verification(Base):
    """Reads of every table, without trust in their contents."""

    __slots__ = ()

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        start = smallest_key(kind)
        if after is not None:
            start = dict(zip(start, after, strict=True))
        bindings = {**start, "inclusive": after is None, "skip": skip, "limit": limit}
        rows = all_fetched(kind, self._runner.page(f"walk_{table_of(kind)}", bindings, columns.PAGE_BYTES))
        return rows, key_of(rows[-1]) if rows else None

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        return all_fetched(kind, self._values(f"{table_of(kind)}_with_keys", (json_list(keys),)))

    async def present_keys(self, kind: type[r.Row], keys: Sequence[Key]) -> set[Key]:
        return set(self._values(f"keys_of_{table_of(kind)}", (json_list(keys),)))

    async def span(self, kind: type[r.Row], key: int | str) -> tuple[int, int, int]:
        [(least, greatest, count)] = self._numbers(f"span_of_{table_of(kind)}", (key,))
        return least, greatest, count

    async def count_endings(self, process_id: str) -> int:
        return self._number("count_endings", (process_id,))

    async def check_structures(self) -> list[str]:
        """Return SQLite's findings about its pages and indexes, and tables that are not declared as the schema says."""
        found = [problem for (problem,) in self._check_structures() if problem != "ok"]
        declared = _by_table(self._values("declared_columns", ()))
        for name in ("unlisted_nodes", "unlisted_turns", "doubled_nodes", "doubled_turns"):
            found += [problem for (problem,) in self._values(name, (BLOCK,))]
        for name in ("mislisted_nodes", "mislisted_turns"):
            found += [problem for (problem,) in self._values(name, ())]
        # SQLite finds nothing wrong with any value in a table without constraints.
        return found + [
            f"table {table} is not declared as it should be: its rules are lost"
            for table, columns in _declared().items()
            if table in declared and declared[table] != columns
        ]

    def _check_structures(self) -> Iterator[Values]:
        names = table_names()
        if not self._values("foreign_tables", (json_list(names),)):
            yield from self._values("check_structures", ())
            return
        # Tables of another program may have computed columns, which could take any time to check.
        for name in names:
            yield from self._values("check_structures_of_table", (name,))


@lru_cache(maxsize=1)
def _declared() -> dict[str, set[Values]]:
    """Return every column of every table as `schema.sql` declares it."""
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
