"""What a database must provide so that verification can read all of it, even around rows that cannot be read.

Every method is one trip and changes nothing. A row that cannot be read is `Corrupt`, and a scan can step over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from holdfast.inventory import Key
from holdfast.rows import Row, Segment

R = TypeVar("R", bound=Row)


class VerificationTables(Protocol):
    """Every table of `holdfast.inventory`, in full."""

    async def scan_rows(self, kind: type[R], *, after: Key | None, skip: int, limit: int) -> tuple[list[R], Key | None]:
        """Rows of a table beyond the place `after` (None: from the start), without the first `skip` of those.

        A page may end one row after its documents and contents reach `PAGE_BYTES`; it has a row if there is one.
        And the place of the last one, None if there is none. Places ascend; what they are made of is the backend's
        own affair, but the rows that a session or a process owns stand together, in the order of their keys.
        """
        ...

    async def find_rows(self, kind: type[R], keys: Sequence[Key]) -> list[R]:
        """Sessions, revisions, nodes or processes with these keys, in any order; nodes perhaps without documents."""
        ...

    async def present_keys(self, kind: type[Row], keys: Sequence[Key]) -> set[Key]:
        """Those of the keys under which there is a blob, an object, a process, an occurrence or a subscription."""
        ...

    async def span(self, kind: type[Row], key: int | str) -> tuple[int, int, int]:
        """The least, the greatest and the number; zeros if there are none.

        Of the incarnations of a session id, or of the revisions or the nodes' keys of a session key, or of the
        sequences of a process id's events.
        """
        ...

    async def count_nodes(self, segment: Segment) -> int:
        """How many nodes of a segment are stored."""
        ...

    async def count_endings(self, process_id: str) -> int:
        """How many events of a process have a terminal state."""
        ...

    async def check_structures(self) -> list[str]:
        """What the database itself finds wrong with its pages and indexes, in its own words."""
        ...
