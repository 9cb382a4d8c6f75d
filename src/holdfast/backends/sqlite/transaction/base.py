"""Base of the transaction: a connection, one clock reading, and topics to publish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast import columns
from holdfast import rows as r
from holdfast.backends.sqlite.budget import Bindings, Values
from holdfast.backends.sqlite.connection import StatementRunner
from holdfast.errors import Corrupt
from holdfast.table_catalog import all_fetched, fetched

R = TypeVar("R", bound=r.Row)

POSITION = "sqlite"
"""The only position: every read of a file shows all that was committed before it, by any process."""


BLOCK = 64
"""Rows whose ids are listed together, once the block is complete."""


def _plain(value: object) -> str:
    """Return text of a subclass of `str`, such as a member of an enumeration, as the text that it holds."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"no parameter of a statement is a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def json_list(values: Sequence[object]) -> str:
    """Return values as one parameter."""
    return _encode(values).decode()


def listed(session_key: int, position: int) -> int:
    """Return the key up to which ids are listed in a session whose last row, of nodes or revisions, has this position.

    Rows after it are the last block: no table lists their ids, so that a turn writes no page for them.
    """
    return session_key << r.POSITION_BITS | position & -BLOCK


class Base:
    """Common base of the transaction's parts."""

    __slots__ = ("_found_process", "_now_ms", "_runner", "topics")

    def __init__(self, runner: StatementRunner, now_ms: int) -> None:
        self._runner = runner
        self._now_ms = now_ms
        self.topics: list[str] = []
        self._found_process: r.ProcessRow | None = None
        """The process that this transaction has read or written last, as it is stored."""

    @property
    def now_ms(self) -> int:
        """The transaction's one clock reading."""
        return self._now_ms

    def notify(self, topic: str) -> None:
        """Wake the waiters on a topic, once and after the transaction is durable."""
        self.topics.append(topic)

    async def position(self) -> str:
        """Return the only position."""
        return POSITION

    def _one(self, kind: type[R], name: str, bindings: Bindings) -> R | None:
        found = self._runner.all(name, bindings)
        return fetched(kind, found[0]) if found else None

    def _all(self, kind: type[R], name: str, bindings: Bindings) -> list[R]:
        return all_fetched(kind, self._runner.all(name, bindings))

    def _page(self, kind: type[R], name: str, bindings: Bindings, most_bytes: int | None = None) -> list[R]:
        """Return rows of a listing: one more than a page has room for, by its limit or by its bytes."""
        return all_fetched(
            kind, self._runner.page(name, bindings, columns.PAGE_BYTES if most_bytes is None else most_bytes)
        )

    def _run(self, name: str, bindings: Bindings) -> int:
        return self._runner.run(name, bindings)

    def _values(self, name: str, bindings: Bindings) -> list[Values]:
        return self._runner.all(name, bindings)

    def _number(self, name: str, bindings: Bindings) -> int:
        number: int
        [(number,)] = self._numbers(name, bindings)
        return number

    def _numbers(self, name: str, bindings: Bindings) -> list[Values]:
        """Return rows of whole numbers. Raises Corrupt for other values, which a table may hold that is not STRICT."""
        found = self._runner.all(name, bindings)
        if any(type(number) is not int for values in found for number in values):
            raise Corrupt("database", self._runner.path, "a column of numbers holds something else")
        return found

    def _store(self, name: str, row: r.Row) -> int:
        return self._runner.run(name, msgspec.structs.astuple(row))

    def _store_all(self, kind: type[R], name: str, rows: Sequence[R]) -> list[R]:
        if not rows:
            return []
        bindings = (msgspec.structs.astuple(row) for row in rows)
        return [fetched(kind, values) for values in self._runner.run_many(name, bindings)]
