"""Check row counts of writes. A write that misses a row read in the same transaction is damage, never success."""

from __future__ import annotations

from holdfast.errors import Corrupt


def expect_rows(count: int, table: str, key: object, *, expected: int = 1) -> None:
    """Raises Corrupt unless all rows that were read in this transaction were written."""
    if count != expected:
        raise Corrupt(table, str(key), f"{count} rows were written where {expected} were read")


def damage_of(damage: Corrupt, table: str, key: str) -> Corrupt:
    """Return the error of a damaged row that was put off. Names the row if only the database could be named."""
    return Corrupt(table, key, damage.reason) if damage.table == "database" else damage
