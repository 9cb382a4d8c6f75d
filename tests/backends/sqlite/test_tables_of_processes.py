"""The tables of processes, events, grants, triggers and artifacts do what the port says, against literal rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.backends.sqlite.literal_rows import appended, delivery, event, occurrence, process, subscription

from holdfast import rows as r

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        (r.ProcessFilter(limit=2), ["a", "b"]),
        (r.ProcessFilter(limit=9, after="b"), ["c", "d"]),
        (r.ProcessFilter(limit=9, status="running"), ["a", "b", "d"]),
        (r.ProcessFilter(limit=9, status="running", waiting=1), ["b"]),
        (r.ProcessFilter(limit=9, waiting=0), ["a", "c", "d"]),
        (r.ProcessFilter(limit=9, definition_hash="D"), ["a", "c"]),
        (r.ProcessFilter(limit=9, definition_hash="D", status="running"), ["a"]),
        (r.ProcessFilter(limit=9, originator_session_id="S"), ["b", "c"]),
        (r.ProcessFilter(limit=9, originator_session_id="S", definition_hash="D"), ["c"]),
        (r.ProcessFilter(limit=9, originator_session_id="S", status="running", waiting=1), ["b"]),
    ],
    ids=str,
)
def test_processes_are_listed_by_id(store: Any, filter: r.ProcessFilter, ids: list[str]) -> None:
    store.call("insert_process", process("a", definition_hash="D"))
    store.call("insert_process", process("b", waiting=1, originator_session_id="S"))
    store.call("insert_process", process("c", status="failed", definition_hash="D", originator_session_id="S"))
    store.call("insert_process", process("d"))
    assert [row.process_id for row in store.ask("list_processes", filter)] == ids


CHANGES: dict[str, Any] = {
    "registration_hash": "h2", "status": "failed", "waiting": 1, "definition_hash": "d", "originator_session_id": "s",
    "wake_session_id": "w", "wake_frame_id": "f", "event_count": 4, "created_at_ms": 2, "updated_at_ms": 3,
    "body": b"[]", "external_ref": b"1", "wait": b"2", "outcome": b"3", "run_kind": "k", "run_version": "v",
    "recovery": "other", "due_at_ms": 5, "claimable_at_ms": 6, "claim_fence": 7, "attempt": 8, "suspended": 1,
    "lost_owner": "o", "last_error": "e",
}  # fmt: skip


@pytest.mark.parametrize("column", CHANGES)
def test_a_process_that_was_just_read_is_saved_with_whatever_changed(store: Any, column: str) -> None:
    assert {"process_id", *CHANGES} == set(r.ProcessRow.__struct_fields__)
    before = process("a")

    async def change(tx: Any) -> int:
        found = await tx.find_process("a")
        return int(await tx.save_process(replace(found, **{column: CHANGES[column]})))

    store.call("insert_process", before)
    store.call("insert_process", process("b", definition_hash="d"))
    assert store.write(change) == 1
    assert store.ask("find_process", "a") == replace(before, **{column: CHANGES[column]})
    assert store.connection.pragma("integrity_check") == "ok"


def test_changes_beside_the_row_that_a_transaction_read_are_overwritten_too(store: Any) -> None:
    async def change(tx: Any) -> None:
        found = await tx.find_process("a")
        await tx.put_off_run("a", 99)
        await tx.save_process(found)
        await tx.clear_wake_targets("w", 5)
        await tx.save_process(replace(found, event_count=1))

    row = process("a", claimable_at_ms=1, wake_session_id="w", wake_frame_id="f")
    store.call("insert_process", row)
    store.write(change)
    assert store.ask("find_process", "a") == replace(row, event_count=1)


def test_a_process_is_overwritten_and_its_wake_target_cleared(store: Any) -> None:
    store.call("insert_process", process("p", wake_session_id="s", wake_frame_id="f"))
    assert store.call("save_process", process("q")) == 0
    changed = process("p", wake_session_id="s", wake_frame_id="f", outcome=b"done", status="completed")
    assert store.call("save_process", changed) == 1
    assert store.ask("find_process", "p") == changed
    assert store.ask("find_process", "q") is None
    assert store.call("clear_wake_targets", "s", 9) == 1
    assert store.call("clear_wake_targets", "s", 9) == 0
    assert store.ask("find_process", "p") == process("p", outcome=b"done", status="completed", updated_at_ms=9)


@pytest.mark.parametrize(
    ("filter", "sequences"),
    [
        (r.EventFilter("p", 9), [1, 2, 3, 4]),
        (r.EventFilter("p", 2, after=1), [2, 3]),
        (r.EventFilter("p", 9, type="signal"), [2, 4]),
        (r.EventFilter("p", 9, pending_wakes=True), [3, 4]),
        (r.EventFilter("p", 9, after=3, pending_wakes=True), [4]),
        (r.EventFilter("p", 9, type="log", pending_wakes=True), [3]),
        (r.EventFilter("q", 9), []),
    ],
    ids=str,
)
def test_events_are_listed_in_sequence(store: Any, filter: r.EventFilter, sequences: list[int]) -> None:
    store.call("apply_event", appended(event("p", 1)))
    store.call("apply_event", appended(event("p", 2, type="signal", wake=b"w", acked=1)))
    store.call("apply_event", appended(event("p", 3, wake=b"w")))
    store.call("apply_event", appended(event("p", 4, type="signal", wake=b"w", replay_key="r")))
    assert [row.sequence for row in store.ask("list_events", filter)] == sequences


def test_events_are_found_counted_and_acknowledged(store: Any) -> None:
    store.call("apply_event", appended(event("p", 1)))
    store.call("apply_event", appended(event("p", 2, type="signal")))
    store.call("apply_event", appended(event("p", 3, type="signal", wake=b"w", replay_key="r")))
    assert store.ask("find_event", "p", 1) == event("p", 1)
    assert store.ask("find_event", "p", 9) is None
    assert store.ask("find_replay", "p", "r") == event("p", 3, type="signal", wake=b"w", replay_key="r")
    assert store.ask("find_replay", "q", "r") is None
    assert [row.sequence for row in store.ask("recent_events", "p", 2)] == [2, 3]
    assert store.ask("count_events", "p", "signal", 2) == 1
    assert store.call("ack_wake", "p", 3) == 1
    assert store.call("ack_wake", "p", 1) == 0
    assert store.ask("find_event", "p", 3).acked == 1


def test_an_ended_process_is_dropped_with_all_that_hangs_on_it(store: Any) -> None:
    for process_id, status, updated_at_ms in [("b", "failed", 5), ("a", "completed", 5), ("c", "running", 1)]:
        store.call("insert_process", process(process_id, status=status, updated_at_ms=updated_at_ms))
        store.call("apply_event", appended(event(process_id, 1)))
        store.call("apply_event", appended(event(process_id, 2)))
        store.call("save_grant", r.GrantRow("s", "", process_id, b"{}"))
        store.call("save_lease", r.LeaseRow("process", process_id, None, None, ord(process_id), 1, 1))
    drop = "drop_terminal_processes"
    every = ["a", "b", "c", "no such"]
    assert store.call(drop, every, updated_until_ms=4, dry_run=False) == (0, 0)
    assert store.call(drop, every, updated_until_ms=5, dry_run=True) == (2, 4)
    assert store.call(drop, ["a"], updated_until_ms=5, dry_run=False) == (1, 2)
    assert store.ask("find_process", "a") is None
    assert store.ask("fence_floor") == ord("a")
    assert store.call(drop, every, updated_until_ms=5, dry_run=False) == (1, 2)
    left = store.backend.dump()
    assert [len(left[table]) for table in ("processes", "events", "grants", "leases")] == [1, 2, 1, 1]


def test_grants_are_listed_by_scope_and_by_process(store: Any) -> None:
    for process_id, status in [("p", "running"), ("q", "failed"), ("r", "running")]:
        store.call("insert_process", process(process_id, status=status))
    rows = [r.GrantRow("s", "", one, b"1") for one in ("p", "q", "r")]
    for row in [
        replace(rows[0], descriptor=b"0"),
        *rows,
        r.GrantRow("s", "f", "p", b"2"),
        r.GrantRow("t", "", "p", b""),
    ]:
        store.call("save_grant", row)
    assert store.ask("find_grant", "s", "", "p") == rows[0]
    assert store.ask("find_grant", "s", "x", "p") is None
    scope = ("s", "")
    assert store.ask("list_grants", *scope, running_only=False, after="p", limit=9) == [
        (rows[1], process("q", status="failed")),
        (rows[2], process("r")),
    ]
    assert [g.process_id for g, _ in store.ask("list_grants", *scope, running_only=True, after="", limit=9)] == [
        "p",
        "r",
    ]
    holders = [(g.session_id, g.frame_id) for g in store.ask("grants_of_process", "p", after=None, limit=9)]
    assert holders == [("s", ""), ("s", "f"), ("t", "")]
    assert store.ask("grants_of_process", "p", after=("s", "f"), limit=9) == [r.GrantRow("t", "", "p", b"")]
    assert store.ask("count_grants", "s") == [("p", "running", 1), ("q", "failed", 0), ("r", "running", 0)]
    assert store.call("drop_grant", "s", "", "p") == 1
    assert store.call("drop_grant", "s", "", "p") == 0
    assert store.call("drop_session_grants", "s") == 3


# ---------------------------------------------------------------------------- triggers


@pytest.mark.parametrize(
    ("filter", "sequences"),
    [
        (r.SubscriptionFilter(limit=2), [1, 2]),
        (r.SubscriptionFilter(limit=9, after=2), [3, 4]),
        (r.SubscriptionFilter(limit=9, session_id="s"), [2, 3]),
        (r.SubscriptionFilter(limit=9, session_id="s", source_type="mail"), [3]),
        (r.SubscriptionFilter(limit=9, session_id="s", host_only=True), []),
        (r.SubscriptionFilter(limit=9, host_only=True), [1, 4]),
        (r.SubscriptionFilter(limit=9, sequence=3), [3]),
        (r.SubscriptionFilter(limit=9, sequence=3, after=3), []),
        (r.SubscriptionFilter(limit=9, name="n"), [2]),
        (r.SubscriptionFilter(limit=9, source_type="timer"), [1, 2, 4]),
        (r.SubscriptionFilter(limit=9, source_key="k2"), [3, 4]),
        (r.SubscriptionFilter(limit=9, source_type="timer", source_key="k"), [1, 2]),
        (r.SubscriptionFilter(limit=9, source_type="timer", source_key="k", session_id="s"), [2]),
        (r.SubscriptionFilter(limit=9, target_hash="T"), [4]),
        (r.SubscriptionFilter(limit=9, enabled=0), [4]),
    ],
    ids=str,
)
def test_subscriptions_are_listed_by_sequence(store: Any, filter: r.SubscriptionFilter, sequences: list[int]) -> None:
    store.call("insert_subscription", subscription(0))
    store.call("insert_subscription", subscription(0, session_id="s", frame_id="f", name="n"))
    store.call("insert_subscription", subscription(0, session_id="s", source_type="mail", source_key="k2"))
    store.call("insert_subscription", subscription(0, source_key="k2", target_hash="T", enabled=0))
    assert [row.sequence for row in store.ask("list_subscriptions", filter)] == sequences


def test_a_subscription_key_belongs_to_exactly_one_registrant_while_it_is_enabled(store: Any) -> None:
    host = store.call("insert_subscription", subscription(0, key="k"))
    frame = store.call("insert_subscription", subscription(0, key="k", session_id="s", frame_id="f"))
    assert host == subscription(1, key="k")
    assert store.ask("find_subscription", 2) == frame
    assert store.ask("find_subscription", 3) is None
    assert store.ask("find_subscription_key", None, None, "k") == host
    assert store.ask("find_subscription_key", "s", "f", "k") == frame
    assert store.ask("find_subscription_key", "s", None, "k") is None
    assert store.call("save_subscription", replace(host, enabled=0)) == 1
    assert store.ask("find_subscription_key", None, None, "k") is None


def test_a_delivery_is_reserved_once_and_found_by_its_process(store: Any) -> None:
    store.call("insert_occurrence", occurrence("o"))
    assert store.ask("find_occurrence", "o") == occurrence("o")
    assert store.ask("find_occurrence", "x") is None
    first, second = delivery("o", 1), delivery("o", 2)
    assert store.call("insert_deliveries", [first]) == [first]
    assert store.call("insert_deliveries", [replace(first, process_id="other"), second]) == [second]
    assert store.ask("find_delivery", "o", 1) == first
    assert store.ask("find_delivery", "o", 3) is None
    assert store.ask("find_process_delivery", "o-2") == second
    assert store.ask("find_process_delivery", "x") is None
    failed = replace(second, state="failed", failure="no", updated_at_ms=9)
    assert store.call("save_delivery", failed) == 1
    assert store.ask("find_delivery", "o", 2) == failed


def test_undelivered_is_what_is_reserved_and_has_no_process(store: Any) -> None:
    rows = [delivery("b", 1, at_ms=1), delivery("a", 1, at_ms=2), delivery("a", 2, at_ms=2), delivery("c", 1, at_ms=3)]
    rows[1] = msgspec.structs.replace(rows[1], run_kind="report")
    store.call("insert_deliveries", [*rows, delivery("d", 1, "started"), delivery("e", 1)])
    store.call("insert_process", process("e-1"))
    page = {"reserved_until_ms": 2, "runs_only": False, "after": None, "limit": 9}
    assert store.ask("list_undelivered", **{**page, "runs_only": True}) == [rows[1]]
    assert store.ask("list_undelivered", **page) == rows[:3]
    assert store.ask("list_undelivered", **{**page, "after": (2, "a", 1)}) == [rows[2]]


def test_occurrences_are_dropped_with_their_deliveries_unless_one_is_still_reserved(store: Any) -> None:
    for occurrence_id, at_ms in [("b", 1), ("a", 2), ("c", 1), ("d", 3)]:
        store.call("insert_occurrence", occurrence(occurrence_id, at_ms))
    store.call("insert_deliveries", [delivery("a", 1, "started"), delivery("a", 2, "failed"), delivery("c", 1)])
    drop = "drop_occurrences"
    assert store.call(drop, occurred_until_ms=0, limit=9, dry_run=False) == (0, 0)
    assert store.call(drop, occurred_until_ms=2, limit=9, dry_run=True) == (2, 2)
    assert store.call(drop, occurred_until_ms=2, limit=1, dry_run=False) == (1, 0)
    assert store.call(drop, occurred_until_ms=2, limit=9, dry_run=False) == (1, 2)
    assert [row[0] for row in store.backend.dump()["occurrences"]] == ["c", "d"]


def test_the_subscriptions_of_a_session_are_dropped_with_their_deliveries(store: Any) -> None:
    store.call("insert_subscription", subscription(0, session_id="s"))
    store.call("insert_subscription", subscription(0, session_id="s", frame_id="f"))
    store.call("insert_subscription", subscription(0))
    store.call("insert_deliveries", [delivery("o", 1), delivery("o", 2), delivery("o", 3)])
    assert store.call("drop_session_subscriptions", "s") == 2
    left = store.backend.dump()
    assert [row[0] for row in left["subscriptions"]] == [3]
    assert [row[1] for row in left["deliveries"]] == [3]


# ---------------------------------------------------------------------------- housekeeping


def test_artifacts_are_kept_by_kind_and_ref(store: Any) -> None:
    rows = [r.ArtifactRow(kind, ref, "h", "raw", 1, 1, b"x") for kind, ref in [("a", "2"), ("b", "1"), ("b", "2")]]
    for row in [replace(rows[0], body=b"old"), *rows]:
        store.call("save_artifact", row)
    assert store.ask("find_artifact", "a", "2") == rows[0]
    assert store.ask("find_artifact", "a", "1") is None
    assert store.ask("scan_rows", r.ArtifactRow, after=None, skip=0, limit=2) == (rows[:2], ("b", "1"))
    assert store.ask("scan_rows", r.ArtifactRow, after=("b", "1"), skip=0, limit=9) == (rows[2:], ("b", "2"))
    assert store.ask("scan_rows", r.ArtifactRow, after=("b", "2"), skip=0, limit=9) == ([], None)
    assert store.call("drop_artifact", "a", "2") == 1
    assert store.call("drop_artifact", "a", "2") == 0
