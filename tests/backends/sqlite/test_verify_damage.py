"""Whatever is damaged in a file, verification says so or this file says why it cannot, and nothing but our errors come.

Every column of every table is damaged in every way that its type allows, and every row is taken away, one at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.backends.sqlite.furnished import ARTIFACT, QUICK, reads, seed

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock

# Which row of each table is damaged; every other one stays as it is.
VICTIMS = {
    "settings": "name = 'fence_floor'",
    "sessions": "session_id = 'fork'",
    "revisions": "session_key = (SELECT session_key FROM sessions WHERE session_id = 'x') AND revision = 3",
    "nodes": "node_id = 'n1'",
    "usage": "source = 'turn'",
    "blobs": "rowid = (SELECT min(rowid) FROM blobs)",
    "work": "source_key = 'claimed'",
    "leases": "kind = 'process'",
    "attachments": "label = 'late'",
    "attachment_objects": "rowid = (SELECT min(rowid) FROM attachment_objects)",
    "doomed_objects": "family > 0",
    "processes": "process_id = 'p'",
    "events": "process_id = 'p' AND sequence = 1",
    "grants": "process_id = 'p'",
    "subscriptions": "key = 'key'",
    "occurrences": "idempotency_key = 'i2'",
    "deliveries": "state = 'failed'",
    "artifacts": "kind = 'mod'",
}

WAYS: dict[str, dict[str, str]] = {
    "TEXT": {"bad utf-8": "CAST(X'ff' AS TEXT)", "other": "'zzz'", "blank": "''", "null": "NULL"},
    "INTEGER": {"negative": "-5", "huge": "999999", "more": "{c} + 1", "less": "{c} - 1", "null": "NULL"},
    "BLOB": {"garbage": "X'ff00'", "empty": "X''", "cut": "substr({c}, 1, length({c}) - 1)", "null": "NULL"},
}


# ---------------------------------------------------------------------------- what cannot be seen, and why

TIME = "one time is as good as another"
NAME = "nothing else repeats this name or text"
ALLOWED = "what it says now could have been stored just so"
FORGOTTEN = "nothing else says that the row was ever there"

UNSEEN: dict[str, tuple[str, str]] = {
    "settings.name": ("other", "a number that nobody asks for"),
    "settings.value": ("huge more less", "the floor of fences may be any number"),
    "settings.*": ("missing", "no floor is a floor of 0"),
    "sessions.session_id": ("other", NAME),
    "sessions.changed_at_ms": ("huge more less", TIME),
    "sessions.created_at_ms": ("huge more less", TIME),
    "sessions.name": ("other blank", NAME),
    "sessions.owner": ("other", NAME),
    "sessions.model": ("other blank", NAME),
    "sessions.cwd": ("other blank", NAME),
    "sessions.parent_session_id": ("other null", NAME),
    "revisions.turn_id": ("other null", NAME),
    "revisions.fingerprint": ("other", "a caller may bring a fingerprint of its own"),
    "revisions.committed_at_ms": ("huge more less", TIME),
    "nodes.parent_key": ("null", ALLOWED),
    "nodes.kind": ("other", NAME),
    "nodes.frame_id": ("other null", NAME),
    "nodes.caused_by": ("null", ALLOWED),
    "nodes.created_at_ms": ("huge more less", TIME),
    "nodes.mark": ("more", "a live node may be tombstoned"),
    "nodes.revision": ("null", "a node may be added beside any turn"),
    "work.enqueue_seq": ("huge", "a batch stands where its number says"),
    "work.batch_id": ("other", NAME),
    "work.session_key": ("more", "another session of the family could have this work"),
    "work.source_key": ("other null", NAME),
    "work.available_at_ms": ("huge more", TIME),
    "work.enqueued_at_ms": ("huge more less", TIME),
    "work.claim_owner": ("other", NAME),
    "work.claimed_at_ms": ("huge more less", TIME),
    "work.claim_expires_at_ms": ("huge more less", TIME),
    "work.claim_exclusive": ("less", ALLOWED),
    "work.*": ("missing", FORGOTTEN),
    "leases.owner_id": ("other", NAME),
    "leases.fence": ("huge more less", "a fence may be any number from 1 on"),
    "leases.claimed_at_ms": ("huge more less", TIME),
    "leases.expires_at_ms": ("huge more less", TIME),
    "leases.*": ("missing", FORGOTTEN),
    "attachments.session_key": ("more", "another session of the family could refer to it"),
    "attachments.uri": ("other", "a caller may keep the bytes elsewhere, too"),
    "attachments.media_type": ("other", NAME),
    "attachments.byte_count": ("huge more less", "a caller who recorded an intent said how many bytes there are"),
    "attachments.width": ("huge more less null", ALLOWED),
    "attachments.height": ("huge more less null", ALLOWED),
    "attachments.label": ("other blank null", NAME),
    "attachments.intent_at_ms": ("huge more less", TIME),
    "attachments.committed_at_ms": ("huge more less null", TIME),
    "attachment_objects.*": ("missing", "the bytes may be in a place that this store was opened without"),
    "doomed_objects.family": ("less", ALLOWED),
    "doomed_objects.deleting_until_ms": ("huge more", TIME),
    "doomed_objects.*": ("missing", FORGOTTEN),
    "processes.created_at_ms": ("huge more less", TIME),
    "processes.updated_at_ms": ("huge more less", TIME),
    "processes.external_ref": ("null", ALLOWED),
    "events.replay_key": ("other null", NAME),
    "events.acked": ("more", ALLOWED),
    "events.occurred_at_ms": ("huge more less", TIME),
    "grants.session_id": ("other", "a handle needs no session"),
    "grants.frame_id": ("other blank", "a handle needs no frame"),
    "grants.*": ("missing", FORGOTTEN),
    "subscriptions.enabled": ("less", ALLOWED),
    "subscriptions.created_at_ms": ("huge more less", TIME),
    "subscriptions.updated_at_ms": ("huge more less", TIME),
    "occurrences.occurred_at_ms": ("huge more less", TIME),
    "deliveries.reserved_at_ms": ("huge more less", TIME),
    "deliveries.updated_at_ms": ("huge more less", TIME),
    "deliveries.failure": ("other blank", NAME),
    "deliveries.*": ("missing", FORGOTTEN),
    "artifacts.kind": ("other", NAME),
    "artifacts.ref": ("other", NAME),
    "artifacts.stored_at_ms": ("huge more less", TIME),
    "artifacts.*": ("missing", FORGOTTEN),
}
"""Damage that leaves a row which could be right: the column, the ways, and why nothing contradicts it."""

ELSEWHERE: dict[str, tuple[str, set[str]]] = {
    "sessions.*": ("missing", {"attachments", "nodes", "revisions"}),
    "nodes.node_id": ("other", {"revisions"}),
    "attachments.attachment_id": ("other", {"attachment_objects"}),
    "attachments.*": ("missing", {"attachment_objects"}),
    "processes.*": ("missing", {"events", "grants", "leases"}),
    "events.*": ("missing", {"processes"}),
    "subscriptions.sequence": ("huge more less", {"deliveries"}),
    "subscriptions.*": ("missing", {"deliveries"}),
    "occurrences.*": ("missing", {"deliveries"}),
}
"""Damage that shows where others refer to the row: the column, the ways, and the tables that are named."""


# ---------------------------------------------------------------------------- every column, every way


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeded")
    seed(folder / "seed.db", folder / "shelf")
    return folder / "seed.db"


def damaged(seeded: Path, *statements: str) -> Path | None:
    """A copy of the file with these changes, None if the schema refuses them or nothing changes."""
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
    """Every damage to the table's victim: the column, the way, and the statement."""
    connection = apsw.Connection(str(seeded))
    columns = list(connection.execute(f"PRAGMA table_info({table})"))
    connection.close()
    for _, column, kind, *_ in columns:
        for way, expression in WAYS[kind].items():
            value = expression.format(c=column)
            where = f"{VICTIMS[table]} AND {column} IS NOT {value}"
            yield column, way, f"UPDATE {table} SET {column} = {value} WHERE {where}"
    yield "*", "missing", f"DELETE FROM {table} WHERE {VICTIMS[table]}"


def answers(store: BlockingStore) -> dict[str, str]:
    """What every read answers; anything that is no error of ours comes out."""
    found: dict[str, str] = {}
    for name, read in reads(store).items():
        try:
            found[name] = repr(read())
        except holdfast.HoldfastError as error:
            found[name] = type(error).__name__
    return found


def expected_tables(table: str, column: str, way: str) -> set[str]:
    """The tables of which at least one must be named; none if the damage cannot be seen."""
    place = f"{table}.{column}"
    if way in UNSEEN.get(place, ("", ""))[0].split():
        return set()
    ways, tables = ELSEWHERE.get(place, ("", set()))
    return tables if way in ways.split() else {table}


@pytest.mark.parametrize("table", VICTIMS)
def test_verification_names_the_table_of_every_damage_and_only_our_errors_come(seeded: Path, table: str) -> None:
    with opened(seeded) as store:
        before = answers(store)
        untouched = store.sessions.handle("other").load(holdfast.FullGraph())
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
            if store.sessions.handle("other").load(holdfast.FullGraph()) != untouched:
                wrong.append(f"{column} {way}: another session reads differently")
        if way in ("garbage", "empty", "cut"):
            # What has content of its own is proven when it is read: it comes out as it was, or not at all.
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


def test_what_belongs_to_a_session_that_cannot_be_read_is_checked_all_the_same(seeded: Path) -> None:
    x = "(SELECT session_key FROM sessions WHERE session_id = 'x')"
    path = damaged(
        seeded,
        f"UPDATE nodes SET payload = X'00' WHERE node_id = 'n1' AND session_key = {x}",
        f"UPDATE revisions SET refs = X'00' WHERE session_key = {x} AND revision = 2",
        "UPDATE work SET payloads = X'00' WHERE source_key = 'claimed'",
        "UPDATE sessions SET name = CAST(X'ff' AS TEXT) WHERE session_id = 'x'",
        "UPDATE processes SET status = CAST(X'ff' AS TEXT) WHERE process_id = 'p'",
        "UPDATE events SET payload = X'00' WHERE process_id = 'p' AND sequence = 2",
    )
    assert path is not None
    found = findings(path)
    assert ("sessions", "row 1 after the start") in found
    assert ("processes", "row 1 after the start") in found
    assert {"nodes", "revisions", "work", "events"} <= {table for table, _ in found}
    # Nothing is called an orphan only because its parent cannot be read.
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
    assert {"sessions", table} <= named


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
    assert report.findings[-1].problem == "what comes behind these rows was not looked at"


def test_damaged_pages_are_found_and_verification_ends(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened(path) as store:
        session = store.sessions.create("chat")
        for number in range(60):
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
    assert findings(path) == [("artifacts", f"('mod', '{ARTIFACT}')")]
