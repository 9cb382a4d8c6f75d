"""Every concern has its facts, its bound and its advice, and healthy facts raise none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.ports.limit_tables import ReadySession
from holdfast.records.diagnosis import Concern, PostgresFacts, SqliteFacts, StoreFacts, StuckItems
from holdfast.rules import diagnosis

NOW = 1_800_000_000_000
MINUTE = 60_000
HOUR = 3_600_000
MIB = 1_048_576
PLAIN = StoreFacts(now_ms=NOW, schema_version=1, expired_leases=0, undelivered=0, ready_batches=0)
SQLITE = SqliteFacts(version=3_054_001, synchronous="full", journal_mode="wal", log_bytes=0, file_system="ext4")
POSTGRES = PostgresFacts(
    version=180_001,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    standby_names="",
    autovacuum=True,
    connections=5,
    max_connections=100,
    transaction_ids_used=1_000,
    server_ms=NOW,
)


def judged(facts: StoreFacts, **moment: int) -> list[tuple[str, str]]:
    found = diagnosis.diagnose(facts, **{"local_ms": NOW, "trip_ms": 0, **moment})
    assert all(concern.problem and concern.advice for concern in found)
    return [(concern.level, concern.name) for concern in found]


def engine_judged(engine: Any, **changes: Any) -> list[tuple[str, str]]:
    return judged(msgspec.structs.replace(PLAIN, engine=msgspec.structs.replace(engine, **changes)))


@pytest.mark.parametrize("engine", [None, SQLITE, POSTGRES], ids=["memory", "sqlite", "postgresql"])
def test_facts_without_fault_have_no_concern(engine: Any) -> None:
    assert judged(msgspec.structs.replace(PLAIN, engine=engine)) == []


@pytest.mark.parametrize(
    ("fields", "grace_ms", "name"),
    [
        ({"expired_leases": 1, "oldest_expired_lease_at_ms": NOW}, MINUTE, "expired-leases"),
        ({"undelivered": 2, "oldest_undelivered_at_ms": NOW}, MINUTE, "undelivered"),
        ({"ready_batches": 3, "oldest_ready_batch_at_ms": NOW}, 5 * MINUTE, "old-work"),
    ],
)
def test_waiting_work_is_a_warning_once_its_grace_is_over(fields: dict[str, int], grace_ms: int, name: str) -> None:
    facts = msgspec.structs.replace(PLAIN, **fields)
    assert judged(msgspec.structs.replace(facts, now_ms=NOW + grace_ms)) == []
    assert judged(msgspec.structs.replace(facts, now_ms=NOW + grace_ms + 1)) == [("warning", name)]


def test_a_concern_says_how_many_and_since_when() -> None:
    facts = msgspec.structs.replace(PLAIN, expired_leases=2, oldest_expired_lease_at_ms=NOW - 3 * HOUR)
    (concern,) = diagnosis.diagnose(facts, local_ms=NOW, trip_ms=0)
    assert concern.problem == "2 leases on processes ended without being released, the oldest 3 hours ago"
    facts = msgspec.structs.replace(PLAIN, undelivered=1, oldest_undelivered_at_ms=NOW - 61_000)
    (concern,) = diagnosis.diagnose(facts, local_ms=NOW, trip_ms=0)
    assert concern.problem == "1 delivery reserved whose process was never started, the oldest 61 seconds ago"


def test_an_expired_lease_is_named_with_its_cause() -> None:
    facts = msgspec.structs.replace(PLAIN, expired_leases=3, oldest_expired_lease_at_ms=NOW - 3 * HOUR)
    stuck = StuckItems(expired_leases=(("chat", "no-worker"), ("r1", "unclaimed")))
    (concern,) = diagnosis.diagnose(facts, stuck, local_ms=NOW, trip_ms=0)
    assert concern.ids == ("chat", "r1")
    assert concern.problem.endswith("the oldest 3 hours ago: 'chat' (no-worker), 'r1' (unclaimed)")


def test_the_oldest_sessions_of_every_kind_come_before_others() -> None:
    kinds = (("turn", True), ("turn", True), ("turn", False), ("turn", True), ("mail", False))
    oldest = [ReadySession(str(at), at, kind, is_paused) for at, (kind, is_paused) in enumerate(kinds)]
    assert [one.session_id for one in diagnosis.of_every_kind(oldest, 4)] == ["0", "1", "2", "4"]
    assert [one.session_id for one in diagnosis.of_every_kind(oldest, 2)] == ["0", "2"]
    assert diagnosis.of_every_kind([], 4) == []


def test_stuck_items_are_named_at_once() -> None:
    stuck = StuckItems(dead_workers=("w1",), claimed_by_dead=("chat",), run_by_dead=("r1",), dead_letters=("mail",))
    found = diagnosis.diagnose(PLAIN, stuck, local_ms=NOW, trip_ms=0)
    assert [(one.name, one.ids) for one in found] == [("dead-workers", ("chat", "r1")), ("dead-letters", ("mail",))]
    assert found[0].problem == "1 worker that stopped reporting held work: 'chat', 'r1'"


def test_a_due_run_is_named_once_its_grace_is_over() -> None:
    late = StuckItems(due_runs=(("r1", "unclaimed"),), due_since_ms=NOW - 5 * MINUTE - 1)
    (concern,) = diagnosis.diagnose(PLAIN, late, local_ms=NOW, trip_ms=0)
    assert (concern.name, concern.ids) == ("unclaimed-runs", ("r1",))
    in_time = msgspec.structs.replace(late, due_since_ms=NOW - 5 * MINUTE)
    assert diagnosis.diagnose(PLAIN, in_time, local_ms=NOW, trip_ms=0) == ()


def test_work_that_is_stuck_is_named_with_its_causes_after_a_minute() -> None:
    facts = msgspec.structs.replace(PLAIN, ready_batches=2, oldest_ready_batch_at_ms=NOW - MINUTE - 1)
    stuck = StuckItems(ready_sessions=(("chat", "no-worker"),), stuck_since_ms=NOW - MINUTE - 1)
    (concern,) = diagnosis.diagnose(facts, stuck, local_ms=NOW, trip_ms=0)
    assert (concern.name, concern.ids) == ("old-work", ("chat",))
    assert concern.problem == "2 batches of unclaimed work, the oldest ready for 60 seconds: 'chat' (no-worker)"
    in_time = msgspec.structs.replace(stuck, stuck_since_ms=NOW - MINUTE)
    assert diagnosis.diagnose(facts, in_time, local_ms=NOW, trip_ms=0) == ()


def test_a_run_that_is_stuck_is_named_sooner() -> None:
    runs = (("r1", "limit-reached"), ("r2", "kind-paused"))
    late = StuckItems(due_runs=runs, due_since_ms=NOW - 2 * MINUTE, stuck_run_since_ms=NOW - MINUTE - 1)
    (concern,) = diagnosis.diagnose(PLAIN, late, local_ms=NOW, trip_ms=0)
    assert concern.problem == (
        "runs are due that no worker has claimed, the oldest for 2 minutes; of each kind: "
        "'r1' (limit-reached), 'r2' (kind-paused)"
    )
    in_time = msgspec.structs.replace(late, stuck_run_since_ms=NOW - MINUTE)
    assert diagnosis.diagnose(PLAIN, in_time, local_ms=NOW, trip_ms=0) == ()


def test_a_tick_that_no_worker_fires_is_named_after_a_minute() -> None:
    late = StuckItems(due_schedule="nightly", due_schedule_at_ms=NOW - MINUTE - 1)
    (concern,) = diagnosis.diagnose(PLAIN, late, local_ms=NOW, trip_ms=0)
    assert (concern.name, concern.ids) == ("overdue-ticks", ("nightly",))
    in_time = msgspec.structs.replace(late, due_schedule_at_ms=NOW - MINUTE)
    assert diagnosis.diagnose(PLAIN, in_time, local_ms=NOW, trip_ms=0) == ()


def test_missing_indexes_are_a_danger_and_are_named() -> None:
    (concern,) = diagnosis.diagnose(
        msgspec.structs.replace(PLAIN, missing_indexes=("batches_source", "nodes_id")), local_ms=NOW, trip_ms=0
    )
    assert (concern.level, concern.name) == ("danger", "missing-index")
    assert "batches_source, nodes_id" in concern.problem


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"synchronous": "off"}, [("danger", "synchronous")]),
        ({"synchronous": "normal"}, [("danger", "synchronous")]),
        ({"synchronous": "extra"}, []),
        ({"journal_mode": "delete"}, [("danger", "journal-mode")]),
        ({"journal_mode": "memory"}, []),
        ({"log_bytes": 128 * MIB}, []),
        ({"log_bytes": 128 * MIB + 1}, [("warning", "log-growth")]),
        ({"file_system": "nfs4"}, [("danger", "network-file-system")]),
        ({"file_system": None}, []),
        ({"version": 3_051_002}, [("danger", "old-sqlite")]),
        ({"version": 3_051_003}, []),
    ],
    ids=str,
)
def test_settings_of_sqlite_are_judged(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert engine_judged(SQLITE, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fsync": False}, [("danger", "fsync")]),
        ({"full_page_writes": False}, [("danger", "full-page-writes")]),
        ({"synchronous_commit": "off"}, [("danger", "synchronous-commit")]),
        ({"synchronous_commit": "local"}, []),
        ({"synchronous_commit": "local", "standby_names": "one"}, [("danger", "synchronous-commit")]),
        ({"autovacuum": False}, [("warning", "autovacuum")]),
        ({"tables_without_autovacuum": ("nodes",)}, [("warning", "autovacuum")]),
        ({"transaction_ids_used": 1_000_000_000}, []),
        ({"transaction_ids_used": 1_000_000_001}, [("warning", "transaction-ids")]),
        ({"transaction_ids_used": 1_800_000_001}, [("danger", "transaction-ids")]),
        ({"longest_idle_transaction_ms": MINUTE}, []),
        ({"longest_idle_transaction_ms": MINUTE + 1}, [("warning", "idle-transaction")]),
        ({"longest_transaction_ms": 5 * MINUTE}, []),
        ({"longest_transaction_ms": 5 * MINUTE + 1}, [("warning", "long-transaction")]),
        ({"connections": 79}, []),
        ({"connections": 80}, [("warning", "connections")]),
        ({"slot": "s", "slot_bytes": 4_096 * MIB}, []),
        ({"slot": "s", "slot_bytes": 4_096 * MIB + 1}, [("warning", "log-growth")]),
        ({"slot": "s", "slot_bytes": 400 * MIB + 1, "usual_log_bytes": 100 * MIB}, [("warning", "log-growth")]),
        ({"log_bytes": 4_096 * MIB}, []),
        ({"log_bytes": 4_096 * MIB + 1}, [("warning", "log-growth")]),
        ({"log_bytes": 5_000 * MIB, "slot": "s", "slot_bytes": 5_000 * MIB}, [("warning", "log-growth")]),
        ({"archiving_failed": True}, [("warning", "archiving")]),
        ({"server_ms": NOW - 5_000}, []),
        ({"server_ms": NOW - 5_001}, [("warning", "clock-skew")]),
        ({"server_ms": NOW + 5_001}, [("warning", "clock-skew")]),
        ({"version": 130_014}, [("warning", "old-server")]),
        ({"version": 140_010}, [("warning", "old-server")]),
        ({"version": 150_010}, []),
        ({"version": 190_000}, []),
    ],
    ids=str,
)
def test_settings_of_postgresql_are_judged(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert engine_judged(POSTGRES, **changes) == expected


def test_a_slow_trip_is_not_mistaken_for_a_wrong_clock() -> None:
    facts = msgspec.structs.replace(PLAIN, engine=msgspec.structs.replace(POSTGRES, server_ms=NOW - 6_000))
    assert judged(facts, trip_ms=2_000) == []
    assert judged(facts, trip_ms=1_998) == [("warning", "clock-skew")]


def test_dangers_come_first() -> None:
    engine = msgspec.structs.replace(POSTGRES, fsync=False, autovacuum=False)
    facts = msgspec.structs.replace(PLAIN, ready_batches=1, oldest_ready_batch_at_ms=0, engine=engine)
    assert judged(facts) == [("danger", "fsync"), ("warning", "old-work"), ("warning", "autovacuum")]
    assert diagnosis.by_level([Concern("warning", "a", "", ""), diagnosis.damaged("x")])[0].name == "integrity"
