"""Each method of a transaction does what the port says, against literal rows."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from holdfast import ports
from holdfast import rows as r
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.records.maintenance import Stats

replace = msgspec.structs.replace


def session(key: int, session_id: str = "chat", **fields: Any) -> r.SessionRow:
    known = {"incarnation": 1, "family": key, "revision": 0, "node_count": 0, "epoch": 0, "lineage": b"[]"}
    return r.SessionRow(**{"session_key": key, "session_id": session_id, "changed_at_ms": 10, **known, **fields})


def revision(key: int, number: int, **fields: Any) -> r.RevisionRow:
    known = {
        "family": key, "turn_id": f"t{number}", "fingerprint": None, "epoch": 0, "node_count": number, "leaf_key": None,
        "leaf_id": None, "checkpoint_ref": None, "refs": b"[]", "body": b"{}", "committed_at_ms": number,
    }  # fmt: skip
    return r.RevisionRow(**{"session_key": key, "revision": number, **known, **fields})


def node(key: int, position: int, parent: int | None = None, **fields: Any) -> r.NodeRow:
    known = {"epoch": 0, "kind": "message", "frame_id": None, "caused_by": b"c", "created_at_ms": 1, "payload": b"{}"}
    place = {"node_key": (key << 32) + position, "session_key": key, "node_id": f"n{position}"}
    parents = {
        "parent_key": None if parent is None else (key << 32) + parent,
        "parent_id": None if parent is None else f"n{parent}",
    }
    return r.NodeRow(**{**place, **parents, **known, "mark": r.LIVE, "revision": 1, **fields})


def batch(seq: int, **fields: Any) -> r.BatchRow:
    known = {
        "batch_id": f"b{seq}", "session_key": 1, "family": 1, "source_key": None, "draft_hash": "h", "delivery": "d",
        "slot": "join", "merge_key": "never", "available_at_ms": 0, "enqueued_at_ms": 7, "payloads": b"[]",
    }  # fmt: skip
    return r.BatchRow(**{"enqueue_seq": seq, **known, **fields})


def attachment(key: int, attachment_id: str, **fields: Any) -> r.AttachmentRow:
    known = {
        "family": 1, "uri": "u", "media_type": "image/png", "byte_count": 7, "width": None, "height": None,
        "label": None, "intent_at_ms": 5, "committed_at_ms": None,
    }  # fmt: skip
    return r.AttachmentRow(**{"session_key": key, "attachment_id": attachment_id, **known, **fields})


def process(process_id: str, **fields: Any) -> r.ProcessRow:
    known = {
        "registration_hash": "h", "status": "running", "waiting": 0, "definition_hash": None,
        "originator_session_id": None, "wake_session_id": None, "wake_frame_id": None, "event_count": 0,
        "created_at_ms": 1, "updated_at_ms": 1, "body": b"{}",
    }  # fmt: skip
    return r.ProcessRow(**{"process_id": process_id, **known, **fields})


def event(process_id: str, sequence: int, **fields: Any) -> r.EventRow:
    known = {
        "type": "log", "payload_hash": "h", "replay_key": None, "terminal_state": None, "wake": None, "acked": 0,
        "occurred_at_ms": 1, "payload": b"{}",
    }  # fmt: skip
    return r.EventRow(**{"process_id": process_id, "sequence": sequence, **known, **fields})


def subscription(sequence: int, **fields: Any) -> r.SubscriptionRow:
    known = {
        "session_id": None, "frame_id": None, "key": None, "definition_hash": "h", "name": None, "source_type": "timer",
        "source_key": "k", "target_hash": None, "enabled": 1, "created_at_ms": 1, "updated_at_ms": 1, "body": b"{}",
    }  # fmt: skip
    return r.SubscriptionRow(**{"sequence": sequence, **known, **fields})


def occurrence(occurrence_id: str, at_ms: int = 1) -> r.OccurrenceRow:
    return r.OccurrenceRow(occurrence_id, "timer", "k", occurrence_id, "h", at_ms, b"{}", None)


def delivery(occurrence_id: str, sequence: int, state: str = "reserved", at_ms: int = 1) -> r.DeliveryRow:
    return r.DeliveryRow(occurrence_id, sequence, f"{occurrence_id}-{sequence}", state, at_ms, at_ms)


def test_the_transaction_has_exactly_the_methods_of_the_port() -> None:
    wanted = {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(ports.Transaction, inspect.isfunction)
        if not name.startswith("_")
    }
    found = {name: inspect.signature(getattr(SqliteTransaction, name)) for name in wanted}
    assert {name: list(wanted[name].parameters) for name in wanted} == {
        name: list(found[name].parameters) for name in found
    }
    extra = {name for name, _ in inspect.getmembers(SqliteTransaction, inspect.isfunction) if name[0] != "_"}
    assert extra - set(wanted) == {"dump"}


# ---------------------------------------------------------------------------- sessions


def test_a_session_gets_a_new_key_and_founds_its_family(store: Any) -> None:
    assert store.call("insert_session", session(0)) == session(1)
    assert store.call("insert_session", session(0, "fork", family=1)) == session(2, "fork", family=1)
    assert store.call("find_session", "chat") == session(1)
    assert store.call("find_session", "nobody") is None
    assert store.call("session_ids", [1, 2, 3]) == {1: "chat", 2: "fork"}
    assert store.call("family_sessions", 1) == [session(1), session(2, "fork", family=1)]
    assert store.call("list_families", 0, 10) == [1]
    assert store.call("list_families", 1, 10) == []


def test_a_key_is_never_used_again(store: Any) -> None:
    store.call("insert_session", session(0))
    store.connection.execute("DELETE FROM sessions")
    assert store.call("insert_session", session(0)).session_key == 2


def test_the_newest_incarnation_of_an_id_is_found_and_deleted_ones_are_not_listed(store: Any) -> None:
    store.call("insert_session", session(0))
    gone = session(1, deleted_at_ms=20)
    assert store.call("save_session", gone) == 1
    assert store.call("save_session", session(9)) == 0
    assert store.call("find_session", "chat") == gone
    again = store.call("insert_session", session(0, incarnation=2))
    assert store.call("find_session", "chat") == again
    assert store.call("list_sessions", r.SessionFilter(limit=10)) == [again]


@pytest.mark.parametrize(
    ("filter", "keys"),
    [
        (r.SessionFilter(limit=2), [1, 2]),
        (r.SessionFilter(limit=9, after=(2,)), [3, 4]),
        (r.SessionFilter(limit=9, owner="ann"), [1, 3]),
        (r.SessionFilter(limit=9, owner="ann", after=(1,)), [3]),
        (r.SessionFilter(limit=9, parent="root"), [2, 3]),
        (r.SessionFilter(limit=9, parent="root", owner="ann"), [3]),
        (r.SessionFilter(limit=9, changed_since_ms=20), [4, 2, 1]),
        (r.SessionFilter(limit=9, changed_since_ms=20, after=(20, 4)), [2, 1]),
        (r.SessionFilter(limit=9, changed_since_ms=30, after=(20, 1)), [2, 1]),
        (r.SessionFilter(limit=1, changed_since_ms=0), [3]),
        (r.SessionFilter(limit=9, changed_since_ms=0, owner="ann"), [3, 1]),
        (r.SessionFilter(limit=9, changed_since_ms=0, parent="root"), [3, 2]),
    ],
    ids=str,
)
def test_sessions_are_listed_by_key_or_by_change(store: Any, filter: r.SessionFilter, keys: list[int]) -> None:
    store.call("insert_session", session(0, "a", owner="ann", changed_at_ms=40))
    store.call("insert_session", session(0, "b", parent_session_id="root", changed_at_ms=30))
    store.call("insert_session", session(0, "c", owner="ann", parent_session_id="root", changed_at_ms=10))
    store.call("insert_session", session(0, "d", owner="bob", changed_at_ms=20))
    assert [row.session_key for row in store.ask("list_sessions", filter)] == keys


def test_revisions_are_listed_both_ways_and_dropped_from_below(store: Any) -> None:
    made = store.call("insert_session", session(0))
    for number in (1, 2, 3):
        epoch = 0 if number < 3 else 2
        plan = r.CommitPlan(session=replace(made, revision=number), revision=revision(1, number, epoch=epoch))
        store.call("apply_commit", plan, 50)
    assert store.ask("find_revision", 1, 2) == revision(1, 2)
    assert store.ask("find_revision", 1, 4) is None
    assert [row.revision for row in store.ask("list_revisions", 1, after=1, limit=9)] == [2, 3]
    assert [row.revision for row in store.ask("list_revisions_down", 1, before=3, limit=1)] == [2]
    assert store.ask("revision_epochs", 1) == [(0, 2), (2, 3)]
    assert store.ask("count_revisions", 1, below=3) == 2
    assert store.call("drop_revisions", 1, below=3, limit=1) == 1
    assert [row.revision for row in store.ask("list_revisions", 1, after=0, limit=9)] == [2, 3]


def test_a_deleted_session_loses_its_revisions_usage_work_and_attachments(store: Any) -> None:
    made = store.call("insert_session", session(0))
    usage = (r.UsageRow("main", "m", 1, 1, 1, 1, 0),)
    store.call("apply_commit", r.CommitPlan(session=made, revision=revision(1, 1), usage=usage), 50)
    store.call("insert_batches", [batch(1, source_key="s"), batch(0, batch_id="x"), batch(0, batch_id="y")])
    store.call("insert_batches", [batch(0, batch_id="z", session_key=2, source_key="s")])
    store.call("settle_batches", [1], "completed", 5)
    store.call("save_attachment", attachment(1, "a"))
    assert store.call("drop_session_content", 1) == (1, 1, 3, 1)
    assert store.call("drop_session_content", 1) == (0, 0, 0, 0)
    assert [row[1] for row in store.backend.dump()["work"]] == ["z"]


# ---------------------------------------------------------------------------- commits


def test_a_commit_writes_its_plan_and_its_facts_are_found_again(store: Any) -> None:
    made = store.call("insert_session", session(0))
    store.call("insert_batches", [batch(1, source_key="s1"), batch(2), batch(3)])
    store.call("stamp_claim", [1, 2], r.ClaimStamp("c1", "me", "th", 4, 60, 90, 1))
    store.call("save_attachment", attachment(1, "a"))
    store.call("save_attachment", attachment(1, "kept", committed_at_ms=2))
    lease = r.LeaseRow("session", "1", "me", "th", 3, 60, 90)
    store.call("save_lease", lease)
    plan = r.CommitPlan(
        session=replace(made, revision=1, node_count=2),
        revision=revision(1, 1, refs=b'["x"]'),
        nodes=(node(1, 1), node(1, 2, parent=1)),
        blobs=(r.BlobRow("x", "raw", 1, b"x"), r.BlobRow("y", "raw", 1, b"y")),
        usage=(r.UsageRow("main", "m", 1, 2, 3, 4, 0), r.UsageRow("tool", "m", 1, 1, 1, 1, 1)),
        completed_seqs=(1, 2),
        attachment_ids=("a", "kept", "unknown"),
        enqueues=(batch(4, source_key="s4"),),
    )
    store.call("apply_commit", plan, 70)
    again = r.CommitPlan(
        session=replace(made, revision=2, node_count=2),
        revision=revision(1, 2),
        blobs=(r.BlobRow("x", "raw", 1, b"?"),),
        usage=(r.UsageRow("tool", "m", 1, 1, 1, 1, 9),),
    )
    store.call("apply_commit", again, 80)

    assert store.ask("find_session", "chat") == replace(made, revision=2, node_count=2)
    assert store.ask("read_ledger", 1) == [
        r.UsageRow("main", "m", 1, 2, 3, 4, 0),
        r.UsageRow("tool", "m", 2, 2, 2, 2, 1),
    ]
    assert store.ask("load_blobs", 1, ["x"]) == [r.BlobRow("x", "raw", 1, b"x")]
    assert store.ask("find_attachment", 1, "a").committed_at_ms == 70
    assert store.ask("find_attachment", 1, "kept").committed_at_ms == 2

    facts = store.ask(
        "load_commit_facts",
        r.CommitQuery(
            session=replace(made, revision=2),
            segments=(r.Segment(1, 0, 2),),
            turn_id="t1",
            node_ids=("n2", "n9", "n2"),
            hashes=("x", "z"),
            claim_ids=("c1", "c2"),
            sources=((1, "s1"), (1, "s4"), (2, "s4"), (1, "s4")),
            with_lease=True,
        ),
    )
    settled = batch(1, source_key="s1", settled_state="completed", settled_at_ms=70, claim_fence=4)
    assert facts == r.CommitFacts(
        head=revision(1, 2),
        turn=revision(1, 1, refs=b'["x"]'),
        nodes=(node(1, 2, parent=1),),
        hashes=frozenset({"x"}),
        batches=(),
        sources=(settled, batch(4, source_key="s4")),
        lease=lease,
    )
    assert store.ask("load_commit_facts", r.CommitQuery(session=session(9), segments=())) == r.CommitFacts()


def test_the_batches_of_a_claim_are_facts_of_a_commit(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2), batch(3)])
    store.call("stamp_claim", [3, 1], r.ClaimStamp("c1", "me", "th", 4, 60, 90, 0))
    query = r.CommitQuery(session=session(1), segments=(), claim_ids=("c1",))
    assert [row.enqueue_seq for row in store.ask("load_commit_facts", query).batches] == [1, 3]
    assert store.ask("load_commit_facts", replace(query, session=session(2))).batches == ()


# ---------------------------------------------------------------------------- graph


def test_nodes_are_found_by_id_inside_their_segments(store: Any) -> None:
    rows = [node(1, 1), node(1, 2, parent=1, mark=r.TOMBSTONED), node(1, 3, parent=2), node(2, 1), node(2, 2, epoch=1)]
    store.call("insert_nodes", rows)
    segments = [r.Segment(2, 1, 9), r.Segment(1, 0, 2)]
    assert store.ask("find_nodes", segments, ["n3", "n2", "n1"]) == [rows[0], rows[1], rows[4]]
    assert store.ask("find_nodes", [], ["n1"]) == []
    assert store.ask("find_nodes", segments, []) == []


def test_a_path_leads_from_the_leaf_to_the_root_and_ends_before_a_dead_node(store: Any) -> None:
    rows = [node(1, 1), node(1, 2, parent=1), node(1, 3, parent=2), node(1, 4, parent=2)]
    store.call("insert_nodes", rows)
    leaf = rows[3].node_key
    assert store.ask("read_path", leaf, None) == [rows[3], rows[1], rows[0]]
    assert store.ask("read_path", leaf, 2) == [rows[3], rows[1]]
    assert store.ask("read_path", leaf, 0) == []
    assert store.ask("read_path", 7, None) == []
    assert store.call("mark_nodes", [rows[1].node_key]) == 1
    assert store.ask("read_path", leaf, None) == [rows[3]]
    assert store.ask("read_path", rows[1].node_key, None) == []


def test_a_path_crosses_into_the_session_that_was_forked(store: Any) -> None:
    root, fork = node(1, 1), node(2, 1, parent_key=(1 << 32) + 1, parent_id="n1")
    store.call("insert_nodes", [root, fork])
    assert store.ask("read_path", fork.node_key, None) == [fork, root]


@pytest.mark.parametrize(
    ("asked", "positions"),
    [
        ({}, [(1, 1), (1, 3), (2, 2), (2, 3)]),
        ({"descending": True}, [(2, 3), (2, 2), (1, 3), (1, 1)]),
        ({"limit": 3}, [(1, 1), (1, 3), (2, 2)]),
        ({"limit": 0}, []),
        ({"kind": "tool"}, [(1, 3), (2, 3)]),
        ({"after": (1 << 32) + 1, "limit": 2}, [(1, 3), (2, 2)]),
        ({"after": (2 << 32) + 3, "descending": True, "limit": 2}, [(2, 2), (1, 3)]),
        ({"after": (1 << 32) + 1, "descending": True}, []),
    ],
    ids=str,
)
def test_live_nodes_are_read_by_key_in_both_directions(store: Any, asked: Any, positions: Any) -> None:
    rows = [
        node(1, 1), node(1, 2, mark=r.TOMBSTONED), node(1, 3, kind="tool"), node(1, 4), node(2, 1, epoch=0),
        node(2, 2, epoch=1), node(2, 3, epoch=1, kind="tool"),
    ]  # fmt: skip
    store.call("insert_nodes", rows)
    keywords = {"kind": None, "after": None, "descending": False, "limit": None, **asked}
    found = store.ask("read_nodes", [r.Segment(2, 1, 3), r.Segment(1, 0, 3)], **keywords)
    assert [(row.session_key, row.node_key & 0xFFFFFFFF) for row in found] == positions


def test_a_session_s_nodes_are_scanned_whatever_they_are(store: Any) -> None:
    rows = [node(1, 1), node(2, 1), node(2, 2, parent=1, mark=r.VACUUMED, epoch=1), node(3, 1)]
    store.call("insert_nodes", rows)
    assert store.ask("scan_nodes", 2, after=0, limit=9) == [rows[1], rows[2]]
    assert store.ask("scan_nodes", 2, after=rows[1].node_key, limit=9) == [rows[2]]
    assert store.ask("node_epochs", 2) == [0, 1]
    assert store.ask("node_epochs", 7) == []


def test_a_tombstoned_node_loses_its_content_when_it_is_vacuumed(store: Any) -> None:
    store.call("insert_nodes", [node(1, 1), node(1, 2), node(2, 1), node(2, 2)])
    keys = [(1 << 32) + 1, (1 << 32) + 2, (2 << 32) + 1]
    assert store.call("mark_nodes", keys) == 3
    assert store.call("mark_nodes", keys) == 0
    assert store.call("vacuum_nodes", 2, 9) == 1
    assert store.call("vacuum_nodes", None, 1) == 1
    assert store.call("vacuum_nodes", None, 9) == 1
    assert store.call("vacuum_nodes", None, 9) == 0
    assert store.ask("scan_nodes", 2, after=0, limit=9) == [
        node(2, 1, mark=r.VACUUMED, payload=b"null", caused_by=None),
        node(2, 2),
    ]


def test_nodes_of_an_epoch_are_dropped_from_the_top(store: Any) -> None:
    store.call("insert_nodes", [node(1, 1), node(1, 2), node(1, 3), node(1, 4, epoch=3), node(2, 3)])
    assert store.call("drop_nodes", 1, 0, above=1, limit=1) == 1
    assert [row.node_id for row in store.ask("scan_nodes", 1, after=0, limit=9)] == ["n1", "n2", "n4"]
    assert store.call("drop_nodes", 1, 0, above=0, limit=9) == 2
    assert store.call("drop_nodes", 1, 3, above=3, limit=9) == 1
    assert len(store.backend.dump()["nodes"]) == 1


def test_blobs_that_no_revision_lists_are_counted_or_dropped(store: Any) -> None:
    made = store.call("insert_session", session(0))
    blobs = tuple(r.BlobRow(hash, "raw", 100, hash.encode() * 2) for hash in ("p", "q", "s", "t"))
    # Six bytes that start like binary JSON: read as such, this list would be taken for another one.
    plan = r.CommitPlan(session=made, revision=revision(1, 1, refs=b'["q"] '), blobs=blobs)
    store.call("apply_commit", plan, 50)
    assert store.ask("scan_blobs", 1, after="q", limit=1) == [blobs[2]]
    assert store.ask("blob_census", 1) == (1, 1, 4)
    assert store.ask("drop_unreferenced_blobs", 1, limit=9, dry_run=True) == (3, 6)
    assert store.call("drop_unreferenced_blobs", 1, limit=1, dry_run=False) == (1, 2)
    assert store.call("drop_unreferenced_blobs", 1, limit=9, dry_run=False) == (2, 4)
    assert store.ask("scan_blobs", 1, after="", limit=9) == [blobs[1]]


# ---------------------------------------------------------------------------- work


def test_batches_get_rising_sequence_numbers_that_are_never_used_again(store: Any) -> None:
    assert store.call("insert_batches", [batch(0, batch_id="x"), batch(0, batch_id="y", source_key="s")]) == [
        batch(1, batch_id="x"),
        batch(2, batch_id="y", source_key="s"),
    ]
    assert store.call("insert_batches", []) == []
    assert store.call("find_sources", [(1, "s"), (1, "t")]) == [batch(2, batch_id="y", source_key="s")]
    assert store.call("find_sources", []) == []
    store.connection.execute("DELETE FROM work")
    assert store.call("insert_batches", [batch(1)])[0].enqueue_seq == 3


def test_ready_is_what_is_available_unsettled_and_under_no_live_claim(store: Any) -> None:
    store.call("insert_batches", [batch(0, batch_id=str(i), available_at_ms=i * 10) for i in range(1, 7)])
    store.call("insert_batches", [batch(0, batch_id="k", source_key="k"), batch(0, batch_id="o", session_key=2)])
    store.call("settle_batches", [7], "completed", 5)
    store.call("stamp_claim", [1], r.ClaimStamp("live", "me", "th", 1, 0, 41, 0))
    store.call("stamp_claim", [2], r.ClaimStamp("over", "me", "th", 1, 0, 40, 0))
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 9)] == [2, 3, 4]
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 2)] == [2, 3]
    assert [row.enqueue_seq for row in store.ask("list_batches", 1, pending_at_ms=None, after=1, limit=4)] == [
        2,
        3,
        4,
        5,
    ]
    assert [row.enqueue_seq for row in store.ask("list_batches", 1, pending_at_ms=40, after=0, limit=3)] == [2, 3, 4]
    assert store.ask("next_due_ms", 1, 40) == 41
    assert store.ask("next_due_ms", 1, 41) == 50
    assert store.ask("next_due_ms", 1, 60) is None


def test_other_owners_live_claims_are_seen(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2), batch(3)])
    assert store.ask("other_claims", 1, "me", 10) == (False, False)
    store.call("stamp_claim", [1], r.ClaimStamp("c1", "you", "th", 1, 0, 20, 0))
    store.call("stamp_claim", [2], r.ClaimStamp("c2", "she", "th", 1, 0, 15, 1))
    assert store.ask("other_claims", 1, "me", 10) == (True, True)
    assert store.ask("other_claims", 1, "me", 15) == (True, False)
    assert store.ask("other_claims", 1, "you", 15) == (False, False)
    assert store.ask("other_claims", 1, "me", 20) == (False, False)
    assert store.ask("other_claims", 2, "me", 10) == (False, False)


def test_a_claim_is_stamped_found_and_cleared_and_the_fence_stays(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2)])
    assert store.call("stamp_claim", [1, 2, 9], r.ClaimStamp("c", "me", "th", 7, 5, 20, 1)) == 2
    claimed = replace(
        batch(1), claim_id="c", claim_owner="me", claim_token_hash="th", claim_fence=7, claimed_at_ms=5,
        claim_expires_at_ms=20, claim_exclusive=1,
    )  # fmt: skip
    assert store.ask("claimed_batches", 1, "c")[0] == claimed
    assert store.ask("claimed_batches", 2, "c") == []
    assert store.ask("find_batches", 1, ["b1", "zz"]) == [claimed]
    assert store.ask("find_batches", 2, ["b1"]) == []
    assert store.call("clear_claim", [1]) == 1
    assert store.ask("find_batches", 1, ["b1"]) == [batch(1, claim_fence=7)]


def test_settled_work_is_remembered_only_with_a_source_key(store: Any) -> None:
    store.call("insert_batches", [batch(1, source_key="s"), batch(2)])
    store.call("stamp_claim", [1, 2], r.ClaimStamp("c", "me", "th", 7, 5, 20, 1))
    assert store.call("settle_batches", [1, 2], "cancelled", 30) == 2
    assert store.call("settle_batches", [1, 2], "completed", 31) == 0
    assert store.call("settle_batches", [], "completed", 31) == 0
    assert store.call("stamp_claim", [1], r.ClaimStamp("c", "me", "th", 8, 5, 20, 1)) == 0
    kept = batch(1, source_key="s", settled_state="cancelled", settled_at_ms=30, claim_fence=7)
    assert store.ask("find_batches", 1, ["b1", "b2"]) == [kept]
    assert store.call("drop_settled_batches", settled_until_ms=29, limit=9, dry_run=False) == 0
    assert store.call("drop_settled_batches", settled_until_ms=30, limit=9, dry_run=True) == 1
    assert store.call("drop_settled_batches", settled_until_ms=30, limit=9, dry_run=False) == 1
    assert store.ask("find_batches", 1, ["b1"]) == []


def test_a_dropped_lease_raises_the_fence_floor(store: Any) -> None:
    row = r.LeaseRow("process", "p", "me", "th", 5, 1, 2)
    assert store.ask("fence_floor") == 0
    store.call("save_lease", replace(row, fence=4))
    store.call("save_lease", row)
    assert store.ask("find_lease", "process", "p") == row
    store.call("drop_lease", "process", "p")
    store.call("drop_lease", "process", "p")
    assert store.ask("find_lease", "process", "p") is None
    assert store.ask("fence_floor") == 5
    store.call("save_lease", replace(row, fence=3))
    store.call("drop_lease", "process", "p")
    assert store.ask("fence_floor") == 5


# ---------------------------------------------------------------------------- attachments


def test_the_attachment_manifest_is_kept_per_session(store: Any) -> None:
    a, b, c = attachment(1, "a"), attachment(1, "b", intent_at_ms=4), attachment(2, "a", intent_at_ms=4)
    for row in (a, replace(b, label="old"), b, c):
        store.call("save_attachment", row)
    assert store.ask("find_attachment", 1, "b") == b
    assert store.ask("find_attachment", 3, "b") is None
    assert store.ask("list_attachments", 1, after="a", limit=9) == [b]
    assert store.ask("list_uncommitted", None, older_than_ms=5, after=None, limit=9) == [c, b, a]
    assert store.ask("list_uncommitted", None, older_than_ms=5, after=(4, "a", 2), limit=1) == [b]
    assert store.ask("list_uncommitted", None, older_than_ms=4, after=None, limit=9) == [c, b]
    assert store.ask("list_uncommitted", 1, older_than_ms=5, after=None, limit=9) == [b, a]
    assert store.ask("list_uncommitted", 1, older_than_ms=5, after=(4, "b", 1), limit=9) == [a]
    assert store.call("stamp_attachments", 1, ["a", "zz"], 8) == 1
    assert store.call("stamp_attachments", 1, ["a"], 9) == 0
    assert store.call("copy_committed_attachments", 1, 3) == 1
    assert store.ask("list_attachments", 3, after="", limit=9) == [attachment(3, "a", committed_at_ms=8)]
    assert store.call("forget_attachment", 1, "b") == 1
    assert store.call("forget_attachment", 1, "b") == 0
    assert store.ask("attachment_is_referenced", 1, "b") is False
    assert store.ask("attachment_is_referenced", 1, "a") is True


def test_attachment_bytes_stay_as_they_were_first_stored(store: Any) -> None:
    first = r.BlobRow("h", "raw", 5, b"hello")
    store.call("put_object", 1, "a", first)
    store.call("put_object", 1, "a", r.BlobRow("h2", "raw", 1, b"x"))
    assert store.ask("get_object", 1, "a") == first
    assert store.ask("get_object", 2, "a") is None
    assert store.call("drop_object", 1, "a") == 5
    assert store.call("drop_object", 1, "a") == 0


# ---------------------------------------------------------------------------- processes


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
    store.call("insert_event", event("p", 1))
    store.call("insert_event", event("p", 2, type="signal", wake=b"w", acked=1))
    store.call("insert_event", event("p", 3, wake=b"w"))
    store.call("insert_event", event("p", 4, type="signal", wake=b"w", replay_key="r"))
    assert [row.sequence for row in store.ask("list_events", filter)] == sequences


def test_events_are_found_counted_and_acknowledged(store: Any) -> None:
    store.call("insert_event", event("p", 1))
    store.call("insert_event", event("p", 2, type="signal"))
    store.call("insert_event", event("p", 3, type="signal", wake=b"w", replay_key="r"))
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
        store.call("insert_event", event(process_id, 1))
        store.call("insert_event", event(process_id, 2))
        store.call("save_grant", r.GrantRow("s", "", process_id, b"{}"))
        store.call("save_lease", r.LeaseRow("process", process_id, None, None, ord(process_id), 1, 1))
    drop = "drop_terminal_processes"
    assert store.call(drop, updated_until_ms=4, limit=9, dry_run=False) == (0, 0)
    assert store.call(drop, updated_until_ms=5, limit=9, dry_run=True) == (2, 4)
    assert store.call(drop, updated_until_ms=5, limit=1, dry_run=False) == (1, 2)
    assert store.ask("find_process", "a") is None
    assert store.ask("fence_floor") == ord("a")
    assert store.call(drop, updated_until_ms=5, limit=9, dry_run=False) == (1, 2)
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
    assert store.ask("grant_census", "s") == [("p", "running", 1), ("q", "failed", 0), ("r", "running", 0)]
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
    store.call("insert_deliveries", [*rows, delivery("d", 1, "started"), delivery("e", 1)])
    store.call("insert_process", process("e-1"))
    page = {"reserved_until_ms": 2, "after": None, "limit": 9}
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
    assert store.ask("scan_artifacts", after=("", ""), limit=2) == rows[:2]
    assert store.ask("scan_artifacts", after=("b", "1"), limit=9) == rows[2:]
    assert store.call("drop_artifact", "a", "2") == 1
    assert store.call("drop_artifact", "a", "2") == 0


def test_the_census_has_the_fields_of_stats_and_counts_what_there_is(store: Any) -> None:
    made = store.call("insert_session", session(0))
    store.call("insert_session", session(0, "gone", deleted_at_ms=1))
    blob = r.BlobRow("x", "raw", 100, b"xyz")
    plan = r.CommitPlan(session=made, revision=revision(1, 1), nodes=(node(1, 1),), blobs=(blob,))
    store.call("apply_commit", plan, 1)
    store.call("insert_batches", [batch(0, batch_id=str(i), source_key=str(i), enqueued_at_ms=i) for i in range(1, 5)])
    store.call("stamp_claim", [1], r.ClaimStamp("live", "me", "th", 1, 0, 21, 0))
    store.call("stamp_claim", [2], r.ClaimStamp("over", "me", "th", 1, 0, 20, 0))
    store.call("settle_batches", [4], "completed", 5)
    store.call("save_attachment", attachment(1, "a"))
    store.call("put_object", 1, "a", r.BlobRow("h", "raw", 99, b"1234567"))
    store.call("insert_process", process("p"))
    store.call("insert_process", process("q", status="failed"))
    store.call("insert_event", event("p", 1))
    store.call("save_grant", r.GrantRow("s", "", "p", b""))
    store.call("save_lease", r.LeaseRow("process", "p", "me", "th", 1, 1, 21))
    store.call("save_lease", r.LeaseRow("process", "q", "me", "th", 1, 1, 20))
    store.call("insert_subscription", subscription(0))
    store.call("insert_occurrence", occurrence("o"))
    store.call("insert_deliveries", [delivery("o", 1), delivery("o", 2, "started")])
    store.call("save_artifact", r.ArtifactRow("k", "r", "h", "raw", 1, 1, b"x"))
    found = store.ask("census", 20)
    assert found.pop("bytes_on_disk") > 0
    assert Stats(**found) == Stats(
        schema_version=1, sessions=1, deleted_sessions=1, revisions=1, nodes=1, blobs=1, blob_bytes=3, pending_work=2,
        claimed_work=1, settled_work=1, attachments=1, attachment_bytes=7, processes=2, running_processes=1, events=1,
        grants=1, live_leases=1, subscriptions=1, occurrences=1, undelivered=1, artifacts=1,
        oldest_pending_work_at_ms=2,
    )  # fmt: skip
