"""The table of labels that a database must provide. See `tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.label_rows import LabelRow
from holdfast.rows import SessionRow


class LabelTables(Protocol):
    """Labels of sessions. Deleting a session's content deletes them."""

    async def read_labels(self, sessions: Sequence[SessionRow]) -> list[LabelRow]:
        """Return the labels of these sessions, in any order."""
        ...

    async def save_labels(self, rows: Sequence[LabelRow]) -> None:
        """Insert, or overwrite the value."""
        ...

    async def drop_labels(self, session: SessionRow, keys: Sequence[str]) -> int:
        """Delete labels of a session. Return the count."""
        ...
