"""A row missing from an index is found by a scan and not by a lookup: verification runs SQLite's own check."""

from __future__ import annotations

from pathlib import Path

import apsw

import holdfast


def test_an_index_that_lost_an_entry_is_found(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with holdfast.open_blocking(path) as store:
        store.sessions.create("chat").commit(holdfast.Commit(turn_id="t-1"))
        assert store.maintenance.verify().findings == ()
    connection = apsw.Connection(str(path))
    # Point the index at another column, which loses its entries, then point it back.
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'turn_id', 'fingerprint') WHERE name = 'revisions_turn'"
    )
    connection.close()
    connection = apsw.Connection(str(path))
    connection.execute("REINDEX")
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'fingerprint', 'turn_id') WHERE name = 'revisions_turn'"
    )
    connection.close()
    with holdfast.open_blocking(path) as store:
        findings = store.maintenance.verify().findings
        assert {finding.table for finding in findings} == {"database"}
        assert all("index" in finding.problem for finding in findings)
