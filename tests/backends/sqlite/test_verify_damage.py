"""Verification reports every damage to a file, or this file says why it cannot; only Holdfast errors are raised.

Every column of every table is damaged in every way that its type allows, and every row is deleted, one at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.backends.damages import LISTS, answers, expected_tables
from tests.backends.sqlite.furnished import ARTIFACT, QUICK, seed

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock

# The damaged row of each table; every other row stays as it is.
VICTIMS = {
    "settings": "name = 'fence_floor'",
    "sessions": "session_id = 'fork'",
    "revisions": "revision_key = (SELECT session_key << 32 | 3 FROM sessions WHERE session_id = 'x')",
    "nodes": "node_id = 'n1'",
    "turn_ids": "turn_id = 'l7'",
    "node_ids": "node_id = 'm7'",
    "usage": "source = 'tool'",
    "blobs": "rowid = (SELECT min(rowid) FROM blobs)",
    "batches": "source_key = 'claimed'",
    "ready": "session_key = (SELECT session_key FROM sessions WHERE session_id = 'x')",
    "leases": "kind = 'process'",
    "attachments": "label = 'late'",
    "attachment_objects": "rowid = (SELECT min(rowid) FROM attachment_objects)",
    "object_deletions": "family > 0",
    "processes": "process_id = 'p'",
    "events": "process_id = 'p' AND sequence = 1",
    "grants": "process_id = 'p'",
    "subscriptions": "key = 'key'",
    "occurrences": "idempotency_key = 'i2'",
    "deliveries": "state = 'failed'",
    "schedules": "name = 'nightly'",
    "artifacts": "kind = 'mod'",
    "limits": "kind = 'capped'",
    "slots": "kind = 'capped'",
    "waiting_keys": "kind = 'capped'",
    "workers": "worker_id = 'w1'",
    "stream_blocks": "block = 0",
    "session_labels": "key = 'user'",
}

WITH_USAGE = "session_id = 'x'"
"""The session whose own counter is damaged, which is in its row."""

WAYS: dict[str, dict[str, str]] = {
    "TEXT": {"bad utf-8": "CAST(X'ff' AS TEXT)", "other": "'zzz'", "blank": "''", "null": "NULL"},
    "INTEGER": {"negative": "-5", "huge": "999999", "more": "{c} + 1", "less": "{c} - 1", "null": "NULL"},
    "BLOB": {"garbage": "X'ff00'", "empty": "X''", "cut": "substr({c}, 1, length({c}) - 1)", "null": "NULL"},
}


# ---------------------------------------------------------------------------- every column, every way


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeded")
    seed(folder / "seed.db", folder / "byte_store")
    return folder / "seed.db"


def damaged(seeded: Path, *statements: str) -> Path | None:
    """Return a copy of the file with these changes, or None if the schema refuses them or nothing changes."""
    path = seeded.with_name("damaged.db")
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.copy(seeded, path)
    connection = apsw.Connection(str(path))
    try:
        for statement in statements:
            connection.execute(statement)
        return path if connection.total_changes() else None
    except (apsw.ConstraintError, apsw.MismatchError):
        return None
    finally:
        connection.close()


def opened(path: Path) -> BlockingStore:
    return holdfast.open_blocking(path, options=QUICK, clock=ManualClock(1_000_000))


def ways_of(seeded: Path, table: str) -> Iterator[tuple[str, str, str]]:
    """Yield every damage to the table's chosen row: the column, the kind, and the statement."""
    connection = apsw.Connection(str(seeded))
    columns = list(connection.execute(f"PRAGMA table_info({table})"))
    connection.close()
    for _, column, kind, *_ in columns:
        for way, expression in WAYS[kind].items():
            value = expression.format(c=column)
            victim = WITH_USAGE if column.startswith("usage_") else VICTIMS[table]
            where = f"{victim} AND {column} IS NOT {value}"
            yield column, way, f"UPDATE {table} SET {column} = {value} WHERE {where}"
    yield "*", "missing", f"DELETE FROM {table} WHERE {VICTIMS[table]}"


@pytest.mark.parametrize("table", VICTIMS)
def test_verification_names_the_table_of_every_damage_and_only_our_errors_come(seeded: Path, table: str) -> None:
    with opened(seeded) as store:
        before = answers(store)
        untouched = store.sessions.handle("other").load(holdfast.sessions.FullGraph())
    wrong: list[str] = []
    for column, way, statement in ways_of(seeded, table):
        path = damaged(seeded, statement)
        if path is None:
            continue
        with opened(path) as store:
            named = {finding.table for finding in store.maintenance.verify().findings}
            expected = expected_tables(table, column, way)
            if not (named >= expected if expected else not named):
                wrong.append(f"{column} {way}: named {sorted(named)}, expected {sorted(expected)}")
            after = answers(store)
            if store.sessions.handle("other").load(holdfast.sessions.FullGraph()) != untouched:
                wrong.append(f"{column} {way}: another session reads differently")
        if way in ("garbage", "empty", "cut"):
            # Content is verified when it is read: it comes back unchanged or raises.
            changed = [name for name in after if name != "stats" and after[name] not in (before[name], "Corrupt")]
            wrong += [f"{column} {way}: {name} answers something else" for name in changed]
    assert wrong == []


def test_every_table_of_the_schema_has_a_victim(seeded: Path) -> None:
    connection = apsw.Connection(str(seeded))
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table, where in VICTIMS.items():
        assert connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").get == 1, table
    connection.close()
    assert tables - {"sqlite_sequence"} == set(VICTIMS)


# ---------------------------------------------------------------------------- one damage does not hide another


def findings(path: Path) -> list[tuple[str, str]]:
    with opened(path) as store:
        return [(finding.table, finding.key) for finding in store.maintenance.verify().findings]


def test_each_of_several_damaged_rows_is_named_and_all_others_are_still_checked(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path) as store:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node(f"n{number:03}") for number in range(450)])
    whole = damaged(
        path,
        "UPDATE nodes SET kind = CAST(X'ff' AS TEXT) WHERE node_id IN ('n000', 'n007', 'n008', 'n300', 'n449')",
        "UPDATE nodes SET payload = X'00' WHERE node_id IN ('n001', 'n448')",
    )
    assert whole is not None
    base = 1 << 32
    assert sorted(findings(whole)) == sorted(
        [
            ("nodes", str(base + 2)),
            ("nodes", str(base + 449)),
            ("nodes", f"row 1 after {base + 300}"),
            ("nodes", f"row 1 after {base + 449}"),
            ("nodes", f"row 1 after {base + 7}"),
            ("nodes", "row 1 after the start"),
            ("nodes", f"row 2 after {base + 7}"),
        ]
    )
    with opened(whole) as store:
        assert store.maintenance.verify().checked_nodes == 445


def test_rows_of_an_unreadable_session_are_checked_all_the_same(seeded: Path) -> None:
    x = "(SELECT session_key FROM sessions WHERE session_id = 'x')"
    path = damaged(
        seeded,
        f"UPDATE nodes SET payload = X'00' WHERE node_id = 'n1' AND session_key = {x}",
        f"UPDATE revisions SET refs = X'00' WHERE revision_key = {x} << 32 | 2",
        "UPDATE batches SET payloads = X'00' WHERE source_key = 'claimed'",
        "UPDATE sessions SET name = CAST(X'ff' AS TEXT) WHERE session_id = 'x'",
        "UPDATE processes SET status = CAST(X'ff' AS TEXT) WHERE process_id = 'p'",
        "UPDATE events SET payload = X'00' WHERE process_id = 'p' AND sequence = 2",
    )
    assert path is not None
    found = findings(path)
    assert ("sessions", "row 1 after the start") in found
    assert ("processes", "row 1 after the start") in found
    assert {"nodes", "revisions", "batches", "events"} <= {table for table, _ in found}
    # A row is not called an orphan only because its parent cannot be read.
    assert len(found) == 6, found


def test_a_lineage_that_does_not_decode_hides_nothing(seeded: Path) -> None:
    path = damaged(
        seeded,
        "UPDATE sessions SET lineage = X'ff' WHERE session_id = 'fork'",
        "UPDATE artifacts SET size = size + 1",
    )
    assert path is not None
    assert [table for table, _ in findings(path)] == ["sessions", "artifacts"]


@pytest.mark.parametrize("table", sorted(set(VICTIMS) - {"sessions"}))
def test_a_table_that_is_gone_is_named_and_the_others_are_still_checked(seeded: Path, table: str) -> None:
    path = damaged(seeded, "UPDATE sessions SET incarnation = 7 WHERE session_id = 'other'", f"DROP TABLE {table}")
    assert path is not None
    named = {name for name, _ in findings(path)}
    assert {"sessions", "database" if table in LISTS else table} <= named


def test_rows_that_cannot_be_read_without_end_are_given_up(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path) as store:
        store.sessions.create("chat").add_nodes([holdfast.Node(f"n{number:04}") for number in range(900)])
    ruined = damaged(path, "UPDATE nodes SET kind = CAST(X'ff' AS TEXT) WHERE node_id >= 'n0100'")
    assert ruined is not None
    with opened(ruined) as store:
        report = store.maintenance.verify()
    assert report.checked_nodes == 100
    assert len(report.findings) == 501
    assert report.findings[-1].problem == "the rows after these were not checked"


def test_damaged_pages_are_found_and_verification_ends(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path) as store:
        session = store.sessions.create("chat")
        for number in range(120):
            session.commit(
                holdfast.Commit(
                    graph=holdfast.Append([holdfast.Node(f"n{number}", payload="p" * 3_000)], leaf=f"n{number}"),
                    checkpoint=holdfast.Checkpoint(turn_state={"n": number}),
                )
            )
            store.artifacts.put("kind", f"{number:03}", bytes([number]) * 5_000)
    content = bytearray(path.read_bytes())
    for start in range(len(content) // 2, len(content) - 4_096, 16_384):
        content[start : start + 2_048] = b"\xa5" * 2_048
    path.write_bytes(content)
    with opened(path) as store:
        report = store.maintenance.verify()
    assert not report.ok


def test_a_column_of_another_type_is_named_with_its_row(seeded: Path) -> None:
    path = damaged(
        seeded,
        "CREATE TABLE loose AS SELECT * FROM artifacts",
        "DROP TABLE artifacts",
        "ALTER TABLE loose RENAME TO artifacts",
        "UPDATE artifacts SET size = 'many'",
    )
    assert path is not None
    # The table has lost its constraints with its types.
    assert findings(path) == [("database", "structures"), ("artifacts", f"('mod', '{ARTIFACT}')")]


def test_a_prune_keeps_an_ended_run_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    policy = holdfast.RetentionPolicy(terminal_processes_older_than_ms=0)
    with opened(path) as store:
        for name in ("sound", "damaged"):
            store.processes.start("job", id=name)
            store.processes.complete(name, holdfast.processes.Completed(1))
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE processes SET body = x'00' WHERE process_id = 'damaged'")
    connection.close()
    with opened(path) as store:
        assert store.maintenance.prune(policy).processes == 1
        assert store.processes.get("sound") is None
        with pytest.raises(holdfast.Corrupt):
            store.processes.get("damaged")
