"""A write that must hit a row and hits none is damage, never success."""

from __future__ import annotations

from holdfast.errors import Corrupt


def hit(count: int, table: str, key: object, *, expected: int = 1) -> None:
    """The row that was read in this transaction must still be there to be written."""
    if count != expected:
        raise Corrupt(table, str(key), f"{count} rows were written where {expected} were read")
