"""Limit the steps and the result of a statement to what an intact file of that size can need.

The pages of a hostile file may lead to the same rows again and again, so that a scan of some kilobytes would never end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from holdfast.errors import Corrupt
from holdfast.ports.verification import Endless
from holdfast.records.limits import MIB

Values: TypeAlias = tuple[Any, ...]
Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

STEPS_AT_A_TIME: Final = 100_000
"""Steps between two calls of the progress handler: about a millisecond, so never in a short statement."""

BASE_STEPS, STEPS_PER_BYTE = 10_000_000, 8
"""Most steps of a statement: a base, and more for each byte of the file.

Intact files were measured to need 0.15 per byte, in SQLite's check of its own structures.
"""

STEPS_PER_BOUND_BYTE = 100
"""Further steps for each byte of its parameters: a list of ids is looked up one by one."""

ROWS_AT_A_TIME: Final = 16
ROW_BYTES: Final = 200
"""Memory of a row, without its texts and documents."""

BASE_BYTES, BYTES_PER_BYTE = 64 * MIB, 16
"""Most bytes of all rows of a statement: a base, and more for each byte of the file."""


class Budget:
    """Use of the current statement on a connection. Without a file there is no limit."""

    __slots__ = ("_bindings", "_path", "_rounds", "is_exhausted")

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._bindings: Bindings | None = None
        self._rounds = 0
        self.is_exhausted = False

    def begin(self, bindings: Bindings | None) -> None:
        """Begin a statement. Without bindings, it runs once for each given row and has no limit."""
        self._bindings = bindings
        self._rounds = 0
        self.is_exhausted = False

    def stop(self) -> bool:
        """Return whether SQLite should stop. Called every `STEPS_AT_A_TIME` steps."""
        self._rounds += 1
        steps = self._rounds * STEPS_AT_A_TIME
        if steps > BASE_STEPS and self._bindings is not None and self._path is not None:
            given = STEPS_PER_BOUND_BYTE * _bound_bytes(self._bindings)
            self.is_exhausted = steps > BASE_STEPS + given + STEPS_PER_BYTE * _bytes_of(self._path)
        return self.is_exhausted

    def fetch(self, rows: Iterator[Values]) -> list[Values]:
        """Return every row. Raises `Corrupt` once they have more bytes than the file allows."""
        part = found = list(islice(rows, ROWS_AT_A_TIME))
        total = 0
        while len(part) == ROWS_AT_A_TIME:
            total += ROW_BYTES * len(part) + sum(
                [len(value) for values in part for value in values if type(value) is bytes or type(value) is str]
            )
            if total > BASE_BYTES and self._path is not None:
                self.is_exhausted = total > BASE_BYTES + BYTES_PER_BYTE * _bytes_of(self._path)
                if self.is_exhausted:
                    raise self.error()
            part = list(islice(rows, ROWS_AT_A_TIME))
            found += part
        return found

    def error(self) -> Corrupt:
        """Return the error for a statement that exceeds its limits."""
        reason = "its rows continue beyond what a file of this size can hold: pages of it lead to each other"
        return Endless("database", str(self._path), reason)


def _bound_bytes(bindings: Bindings) -> int:
    values = bindings.values() if isinstance(bindings, Mapping) else bindings
    return sum(len(value) for value in values if isinstance(value, str | bytes))


def _bytes_of(path: str) -> int:
    """Return the size of a file and its log. Called only for statements that take long."""
    return sum(file.stat().st_size for file in (Path(path), Path(f"{path}-wal")) if file.exists())
