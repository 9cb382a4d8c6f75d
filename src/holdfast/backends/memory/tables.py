"""Tables in memory: dictionaries whose writes are staged until the transaction commits.

Rows that are scanned or staged on an event loop are charged to its budget. So an operation over many rows, however
small they are, starts over in another thread, before anything of it is committed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from holdfast import rows as r
from holdfast.label_rows import LabelRow
from holdfast.limit_rows import LimitRow, SlotRow, WaitingKeyRow
from holdfast.loop_budget import charge_rows
from holdfast.schedule_rows import ScheduleRow
from holdfast.stream_rows import StreamRow
from holdfast.worker_rows import WorkerRow

SCAN_WEIGHT = 64
"""Weight of a row that is scanned, in bytes of text."""
WRITE_WEIGHT = 512
"""Weight of a row that is staged and committed."""

K = TypeVar("K")
R = TypeVar("R")


class Table(Generic[K, R]):
    """Rows by key, listed in key order."""

    def __init__(self) -> None:
        self._committed: dict[K, R] = {}
        self._order: list[Any] = []
        self._staged: dict[K, R | None] = {}
        self._fresh: set[K] = set()
        """Keys that were staged and not committed before. Some may have been undone."""
        self._replaced: list[tuple[K, R | None, bool]] | None = None
        """Inside a transaction of several operations: what the writes of the current one replaced."""

    def get(self, key: K) -> R | None:
        """Return the row as this transaction sees it."""
        return self._staged[key] if key in self._staged else self._committed.get(key)

    def put(self, key: K, row: R) -> None:
        """Stage a row."""
        self._stage(key, row)

    def _stage(self, key: K, row: R | None) -> None:
        charge_rows(WRITE_WEIGHT)
        if self._replaced is not None:
            self._replaced.append((key, self._staged.get(key), key in self._staged))
        if key not in self._committed:
            self._fresh.add(key)
        self._staged[key] = row

    def _new_keys(self) -> list[K]:
        """Return the keys that were staged and are not committed."""
        return [key for key in self._fresh if key in self._staged and key not in self._committed]

    def drop(self, key: K) -> int:
        """Stage a removal. Return 1 if there was a row, else 0."""
        present = self.get(key) is not None
        if present:
            self._stage(key, None)
        return int(present)

    def keys_between(self, first: Any = None, last: Any = None) -> list[K]:
        """Return the keys of existing rows in order, from `first` to `last` inclusive; None means no bound."""
        low = 0 if first is None else bisect_left(self._order, first)
        high = len(self._order) if last is None else bisect_right(self._order, last)
        charge_rows(SCAN_WEIGHT * (high - low + len(self._fresh)))
        found = self._order[low:high]
        new: list[Any] = [
            key
            for key in cast("list[Any]", self._new_keys())
            if (first is None or key >= first) and (last is None or key <= last)
        ]
        if new:
            found = sorted([*found, *new])
        return [key for key in found if self.get(key) is not None] if self._staged else found

    def between(self, first: Any = None, last: Any = None) -> Iterator[R]:
        """Yield the rows of those keys, in order."""
        for key in self.keys_between(first, last):
            row = self.get(key)
            if row is not None:
                yield row

    def scan(self, matches: Callable[[R], bool] = lambda _: True) -> Iterator[R]:
        """Return the matching rows in key order."""
        return (row for row in self.between() if matches(row))

    def commit(self) -> None:
        """Apply the staged writes. Idempotent: another call finishes a commit that was interrupted."""
        for key, row in self._staged.items():
            index = bisect_left(self._order, key)
            present = index < len(self._order) and self._order[index] == key
            if row is None:
                if present:
                    del self._order[index]
                self._committed.pop(key, None)
            else:
                self._committed[key] = row
                if not present:
                    self._order.insert(index, key)
        self._staged, self._fresh = {}, set()

    def roll_back(self) -> None:
        """Drop the staged writes, or leave them to the transaction that they belong to."""
        self._staged, self._fresh = {}, set()
        self._replaced = None

    # Transactions of several operations. Between two of them, its writes are not staged here: others read and commit.

    def resume(self, staged: dict[K, R | None]) -> None:
        """Stage the earlier writes of a transaction, and begin its next operation."""
        self._staged, self._replaced = staged, []
        self._fresh = {key for key in staged if key not in self._committed}

    def undo(self) -> None:
        """Undo the writes of the transaction's current operation."""
        while self._replaced:
            key, row, was_staged = self._replaced[-1]
            if was_staged:
                self._staged[key] = row
            else:
                self._staged.pop(key, None)
            self._replaced.pop()


class IndexedTable(Table[int, R]):
    """Rows by a number, with an index by one column that never changes: an operation uses no other index."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self._value: Callable[[R], Any] = attrgetter(column)
        self._keys_of: dict[Any, set[int]] = {}

    def of(self, value: object) -> list[R]:
        """Return the rows with this value in the column, in order."""
        known = self._keys_of.get(value, set[int]())
        new = self._new_keys()
        charge_rows(SCAN_WEIGHT * (len(known) + len(new)))
        rows = [self.get(key) for key in sorted([*known, *new])]
        return [row for row in rows if row is not None and self._value(row) == value]

    def commit(self) -> None:
        """Apply the staged writes. Idempotent."""
        for key, row in self._staged.items():
            if row is not None:
                self._keys_of.setdefault(self._value(row), set()).add(key)
            elif (before := self._committed.get(key)) is not None:
                self._keys_of.get(self._value(before), set[int]()).discard(key)
        super().commit()


def starting_with(*parts: Any) -> tuple[Any, Any]:
    """Return the bounds of the composite keys that begin with these parts."""
    return parts, (*parts, _BEYOND)


class _Beyond:
    """Greater than everything."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True

    __le__, __ge__ = __lt__, __gt__


_BEYOND = _Beyond()


class Tables:
    """All tables of a memory store."""

    def __init__(self) -> None:
        self.sessions: IndexedTable[r.SessionRow] = IndexedTable("session_id")
        self.revisions: Table[tuple[int, int], r.RevisionRow] = Table()
        self.nodes: Table[int, r.NodeRow] = Table()
        self.usage: Table[tuple[int, str, str], r.UsageRow] = Table()
        self.blobs: Table[tuple[int, str], r.BlobRow] = Table()
        self.batches: IndexedTable[r.BatchRow] = IndexedTable("session_key")
        self.ready: Table[int, r.ReadyRow] = Table()
        self.limits: Table[str, LimitRow] = Table()
        self.slots: Table[tuple[str, str, int, str], SlotRow] = Table()
        self.waiting_keys: Table[tuple[str, str], WaitingKeyRow] = Table()
        self.leases: Table[tuple[str, str], r.LeaseRow] = Table()
        self.attachments: Table[tuple[int, str], r.AttachmentRow] = Table()
        self.attachment_objects: Table[tuple[int, str], r.ObjectRow] = Table()
        self.object_deletions: Table[tuple[int, str, int], tuple[int, str, int]] = Table()
        self.processes: Table[str, r.ProcessRow] = Table()
        self.events: Table[tuple[str, int], r.EventRow] = Table()
        self.grants: Table[tuple[str, str, str], r.GrantRow] = Table()
        self.subscriptions: Table[int, r.SubscriptionRow] = Table()
        self.occurrences: Table[str, r.OccurrenceRow] = Table()
        self.deliveries: Table[tuple[str, int], r.DeliveryRow] = Table()
        self.schedules: Table[str, ScheduleRow] = Table()
        self.artifacts: Table[tuple[str, str], r.ArtifactRow] = Table()
        self.workers: Table[str, WorkerRow] = Table()
        self.stream_blocks: Table[tuple[int, int, str, int], StreamRow] = Table()
        self.session_labels: Table[tuple[int, int, str], LabelRow] = Table()
        self.settings: Table[str, int] = Table()

    def all(self) -> dict[str, Table[Any, Any]]:
        """Return every table by name."""
        return dict(vars(self))

    def next_number(self, name: str) -> int:
        """Return the next number of a sequence: ascending, never reused."""
        number = (self.settings.get(name) or 0) + 1
        self.settings.put(name, number)
        return number
