"""Open, create or migrate a file. Any file that is neither Holdfast's nor empty is left untouched.

`schema.sql` makes a new file; `migrations/NNNN_name.sql` brings a file of version NNNN - 1 to version NNNN. Migration
0001 makes version 1 from an empty file, so that replaying all migrations must end in the same schema as `schema.sql`.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import apsw

from holdfast.backends.sqlite.connection import StatementRunner, until_free
from holdfast.backends.sqlite.file_locks import create_private, refuse_unsafe
from holdfast.backends.sqlite.schema_check import refuse_computed, tables_of
from holdfast.backends.sqlite.similar_files import begins_like_a_database, is_missing, similar_stores
from holdfast.errors import (
    Corrupt,
    HoldfastError,
    Incompatible,
    InvalidRequest,
    SchemaMissing,
    SchemaTooNew,
    StoreMissing,
    Unavailable,
)
from holdfast.records.options import PRIVATE, SqliteOptions

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x484F4C44
"""`HOLD` in ASCII. Marks a file as Holdfast's."""

PAGE_BYTES: Final = 4_096
"""A turn changes a dozen pages and each is written whole: 54 KB a full turn. Pages of 16 KiB took 2.7 times as much."""

WAL_BYTES: Final = 64 * 1024 * 1024
"""Size to which a write-ahead log that has grown is truncated."""

MEMORY: Final = ":memory:"

_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


@lru_cache(maxsize=1)
def schema_text() -> str:
    """Return the statements that create a new schema."""
    return files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


def table_names() -> tuple[str, ...]:
    """Return the names of the store's tables in a file, including those that only list ids."""
    return tables_of(schema_text())


@lru_cache(maxsize=1)
def migrations() -> dict[int, str]:
    """Return the statements that lead to each version from the one before it."""
    found: dict[int, str] = {}
    for file in files(__package__).joinpath("migrations").iterdir():
        name = _MIGRATION.fullmatch(file.name)
        if name is not None:
            found[int(name[1])] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def open_link(path: str, options: SqliteOptions, file_mode: int = PRIVATE) -> StatementRunner:
    """Open a file and make sure that its schema has the current version. Create or migrate it if needed and allowed."""
    if not path:
        raise InvalidRequest("path", "must name a file, or be :memory:")
    if path == MEMORY:
        runner = StatementRunner(path, create=True, place=path)
        _prepare(runner, options)
        return runner
    place = absolute(path)
    refuse_unsafe(path, place)
    if options.migrate:
        create_private(place, file_mode)
    try:
        runner = StatementRunner(path, create=options.migrate, place=place)
    except (Unavailable, InvalidRequest):
        if not options.migrate and is_missing(path):
            raise StoreMissing(path, SCHEMA_VERSION, similar_stores(path)) from None
        raise
    try:
        deadline_s = time.monotonic() + options.busy_timeout_ms / 1000
        until_free(path, lambda: _prepare(runner, options), deadline_s=deadline_s)
        return runner
    except Corrupt as error:
        foreign = isinstance(error.__cause__, apsw.NotADBError) and not begins_like_a_database(runner.connection)
        runner.close_or_keep()
        if foreign:
            raise Incompatible(
                f"{path} is not a Holdfast store, nor any SQLite database: name another file; if it was a store, its "
                "beginning was overwritten"
            ) from error.__cause__
        raise
    except BaseException:
        runner.close_or_keep()
        raise


def absolute(path: str) -> str:
    """Return an absolute path, so that a later change of the working directory has no effect."""
    try:
        return str(Path(path).absolute())
    except OSError:
        return path  # the working directory is gone, which opening the file will report


def _prepare(runner: StatementRunner, options: SqliteOptions) -> None:
    """Configure the connection, and check or make the schema. Idempotent: starts over if the file is busy."""
    runner.configure(options)
    if runner.connection.readonly("main"):
        # SQLite silently opens a file read-only if it may not write; every commit would fail.
        raise Unavailable(f"{runner.path}: this user may not write to the file: change its permissions")
    # Read before anything is changed, so that another program's file stays as it is.
    version = _version_in_snapshot(runner)
    if version < SCHEMA_VERSION and not options.migrate:
        raise SchemaMissing(version, SCHEMA_VERSION)
    if version == SCHEMA_VERSION:
        refuse_computed(runner, schema_text())
    if runner.path != MEMORY:
        _write_ahead(runner, new=version == 0)
    if version < SCHEMA_VERSION:
        _upgrade(runner)


def _version_in_snapshot(runner: StatementRunner) -> int:
    """Read the version in one snapshot: between two reads, another process may create the whole schema."""
    runner.control("begin_read")
    try:
        return _found_version(runner)
    finally:
        if runner.connection.in_transaction:
            runner.control("rollback")


def _found_version(runner: StatementRunner) -> int:
    """Return the version of the schema in the file; 0 if the file is empty."""
    application_id: int = runner.pragma("application_id")
    version: int = runner.pragma("user_version")
    if application_id == APPLICATION_ID and version > SCHEMA_VERSION:
        raise SchemaTooNew(version, SCHEMA_VERSION)
    if application_id == APPLICATION_ID and version > 0:
        return version
    [(objects,)] = runner.all("count_objects")
    if application_id != 0 or version != 0 or objects != 0:
        raise Incompatible(f"{runner.path} is a SQLite database of another program: give Holdfast its own file")
    return 0


def _write_ahead(runner: StatementRunner, *, new: bool) -> None:
    if new:
        # Only possible before the first page is written, and harmless after.
        runner.pragma("page_size", PAGE_BYTES)
    mode = runner.pragma("journal_mode", "wal")
    if mode != "wal":
        raise Incompatible(f"{runner.path}: this file system cannot hold a write-ahead log: use a local disk")
    runner.pragma("journal_size_limit", WAL_BYTES)


def _upgrade(runner: StatementRunner) -> None:
    runner.control("begin_write")
    try:
        # Read again under the lock: another process may have upgraded the file meanwhile.
        version = _found_version(runner)
        if version == 0:
            runner.connection.execute(schema_text())
        else:
            for step in range(version + 1, SCHEMA_VERSION + 1):
                runner.connection.execute(migrations()[step])
        if version < SCHEMA_VERSION:
            runner.pragma("application_id", APPLICATION_ID)
            runner.pragma("user_version", SCHEMA_VERSION)
        runner.control("commit")
    except (apsw.Error, HoldfastError):
        if runner.connection.in_transaction:
            runner.control("rollback")
        raise
