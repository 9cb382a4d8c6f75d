"""Damage is reported as damage, and affects only the row that has it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import rows as r
from holdfast.backends.sqlite.driver_errors import translated
from holdfast.errors import Corrupt, HoldfastError, InvalidRequest, Unavailable
from holdfast.testing.clock import ManualClock


def rebuild_loosely(path: Path, table: str, *changes: str) -> None:
    """Recreate the table without types, as a foreign tool might, and change it."""
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE loose AS SELECT * FROM " + table)
    other.execute("DROP TABLE " + table)
    other.execute("ALTER TABLE loose RENAME TO " + table)
    for change in changes:
        other.execute(change)
    other.close()


def chain(length: int) -> list[r.NodeRow]:
    base = 1 << 32
    return [
        r.NodeRow(base + i, 1, 0, f"n{i}", base + i - 1 if i > 1 else None, "m", None, None, 1, b"{}", 0, 1)
        for i in range(1, length + 1)
    ]


@pytest.mark.parametrize("value", ["'text'", "NULL", "1.5", "X'00'"])
def test_a_column_of_the_wrong_type_is_corrupt_and_names_the_row(open_store: Any, path: Path, value: str) -> None:
    store = open_store()
    store.call("save_artifact", r.ArtifactRow("k", "ref", "h", "raw", 1, 1, b"x"))
    store.close()
    rebuild_loosely(path, "artifacts", f"UPDATE artifacts SET size = {value}")
    with pytest.raises(Corrupt) as refused:
        open_store().ask("find_artifact", "k", "ref")
    assert refused.value.table == "artifacts"
    assert refused.value.key == "('k', 'ref')"


@pytest.mark.parametrize("parent", [3, 4, 2**40], ids=["itself", "a circle", "the future"])
def test_a_path_that_does_not_lead_back_is_corrupt_and_ends(store: Any, parent: int) -> None:
    store.call("insert_nodes", chain(4))
    base = 1 << 32
    store.connection.execute("UPDATE nodes SET parent_key = ? WHERE node_key = ?", (base + parent, base + 3))
    with pytest.raises(Corrupt) as refused:
        store.ask("read_path", base + 4, None)
    assert (refused.value.table, refused.value.key) == ("nodes", str(base + 3))


def test_a_path_with_a_missing_parent_is_corrupt(store: Any) -> None:
    store.call("insert_nodes", chain(4))
    store.connection.execute("DELETE FROM nodes WHERE node_key = ?", ((1 << 32) + 2,))
    with pytest.raises(Corrupt, match="missing"):
        store.ask("read_path", (1 << 32) + 4, None)


def test_refs_that_are_not_a_list_are_corrupt_and_nothing_is_collected(store: Any) -> None:
    made = store.call("insert_session", r.SessionRow(0, "s", 1, 0, 1, 0, 0, b"[]", 1))
    revision = r.RevisionRow(1, 1, 1, None, None, 0, 0, None, None, None, b"[", b"{}", 1)
    plan = r.CommitPlan(session=made, revision=revision, blobs=(r.BlobRow("x", "raw", 1, b"x"),))
    store.call("apply_commit", plan, 1)
    with pytest.raises(Corrupt):
        store.call("drop_unreferenced_blobs", 1, limit=9, dry_run=False)
    assert len(store.backend.dump()["blobs"]) == 1


def test_rows_that_contradict_each_other_are_corrupt_and_nothing_is_changed(store: Any) -> None:
    store.call("insert_nodes", chain(2))
    with pytest.raises(Corrupt, match="UNIQUE") as refused:
        store.call("insert_nodes", chain(3)[::-1])
    assert isinstance(refused.value.__cause__, apsw.ConstraintError)
    assert len(store.backend.dump()["nodes"]) == 2


def test_a_missing_table_is_corrupt(open_store: Any, path: Path) -> None:
    open_store().close()
    other = apsw.Connection(str(path))
    other.execute("DROP TABLE leases")
    other.close()
    store = open_store()
    with pytest.raises(Corrupt, match="leases"):
        store.ask("find_lease", "process", "p")
    with pytest.raises(Corrupt, match="leases"):
        store.call("find_lease", "process", "p")


def test_damaged_pages_are_corrupt_for_readers_and_writers(open_store: Any, path: Path) -> None:
    store = open_store()
    for i in range(200):
        store.call("save_artifact", r.ArtifactRow("k", f"{i:03}", "h", "raw", 1, 1, os.urandom(4_000)))
    store.close()
    content = bytearray(path.read_bytes())
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        pages = connection.execute("SELECT pageno FROM dbstat WHERE name <> 'sqlite_schema'").fetchall()
        size = int(connection.pragma("page_size"))
    for (page,) in pages:
        content[(page - 1) * size : page * size] = os.urandom(size)
    path.write_bytes(content)
    store = open_store()
    with pytest.raises(Corrupt):
        store.ask("scan_rows", r.ArtifactRow, after=None, skip=0, limit=1_000)
    with pytest.raises(Corrupt):
        store.call("drop_artifact", "k", "001")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (apsw.BusyError, Unavailable),
        (apsw.LockedError, Unavailable),
        (apsw.FullError, Unavailable),
        (apsw.IOError, Unavailable),
        (apsw.NoMemError, Unavailable),
        (apsw.InterruptError, Unavailable),
        (apsw.ReadOnlyError, Unavailable),
        (apsw.PermissionsError, Unavailable),
        (apsw.CantOpenError, Unavailable),
        (apsw.CorruptError, Corrupt),
        (apsw.NotADBError, Corrupt),
        (apsw.ConstraintError, Corrupt),
        (apsw.SQLError, Corrupt),
        (apsw.TooBigError, InvalidRequest),
        (apsw.MisuseError, HoldfastError),
    ],
)
def test_every_error_of_the_driver_becomes_a_holdfast_error(
    path: Path, error: type[apsw.Error], expected: type
) -> None:
    found = translated(error("why"), str(path))
    assert str(found).count("restore it from a backup") == (expected is Corrupt)
    assert type(found) is expected
    assert found.outcome == "not_applied"


def test_a_damaged_schedule_keeps_no_other_back(path: Path) -> None:
    clock = ManualClock(1_000_000)
    with holdfast.open_blocking(path, clock=clock) as store:
        for name in ("first", "second"):
            store.schedules.put(name, "0 3 * * *", run=holdfast.processes.Run("report"))
    other = apsw.Connection(str(path))
    other.execute("UPDATE schedules SET body = X'ff00' WHERE name = 'first'")
    other.close()
    clock.advance(24 * 3_600_000)
    with holdfast.open_blocking(path, clock=clock) as store:
        firing = store.schedules.fire_next()
        assert firing is not None
        assert firing.name == "second"
        assert store.schedules.fire_next() is None
        with pytest.raises(Corrupt):
            store.schedules.get("first")
        store.schedules.put("first", "0 3 * * *", run=holdfast.processes.Run("report"))
        clock.advance(24 * 3_600_000)
        assert store.schedules.fire_next() is not None
