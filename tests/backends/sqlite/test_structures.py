"""A row missing from an index is found by a scan and not by a lookup: verification runs SQLite's own check."""

from __future__ import annotations

from pathlib import Path

import apsw

import holdfast
from holdfast.sessions import Child


def test_an_index_that_lost_an_entry_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with holdfast.open_blocking(path) as store:
        store.sessions.create("chat", relation=Child("planner"))
        assert store.maintenance.verify().findings == ()
    connection = apsw.Connection(str(path))
    # Point the index at another column, which loses its entries, then point it back.
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'parent_session_id', 'cwd') WHERE name = 'sessions_parent'"
    )
    connection.close()
    connection = apsw.Connection(str(path))
    connection.execute("REINDEX")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'cwd', 'parent_session_id') WHERE name = 'sessions_parent'"
    )
    connection.close()
    with holdfast.open_blocking(path) as store:
        findings = store.maintenance.verify().findings
        assert {finding.table for finding in findings} == {"database"}
        assert all("index" in finding.problem for finding in findings)
