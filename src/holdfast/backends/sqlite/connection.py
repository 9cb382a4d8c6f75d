"""A connection in use by one thread at a time: runs statements by name, and raises only Holdfast errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

import apsw

from holdfast.backends.sqlite.budget import STEPS_AT_A_TIME, Bindings, Budget, Values
from holdfast.backends.sqlite.driver_errors import BUSY, translated
from holdfast.backends.sqlite.file_locks import is_open_in_another_copy
from holdfast.columns import weight
from holdfast.errors import HoldfastError, Unavailable
from holdfast.records.options import SqliteOptions
from holdfast.statements import Statements, load_statements

T = TypeVar("T")

STATEMENT_CACHE = 512
"""Larger than the number of statements, so that each is compiled once per connection."""

LEVELS: Final[tuple[Literal["off", "normal", "full", "extra"], ...]] = ("off", "normal", "full", "extra")
"""The values of PRAGMA synchronous, by number."""

UNCLOSED: Final[list[apsw.Connection]] = []
"""Unused connections that stay open, because closing them would drop the locks of another copy of SQLite."""

RETRY_FIRST_MS, RETRY_LONGEST_MS = 0.5, 10.0
"""Bounds of the back-off from a busy database: about the duration of a commit."""


@lru_cache(maxsize=1)
def statements() -> Statements:
    """Return every statement of this backend."""
    return load_statements("holdfast.backends.sqlite")


class StatementRunner:
    """A connection with its statements, and a count of those that ran."""

    __slots__ = ("_budget", "_texts", "connection", "in_group", "path", "place", "statements_run")

    def __init__(self, path: str, *, create: bool, place: str) -> None:
        """Connect to the file at `place`. Errors use `path`, as the caller wrote it."""
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        self.path = path
        self.statements_run = 0
        self.in_group = False
        self._texts = statements()
        self._budget = Budget(None if path == ":memory:" else place)
        try:
            self.connection = apsw.Connection(place, flags=flags, statementcachesize=STATEMENT_CACHE)
            self.place = self.connection.filename
            self.connection.set_progress_handler(self._budget.stop, STEPS_AT_A_TIME)
        except apsw.Error as error:
            raise translated(error, path) from error

    def configure(self, options: SqliteOptions) -> None:
        """Configure the connection. None of these settings is stored in the file."""
        runner = self.connection
        # A file from elsewhere may have a hostile schema. The store's own schema uses none of these features.
        runner.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        runner.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        runner.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        runner.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        runner.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        # Plans never depend on bound values. Otherwise SQLite compiles a statement again whenever a value changes,
        # which took more time than running it.
        runner.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
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
        """Return a number that changes when another connection commits, and not when this one does."""
        try:
            version: Any = self.connection.execute(self._texts["data_version"]).get
        except apsw.Error as error:
            raise translated(error, self.path) from error
        return int(version)

    def control(self, name: str) -> None:
        """Run a statement that begins or ends a transaction. Driver errors other than SQLError pass unchanged."""
        try:
            self.connection.execute(self._texts[name])
        except apsw.SQLError as error:
            # Such as a transaction within a transaction. Not a sign of damage.
            raise Unavailable(f"{self.path}: the connection was not in the expected state: retry") from error

    @property
    def names(self) -> Statements:
        """Every statement that can be run."""
        return self._texts

    def _begin(self, bindings: Bindings | None) -> None:
        # SQLite rolls a transaction back when the disk or the memory fails. Later statements would each be committed on
        # their own.
        if self.in_group and not self.connection.in_transaction:
            raise Unavailable(f"{self.path}: SQLite rolled the transaction back: retry")
        self.statements_run += 1
        self._budget.begin(bindings)

    def _translated(self, error: apsw.Error | UnicodeDecodeError | OverflowError) -> HoldfastError:
        return self._budget.error() if self._budget.is_exhausted else translated(error, self.path)

    def all(
        self,
        name: str,
        bindings: Bindings = (),
        part: Callable[[Iterator[Values]], Iterator[Values]] = iter,
    ) -> list[Values]:
        """Return every row of a statement, or the rows that `part` takes from it."""
        self._begin(bindings)
        try:
            cursor = self.connection.execute(self._texts[name], bindings)
            try:
                return self._budget.fetch(part(cursor))
            finally:
                # A statement that is left half way would keep its snapshot open.
                cursor.close(True)
        except (apsw.Error, UnicodeDecodeError, OverflowError) as error:
            raise self._translated(error) from error

    def page(self, name: str, bindings: Bindings, most_bytes: int) -> list[Values]:
        """Return the rows of a statement, up to one more than fits into `most_bytes` of documents."""
        self._begin(bindings)
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
            raise self._translated(error) from error
        return found

    def run(self, name: str, bindings: Bindings = ()) -> int:
        """Run a statement that changes rows. Return how many."""
        self._begin(bindings)
        try:
            self.connection.execute(self._texts[name], bindings)
            return self.connection.changes()
        except (apsw.Error, OverflowError) as error:
            raise self._translated(error) from error

    def run_many(self, name: str, rows: Iterable[Bindings]) -> list[Values]:
        """Run a statement once for each row. Return the rows of all runs."""
        self._begin(None)
        try:
            return self.connection.executemany(self._texts[name], rows).fetchall()
        except (apsw.Error, UnicodeDecodeError, OverflowError) as error:
            raise translated(error, self.path) from error

    def close_or_keep(self) -> None:
        """Close a refused file, unless another copy of SQLite has opened it meanwhile: then keep its log and locks."""
        if is_open_in_another_copy(self.connection.filename):
            UNCLOSED.append(self.connection)
            # In case the interpreter closes it at exit.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except apsw.Error as error:
            raise translated(error, self.path) from error


def until_free(
    path: str, call: Callable[[], T], *, deadline_s: float, meanwhile: Callable[[], None] = lambda: None
) -> T:
    """Run a call, and retry it while the database is busy, until the deadline. Runs it at least once.

    SQLite's own busy handler is not used: it is not called when a file is switched to write-ahead logging, and its
    sleeps of up to 100 ms are longer than most commits.
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
        # Jitter keeps several processes from retrying at the same moment for ever.
        time.sleep(wait_ms * random.uniform(0.5, 1.0) / 1000)  # noqa: S311
        wait_ms = min(wait_ms * 2, RETRY_LONGEST_MS)
