"""A file whose schema makes SQLite compute something in a store's tables is refused, and the object is named."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import apsw
import pytest

import holdfast

EXPENSIVE = "length(hex(zeroblob(400000000)))"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "state.db"
    with holdfast.open_blocking(made) as store:
        store.sessions.create("chat").commit(
            holdfast.Commit(graph=holdfast.Append([holdfast.Node("n", payload=1)], leaf="n"))
        )
    return made


def change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def declared_anew(path: Path, table: str, pattern: str, replacement: str) -> None:
    """Change a table's declaration directly in the schema table."""
    connection = apsw.Connection(str(path))
    text: str = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    connection.pragma("writable_schema", 1)
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (changed, table))
    connection.close()


@pytest.mark.parametrize(
    "declaration",
    [
        f"revision INTEGER GENERATED ALWAYS AS ({EXPENSIVE}) VIRTUAL",
        f"revision INTEGER as({EXPENSIVE})",
        f"revision INTEGER CHECK ({EXPENSIVE} > 0)",
        f"revision INTEGER DEFAULT ({EXPENSIVE})",
    ],
)
def test_a_table_that_computes_is_refused(path: Path, declaration: str) -> None:
    declared_anew(path, "nodes", r"\brevision INTEGER( NOT NULL)?", declaration)
    tracemalloc.start()
    try:
        with (
            pytest.raises(holdfast.Corrupt, match="the table nodes computes") as info,
            holdfast.open_blocking(path),
        ):
            pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert (info.value.table, info.value.key) == ("database", "nodes")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE INDEX slow ON nodes (hex(payload))", "index slow"),
        ("CREATE INDEX slow ON nodes (payload || payload)", "index slow"),
        ("CREATE INDEX slow ON nodes (kind) WHERE payload GLOB '*a*b'", "index slow"),
        ("CREATE TRIGGER sly AFTER INSERT ON sessions BEGIN DELETE FROM sessions; END", "trigger sly"),
    ],
)
def test_an_index_that_computes_and_a_trigger_are_refused_until_they_are_dropped(
    path: Path, statement: str, named: str
) -> None:
    change(path, statement)
    with pytest.raises(holdfast.Incompatible, match=f"the {named} .*drop it"), holdfast.open_blocking(path):
        pass
    change(path, f"DROP {named}")
    with holdfast.open_blocking(path) as store:
        assert store.maintenance.verify().ok


@pytest.mark.parametrize("name", ["nodes", "NODES", "mine"])
def test_a_view_in_the_place_of_a_table_is_refused(path: Path, name: str) -> None:
    change(
        path,
        "DROP TABLE nodes",
        f"CREATE VIEW nodes AS SELECT {EXPENSIVE} AS node_key",
        "PRAGMA writable_schema = 1",
        f"UPDATE sqlite_schema SET name = '{name}', tbl_name = '{name}' WHERE name = 'nodes'",
    )
    with pytest.raises(holdfast.Corrupt, match=f"view {name} computes" if name != "mine" else "malformed"):
        holdfast.open_blocking(path).close()


def test_tables_that_a_caller_adds_to_the_file_stay(path: Path) -> None:
    change(
        path,
        "CREATE INDEX by_name ON sessions (name, owner DESC)",
        "CREATE VIEW recent AS SELECT * FROM sessions",
        "CREATE TABLE mine (nodes INTEGER DEFAULT 7)",
        "INSERT INTO mine VALUES (1)",
        f"ALTER TABLE mine ADD COLUMN events AS ({EXPENSIVE})",
        "CREATE TRIGGER yours AFTER INSERT ON mine BEGIN SELECT 1; END",
    )
    tracemalloc.start()
    try:
        with holdfast.open_blocking(path) as store:
            assert store.maintenance.verify().ok, "and columns that others compute are not computed"
            assert store.sessions.handle("chat").load() is not None
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
