"""A row that an index does not know is there for a scan and gone for a look-up: verification asks SQLite itself."""

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
    # The index is told that it indexes another column, loses its entries, and is then told the truth again.
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
