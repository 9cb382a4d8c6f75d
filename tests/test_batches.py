"""Housekeeping in several transactions has the result of one: batch boundaries are invisible."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.maintenance import PruneReport
from holdfast.operations import deletion, sessions, triggers
from holdfast.operations import maintenance as operations
from holdfast.ports import Transaction
from holdfast.processes import Completed, External
from holdfast.sessions import FullGraph, Graph, ReplaceGraph
from holdfast.store import maintenance
from holdfast.table_catalog import StoredBlob
from holdfast.testing.clock import ManualClock
from holdfast.triggers import SubscriptionDraft


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else str(tmp_path / "state.db")


@pytest.fixture(params=[1, 2, 3, 7, 1_000])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set how many rows a transaction may take: fewer than there are, exactly as many, and more."""
    size: int = request.param
    monkeypatch.setattr(maintenance, "BATCH", size)
    monkeypatch.setattr(maintenance, "FAMILIES", size)
    monkeypatch.setattr(operations, "PROOF_PAGE", size)


@pytest.fixture
def store(url: str) -> Iterator[holdfast.BlockingStore]:
    with holdfast.open_blocking(url, clock=ManualClock()) as opened:
        yield opened


def turns(store: holdfast.BlockingStore, session_id: str, count: int) -> None:
    """Commit turns that each have their own checkpoint and replace the graph by one other node."""
    session = store.sessions.create(session_id)
    for number in range(count):
        session.commit(
            holdfast.Commit(
                graph=ReplaceGraph(Graph((holdfast.Node(f"n{number}"),), f"n{number}")),
                checkpoint=holdfast.Checkpoint(turn_state={"session": session_id, "turn": number}),
            )
        )


@pytest.mark.usefixtures("batch")
def test_a_collection_takes_everything_unreachable_and_counts_it(store: holdfast.BlockingStore) -> None:
    for session_id in ("a", "b"):
        turns(store, session_id, 8)
    pruned = store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    assert (pruned.revisions, pruned.complete) == (14, True)
    report = store.maintenance.collect_garbage()
    assert (report.roots, report.retained_blobs, report.deleted_blobs, report.deleted_nodes) == (2, 2, 14, 14)
    stats = store.maintenance.stats()
    assert (stats.blobs, stats.nodes, stats.revisions) == (2, 2, 2)
    again = store.maintenance.collect_garbage()
    assert (again.roots, again.retained_blobs, again.deleted_blobs, again.deleted_nodes) == (2, 2, 0, 0)
    for session_id in ("a", "b"):
        view = store.sessions.handle(session_id).load()
        assert view is not None
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"session": session_id, "turn": 7})
        assert [node.id for node in view.graph.nodes] == ["n7"]
    assert store.maintenance.verify().ok


@pytest.mark.usefixtures("batch")
def test_a_collection_in_steps_never_leaves_a_delta_without_its_key_frame(
    store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.sessions.create("chat")
    state = hashlib.shake_128(b"state").digest(70_000)
    for number in range(4):
        session.commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"%d" % number * 9 + state)),
        )
    session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=b"small")))
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    seen: list[tuple[int, int]] = []
    erase = deletion.erase

    async def watched(tx: Transaction, family: int, limit: int) -> deletion.Erased:
        erased = await erase(tx, family, limit)
        rows, _ = await tx.scan_rows(StoredBlob, after=None, skip=0, limit=10)
        bases = {row.base_hash for row in rows if row.base_hash is not None}
        assert bases <= {row.hash for row in rows if row.base_hash is None}
        seen.append((len(rows), len(bases)))
        return erased

    monkeypatch.setattr(deletion, "erase", watched)
    assert store.maintenance.collect_garbage().deleted_blobs == 4
    assert seen[-1] == (1, 0)
    assert store.maintenance.verify().ok


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize(("turns_with_state", "turns_with_nodes"), [(7, 0), (0, 7), (7, 2), (2, 7)])
def test_a_collection_continues_for_blobs_and_for_nodes_alone(
    store: holdfast.BlockingStore, turns_with_state: int, turns_with_nodes: int
) -> None:
    session = store.sessions.create("chat")
    session.commit(holdfast.Commit(config={"kept": True}))
    for number in range(turns_with_state):
        session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"turn": number})))
    for number in range(turns_with_nodes):
        graph = Graph((holdfast.Node(f"n{number}"),), f"n{number}")
        session.commit(holdfast.Commit(graph=ReplaceGraph(graph)))
    session.commit(holdfast.Commit(graph=ReplaceGraph(Graph()), checkpoint=holdfast.Checkpoint()))
    store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
    report = store.maintenance.collect_garbage()
    assert (report.retained_blobs, report.deleted_blobs, report.deleted_nodes) == (
        1, turns_with_state, turns_with_nodes,
    )  # fmt: skip
    stats = store.maintenance.stats()
    assert (stats.blobs, stats.nodes) == (1, 0)


@pytest.mark.usefixtures("batch")
def test_a_vacuum_empties_every_tombstoned_node_and_counts_it(store: holdfast.BlockingStore) -> None:
    session = store.sessions.create("chat")
    session.add_nodes([holdfast.Node(f"n{number}", payload="x") for number in range(9)])
    assert session.tombstone([f"n{number}" for number in range(7)]) == 7
    assert store.maintenance.vacuum().removed_nodes == 7
    assert store.maintenance.vacuum().removed_nodes == 0
    view = session.load(FullGraph())
    assert view is not None
    assert [node.id for node in view.graph.nodes] == ["n7", "n8"]


@pytest.mark.usefixtures("batch")
def test_pruning_forgets_all_that_the_policy_allows_and_counts_it(url: str) -> None:
    clock = ManualClock()
    with holdfast.open_blocking(url, clock=clock) as store:
        turns(store, "chat", 8)
        for number in range(7):
            draft = holdfast.WorkDraft(session_id="chat", payloads=[number], source_key=str(number))
            store.queue.cancel("chat", store.queue.enqueue(draft).batch_id)
            store.processes.register(holdfast.ProcessRegistration(str(number), External()))
            store.processes.complete(str(number), Completed())
            store.triggers.emit("timer", "k", idempotency_key=str(number))
        clock.advance(10)
        policy = holdfast.RetentionPolicy(
            keep_revisions=1,
            settled_batches_older_than_ms=10,
            terminal_processes_older_than_ms=10,
            occurrences_older_than_ms=10,
        )
        expected = PruneReport(
            dry_run=True, revisions=7, batches=7, processes=7, events=7, occurrences=7, complete=True
        )
        planned = store.maintenance.prune(policy, dry_run=True)
        assert planned == expected
        done = store.maintenance.prune(policy)
        assert done == PruneReport(
            dry_run=False, revisions=7, batches=7, processes=7, events=7, occurrences=7, complete=True
        )
        assert store.maintenance.prune(policy).revisions == 0
        stats = store.maintenance.stats()
        left = (stats.revisions, stats.settled_batches, stats.processes, stats.events, stats.occurrences)
        assert left == (1, 0, 0, 0, 0)


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize("most", [1, 3, 20, 27, 28])
def test_pruning_stops_at_its_limit_and_the_next_call_continues(url: str, most: int) -> None:
    with holdfast.open_blocking(url, clock=ManualClock()) as store:
        turns(store, "a", 15)
        turns(store, "b", 15)
        policy = holdfast.RetentionPolicy(keep_revisions=1)
        pruned: list[int] = []
        while not pruned or pruned[-1]:
            report = store.maintenance.prune(policy, max_rows=most)
            pruned.append(report.revisions)
            assert report.revisions <= most
            assert report.complete or report.revisions == most
        assert sum(pruned) == 28
        assert store.maintenance.stats().revisions == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_deletion_pages_through_the_attachments_of_a_session(
    store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(deletion, "PAGE", size)
    session = store.sessions.create("chat")
    session.commit(holdfast.Commit(attachments=[session.attachments.put(data).id for data in (b"1", b"22", b"333")]))
    assert store.maintenance.stats().attachment_bytes == 6
    assert store.sessions.delete("chat").attachments == 3
    assert store.maintenance.stats().attachment_bytes == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_an_earlier_ledger_is_worked_out_over_any_number_of_later_turns(
    store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(sessions, "SCAN_PAGE", size)
    session = store.sessions.create("chat")
    for number in range(1, 5):
        session.commit(holdfast.Commit(usage=[holdfast.Usage("turn", "m", input_tokens=10**number)]))
    for revision, tokens in ((1, 10), (2, 110), (3, 1_110), (4, 11_110)):
        view = session.load(at=revision)
        assert view is not None
        assert [entry.input_tokens for entry in view.ledger] == [tokens]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_an_occurrence_reaches_every_subscription_however_many_match(
    store: holdfast.BlockingStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(triggers, "MATCH_PAGE", size)
    for _ in range(3):
        store.triggers.subscribe(SubscriptionDraft(source_type="timer", source_key="k", target=External()))
    emission = store.triggers.emit("timer", "k", idempotency_key="1")
    assert len(emission.deliveries) == min(size, 3)
    assert (emission.next is None) == (size >= 3)
    rest = (
        ()
        if emission.next is None
        else store.triggers.deliveries(emission.occurrence.occurrence_id, after=emission.next)
    )
    assert [one.subscription.subscription_id for one in (*emission.deliveries, *rest)] == [
        "subscription:1", "subscription:2", "subscription:3",
    ]  # fmt: skip
    again = store.triggers.emit("timer", "k", idempotency_key="1")
    assert (again.deliveries, again.next) == ((), None)


@pytest.mark.parametrize("step", [1, 2, 5, 100])
def test_a_deleted_session_goes_in_bounded_steps_and_all_of_it_goes(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr("holdfast.store.sessions.ERASED_A_STEP", step)
    with holdfast.open_blocking("memory:") as store:
        session = store.sessions.create("chat")
        for number in range(5):
            node = holdfast.Node(f"n{number}", parent=None if number == 0 else f"n{number - 1}")
            state = holdfast.Checkpoint(turn_state=number)
            session.commit(holdfast.Commit(graph=holdfast.Append([node], leaf=node.id), checkpoint=state))
        report = store.sessions.delete("chat")
        assert (report.revisions, report.nodes, report.blobs) == (5, 5, 5)
        stats = store.maintenance.stats()
        assert (stats.revisions, stats.nodes, stats.blobs) == (0, 0, 0)
        assert store.maintenance.verify().findings == ()
