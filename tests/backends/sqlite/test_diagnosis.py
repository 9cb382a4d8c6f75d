"""A healthy file raises no concern, and each danger to a file is reported while it exists."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.backends.sqlite.filesystem import file_system_of, found_in
from holdfast.blocking import BlockingStore
from holdfast.leases import OnProcess, OnSession
from holdfast.maintenance import SqliteFacts
from holdfast.processes import Engine, External
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft, registration_for

MINUTE = 60_000
HOUR = 3_600_000
MIB = 1_048_576
PAGE = 4_096


def names(store: BlockingStore, *, integrity: bool = True) -> list[str]:
    return [concern.name for concern in store.maintenance.diagnose(integrity=integrity).concerns]


def change(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_file_that_is_used_and_in_order_has_no_concern(tmp_path: Path) -> None:
    with holdfast.open_blocking(tmp_path / "state.db") as store:
        session = store.sessions.create("chat")
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=1)))
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        store.leases.claim(OnSession("chat"), owner_id="w")
        diagnosis = store.maintenance.diagnose()
        assert diagnosis.ok
        assert diagnosis.concerns == ()
        assert diagnosis.facts is not None
        engine = diagnosis.facts.engine
        assert isinstance(engine, SqliteFacts)
        assert (engine.synchronous, engine.journal_mode, engine.version) == ("full", "wal", apsw.SQLITE_VERSION_NUMBER)
        assert engine.log_bytes == (tmp_path / "state.db-wal").stat().st_size
        assert (diagnosis.facts.schema_version, diagnosis.facts.ready_batches) == (1, 1)


def test_a_database_in_memory_has_no_concern() -> None:
    with holdfast.open_blocking("sqlite::memory:") as store:
        assert names(store) == []


@pytest.mark.parametrize("synchronous", ["off", "normal"])
def test_a_store_that_does_not_wait_for_the_disk_is_in_danger(tmp_path: Path, synchronous: str) -> None:
    options = holdfast.SqliteOptions(synchronous=synchronous)  # pyright: ignore
    with holdfast.open_blocking(tmp_path / "state.db", options=options) as store:
        (concern,) = store.maintenance.diagnose().concerns
        assert (concern.level, concern.name) == ("danger", "synchronous")
        assert f"synchronous={synchronous}" in concern.problem


def test_a_dropped_index_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    holdfast.open_blocking(path).close()
    change(path, "DROP INDEX batches_source", "DROP INDEX events_type")
    with holdfast.open_blocking(path) as store:
        diagnosis = store.maintenance.diagnose()
        assert diagnosis.facts.missing_indexes == ("batches_source", "events_type")
        assert names(store) == ["missing-index"]


def test_a_log_that_a_reader_keeps_from_being_emptied_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path, options=holdfast.SqliteOptions(synchronous="off")) as store:
        store.artifacts.put("kind", "large", b"x")
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM artifacts").get == 1
        change(path, "PRAGMA synchronous = off", f"UPDATE artifacts SET body = zeroblob({129 * MIB})")
        assert "log-growth" in names(store, integrity=False)
        reader.execute("ROLLBACK")
        reader.close()


def test_damaged_pages_are_a_danger_even_where_they_hide_the_facts(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path) as store:
        for number in range(60):
            store.artifacts.put("kind", f"{number:03}", os.urandom(5_000))
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        pages = connection.execute("SELECT pageno FROM dbstat WHERE name <> 'sqlite_schema'").fetchall()
    content = bytearray(path.read_bytes())
    for (page,) in pages:
        content[(page - 1) * PAGE : page * PAGE] = b"\xa5" * PAGE
    path.write_bytes(content)
    with holdfast.open_blocking(path) as store:
        diagnosis = store.maintenance.diagnose()
    assert {concern.name for concern in diagnosis.concerns} == {"integrity"}
    assert (len(diagnosis.concerns), diagnosis.facts) == (1, None)


def test_an_index_that_lost_an_entry_is_a_danger_if_integrity_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.open_blocking(path) as store:
        store.sessions.create("chat", relation=holdfast.sessions.Child("planner"))
    answer = "UPDATE sqlite_schema SET sql = replace(sql, '{}', '{}') WHERE name = 'sessions_parent'"
    # Point the index at another column, which loses its entries, then point it back.
    change(path, "PRAGMA writable_schema = ON", answer.format("parent_session_id", "cwd"))
    change(path, "REINDEX", "PRAGMA writable_schema = ON", answer.format("cwd", "parent_session_id"))
    with holdfast.open_blocking(path) as store:
        assert set(names(store)) == {"integrity"}
        assert names(store, integrity=False) == []


def test_a_damaged_row_does_not_hide_what_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(tmp_path / "state.db", clock=clock) as store:
        store.processes.start("research", id="r1")
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        clock.advance(HOUR)
        connection = apsw.Connection(str(tmp_path / "state.db"))
        connection.execute("UPDATE processes SET body = x'00'")
        connection.close()
        assert names(store) == ["integrity", "old-work"]


def test_unattended_leases_deliveries_and_work_are_counted(tmp_path: Path) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(tmp_path / "state.db", clock=clock) as store:
        store.sessions.create("chat")
        store.processes.register(holdfast.ProcessRegistration("p1", Engine("lua"), env_ref="env"))
        store.leases.claim(OnProcess("p1"), owner_id="w", ttl_ms=1_000)
        draft = SubscriptionDraft(source_type="cron", source_key="daily", target=External())
        store.triggers.subscribe(draft)
        delivery = store.triggers.emit("cron", "daily", idempotency_key="1").deliveries[0]
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
        later = clock.now_ms() + 10 * HOUR
        store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[2], available_at_ms=later))
        assert names(store) == []
        clock.advance(2 * MINUTE)
        assert names(store) == ["expired-leases", "undelivered", "old-work"], "no worker handles it"
        clock.advance(HOUR)
        diagnosis = store.maintenance.diagnose()
        assert [concern.name for concern in diagnosis.concerns] == ["expired-leases", "undelivered", "old-work"]
        facts = diagnosis.facts
        assert (facts.expired_leases, facts.undelivered, facts.ready_batches) == (1, 1, 1)
        store.leases.claim(OnProcess("p1"), owner_id="w")
        store.processes.register(registration_for(delivery))
        store.queue.claim("chat", owner_id="w")
        assert names(store) == []


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
32 31 0:41 / /home/ada\\040b/local rw - xfs /dev/vdb rw
33 27 0:42 / /twice rw - ext4 /dev/vdc rw
34 33 0:43 / /twice rw - cifs //server/share rw
a line that says nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/state.db", "ext4"),
        ("/home/ada/state.db", "nfs4"),
        ("/homes/state.db", "ext4"),
        ("/home/ada b/local/state.db", "xfs"),
        ("/twice/state.db", "cifs"),
        ("/proc/self", "proc"),
    ],
)
def test_the_innermost_mount_says_what_holds_a_file(path: str, kind: str) -> None:
    assert found_in(MOUNTS, path) == kind


def test_a_path_that_no_mount_holds_is_on_nothing_known() -> None:
    assert found_in("", "/state.db") is None


def test_this_machines_mounts_are_read(tmp_path: Path) -> None:
    found = file_system_of(str(tmp_path / "state.db"))
    assert found if Path("/proc/self/mountinfo").exists() else found is None
