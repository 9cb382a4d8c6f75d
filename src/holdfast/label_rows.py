"""The row of a label, and the filter of a page of sessions. See `rows`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.columns import SessionKey
from holdfast.records.limits import CHANGE_BUCKET_MS, LARGEST_INTEGER
from holdfast.rows import Row, SessionRow

SessionOrder: TypeAlias = Literal["made", "id", "changed", "newest"]

FEW = 10_000
"""A label of at most so many sessions is read whole and sorted. A more frequent one is met soon in any order."""


FIRST_CHARACTER = "\x01"
"""The least character of an id, which holds no NUL."""


class Start(NamedTuple):
    """The place where a page begins: after (minute, key) or after the key, or at the id, as its order says."""

    minute: int
    key: int
    id: str


class LabelRow(Row, frozen=True):
    """One label of one session."""

    family: SessionKey
    session_key: SessionKey
    key: str
    value: str


class SessionFilter(msgspec.Struct, frozen=True):
    """A page of live sessions in one of four orders. `labels` are (key, value) pairs that a session has all of.

    The orders: by key (`made`), by id, by (minute of change, key), and the reverse of that (`newest`).
    """

    limit: int
    owner: str | None = None
    parent: str | None = None
    changed_since_ms: int | None = None
    after: tuple[Any, ...] | None = None
    first_id: str = ""
    """The least id, included."""
    before_id: str | None = None
    """The end of the ids, excluded."""
    labels: tuple[tuple[str, str], ...] = ()
    order: SessionOrder = "made"

    def place(self, row: SessionRow) -> tuple[int | str, ...]:
        """Return the place of a session in this order."""
        match self.order:
            case "made":
                return (row.session_key,)
            case "id":
                return (row.session_id,)
            case "changed" | "newest":
                return (row.changed_at_ms // CHANGE_BUCKET_MS, row.session_key)

    def follows(self, row: SessionRow) -> bool:
        """Return True if a session comes after the place where the page before ended."""
        if self.after is None:
            return True
        return self.place(row) < self.after if self.order == "newest" else self.place(row) > self.after

    @property
    def is_bounded(self) -> bool:
        """True if only a range of ids is listed."""
        return self.first_id != "" or self.before_id is not None

    def start(self) -> Start:
        """Return the place where the page begins."""
        match self.order:
            case "made":
                return Start(0, 0 if self.after is None else self.after[0], self.first_id)
            case "id":
                least = "" if self.after is None else self.after[0] + FIRST_CHARACTER
                return Start(0, 0, max(self.first_id, least))
            case "changed":
                # Keys start at 1, so (minute, 0) is before every session that changed in that minute.
                since = ((self.changed_since_ms or 0) // CHANGE_BUCKET_MS, 0)
                minute, key = max(since, self.after or since)
                return Start(minute, key, self.first_id)
            case "newest":
                minute, key = self.after or (LARGEST_INTEGER, LARGEST_INTEGER)
                return Start(minute, key, self.first_id)
