"""The tables as verification reads them: all of them, even around rows that cannot be read.

Every method is one trip and changes nothing. A row that cannot be read is `Corrupt`, and a scan can step over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast.errors import Corrupt
from holdfast.rows import Row
from holdfast.table_catalog import Key

R = TypeVar("R", bound=Row)


class Endless(Corrupt):
    """Stored rows without an end. For callers it is `Corrupt`; verification does not try to step over them."""


class VerificationTables(Protocol):
    """Every table of `holdfast.table_catalog`, in full."""

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        """Return rows of a table beyond the place `after` (None: from the start), without the first `skip` of those.

        Also return the place of the last row, or None. A page may end one row after its documents and
        contents reach `PAGE_BYTES`; it has a row if there is one. Places ascend and are otherwise opaque, but the rows
        of one session or process are adjacent, in the order of their keys.
        """
        ...

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        """Return sessions, revisions, nodes or processes by key, in any order; nodes perhaps without documents."""
        ...

    async def present_keys(self, kind: type[Row], keys: Sequence[Key]) -> set[Key]:
        """Return those of the keys that exist: of blobs, objects, processes, occurrences or subscriptions."""
        ...

    async def span(self, kind: type[Row], key: int | str) -> tuple[int, int, int]:
        """Return the least, the greatest and the number; zeros without rows.

        They are of the incarnations of a session id, of the revisions or node keys of a session key, or of the
        sequences of a process id's events.
        """
        ...

    async def count_endings(self, process_id: str) -> int:
        """Count the events of a process that have a terminal state."""
        ...

    async def check_structures(self) -> list[str]:
        """Return the problems that the database itself finds in its pages and indexes, in its own words."""
        ...
