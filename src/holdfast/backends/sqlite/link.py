"""One connection, used by one thread at a time: statements go in by name, and only errors of ours come out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

import apsw

from holdfast.backends.sqlite.translation import BUSY, translated
from holdfast.columns import weight
from holdfast.errors import Unavailable
from holdfast.records.options import SqliteOptions
from holdfast.statements import Statements, load_statements

T = TypeVar("T")
Values: TypeAlias = tuple[Any, ...]
Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

STATEMENT_CACHE = 512
"""More than there are statements, so that each is compiled once for a connection."""

LEVELS: Final[tuple[Literal["off", "normal", "full", "extra"], ...]] = ("off", "normal", "full", "extra")
"""The values of PRAGMA synchronous, by number."""

RETRY_FIRST_MS, RETRY_LONGEST_MS = 0.5, 10.0
"""How long to stand back from a database that is busy: about as long as somebody else's commit takes."""


@lru_cache(maxsize=1)
def statements() -> Statements:
    """Every statement of this backend."""
    return load_statements("holdfast.backends.sqlite")


class Link:
    """A connection with its statements, and a count of those that ran."""

    __slots__ = ("_texts", "connection", "in_group", "path", "statements_run")

    def __init__(self, path: str, *, create: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        self.path = path
        self.statements_run = 0
        self.in_group = False
        self._texts = statements()
        try:
            self.connection = apsw.Connection(path, flags=flags, statementcachesize=STATEMENT_CACHE)
        except apsw.Error as error:
            raise translated(error, path) from error

    def configure(self, options: SqliteOptions) -> None:
        """Settings of the connection; none of them is stored in the file."""
        link = self.connection
        # A file from elsewhere may hold a schema that was made to do harm; ours uses none of this.
        link.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        link.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        link.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        link.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        link.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        # A plan never depends on bound values. Otherwise SQLite compiles a statement anew whenever one changes, which
        # took more time than running it.
        link.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.pragma("cell_size_check", 1)
        self.pragma("synchronous", options.synchronous)
        self.pragma("cache_size", -options.cache_kib)
        self.pragma("temp_store", "memory")

    def pragma(self, name: str, *value: int | str) -> Any:
        """Read or set a pragma."""
        try:
            return self.connection.pragma(name, *value)
        except apsw.Error as error:
            raise translated(error, self.path) from error

    def data_version(self) -> int:
        """A number that changes when another connection commits, and not when this one does."""
        try:
            version: Any = self.connection.execute(self._texts["data_version"]).get
        except apsw.Error as error:
            raise translated(error, self.path) from error
        return int(version)

    def control(self, name: str) -> None:
        """Run a statement that begins or ends a transaction; other errors of the driver are the caller's to judge."""
        try:
            self.connection.execute(self._texts[name])
        except apsw.SQLError as error:
            # Such as a transaction within a transaction. It says nothing about stored data.
            raise Unavailable(f"{self.path}: the connection was not in the expected state: retry") from error

    @property
    def names(self) -> Statements:
        """Every statement that can be run."""
        return self._texts

    def _count(self) -> None:
        # SQLite ends a transaction by itself when the disk or the memory fails. Whatever came after that would be
        # committed on its own, statement by statement.
        if self.in_group and not self.connection.in_transaction:
            raise Unavailable(f"{self.path}: SQLite gave the transaction up: retry")
        self.statements_run += 1

    def all(self, name: str, bindings: Bindings = ()) -> list[Values]:
        """Every row that a statement returns."""
        self._count()
        try:
            # Fetched to the end: a statement that is left half way would keep its snapshot open.
            return self.connection.execute(self._texts[name], bindings).fetchall()
        except (apsw.Error, UnicodeDecodeError, OverflowError) as error:
            raise translated(error, self.path) from error

    def page(self, name: str, bindings: Bindings, most_bytes: int) -> list[Values]:
        """The rows that a statement returns, up to one more than fits into so many bytes of documents."""
        self._count()
        found: list[Values] = []
        total = 0
        try:
            cursor = self.connection.execute(self._texts[name], bindings)
            try:
                for values in cursor:
                    found.append(values)
                    if total >= most_bytes:
                        break
                    total += weight(values)
            finally:
                # A statement that is left half way would keep its snapshot open.
                cursor.close(True)
        except (apsw.Error, UnicodeDecodeError, OverflowError) as error:
            raise translated(error, self.path) from error
        return found

    def run(self, name: str, bindings: Bindings = ()) -> int:
        """Run a statement that changes rows, and say how many."""
        self._count()
        try:
            self.connection.execute(self._texts[name], bindings)
            return self.connection.changes()
        except (apsw.Error, OverflowError) as error:
            raise translated(error, self.path) from error

    def run_many(self, name: str, rows: Iterable[Bindings]) -> list[Values]:
        """Run a statement once for each row, and return what all of them return."""
        self._count()
        try:
            return self.connection.executemany(self._texts[name], rows).fetchall()
        except (apsw.Error, UnicodeDecodeError, OverflowError) as error:
            raise translated(error, self.path) from error

    def close(self) -> None:
        """Let the file go."""
        try:
            self.connection.close()
        except apsw.Error as error:
            raise translated(error, self.path) from error


def until_free(
    path: str, call: Callable[[], T], *, deadline_s: float, meanwhile: Callable[[], None] = lambda: None
) -> T:
    """What the call returns, once nobody is in its way any more; it is tried at least once.

    SQLite's own busy handler is not used: it is not asked when a file is switched to write-ahead logging, and its steps
    of up to 100 ms are longer than most commits.
    """
    wait_ms = RETRY_FIRST_MS
    while True:
        try:
            return call()
        except BUSY as error:
            if time.monotonic() >= deadline_s:
                raise translated(error, path) from error
        except Unavailable as error:
            if not isinstance(error.__cause__, BUSY) or time.monotonic() >= deadline_s:
                raise
        except apsw.Error as error:
            raise translated(error, path) from error
        meanwhile()
        # Jitter keeps several processes from knocking at the same moment for ever.
        time.sleep(wait_ms * random.uniform(0.5, 1.0) / 1000)  # noqa: S311
        wait_ms = min(wait_ms * 2, RETRY_LONGEST_MS)
