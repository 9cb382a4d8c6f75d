"""A session whose head is lost is never overwritten, and a damaged list of roots never lets anything be collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.backends import lost_numbers

import holdfast
from holdfast.errors import UnknownRef
from holdfast.leases import OnSession
from holdfast.operations import maintenance as operations
from holdfast.operations.writes import expect_rows
from holdfast.processes import External
from holdfast.sessions import ActivePath, Child, FullGraph
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft


@pytest.fixture
def store(path: Path) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(path, clock=ManualClock()) as opened:
        session = opened.sessions.create("chat")
        for number in (1, 2):
            session.commit(
                holdfast.Commit(
                    turn_id=f"t{number}",
                    graph=holdfast.Append([holdfast.Node(f"n{number}")], leaf=f"n{number}"),
                    checkpoint=holdfast.Checkpoint(turn_state={"turn": number}),
                    config={"level": number},
                )
            )
        opened.sessions.create("other").commit(holdfast.Commit(config={"other": True}))
        yield opened


def damage(path: Path, statement: str) -> None:
    """Change the file with another connection, as another program would."""
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()


def rows(path: Path) -> dict[str, list[Any]]:
    """Return every row of the file."""
    connection = apsw.Connection(str(path))
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return found


LOST_HEAD = "DELETE FROM revisions WHERE revision_key = 1 << 32 | 2"
HALF_LEAVES = {
    "the key": "UPDATE revisions SET leaf_key = NULL WHERE revision_key = 1 << 32 | 2",
    "the id": "UPDATE revisions SET leaf_id = NULL WHERE revision_key = 1 << 32 | 2",
}
COMMITS: dict[str, holdfast.Commit] = {
    "usage": holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=1)]),
    "nothing": holdfast.Commit(),
    "graph": holdfast.Commit(graph=holdfast.Append([holdfast.Node("n3", parent="n2")])),
    "new turn": holdfast.Commit(turn_id="t3", expected_revision=2),
}


@pytest.mark.parametrize("turn", COMMITS)
def test_a_commit_over_a_lost_head_is_corrupt_and_changes_nothing(
    store: holdfast.BlockingStore, path: Path, turn: str
) -> None:
    damage(path, LOST_HEAD)
    before = rows(path)
    with pytest.raises(holdfast.Corrupt) as info:
        store.sessions.handle("chat").commit(COMMITS[turn])
    assert (info.value.table, info.value.key, info.value.outcome) == ("revisions", "1/2", "not_applied")
    assert rows(path) == before
    # Other sessions are unaffected.
    assert store.sessions.handle("other").commit(holdfast.Commit()).revision == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.sessions.handle("chat").load(),
        lambda store: store.sessions.handle("chat").load(at=2),
        lambda store: store.sessions.fork("chat", into="fork"),
        lambda store: store.sessions.fork("chat", at=2, into="fork"),
    ],
    ids=["load", "load at", "fork", "fork at"],
)
def test_a_lost_head_is_never_read_as_no_state(
    store: holdfast.BlockingStore, path: Path, call: Callable[[holdfast.BlockingStore], Any]
) -> None:
    damage(path, LOST_HEAD)
    before = rows(path)
    with pytest.raises(holdfast.Corrupt, match="head's revision is missing"):
        call(store)
    assert rows(path) == before


@pytest.mark.parametrize("lost", HALF_LEAVES)
def test_a_head_with_half_a_leaf_is_damage_for_readers_and_writers(
    store: holdfast.BlockingStore, path: Path, lost: str
) -> None:
    damage(path, HALF_LEAVES[lost])
    before = rows(path)
    session = store.sessions.handle("chat")
    calls: list[Callable[[], Any]] = [
        session.load,
        lambda: session.load(FullGraph()),
        lambda: session.commit(holdfast.Commit()),
        lambda: store.sessions.fork("chat", into="fork"),
    ]
    for call in calls:
        with pytest.raises(holdfast.Corrupt, match="half a leaf") as info:
            call()
        assert (info.value.table, info.value.key) == ("revisions", "1/2")
    assert rows(path) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE revisions SET refs = X'5B5D' WHERE revision_key >> 32 = 1",
        "UPDATE revisions SET refs = X'7B7D' WHERE revision_key >> 32 = 1",
        "UPDATE revisions SET refs = X'5B5D' WHERE revision_key = 1 << 32 | 2",
        "UPDATE revisions SET family = 77 WHERE revision_key >> 32 = 1",
        "UPDATE revisions SET family = 3 WHERE revision_key = 1 << 32 | 2",
        "UPDATE revisions SET body = X'00' WHERE revision_key = 1 << 32 | 2",
        "DELETE FROM revisions WHERE revision_key >> 32 = 1",
    ],
    ids=["no refs", "an object", "one without refs", "another family", "one in another family", "no body", "all lost"],
)
def test_nothing_of_a_family_is_collected_whose_roots_are_not_proven(
    store: holdfast.BlockingStore, path: Path, statement: str
) -> None:
    store.sessions.handle("other").commit(holdfast.Commit(config={"other": False}))
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    store.sessions.handle("chat").commit(holdfast.Commit(config={"level": 3}))
    damage(path, statement)
    blobs = [row for row in rows(path)["blobs"] if row[0] == 1]
    with pytest.raises(holdfast.Corrupt):
        store.maintenance.collect_garbage()
    assert [row for row in rows(path)["blobs"] if row[0] == 1] == blobs
    # The other family is collected all the same: the blobs of its pruned revision are gone.
    assert len([row for row in rows(path)["blobs"] if row[0] == 2]) == 1


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("revision", [1, 2, 3])
def test_the_roots_of_every_revision_are_proven_however_many_there_are(
    store: holdfast.BlockingStore, path: Path, monkeypatch: pytest.MonkeyPatch, page: int, revision: int
) -> None:
    monkeypatch.setattr(operations, "PROOF_PAGE", page)
    store.sessions.handle("chat").commit(holdfast.Commit(config={"level": 3}))
    before = rows(path)["blobs"]
    assert store.maintenance.collect_garbage().deleted_blobs == 0
    damage(path, f"UPDATE revisions SET refs = X'5B5D' WHERE revision_key = 1 << 32 | {revision}")
    with pytest.raises(holdfast.Corrupt) as info:
        store.maintenance.collect_garbage()
    assert (info.value.table, info.value.key) == ("revisions", f"1/{revision}")
    assert rows(path)["blobs"] == before


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ("UPDATE sessions SET node_count = -5 WHERE session_key = 1", lambda store: store.sessions.list()),
        ("UPDATE sessions SET revision = -1 WHERE session_key = 1", lambda store: store.sessions.handle("chat").load()),
        (
            "UPDATE revisions SET epoch = -1 WHERE revision_key >> 32 = 1",
            lambda store: store.sessions.handle("chat").load(),
        ),
        ("UPDATE sessions SET usage_input_tokens = -5", lambda store: store.sessions.handle("chat").load()),
        ("UPDATE leases SET fence = -1", lambda store: store.leases.holder(OnSession("chat"))),
        ("UPDATE batches SET claim_fence = -1", lambda store: store.queue.list("chat")),
        ("UPDATE nodes SET created_at_ms = -1", lambda store: store.sessions.handle("chat").load()),
    ],
    ids=["nodes", "head", "epoch", "tokens", "fence", "claim", "time"],
)
def test_a_negative_number_is_damage_and_is_never_handed_out(
    store: holdfast.BlockingStore, path: Path, statement: str, call: Callable[[holdfast.BlockingStore], Any]
) -> None:
    store.sessions.handle("chat").commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=5)]))
    store.leases.claim(OnSession("chat"), owner_id="w1")
    store.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[1]))
    call(store)
    damage(path, statement)
    with pytest.raises(holdfast.Corrupt) as info:
        call(store)
    assert info.value.table == ("usage" if "usage" in statement else statement.split()[1])


def test_a_leaf_that_is_lost_is_damage_and_no_empty_path(store: holdfast.BlockingStore, path: Path) -> None:
    damage(path, "DELETE FROM nodes WHERE node_id = 'n2'")
    with pytest.raises(holdfast.Corrupt, match="the leaf is missing") as info:
        store.sessions.handle("chat").load()
    assert (info.value.table, info.value.key) == ("nodes", str((1 << 32) + 2))
    # The path to another node is intact.
    assert store.sessions.handle("chat").load(ActivePath(leaf="n1")) is not None


@pytest.mark.parametrize("table", ["occurrences", "subscriptions"])
def test_a_delivery_of_something_lost_is_damage(store: holdfast.BlockingStore, path: Path, table: str) -> None:
    store.triggers.subscribe(SubscriptionDraft(source_type="timer", source_key="k", target=External()))
    (delivery,) = store.triggers.emit("timer", "k", idempotency_key="1").deliveries
    damage(path, f"DELETE FROM {table}")
    with pytest.raises(holdfast.Corrupt) as info:
        store.triggers.undelivered()
    assert (info.value.table, info.value.key) == ("deliveries", delivery.process_id)


def test_a_write_that_hits_another_number_of_rows_than_were_read_is_damage() -> None:
    expect_rows(1, "sessions", 7)
    expect_rows(3, "batches", "claim", expected=3)
    for count, expected in ((0, 1), (2, 1), (2, 3)):
        with pytest.raises(holdfast.Corrupt) as info:
            expect_rows(count, "batches", 7, expected=expected)
        assert (info.value.table, info.value.key) == ("batches", "7")


COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")


def test_lost_counters_are_never_read_as_an_empty_or_a_smaller_ledger(path: Path) -> None:
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        for model in ("first", "small", "large"):
            session.commit(holdfast.Commit(usage=[holdfast.Usage("turn", model, input_tokens=5)]))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        fork = store.sessions.fork("chat", into="fork")
        first = ", ".join(f"usage_{name} = NULL" for name in ("source", "model", "place", *COUNTS))
        for statement in (
            "DELETE FROM usage WHERE model = 'small'",
            "DELETE FROM usage",
            f"UPDATE sessions SET {first} WHERE session_id = 'chat'",
        ):
            damage(path, statement)
            for call in (session.load, lambda: session.load(at=3), lambda: session.load(FullGraph())):
                with pytest.raises(holdfast.Corrupt) as info:
                    call()
                assert info.value.table == "usage"
            # The next turn does not hide the loss.
            session.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "large", input_tokens=1)]))
            with pytest.raises(holdfast.Corrupt):
                session.load()
            assert {finding.table for finding in store.maintenance.verify().findings} == {"usage"}
        view = fork.load()
        assert view is not None
        assert view.ledger == ()


def test_bytes_that_the_parent_lost_are_not_taken_over(path: Path) -> None:
    with holdfast.open_blocking(path) as store:
        ref = store.sessions.create("parent").attachments.put(b"abc")
        child = store.sessions.create("child", relation=Child("parent"))
        damage(path, "DELETE FROM attachment_objects")
        with pytest.raises(UnknownRef) as info:
            child.commit(holdfast.Commit(attachments=[ref.id]))
        assert ref.id in str(info.value)
        assert child.load() is None


@pytest.mark.parametrize("lost", range(1, 8))
def test_whichever_node_is_lost_both_readings_of_the_graph_notice(path: Path, lost: int) -> None:
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node(f"n{one}", parent=None) for one in range(1, 8)])
        session.tombstone(["n3", "n6"])
        damage(path, f"DELETE FROM nodes WHERE node_id = 'n{lost}'")
        for newest_first in (False, True):
            for limit in (1, 2, 3, 7):
                with pytest.raises(holdfast.Corrupt, match=r"\d of the \d nodes from position \d to \d are there"):
                    list(holdfast.every(session.nodes, newest_first=newest_first, limit=limit))
        with pytest.raises(holdfast.Corrupt, match="6 of the 7 nodes from position 1 to 7 are there"):
            session.load(FullGraph())


def test_a_page_before_the_lost_node_is_still_read(path: Path) -> None:
    with holdfast.open_blocking(path) as store:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node(f"n{one}", parent=None) for one in range(1, 8)])
        damage(path, "DELETE FROM nodes WHERE node_id = 'n4'")
        assert [node.id for node in session.nodes(limit=3)] == ["n1", "n2", "n3"]
        assert [node.id for node in session.nodes(newest_first=True, limit=3)] == ["n7", "n6", "n5"]


def test_a_ready_row_of_a_lost_session_keeps_no_other_work_back(store: holdfast.BlockingStore, path: Path) -> None:
    for name in ("lost", "chat"):
        store.queue.enqueue(holdfast.WorkDraft(session_id=name, payloads=[name]))
    damage(path, "DELETE FROM sessions WHERE session_id = 'lost'")
    claim = store.queue.claim_next(owner_id="w1")
    assert claim is not None
    assert claim.session_id == "chat"
    assert store.queue.claim_next(owner_id="w1") is None


def test_a_row_lost_from_the_middle_is_damage_and_never_passed_over(path: Path) -> None:
    with holdfast.open_blocking(path, clock=ManualClock()) as store:
        lost_numbers.check(store, lambda table, where: damage(path, f"DELETE FROM {table} WHERE {where}"))
