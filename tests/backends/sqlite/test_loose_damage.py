"""A file without constraints may hold NULLs and values of other types: each is reported as damage.

Our tables are STRICT and most columns are NOT NULL; a file rebuilt by another tool may be neither. Every column of
every table in the file's own catalogue is damaged.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.backends.damages import LISTS, answers, expected_tables
from tests.backends.sqlite.furnished import QUICK, seed
from tests.backends.sqlite.test_verify_damage import VICTIMS

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock

OTHER_TYPES = {
    "TEXT": {"number": "7", "bytes": "X'6162'"},
    "INTEGER": {"text": "'many'", "fraction": "1.5", "bytes": "X'01'"},
    "BLOB": {"text": "'words'", "number": "7"},
}
WHOLE = os.environ.get("HOLDFAST_WHOLE") == "1"
"""Every other type for every column. Otherwise one, another one with each seed."""


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with rows in every table and a schema without constraints other than its keys."""
    folder = tmp_path_factory.mktemp("loose")
    path = folder / "loose.db"
    seed(path, folder / "byte_store")
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA writable_schema = ON")
    for name, text in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall():
        free = re.sub(r"\bSTRICT\b,?|(?<!PRIMARY KEY)\s+NOT NULL", "", text)
        # No affinity, which would convert a value to the declared type.
        free = re.sub(r"\b(TEXT|INTEGER(?! PRIMARY KEY))\b", r"BLOB", free)
        connection.execute(
            "UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", (free.strip(", "), name)
        )
    connection.close()
    with opened(path) as store:
        findings = store.maintenance.verify().findings
    assert {finding.table for finding in findings} == {"database"}
    assert {finding.problem.split()[1] for finding in findings} == set(VICTIMS)
    return path


def opened(path: Path) -> BlockingStore:
    return holdfast.open_blocking(path, options=QUICK, clock=ManualClock(1_000_000))


def types_of(table: str, tmp_path: Path) -> dict[str, str]:
    """Return the declared type of every column, from an intact schema."""
    path = tmp_path / "whole.db"
    opened(path).close()
    connection = apsw.Connection(str(path))
    found = {column: kind for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})")}
    connection.close()
    return found


def keys_of(table: str, path: Path) -> set[str]:
    """Return the columns by which a table is walked: a row without one is not found, but the table is named."""
    connection = apsw.Connection(str(path))
    found = {column for _, column, *_, key in connection.execute(f"PRAGMA table_info({table})") if key}
    connection.close()
    return found


def damages(table: str, tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    for column, kind in types_of(table, tmp_path).items():
        chance = random.Random(f"{os.environ.get('HOLDFAST_SEED')} {table}.{column}")
        ways = OTHER_TYPES[kind] if WHOLE else dict([chance.choice(list(OTHER_TYPES[kind].items()))])
        for way, value in {"null": "NULL", **ways}.items():
            where = f"{VICTIMS[table]} AND {column} IS NOT {value}"
            yield column, way, f"UPDATE {table} SET {column} = {value} WHERE {where}"


def damaged(path: Path, statement: str) -> Path | None:
    """Return a copy of the file with this change, or None if a key forbids it or nothing changes."""
    copy = path.with_name("damaged.db")
    for end in ("", "-wal", "-shm"):
        Path(f"{copy}{end}").unlink(missing_ok=True)
    shutil.copy(path, copy)
    connection = apsw.Connection(str(copy))
    try:
        connection.execute(statement)
        return copy if connection.total_changes() else None
    except (apsw.ConstraintError, apsw.MismatchError):
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("table", VICTIMS)
def test_a_null_or_a_value_of_another_type_is_named_and_only_our_errors_come(
    loose: Path, table: str, tmp_path: Path
) -> None:
    with opened(loose) as store:
        untouched = store.sessions.handle("other").load(holdfast.sessions.FullGraph())
    wrong: list[str] = []
    keys = keys_of(table, loose)
    done = 0
    for column, way, statement in damages(table, tmp_path):
        path = damaged(loose, statement)
        if path is None:
            continue
        done += 1
        with opened(path) as store:
            findings = store.maintenance.verify().findings
            named = {finding.table for finding in findings} - {"database"}
            # The schema itself is damaged here, which is a finding about the database, too.
            if table in LISTS and any(finding.problem.startswith(f"table {table}: ") for finding in findings):
                named.add("database")
            expected = expected_tables(table, column, way)
            if column not in keys and not (named & {*expected, table} if expected else not named):
                wrong.append(f"{column} {way}: named {sorted(named)}, expected {sorted(expected)}")
            answers(store)
            if store.sessions.handle("other").load(holdfast.sessions.FullGraph()) != untouched:
                wrong.append(f"{column} {way}: another session reads differently")
    assert done > 0
    assert wrong == []
