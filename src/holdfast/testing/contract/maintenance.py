"""Housekeeping: removes what it was asked to remove, reports it, and takes nothing that is still reachable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session
from holdfast.maintenance import GarbageReport, PruneReport, Stats, VacuumReport, VerifyReport
from holdfast.processes import Completed, External
from holdfast.sessions import AgentFrame, FullGraph, Graph, ReplaceGraph
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.queue import settle, take, texts, work
from holdfast.triggers import SubscriptionDraft

EVERYTHING = holdfast.RetentionPolicy(
    keep_revisions=1, settled_batches_older_than_ms=0, terminal_processes_older_than_ms=0, occurrences_older_than_ms=0
)


def turns(session: Session, *states: Any) -> None:
    """Commit once a state, each with a node of its own on the path and a checkpoint."""
    for state in states:
        session.commit(
            holdfast.Commit(
                turn_id=f"turn-{state}",
                graph=holdfast.Append([holdfast.Node(f"n{state}", payload=state)], leaf=f"n{state}"),
                checkpoint=holdfast.Checkpoint(turn_state={"turn": state}),
            )
        )


def turn_state(session: Session, at: int | None = None) -> Any:
    """Return the turn state of a checkpoint that must be there."""
    view = session.load(at=at)
    assert view is not None
    assert view.checkpoint is not None
    return view.checkpoint.turn_state


def process(store: BlockingStore, name: str, *, ended: bool) -> None:
    """Register a process with one event of its own."""
    note = holdfast.events.EventType("note")
    store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=[note]))
    store.events.append(name, "note", 1)
    if ended:
        store.processes.complete(name, Completed())


def prunable(store: BlockingStore, clock: ManualClock) -> None:
    """Make three revisions, three settled batches, two ended processes and an occurrence, all a second old."""
    turns(store.sessions.create("chat"), 1, 2, 3)
    store.queue.enqueue(work("cancelled", session_id="mail", source_key="k0"))
    store.queue.cancel("mail", store.queue.list("mail").items[0].batch_id)
    for name in ("a", "b"):
        store.queue.enqueue(work(name, session_id="mail", source_key=name))
        settle(store, take(store, session_id="mail"))
    for name in ("p1", "p2"):
        process(store, name, ended=True)
    store.triggers.record("cron", "daily", idempotency_key="monday")
    clock.advance(1_000)


class MaintenanceContract(Contract):
    """`store.maintenance`."""

    # Tombstones.

    def test_a_vacuum_takes_the_content_of_tombstoned_nodes_once(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        nodes = [holdfast.Node("n1", payload="open"), holdfast.Node("n2", parent="n1", payload="sesame street")]
        session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf="n2")))
        assert store.maintenance.vacuum() == VacuumReport(0)
        assert session.tombstone(["n2"]) == 1
        assert "sesame street" in repr(bench.dump())
        assert store.maintenance.vacuum() == VacuumReport(1)
        assert "sesame street" not in repr(bench.dump())
        assert store.maintenance.vacuum() == VacuumReport(0)
        assert session.load_node("n2") is None
        found = session.load_node("n1")
        assert found is not None
        assert found.payload == "open"
        assert store.maintenance.verify().ok

    def test_a_vacuumed_id_stays_used(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        session.add_nodes([holdfast.Node("n1", payload="old")])
        session.tombstone(["n1"])
        store.maintenance.vacuum()
        with refused(bench, holdfast.errors.NodeConflict):
            session.add_nodes([holdfast.Node("n1", payload="new")])

    def test_a_vacuum_of_one_session_leaves_the_others(self, store: BlockingStore, bench: Bench) -> None:
        for name in ("chat", "mail"):
            session = store.sessions.create(name)
            session.add_nodes([holdfast.Node("n1", payload=f"secret of {name}")])
            session.tombstone(["n1"])
        assert store.maintenance.vacuum("nobody") == VacuumReport(0)
        assert store.maintenance.vacuum("chat") == VacuumReport(1)
        assert "secret of mail" in repr(bench.dump())
        assert store.maintenance.vacuum() == VacuumReport(1)
        store.sessions.delete("chat")
        with refused(bench, holdfast.SessionDeleted):
            store.maintenance.vacuum("chat")

    # Garbage.

    def test_nothing_is_garbage_that_a_retained_revision_needs(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create("chat")
        turns(session, 1, 2, 3)
        before = bench.dump()
        assert store.maintenance.collect_garbage() == GarbageReport(
            roots=3, retained_blobs=3, deleted_blobs=0, deleted_bytes=0
        )
        assert bench.dump() == before
        assert [turn_state(session, at) for at in (1, 2, 3)] == [{"turn": 1}, {"turn": 2}, {"turn": 3}]

    def test_content_that_only_pruned_revisions_needed_is_collected(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        turns(session, 1, 2, 3)
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        report = store.maintenance.collect_garbage()
        assert (report.roots, report.retained_blobs, report.deleted_blobs) == (1, 1, 2)
        assert report.deleted_bytes == 2 * len('{"turn":1}')
        assert report.deleted_nodes == 0, "the nodes of the path are still the session's"
        assert turn_state(session) == {"turn": 3}
        assert store.maintenance.stats().blobs == 1
        assert store.maintenance.verify().ok

    def test_a_frames_execution_state_is_kept_while_the_head_has_the_frame(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        session.commit(
            holdfast.Commit(
                frames=[AgentFrame("f1", execution_state=b"stack of f1")],
                current_frame_id="f1",
                config={"model": "m"},
                checkpoint=holdfast.Checkpoint(execution_state=b"stack", others={"memory": [1]}),
            )
        )
        turns(session, 1, 2)
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        store.maintenance.collect_garbage()
        view = session.load()
        assert view is not None
        assert [frame.execution_state for frame in view.frames] == [b"stack of f1"]
        assert view.config == {"model": "m"}
        assert store.maintenance.verify().ok

    def test_a_component_sent_as_unchanged_is_kept_and_a_collected_one_is_unknown(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        session = store.sessions.create("chat")
        first = session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(tool_state=[1], execution_state=b"s")))
        session.commit(
            holdfast.Commit(checkpoint=holdfast.Checkpoint(execution_state=first.manifest.ref("execution_state")))
        )
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert store.maintenance.collect_garbage().deleted_blobs == 1
        view = session.load()
        assert view is not None
        assert view.checkpoint is not None
        assert view.checkpoint.execution_state == b"s"
        with refused(bench, holdfast.errors.UnknownRef):
            session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(tool_state=first.manifest.ref("tool_state"))))

    def test_data_that_a_fork_needs_survives_its_source(self, store: BlockingStore) -> None:
        source = store.sessions.create("source")
        turns(source, 1, 2, 3)
        fork = store.sessions.fork("source", at=1, into="fork")
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert store.maintenance.collect_garbage().deleted_blobs == 1
        assert (turn_state(fork), turn_state(source)) == ({"turn": 1}, {"turn": 3})
        store.sessions.delete("source")
        report = store.maintenance.collect_garbage()
        assert (report.roots, report.retained_blobs) == (1, 1)
        view = fork.load()
        assert view is not None
        assert [node.payload for node in view.graph.nodes] == [1]
        assert turn_state(fork) == {"turn": 1}
        assert store.maintenance.verify().ok

    def test_replaced_nodes_go_when_no_revision_shows_them_any_more(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        turns(session, 1, 2)
        new = Graph([holdfast.Node("m1", payload="new")], leaf="m1")
        session.commit(holdfast.Commit(graph=ReplaceGraph(new)))
        assert store.maintenance.collect_garbage().deleted_nodes == 0
        view = session.load(FullGraph(), at=2)
        assert view is not None
        assert [node.id for node in view.graph.nodes] == ["n1", "n2"]
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert store.maintenance.collect_garbage().deleted_nodes == 2
        assert store.maintenance.stats().nodes == 1
        view = session.load(FullGraph())
        assert view is not None
        assert [node.id for node in view.graph.nodes] == ["m1"]
        assert store.maintenance.verify().ok

    def test_replaced_nodes_stay_for_the_fork_that_shows_them(self, store: BlockingStore) -> None:
        source = store.sessions.create("source")
        turns(source, 1, 2)
        fork = store.sessions.fork("source", at=1, into="fork")
        source.commit(holdfast.Commit(graph=ReplaceGraph(Graph())))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert store.maintenance.collect_garbage().deleted_nodes == 1
        found = fork.load_node("n1")
        assert found is not None
        assert found.payload == 1
        assert fork.load_node("n2") is None
        store.sessions.delete("fork")
        store.maintenance.collect_garbage()
        assert store.maintenance.stats().nodes == 0

    def test_nodes_beside_the_path_are_not_garbage(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        turns(session, 1)
        session.add_nodes([holdfast.Node("note", payload="seen")])
        turns(session, 2)
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert store.maintenance.collect_garbage().deleted_nodes == 0
        assert [node.id for node in session.nodes()] == ["n1", "note", "n2"]

    def test_collecting_beside_commits_takes_nothing_from_them(self, bench: Bench) -> None:
        writer, cleaner = bench.open(), bench.open()
        session = writer.sessions.create("chat")

        def commit() -> object:
            for state in range(12):
                # The same content comes and goes: garbage is needed again a moment later.
                session.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state={"turn": state % 3})))
            return "committed"

        def clean() -> object:
            for _ in range(12):
                cleaner.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
                cleaner.maintenance.collect_garbage()
            return "cleaned"

        calls: list[Callable[[], object]] = [commit, clean]
        assert at_once(*calls) == ["committed", "cleaned"]
        assert turn_state(session) == {"turn": 2}
        assert writer.maintenance.verify().findings == ()

    def test_equal_content_is_stored_once_in_a_family_and_compressed(self, store: BlockingStore) -> None:
        state = holdfast.Checkpoint(execution_state=b"0123456789" * 100_000)
        for name in ("chat", "mail"):
            session = store.sessions.create(name)
            session.commit(holdfast.Commit(checkpoint=state))
            session.commit(holdfast.Commit(checkpoint=state))
        fork = store.sessions.fork("chat", into="fork")
        fork.commit(holdfast.Commit(checkpoint=state))
        stats = store.maintenance.stats()
        assert stats.blobs == 2, "one for each family"
        assert 0 < stats.blob_bytes < 100_000
        view = fork.load()
        assert view is not None
        assert view.checkpoint == state

    # Retention.

    def test_a_policy_that_names_nothing_forgets_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        prunable(store, clock)
        before = bench.dump()
        assert store.maintenance.prune(holdfast.RetentionPolicy()) == PruneReport(dry_run=False)
        assert bench.dump() == before

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ({"keep_revisions": 1}, {"revisions": 3}),
            ({"keep_revisions": 2}, {"revisions": 1}),
            ({"keep_revisions": 3}, {}),
            ({"settled_batches_older_than_ms": 1_000}, {"batches": 3}),
            ({"settled_batches_older_than_ms": 1_001}, {}),
            ({"terminal_processes_older_than_ms": 1_000}, {"processes": 2, "events": 4}),
            ({"terminal_processes_older_than_ms": 1_001}, {}),
            ({"occurrences_older_than_ms": 1_000}, {"occurrences": 1}),
            ({"occurrences_older_than_ms": 1_001}, {}),
            (
                {"keep_revisions": 1, "settled_batches_older_than_ms": 0, "terminal_processes_older_than_ms": 0},
                {"revisions": 3, "batches": 3, "processes": 2, "events": 4},
            ),
        ],
        ids=["keep-1", "keep-2", "keep-3", "work", "no-work", "processes", "no-processes", "occurrences",
             "no-occurrences", "together"],
    )  # fmt: skip
    def test_a_prune_forgets_what_the_policy_says_and_a_dry_run_foretells_it(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, policy: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        prunable(store, clock)
        before = bench.dump()
        dry = store.maintenance.prune(holdfast.RetentionPolicy(**policy), dry_run=True)
        assert dry == PruneReport(dry_run=True, **expected)
        assert bench.dump() == before
        real = store.maintenance.prune(holdfast.RetentionPolicy(**policy))
        assert real == PruneReport(dry_run=False, **expected)
        again = store.maintenance.prune(holdfast.RetentionPolicy(**policy))
        assert again == PruneReport(dry_run=False)
        assert store.maintenance.verify().ok

    @pytest.mark.parametrize(
        "policy",
        [
            {"keep_revisions": 0},
            {"settled_batches_older_than_ms": -1},
            {"terminal_processes_older_than_ms": 2**63},
            {"occurrences_older_than_ms": 1.5},
        ],
        ids=["no-revision", "negative", "beyond-63-bits", "no-whole-number"],
    )
    def test_a_policy_that_cannot_be_is_refused(self, store: BlockingStore, bench: Bench, policy: Any) -> None:
        turns(store.sessions.create("chat"), 1, 2)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.maintenance.prune(holdfast.RetentionPolicy(**policy))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == f"policy.{next(iter(policy))}"
        with refused(bench, holdfast.InvalidRequest):
            store.maintenance.prune(EVERYTHING, max_rows=0)

    def test_a_prune_keeps_the_newest_revisions_of_each_session_and_all_that_they_show(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        chat, mail = store.sessions.create("chat"), store.sessions.create("mail")
        usage = holdfast.Usage("turn", "m", input_tokens=1)
        for _ in range(4):
            chat.commit(holdfast.Commit(usage=[usage]))
        turns(mail, 1)
        report = store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=2))
        assert report.revisions == 2
        assert [entry.revision for entry in chat.history()] == [3, 4]
        assert [entry.revision for entry in mail.history()] == [1]
        with refused(bench, holdfast.errors.UnknownRef):
            chat.load(at=2)
        view = chat.load()
        assert view is not None
        assert (view.revision, view.ledger[0].input_tokens) == (4, 4)
        earlier = chat.load(at=3)
        assert earlier is not None
        assert earlier.ledger[0].input_tokens == 3
        assert chat.commit(holdfast.Commit(expected_revision=4)).revision == 5

    def test_a_pruned_turn_id_is_forgotten_and_a_retained_one_is_not(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for name in ("turn-1", "turn-2"):
            session.commit(holdfast.Commit(turn_id=name, config=name))
        store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        assert session.commit(holdfast.Commit(turn_id="turn-2", config="turn-2")).replayed is True
        anew = session.commit(holdfast.Commit(turn_id="turn-1", config="turn-1"))
        assert (anew.replayed, anew.revision) == (False, 3)

    def test_a_pruned_source_key_is_forgotten_and_unsettled_work_is_never_pruned(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        first = store.queue.enqueue(work("done", source_key="k"))
        settle(store, take(store))
        store.queue.enqueue(work("claimed", source_key="c"))
        store.queue.enqueue(work("pending", source_key="p"))
        held = take(store)
        clock.advance(1_000)
        assert store.maintenance.prune(holdfast.RetentionPolicy(settled_batches_older_than_ms=1)).batches == 1
        assert store.queue.get("chat", first.batch_id) is None
        assert texts(store.queue.list("chat")) == ["claimed", "pending"]
        again = store.queue.enqueue(work("other work", source_key="k"))
        assert (again.state, again.batch_id != first.batch_id) == ("pending", True)
        assert again.enqueue_seq > first.enqueue_seq
        settle(store, held)

    def test_running_processes_are_never_pruned_and_pruned_ids_may_come_back_with_higher_fences(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        process(store, "running", ended=False)
        process(store, "ended", ended=False)
        store.grants.grant(holdfast.Scope("chat"), "ended")
        lease = store.leases.claim(holdfast.leases.OnProcess("ended"), owner_id="w1")
        store.leases.release(lease)
        lease = store.leases.claim(holdfast.leases.OnProcess("ended"), owner_id="w1")
        store.processes.complete("ended", Completed(), lease=lease)
        clock.advance(1_000)
        report = store.maintenance.prune(holdfast.RetentionPolicy(terminal_processes_older_than_ms=0))
        assert (report.processes, report.events) == (1, 2)
        assert store.processes.get("running") is not None
        assert store.processes.get("ended") is None
        assert len(store.grants.list(holdfast.Scope("chat"))) == 0
        store.processes.register(holdfast.ProcessRegistration("ended", External({"another": True})))
        again = store.leases.claim(holdfast.leases.OnProcess("ended"), owner_id="w2")
        assert (lease.fence, again.fence) == (2, 3)
        assert store.leases.release(lease) is False

    def test_a_session_lease_made_anew_after_deletion_has_a_higher_fence(self, store: BlockingStore) -> None:
        store.sessions.create("chat")
        fences = [store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w1").fence for _ in range(2)]
        store.sessions.delete("chat")
        store.maintenance.prune(EVERYTHING)
        store.maintenance.collect_garbage()
        store.sessions.create("chat")
        fences.append(store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w1").fence)
        assert fences == [1, 2, 3]

    def test_an_occurrence_with_an_open_delivery_is_kept(self, store: BlockingStore, clock: ManualClock) -> None:
        store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=External()))
        started, open_ = (store.triggers.emit("cron", "daily", idempotency_key=day) for day in ("mon", "tue"))
        store.processes.register(holdfast.triggers.registration_for(started.deliveries[0]))
        clock.advance(1_000)
        report = store.maintenance.prune(holdfast.RetentionPolicy(occurrences_older_than_ms=0))
        assert (report.occurrences, report.deliveries) == (1, 1)
        (left,) = store.triggers.undelivered()
        assert left.process_id == open_.deliveries[0].process_id
        assert store.triggers.emit("cron", "daily", idempotency_key="tue").replayed is True
        assert store.triggers.emit("cron", "daily", idempotency_key="mon").replayed is False

    @pytest.mark.parametrize("most", [1, 2, 4, 100])
    def test_max_rows_bounds_a_prune_and_the_next_one_continues(
        self, store: BlockingStore, clock: ManualClock, most: int
    ) -> None:
        prunable(store, clock)
        total = 0
        for _ in range(20):
            step = store.maintenance.prune(EVERYTHING, max_rows=most)
            removed = step.revisions + step.batches + step.processes + step.occurrences
            assert removed <= most
            assert step.complete or removed == most
            total += removed
            if step.complete:
                break
        assert total == 9
        assert store.maintenance.prune(EVERYTHING, dry_run=True) == PruneReport(dry_run=True)
        assert store.maintenance.verify().ok

    # Looking.

    def test_an_empty_store_counts_nothing_and_is_sound(self, store: BlockingStore, bench: Bench) -> None:
        stats = store.maintenance.stats()
        assert stats.schema_version == store.schema_version
        counted = {name: value for name, value in _fields(stats).items() if value not in (0, None)}
        assert set(counted) <= {"schema_version", "bytes_on_disk"}
        assert (stats.bytes_on_disk is None) == (bench.durability == "ephemeral")
        assert store.maintenance.verify() == VerifyReport(0, 0, 0, 0, 0, 0, 0, 0)
        assert store.maintenance.collect_garbage() == GarbageReport(0, 0, 0, 0)

    def test_stats_count_everything_there_is(self, store: BlockingStore, clock: ManualClock) -> None:
        _fill(store, clock)
        stats = _fields(store.maintenance.stats())
        del stats["schema_version"], stats["bytes_on_disk"]
        assert stats == {
            "sessions": 3, "deleted_sessions": 1, "revisions": 4, "nodes": 2, "blobs": 2, "blob_bytes": 20,
            "pending_batches": 2, "claimed_batches": 1, "settled_batches": 1, "attachments": 2, "attachment_bytes": 3,
            "processes": 2, "running_processes": 1, "events": 3, "grants": 1, "live_leases": 1, "subscriptions": 1,
            "occurrences": 2, "undelivered": 1, "schedules": 0, "artifacts": 1,
            "oldest_pending_batch_at_ms": 1_700_000_000_100,
        }  # fmt: skip

    def test_verification_reads_everything_and_changes_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        _fill(store, clock)
        before = bench.dump()
        report = store.maintenance.verify()
        assert bench.dump() == before
        assert (report.ok, report.findings) == (True, ())
        assert (report.checked_revisions, report.checked_nodes, report.checked_blobs) == (4, 2, 2)
        assert (report.checked_processes, report.checked_events) == (2, 3)
        assert (report.checked_attachments, report.checked_artifacts) == (2, 1)
        assert report.checked_sessions in {3, 4}, "a tombstone may be looked at or not"


def _fields(stats: Stats) -> dict[str, int | None]:
    return {name: getattr(stats, name) for name in stats.__struct_fields__}


def _fill(store: BlockingStore, clock: ManualClock) -> None:
    """Make one of everything."""
    chat = store.sessions.create("chat")
    turns(chat, 1, 2)
    chat.attachments.put(b"abc")
    chat.commit(holdfast.Commit(attachments=[ref.id for ref in chat.attachments.list()]))
    store.sessions.fork("chat", into="fork")
    store.sessions.create("gone")
    store.sessions.delete("gone")
    store.queue.enqueue(work("claimed", session_id="mail"))
    store.queue.enqueue(work("cancelled", session_id="mail", source_key="k"))
    store.queue.cancel("mail", store.queue.list("mail").items[1].batch_id)
    take(store, session_id="mail")
    clock.advance(100)
    for name in ("pending", "later"):
        store.queue.enqueue(work(name, session_id="mail"))
    process(store, "p1", ended=True)
    process(store, "p2", ended=False)
    store.grants.grant(holdfast.Scope("chat"), "p2")
    store.leases.claim(holdfast.leases.OnProcess("p2"), owner_id="w1")
    store.leases.release(store.leases.claim(holdfast.leases.OnSession("mail"), owner_id="w1"))
    store.triggers.subscribe(SubscriptionDraft(source_type="cron", source_key="daily", target=External()))
    store.triggers.emit("cron", "daily", idempotency_key="monday")
    store.triggers.record("cron", "other", idempotency_key="monday")
    store.artifacts.put("module", "main", b"code")
