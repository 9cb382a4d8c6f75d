"""Each method of a transaction does what the port says, against literal rows."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from tests.backends.sqlite.literal_rows import (
    appended,
    attachment,
    batch,
    delivery,
    event,
    node,
    occurrence,
    process,
    revision,
    session,
    subscription,
)

from holdfast import ports
from holdfast import rows as r
from holdfast.backends.sqlite.transaction import SqliteTransaction
from holdfast.label_rows import SessionFilter
from holdfast.ports.limit_tables import Obstacles
from holdfast.records.maintenance import Stats
from holdfast.table_catalog import StoredBlob

replace = msgspec.structs.replace


def claim(store: Any, seqs: list[int], *stamp: Any) -> int:
    """Write a claim (id, owner, token hash, fence, begin, end, exclusive) on batches."""
    derived = {"claim_size", "claim_slot"}
    names = [field for field in r.BatchRow.__struct_fields__ if field.startswith("claim") and field not in derived]
    rows = [row for row in walked(store, r.BatchRow) if row.enqueue_seq in seqs]
    written = dict(zip(names, stamp, strict=True), claim_size=len(rows), attempts=1)
    return int(store.call("save_batches", [replace(row, **written) for row in rows]))


def settle(store: Any, seqs: list[int], state: str, at_ms: int) -> int:
    rows = [row for row in walked(store, r.BatchRow) if row.enqueue_seq in seqs]
    return int(store.call("save_batches", [replace(row, settled_state=state, settled_at_ms=at_ms) for row in rows]))


def walked(store: Any, kind: type[r.Row], after: Any = None) -> list[Any]:
    """Return the rows of a table in the order of their keys."""
    rows, _ = store.ask("scan_rows", kind, after=after, skip=0, limit=9)
    return rows


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
    ready = {name for name, _ in inspect.getmembers(ports.tables.ReadyTables, inspect.isfunction) if name[0] != "_"}
    assert extra - set(wanted) == {"dump"} | ready - set(wanted)


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
    assert store.call("list_sessions", SessionFilter(limit=10)) == [again]


@pytest.mark.parametrize(
    ("filter", "keys"),
    [
        (SessionFilter(limit=2), [1, 2]),
        (SessionFilter(limit=9, after=(2,)), [3, 4]),
        (SessionFilter(limit=9, owner="ann"), [1, 3]),
        (SessionFilter(limit=9, owner="ann", after=(1,)), [3]),
        (SessionFilter(limit=9, parent="root"), [2, 3]),
        (SessionFilter(limit=9, parent="root", owner="ann"), [3]),
        (SessionFilter(limit=9, order="changed", changed_since_ms=20 * 60_000), [4, 2, 1]),
        (SessionFilter(limit=9, order="changed", changed_since_ms=20 * 60_000, after=(20, 4)), [2, 1]),
        (SessionFilter(limit=9, order="changed", changed_since_ms=30 * 60_000, after=(20, 1)), [2, 1]),
        (SessionFilter(limit=1, order="changed", changed_since_ms=0), [3]),
        (SessionFilter(limit=9, order="changed", changed_since_ms=0, owner="ann"), [3, 1]),
        (SessionFilter(limit=9, order="changed", changed_since_ms=0, parent="root"), [3, 2]),
        (SessionFilter(limit=9, order="newest"), [1, 2, 4, 3]),
        (SessionFilter(limit=9, order="newest", after=(30, 2)), [4, 3]),
        (SessionFilter(limit=9, order="id", first_id="b", before_id="d"), [2, 3]),
        (SessionFilter(limit=9, order="id", after=("b",)), [3, 4]),
    ],
    ids=str,
)
def test_sessions_are_listed_by_key_or_by_change(store: Any, filter: SessionFilter, keys: list[int]) -> None:
    store.call("insert_session", session(0, "a", owner="ann", changed_at_ms=40 * 60_000))
    store.call("insert_session", session(0, "b", parent_session_id="root", changed_at_ms=30 * 60_000))
    store.call("insert_session", session(0, "c", owner="ann", parent_session_id="root", changed_at_ms=10 * 60_000))
    store.call("insert_session", session(0, "d", owner="bob", changed_at_ms=20 * 60_000))
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


def test_a_deleted_session_loses_its_usage_work_and_attachments(store: Any) -> None:
    made = store.call("insert_session", session(0))
    usage = (r.UsageRow("main", "m", 1, 1, 1, 1, 0),)
    store.call("apply_commit", r.CommitPlan(session=made, revision=revision(1, 1), usage=usage), 50)
    store.call("insert_batches", [batch(1, source_key="s"), batch(0, batch_id="x"), batch(0, batch_id="y")])
    store.call("insert_batches", [batch(0, batch_id="z", session_key=2, source_key="s")])
    settle(store, [1], "completed", 5)
    store.call("save_attachment", attachment(1, "a"))
    assert store.call("drop_session_content", 1) == (1, 3, 1)
    assert store.call("drop_session_content", 1) == (0, 0, 0)
    assert [row[1] for row in store.backend.dump()["batches"]] == ["z"]


# ---------------------------------------------------------------------------- commits


def test_a_commit_writes_its_plan_and_its_facts_are_found_again(store: Any) -> None:
    made = store.call("insert_session", session(0))
    store.call("insert_batches", [batch(1, source_key="s1"), batch(2), batch(3)])
    claim(store, [1, 2], "c1", "me", "th", 4, 60, 90, 1)
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
            batch_ids=("b3", "b9"),
            sources=((1, "s1"), (1, "s4"), (2, "s4"), (1, "s4")),
            with_lease=True,
        ),
    )
    settled = replace(
        batch(1, source_key="s1", settled_state="completed", settled_at_ms=70, settled_revision=1),
        claim_id="c1", claim_owner="me", claim_token_hash="th", claim_fence=4, claimed_at_ms=60,
        claim_expires_at_ms=90, claim_exclusive=1, claim_size=2, attempts=1,
    )  # fmt: skip
    assert facts == r.CommitFacts(
        head=revision(1, 2),
        turn=revision(1, 1, refs=b'["x"]'),
        nodes=(node(1, 2, parent=1),),
        hashes=frozenset({"x"}),
        batches=(batch(3, payloads=b""),),
        sources=(msgspec.structs.replace(settled, payloads=b""), batch(4, source_key="s4", payloads=b"")),
        lease=lease,
    )
    whole = r.CommitQuery(session=replace(made, revision=1), segments=(), with_ledger=True)
    facts = store.ask("load_commit_facts", whole)
    assert (facts.head, facts.turn, facts.nodes) == (revision(1, 1, refs=b'["x"]'), None, ())
    assert [counter.source for counter in facts.ledger] == ["main", "tool"]
    assert store.ask("load_commit_facts", r.CommitQuery(session=session(9), segments=())) == r.CommitFacts()


def test_the_leaf_of_the_head_is_a_fact_if_it_is_asked_for_and_seen(store: Any) -> None:
    head = revision(1, 1, leaf_key=(1 << 32) + 2, leaf_id="n2")
    nodes = (node(1, 1), node(1, 2, parent=1))
    store.call("apply_commit", r.CommitPlan(session=session(1), revision=head, nodes=nodes), 70)
    forked = (r.Segment(2, 0, 0), r.Segment(1, 0, 2))
    query = r.CommitQuery(session=session(1, revision=1), segments=forked, with_leaf=True)
    assert store.ask("load_commit_facts", query).nodes == nodes[1:]
    assert store.ask("load_commit_facts", replace(query, with_leaf=False)).nodes == ()
    for other in (r.Segment(1, 0, 1), r.Segment(1, 1, 2), r.Segment(2, 0, 2)):
        assert store.ask("load_commit_facts", replace(query, segments=(other,))).nodes == ()


def test_the_batches_of_a_claim_are_facts_of_a_commit(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2), batch(3)])
    query = r.CommitQuery(session=session(1), segments=(), batch_ids=("b3", "b1"))
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


def test_nodes_are_walked_whatever_they_are(store: Any) -> None:
    rows = [node(1, 1), node(2, 1), node(2, 2, parent=1, mark=r.VACUUMED, epoch=1), node(3, 1)]
    store.call("insert_nodes", rows)
    assert walked(store, r.NodeRow) == rows
    assert walked(store, r.NodeRow, after=(rows[1].node_key,)) == rows[2:]
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
    assert walked(store, r.NodeRow)[2:] == [
        node(2, 1, mark=r.VACUUMED, payload=b"null", caused_by=None),
        node(2, 2),
    ]


def test_nodes_of_an_epoch_are_dropped_from_the_top(store: Any) -> None:
    store.call("insert_nodes", [node(1, 1), node(1, 2), node(1, 3), node(1, 4, epoch=3), node(2, 3)])
    assert store.call("drop_nodes", 1, 0, above=1, limit=1) == 1
    assert [row.node_id for row in walked(store, r.NodeRow)] == ["n1", "n2", "n4", "n3"]
    assert store.call("drop_nodes", 1, 0, above=0, limit=9) == 2
    assert store.call("drop_nodes", 1, 3, above=3, limit=9) == 1
    assert len(store.backend.dump()["nodes"]) == 1


def test_blobs_that_no_revision_lists_are_counted_or_dropped(store: Any) -> None:
    made = store.call("insert_session", session(0))
    blobs = tuple(r.BlobRow(hash, "raw", 100, hash.encode() * 2) for hash in ("p", "q", "s", "t"))
    # Six bytes that start like binary JSON: parsed as such, this list would become another one.
    plan = r.CommitPlan(session=made, revision=revision(1, 1, refs=b'["q"] '), blobs=blobs)
    store.call("apply_commit", plan, 50)
    assert store.ask("count_blobs", 1) == (1, 1, 4)
    assert store.ask("drop_unreferenced_blobs", 1, limit=9, dry_run=True) == (3, 6)
    assert store.call("drop_unreferenced_blobs", 1, limit=1, dry_run=False) == (1, 2)
    assert store.call("drop_unreferenced_blobs", 1, limit=9, dry_run=False) == (2, 4)
    assert [blob.hash for blob in walked(store, StoredBlob)] == ["q"]


# ---------------------------------------------------------------------------- work


def test_batches_get_rising_sequence_numbers_that_are_never_used_again(store: Any) -> None:
    assert store.call("insert_batches", [batch(0, batch_id="x"), batch(0, batch_id="y", source_key="s")]) == [
        batch(1, batch_id="x"),
        batch(2, batch_id="y", source_key="s"),
    ]
    assert store.call("insert_batches", []) == []
    assert store.call("find_sources", [(1, "s"), (1, "t")]) == [batch(2, batch_id="y", source_key="s")]
    assert store.call("find_sources", []) == []
    store.connection.execute("DELETE FROM batches")
    assert store.call("insert_batches", [batch(1)])[0].enqueue_seq == 3


def test_ready_is_what_is_available_unsettled_and_under_no_live_claim(store: Any) -> None:
    store.call("insert_batches", [batch(0, batch_id=str(i), available_at_ms=i * 10) for i in range(1, 7)])
    store.call("insert_batches", [batch(0, batch_id="k", source_key="k"), batch(0, batch_id="o", session_key=2)])
    settle(store, [7], "completed", 5)
    claim(store, [1], "live", "me", "th", 1, 0, 41, 0)
    claim(store, [2], "over", "me", "th", 1, 0, 40, 0)
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 9, with_back_off=False)] == [2, 3, 4]
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 2, with_back_off=False)] == [2, 3]
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


def seen(claimed: bool, exclusively: bool) -> Obstacles:
    return Obstacles(claimed=claimed, exclusively=exclusively, paused=False, any_limits=False)


def test_other_live_claims_are_seen(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2), batch(3)])
    assert store.ask("obstacles", 1, "me", 10) == seen(False, False)
    claim(store, [1], "c1", "you", "th", 1, 0, 20, 0)
    claim(store, [2], "c2", "she", "th", 1, 0, 15, 1)
    assert store.ask("obstacles", 1, "", 10) == seen(True, True)
    assert store.ask("obstacles", 1, "c2", 10) == seen(True, False)
    assert store.ask("obstacles", 1, "", 15) == seen(True, False)
    assert store.ask("obstacles", 1, "c1", 15) == seen(False, False)
    assert store.ask("obstacles", 1, "me", 20) == seen(False, False)
    assert store.ask("obstacles", 2, "me", 10) == seen(False, False)


def test_the_life_of_a_batch_is_saved_and_its_birth_stays(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2)])
    claimed = replace(
        batch(1), claim_id="c", claim_owner="me", claim_token_hash="th", claim_fence=7, claimed_at_ms=5,
        claim_expires_at_ms=20, claim_exclusive=1, claim_size=1, attempts=3, retry_at_ms=4, last_error="e",
    )  # fmt: skip
    assert store.call("save_batches", [claimed, batch(9)]) == 1
    assert store.ask("find_batches", 1, ["b1", "zz"]) == [claimed]
    assert store.ask("find_batches", 2, ["b1"]) == []
    assert store.ask("find_claimed", 1, "c") == [claimed]
    assert store.ask("find_claimed", 1, "d") == store.ask("find_claimed", 2, "c") == []
    settled = replace(claimed, settled_state="dead", settled_at_ms=8, settled_revision=2)
    assert store.call("save_batches", [replace(settled, kind="mail", payloads=b"[1]")]) == 1
    assert store.ask("find_batches", 1, ["b1"]) == [settled]
    assert store.ask("find_claimed", 1, "c") == []


def test_a_batch_in_back_off_is_ready_only_on_request(store: Any) -> None:
    store.call("insert_batches", [batch(1), batch(2)])
    store.call("save_batches", [batch(1, retry_at_ms=41)])
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 9, with_back_off=False)] == [2]
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 40, 9, with_back_off=True)] == [1, 2]
    assert [row.enqueue_seq for row in store.ask("ready_batches", 1, 41, 9, with_back_off=False)] == [1, 2]
    assert store.ask("next_due_ms", 1, 40) == 41


def test_dead_work_is_listed_and_not_pruned(store: Any) -> None:
    store.call("insert_batches", [batch(1, kind="mail"), batch(2), batch(3, session_key=2), batch(4)])
    settle(store, [1, 2, 3], "dead", 30)
    assert [row.enqueue_seq for row in store.ask("list_dead", None, None, after=0, limit=2)] == [1, 2]
    assert [row.enqueue_seq for row in store.ask("list_dead", None, None, after=1, limit=9)] == [2, 3]
    assert [row.enqueue_seq for row in store.ask("list_dead", 1, None, after=0, limit=9)] == [1, 2]
    assert [row.enqueue_seq for row in store.ask("list_dead", None, "mail", after=0, limit=9)] == [1]
    assert store.call("drop_settled_batches", settled_until_ms=99, limit=9, dry_run=False) == 0


def ready(key: int, **fields: Any) -> r.ReadyRow:
    known = {"family": 1, "level": 2, "kind": "turn", "priority": 0, "served": key, "due_at_ms": None}
    return r.ReadyRow(**{"session_key": key, **known, "claimed_upto": 0, **fields})


def test_ready_rows_come_by_priority_and_then_in_turn(store: Any) -> None:
    rows = [ready(1, served=5), ready(2, served=3), ready(3, level=1, served=1), ready(4, kind="mail", priority=1)]
    for row in [*rows, ready(5, level=0, due_at_ms=7), ready(6, priority=-1, served=0, due_at_ms=9)]:
        store.call("save_ready", row)

    def order(levels: tuple[int, ...], kinds: list[str] | None) -> list[int]:
        passed: list[int] = []
        while (key := store.ask("next_ready", levels, kinds, passed, 5)) is not None:
            passed.append(key)
        return passed

    assert order((1, 2), None) == [4, 3, 2, 1, 6]
    assert order((2,), ["turn"]) == [2, 1, 6]
    assert order((1, 2), ["mail", "other"]) == [4]
    assert store.ask("offers_ready", (1,), ["mail"], 5) is False
    assert store.ask("offers_ready", (1, 2), ["mail"], 5) is True
    assert store.ask("due_ready", 9, 5) == [5, 6]
    assert store.ask("due_ready", 8, 5) == [5]
    assert store.ask("next_ready_due_ms", 5) == 7
    store.call("save_ready", ready(5, level=2))
    assert store.ask("find_ready", 5) == ready(5)
    store.call("drop_ready", 5)
    assert store.ask("find_ready", 5) is None
    assert [store.call("next_served") for _ in range(2)] == [1, 2]


def test_the_front_of_a_queue_ends_with_what_is_ready_or_was_claimed(store: Any) -> None:
    store.call("insert_batches", [batch(0, batch_id=str(seq)) for seq in range(1, 7)])
    claim(store, [1, 4], "c", "me", "th", 1, 0, 41, 0)
    assert [row.enqueue_seq for row in store.ask("queue_front", 1, 0, 40)] == [1, 2]
    assert [row.enqueue_seq for row in store.ask("queue_front", 1, 4, 40)] == [1, 2, 3, 4]
    assert [row.enqueue_seq for row in store.ask("queue_front", 1, 0, 41)] == [1]
    claim(store, [1, 2, 3, 4, 5, 6], "c", "me", "th", 1, 0, 41, 0)
    assert len(store.ask("queue_front", 1, 0, 40)) == 6


def test_settled_work_is_kept_until_it_is_pruned(store: Any) -> None:
    store.call("insert_batches", [batch(1, source_key="s"), batch(2)])
    assert settle(store, [1], "cancelled", 30) == 1
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


def test_attachment_bytes_that_differ_replace_those_that_are_there(store: Any) -> None:
    whole = r.ObjectRow("h", "raw", 5, b"hello")
    store.call("put_object", 1, "a", r.ObjectRow("h", "raw", 5, b"hell"))
    store.call("put_object", 1, "a", whole)
    store.call("put_object", 1, "a", whole)
    assert store.ask("get_object", 1, "a") == whole
    assert store.ask("get_object", 2, "a") is None
    assert store.call("drop_object", 1, "a") == 5
    assert store.call("drop_object", 1, "a") is None
    store.call("put_object", 1, "a", r.ObjectRow("h0", "raw", 0, b""))
    assert store.call("drop_object", 1, "a") == 0


def test_notes_of_bytes_to_be_deleted_are_kept_once_and_in_order(store: Any) -> None:
    for note in ((2, "a", 0), (1, "b", 0), (1, "a", 0), (1, "b", 0), (1, "b", 7)):
        store.call("note_deletion", *note)
    assert store.ask("next_deletion", (0, "")) == (1, "a")
    assert store.ask("next_deletion", (1, "a")) == (1, "b")
    assert store.ask("next_deletion", (1, "b")) == (2, "a")
    assert store.ask("next_deletion", (2, "a")) is None
    assert store.ask("find_deletions", 1, "b") == [0, 7]
    assert store.call("forget_deletion", 1, "b", 8) == 0
    assert store.call("forget_deletion", 1, "b", 7) == 1
    assert store.ask("find_deletions", 1, "b") == [0]


def test_the_statistics_have_the_fields_of_stats_and_counts_what_there_is(store: Any) -> None:
    made = store.call("insert_session", session(0))
    store.call("insert_session", session(0, "gone", deleted_at_ms=1))
    blob = r.BlobRow("x", "raw", 100, b"xyz")
    plan = r.CommitPlan(session=made, revision=revision(1, 1), nodes=(node(1, 1),), blobs=(blob,))
    store.call("apply_commit", plan, 1)
    store.call("insert_batches", [batch(0, batch_id=str(i), source_key=str(i), enqueued_at_ms=i) for i in range(1, 5)])
    claim(store, [1], "live", "me", "th", 1, 0, 21, 0)
    claim(store, [2], "over", "me", "th", 1, 0, 20, 0)
    settle(store, [4], "completed", 5)
    store.call("save_attachment", attachment(1, "a"))
    store.call("put_object", 1, "a", r.ObjectRow("h", "raw", 99, b"1234567"))
    store.call("insert_process", process("p"))
    store.call("insert_process", process("q", status="failed"))
    store.call("apply_event", appended(event("p", 1)))
    store.call("save_grant", r.GrantRow("s", "", "p", b""))
    store.call("save_lease", r.LeaseRow("process", "p", "me", "th", 1, 1, 21))
    store.call("save_lease", r.LeaseRow("process", "q", "me", "th", 1, 1, 20))
    store.call("insert_subscription", subscription(0))
    store.call("insert_occurrence", occurrence("o"))
    store.call("insert_deliveries", [delivery("o", 1), delivery("o", 2, "started")])
    store.call("save_artifact", r.ArtifactRow("k", "r", "h", "raw", 1, 1, b"x"))
    found = store.ask("stats", 20)
    assert found.pop("bytes_on_disk") > 0
    assert Stats(**found) == Stats(
        schema_version=1, sessions=1, deleted_sessions=1, revisions=1, nodes=1, blobs=1, blob_bytes=3,
        pending_batches=2, claimed_batches=1, settled_batches=1, attachments=1, attachment_bytes=7, processes=2,
        running_processes=1, events=1, grants=1, live_leases=1, subscriptions=1, occurrences=1, undelivered=1,
        schedules=0, artifacts=1, oldest_pending_batch_at_ms=2,
    )  # fmt: skip
