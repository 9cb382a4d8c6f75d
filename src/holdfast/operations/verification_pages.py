"""Page through tables without stopping at damage.

A page that cannot be read is read row by row, and each problem becomes a finding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from holdfast.errors import Corrupt
from holdfast.operations.pages import may_follow
from holdfast.ports import Transaction
from holdfast.ports.verification import Endless
from holdfast.records.maintenance import Finding, VerifyReport
from holdfast.rows import AttachmentRow, Row, SessionRow
from holdfast.rules import verification as rules
from holdfast.table_catalog import Key, key_of, name_of, table_of

R = TypeVar("R", bound=Row)
T = TypeVar("T")

PAGE = 200
"""Most rows of a table in memory at a time. A page may end earlier, at its limit of bytes."""

OWNERS = 20
"""Most referenced rows in memory at a time: each process may be as large as a document."""

UNREADABLE_IN_A_ROW = 500
"""Number of consecutive unreadable rows after which the rest of a table is given up: it may have no end."""


class Tally(msgspec.Struct):
    """Counts of checked rows, and findings, so far."""

    counts: dict[str, int] = {}
    findings: list[Finding] = []
    outside: list[AttachmentRow] = []
    """Permanent references whose bytes are outside of the database and not read yet."""

    def checked(self, table: str, count: int) -> None:
        """Count checked rows."""
        self.counts[table] = self.counts.get(table, 0) + count

    def note(self, finding: Finding) -> None:
        """Add a finding."""
        self.findings.append(finding)

    def damage(self, table: str, key: str, error: Corrupt) -> None:
        """Add an error as a finding. If it names only the whole database, use the table that was read."""
        if error.table == "database":
            self.note(Finding(table, key, error.reason))
        else:
            self.note(Finding(error.table, error.key, error.reason))

    def check(self, table: str, key: str, problems: Iterable[Finding]) -> None:
        """Add the findings that a rule yields, and the damage that it raises."""
        try:
            self.findings.extend(problems)
        except Corrupt as error:
            self.damage(table, key, error)

    async def attempt(self, table: str, key: str, check: Awaitable[None]) -> None:
        """Run the checks of one row. Damage ends only these checks, unless it is Endless, which is raised."""
        try:
            await check
        except Endless:
            raise
        except Corrupt as error:
            self.damage(table, key, error)

    def add(self, other: Tally) -> None:
        """Add the counts and findings of another tally."""
        for table, count in other.counts.items():
            self.checked(table, count)
        self.findings.extend(other.findings)

    def report(self) -> VerifyReport:
        """Return the report, with each finding once, even if several checks found it."""
        kinds = ("sessions", "revisions", "nodes", "blobs", "processes", "events", "attachments", "artifacts")
        return VerifyReport(
            **{f"checked_{kind}": self.counts.get(kind, 0) for kind in kinds},
            findings=tuple(dict.fromkeys(self.findings)),
            unread_attachments=self.counts.get("unread attachments", 0),
            foreign_attachments=self.counts.get("foreign attachments", 0),
        )


class Place(msgspec.Struct, frozen=True):
    """Position in a table: after a key, plus a number of unreadable rows to skip."""

    after: Key | None = None
    unreadable: int = 0


START = Place()


async def next_rows(tx: Transaction, kind: type[R], place: Place, tally: Tally) -> tuple[list[R], Place | None]:
    """Return the readable rows of the next page, and the place of the page after it."""
    try:
        rows, last = await tx.scan_rows(kind, after=place.after, skip=place.unreadable, limit=PAGE)
    except Endless as error:
        tally.damage(table_of(kind), "*", error)
        return [], None
    except Corrupt as error:
        return await _row_by_row(tx, kind, place, tally, error)
    if last is None or not may_follow(rows, PAGE):
        return rows, None
    if place.after is not None and last <= place.after:
        tally.note(Finding(table_of(kind), _name(last), "is out of order"))
        return rows, None
    return rows, Place(last)


async def _row_by_row(
    tx: Transaction, kind: type[R], place: Place, tally: Tally, reason: Corrupt
) -> tuple[list[R], Place | None]:
    table = table_of(kind)
    rows: list[R] = []
    try:
        await tx.scan_rows(kind, after=place.after, skip=0, limit=0)
    except Corrupt:
        tally.damage(table, "*", reason)
        return rows, None
    for _ in range(PAGE):
        try:
            found, last = await tx.scan_rows(kind, after=place.after, skip=place.unreadable, limit=1)
        except Endless as error:
            tally.damage(table, "*", error)
            return rows, None
        except Corrupt as error:
            place = Place(place.after, place.unreadable + 1)
            where = "the start" if place.after is None else _name(place.after)
            tally.damage(table, f"row {place.unreadable} after {where}", error)
            if place.unreadable == UNREADABLE_IN_A_ROW:
                tally.note(Finding(table, f"after {where}", "the rows after these were not checked"))
                return rows, None
            continue
        if last is None:
            return rows, None
        rows += found
        place = Place(last)
    return rows, place


def _name(key: Key) -> str:
    return "/".join(str(part) for part in key)


class Known(Generic[R]):
    """Rows that others refer to: those that were read, and the keys of those that are present but unreadable."""

    def __init__(self) -> None:
        self.rows: dict[Key, R] = {}
        self.unreadable: set[Key] = set()

    def get(self, *key: int | str) -> R | None:
        """Return the row, None if it is missing or unreadable."""
        return self.rows.get(key)

    def has(self, *key: int | str) -> bool:
        """Return whether there is a row, readable or not."""
        return key in self.rows or key in self.unreadable


def in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of at most `OWNERS`."""
    left = iter(items)
    while part := list(islice(left, OWNERS)):
        yield part


async def known(tx: Transaction, kind: type[R], keys: Iterable[Key]) -> Known[R]:
    """Return the rows with these keys. The check of their own table reports unreadable ones."""
    found: Known[R] = Known()
    wanted = list(dict.fromkeys(keys))
    rows: list[R] = []
    try:
        rows += await tx.find_rows(kind, wanted)
    except Endless:
        raise
    except Corrupt:
        for key in wanted:
            try:
                rows += await tx.find_rows(kind, [key])
            except Corrupt:
                found.unreadable.add(key)
    found.rows.update((key_of(row), row) for row in rows)
    return found


def note_orphans(tally: Tally, orphans: Sequence[tuple[Row, str, int | str]], parent: str) -> None:
    """Add one finding per missing parent, however many rows of the page refer to it: (row, its name, its parent)."""
    first: dict[int | str, tuple[Row, str]] = {}
    count: dict[int | str, int] = {}
    for row, name, parent_key in orphans:
        first.setdefault(parent_key, (row, name))
        count[parent_key] = count.get(parent_key, 0) + 1
    for parent_key, (row, name) in first.items():
        tally.note(rules.orphan(table_of(type(row)), name, parent, parent_key, count[parent_key] - 1))


def alone(rule: Callable[[R], Iterable[Finding]]) -> Callable[[Transaction, list[R], Tally], Awaitable[None]]:
    """Return the check of a table whose rows are judged one by one, each by itself."""

    async def check(_tx: Transaction, rows: list[R], tally: Tally) -> None:
        for row in rows:
            tally.check(table_of(type(row)), name_of(row), rule(row))

    return check


class Owned(Protocol):
    """A row that belongs to a session."""

    session_key: int


async def owners_of(tx: Transaction, rows: Sequence[Row], tally: Tally) -> Known[SessionRow]:
    """Return the sessions that rows belong to, and add a finding for each session that is missing."""
    owned = [(row, cast("Owned", row).session_key) for row in rows]
    owners = await known(tx, SessionRow, [(key,) for _, key in owned])
    note_orphans(tally, [(row, name_of(row), key) for row, key in owned if not owners.has(key)], "session")
    return owners


def of_session(
    rule: Callable[[R, SessionRow | None], Iterable[Finding]],
) -> Callable[[Transaction, list[R], Tally], Awaitable[None]]:
    """Return the check of a table whose rows are judged one by one, each with its session."""

    async def check(tx: Transaction, rows: list[R], tally: Tally) -> None:
        owners = await owners_of(tx, rows, tally)
        for row in rows:
            tally.check(table_of(type(row)), name_of(row), rule(row, owners.get(cast("Owned", row).session_key)))

    return check
