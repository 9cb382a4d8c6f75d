"""A side is one database with two handles; all sides must give equal answers and hold equal rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.postgres_server import Administrator

import holdfast
from holdfast import rows as r
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SqliteBackend
from holdfast.blocking import BlockingStore
from holdfast.blocking import Session as BlockingSession
from holdfast.factory import open_backend
from holdfast.limit_rows import SlotRow
from holdfast.maintenance import Diagnosis, Stats
from holdfast.ports import Backend
from holdfast.store import Context, Store
from holdfast.testing.clock import ManualClock
from holdfast.wait import BlockingWaiting

HANDLES = 2
LIMITS = holdfast.Limits(commit_nodes=6, document_depth=8, page=50, fork_depth=3)
"""Small bounds, so that a short life runs into them."""

Dump = dict[str, list[tuple[Any, ...]]]


def counting_mint() -> Callable[[], str]:
    """Mint names in a fixed order: two sides that mint equally often mint the same ones."""
    minted = 0

    def mint() -> str:
        nonlocal minted
        minted += 1
        return f"{minted:032x}"

    return mint


class Side:
    """One database, and two stores on it."""

    def __init__(self, name: str, backends: list[Backend]) -> None:
        self.name = name
        self.backends = backends
        mint = counting_mint()
        self.stores = [BlockingStore(Store(Context(one, LIMITS, None, mint)), one) for one in backends]

    def outcome_of(self, call: Callable[[], Any]) -> Outcome:
        """Run a call."""
        return outcome_of(call)

    def close(self) -> None:
        for store in self.stores:
            store.close()


SEQUENCES = ("session_keys", "enqueue_seqs", "subscription_sequences")


class PostgresSide(Side):
    """PostgreSQL, whose sequences continue after a rollback: here they are reset, so that keys can be compared."""

    def __init__(self, clock: ManualClock, url: str) -> None:
        super().__init__("postgres", [open_backend(url, None, clock, BlockingWaiting()) for _ in range(HANDLES)])
        self._administrator = Administrator(url)

    def outcome_of(self, call: Callable[[], Any]) -> Outcome:
        """Run a call; a refused one uses up no sequence number."""
        numbers = " UNION ALL ".join(f"SELECT last_value, is_called FROM holdfast.{name}" for name in SEQUENCES)
        before = self._administrator.rows(numbers)
        outcome = super().outcome_of(call)
        if outcome.error is not None:
            for name, (last_value, is_called) in zip(SEQUENCES, before, strict=True):
                self._administrator.rows(f"SELECT setval('holdfast.{name}', $1, $2)", last_value, is_called)
        return outcome

    def close(self) -> None:
        super().close()
        self._administrator.close()


def memory_side(clock: ManualClock) -> Side:
    backend = MemoryBackend(clock, BlockingWaiting())
    return Side("memory", [backend] * HANDLES)


def sqlite_side(clock: ManualClock, path: Path) -> Side:
    options = holdfast.SqliteOptions(synchronous="off")
    return Side("sqlite", [SqliteBackend.open(path, options, clock, BlockingWaiting()) for _ in range(HANDLES)])


MakeSide = Callable[[ManualClock], Side]


def postgres_side(clock: ManualClock, url: str) -> Side:
    return PostgresSide(clock, url)


# Outcomes.


POSITION = re.compile(r"\bposition='[^']*'")


def text_of(shown: object) -> str:
    """Format a value without the positions of receipts: each database has its own, and a replay has a later one."""
    return POSITION.sub("position=…", repr(shown))


class Outcome:
    """A value, or a refusal with its type and facts, in a form that can be compared between sides."""

    __slots__ = ("error", "shown", "value")

    def __init__(self, value: Any, error: holdfast.HoldfastError | None) -> None:
        self.value = value
        self.error = error
        self.shown: Any = comparable(value) if error is None else (type(error), str(error), vars(error))

    def equals(self, other: Outcome) -> bool:
        # Equality alone treats 1, 1.0 and True alike; the text does not, and it shows the order of keys, too.
        return bool(self.shown == other.shown) and text_of(self.shown) == text_of(other.shown)


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Run a call. Only Holdfast errors are answers, except `Corrupt`: everything else ends the run."""
    try:
        return Outcome(call(), None)
    except holdfast.Corrupt:
        raise
    except holdfast.HoldfastError as error:
        return Outcome(None, error)


def comparable(value: Any) -> Any:
    if isinstance(value, BlockingSession):
        return ("a handle on", value.session_id)
    if isinstance(value, Stats):
        # Memory has no disk.
        return msgspec.structs.replace(value, bytes_on_disk=None)
    if isinstance(value, Diagnosis):
        # Each engine has its own settings; only the rest is comparable.
        return None if value.facts is None else msgspec.structs.replace(value.facts, engine=None)
    return value


# Rows.

MEMORY_ONLY_COLUMNS = {
    # A node's row in memory has a field for the parent's id, filled on reading; it is never stored.
    "nodes": lambda row: row[:-1],
}
TABLE_ONLY_COLUMNS = {
    # In memory these belong to the table's key and not to the row; a database needs them as columns.
    "usage": lambda row: row[1:],
    "blobs": lambda row: (row[1], row[2], *row[-2:], row[3]),
    "attachment_objects": lambda row: row[2:],
}
FAMILY_COLUMNS = {
    # PostgreSQL puts the family first in every key.
    "usage": lambda row: row[2:],
    "nodes": lambda row: row[1:],
}
COLUMNS = {
    "memory": MEMORY_ONLY_COLUMNS,
    "sqlite": TABLE_ONLY_COLUMNS,
    "postgres": TABLE_ONLY_COLUMNS | FAMILY_COLUMNS,
}
SHARED_SETTINGS = {"fence_floor"}
"""The other settings are memory's sequences, for which a database has its own, and what it knows of itself."""


OFFERED = [place for place, name in enumerate(r.ReadyRow.__struct_fields__) if name not in {"served", "claimed_upto"}]
"""The columns of a ready row that sides agree on: a service number may be unused, a bound higher than necessary."""


SLOT_END = SlotRow.__struct_fields__.index("expires_at_ms")


LISTS_OF_IDS = frozenset({"node_ids", "turn_ids"})
"""Tables that only SQLite has. Verification compares them with the rows that they list."""


def rows_of(side: Side, now_ms: int, handle: int = 0) -> Dump:
    """Return every row, in columns and an order that all sides have.

    Slots of claims that have ended are left out: they count for nothing, and each side removes them when it meets them.
    So are lists of ids.
    """
    drop = COLUMNS[side.name]
    dump = side.backends[handle].dump()
    rows = {name: [drop[name](row) for row in found] if name in drop else found for name, found in dump.items()}
    rows["settings"] = shared_settings(side, dump)
    rows["slots"] = [row for row in rows["slots"] if row[SLOT_END] > now_ms]
    rows["ready"] = [tuple(row[place] for place in OFFERED) for row in rows["ready"]]
    return {name: sorted(found, key=repr) for name, found in rows.items() if name not in LISTS_OF_IDS}


def shared_settings(side: Side, dump: Dump) -> list[tuple[Any, ...]]:
    if side.name == "memory":
        backend = side.backends[0]
        assert isinstance(backend, MemoryBackend)
        settings = backend._tables.settings
        return [(name, settings.get(name)) for name in sorted(SHARED_SETTINGS) if settings.get(name)]
    return [row for row in dump["settings"] if row[0] in SHARED_SETTINGS and row[1]]


def first_difference(left: Dump, right: Dump) -> str | None:
    """Return the first table that differs, and the rows that only one side has."""
    if left.keys() != right.keys():
        return f"tables {sorted(left.keys() ^ right.keys())} are only on one side"
    for name in left:
        if left[name] != right[name]:
            only_left = [row for row in left[name] if row not in right[name]]
            only_right = [row for row in right[name] if row not in left[name]]
            return f"table {name}:\n  only on the first: {only_left}\n  only on the second: {only_right}"
    return None
