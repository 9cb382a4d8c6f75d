"""Races on one database: concurrent calls come out as if run one after another, and each gets a true answer."""

# ruff: noqa: B023 - the calls of a round are over before the next round begins

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast.attachments import Folder
from holdfast.blocking import BlockingStore, Session
from holdfast.errors import NodeConflict, SourceKeyConflict, UnknownRef
from holdfast.sessions import CommitReceipt
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench
from holdfast.testing.contract.races_of_processes import CALLERS, ROUNDS, ProcessRaces, each, only, race


class RaceContract(ProcessRaces):
    """Several handles and several threads on one database."""

    # Commits.

    def test_of_several_commits_on_one_revision_exactly_one_wins(self, stores: list[BlockingStore]) -> None:
        stores[0].sessions.create("chat")
        handles = [store.sessions.handle("chat") for store in stores]
        for revision in range(ROUNDS):

            def commit(handle: Session, index: int, revision: int = revision) -> tuple[int, CommitReceipt]:
                graph = holdfast.Append([holdfast.Node(f"n{revision}-{index}")], leaf=f"n{revision}-{index}")
                return index, handle.commit(holdfast.Commit(expected_revision=revision, graph=graph))

            results, refusals = each(handles, commit)
            ((winner, receipt),) = results
            assert receipt.revision == revision + 1
            conflicts = only(refusals, holdfast.HeadConflict)
            assert [(one.expected, one.actual) for one in conflicts] == [(revision, revision + 1)] * (CALLERS - 1)
            view = handles[0].load()
            assert view is not None
            assert (view.revision, view.graph.leaf) == (revision + 1, f"n{revision}-{winner}")
            assert view.node_count == revision + 1

    def test_of_several_first_commits_of_a_session_exactly_one_wins(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            name = f"chat-{number}"
            results, refusals = each(
                stores, lambda store, _: store.sessions.handle(name).commit(holdfast.Commit(expected_revision=0))
            )
            assert [receipt.revision for receipt in results] == [1]
            assert [one.actual for one in only(refusals, holdfast.HeadConflict)] == [1] * (CALLERS - 1)
        assert stores[0].maintenance.stats().sessions == ROUNDS

    def test_commits_on_whatever_is_current_all_succeed_with_a_revision_each(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        usage = [holdfast.Usage("turn", "m", input_tokens=1)]
        for number in range(ROUNDS):
            results, refusals = each(handles, lambda handle, _: handle.commit(holdfast.Commit(usage=usage)))
            assert refusals == []
            first = number * CALLERS + 1
            assert sorted(receipt.revision for receipt in results) == [*range(first, first + CALLERS)]
        view = handles[0].load()
        assert view is not None
        assert view.ledger == (holdfast.Usage("turn", "m", input_tokens=ROUNDS * CALLERS),)

    def test_one_turn_sent_several_times_at_once_happens_once(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        for number in range(ROUNDS):
            turn = holdfast.Commit(
                turn_id=f"turn-{number}",
                graph=holdfast.Append([holdfast.Node(f"n{number}", payload=number)], leaf=f"n{number}"),
                checkpoint=holdfast.Checkpoint(turn_state={"n": number}),
                usage=[holdfast.Usage("turn", "m", input_tokens=1)],
                enqueues=[holdfast.WorkDraft(payloads=[number])],
            )
            results, refusals = each(handles, lambda handle, _: handle.commit(turn))
            assert refusals == []
            assert sorted(receipt.replayed for receipt in results) == [False, True, True, True]
            found = {(one.revision, one.checkpoint_ref, one.enqueued, str(one.manifest)) for one in results}
            assert len(found) == 1
            assert results[0].revision == number + 1
        view = handles[0].load()
        assert view is not None
        assert (view.revision, view.node_count, view.ledger[0].input_tokens) == (ROUNDS, ROUNDS, ROUNDS)
        assert stores[0].maintenance.stats().pending_batches == ROUNDS

    def test_one_turn_id_for_two_turns_is_given_to_one(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        for number in range(ROUNDS):
            results, refusals = each(
                handles, lambda handle, index: handle.commit(holdfast.Commit(turn_id=f"turn-{number}", config=index))
            )
            assert [receipt.revision for receipt in results] == [number + 1]
            assert len(only(refusals, holdfast.TurnConflict)) == CALLERS - 1

    def test_nodes_beside_the_path_and_a_commit_do_not_hinder_each_other(self, stores: list[BlockingStore]) -> None:
        turn, aside, again, _ = (store.sessions.handle("chat") for store in stores)
        turn.commit(holdfast.Commit(graph=holdfast.Append([holdfast.Node("root")], leaf="root")))
        for number in range(ROUNDS):
            note = [holdfast.Node(f"note-{number}", "root", payload="seen")]
            step = holdfast.Append([holdfast.Node(f"step-{number}", "root")], leaf=f"step-{number}")
            commit = holdfast.Commit(expected_revision=number + 1, graph=step)
            calls: list[Callable[[], Any]] = [
                lambda: turn.commit(commit), lambda: aside.add_nodes(note), lambda: again.add_nodes(note),
            ]  # fmt: skip
            results, refusals = race(*calls)
            assert refusals == []
            assert results[0].revision == number + 2
            assert sorted((one.added, one.replayed) for one in results[1:]) == [(0, 1), (1, 0)]
            view = turn.load()
            assert view is not None
            assert (view.graph.leaf, view.node_count) == (f"step-{number}", 1 + 2 * (number + 1))

    def test_one_node_id_for_two_nodes_is_given_to_one(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        for number in range(ROUNDS):
            results, refusals = each(
                handles, lambda handle, index: handle.add_nodes([holdfast.Node(f"n{number}", payload=index)])
            )
            assert [one.added for one in results] == [1]
            assert len(only(refusals, NodeConflict)) == CALLERS - 1

    # Sessions.

    def test_one_session_created_several_times_at_once_is_one_session(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            results, refusals = each(
                stores, lambda store, index: store.sessions.create("chat", name=f"{number}-{index}")
            )
            assert refusals == []
            assert len({str(session.meta()) for session in results}) == 1
            receipts = [session.commit(holdfast.Commit()).revision for session in results]
            assert receipts == [1, 2, 3, 4]
            assert stores[0].sessions.delete("chat").revisions == CALLERS

    def test_a_commit_that_meets_a_deletion_is_deleted_with_it_or_refused(self, stores: list[BlockingStore]) -> None:
        first, second, *_ = stores
        for number in range(ROUNDS):
            name = f"chat-{number}"
            handle = first.sessions.create(name)
            turn = holdfast.Commit(
                graph=holdfast.Append([holdfast.Node("n1")], leaf="n1"),
                checkpoint=holdfast.Checkpoint(turn_state={"big": "x" * 500}),
                enqueues=[holdfast.WorkDraft(payloads=[1])],
                usage=[holdfast.Usage("turn", "m", 1)],
            )
            calls: list[Callable[[], Any]] = [lambda: second.sessions.delete(name), lambda: handle.commit(turn)]
            results, refusals = race(*calls)
            assert results[0].deleted is True
            assert results[0].revisions == len(results) - 1
            assert len(only(refusals, holdfast.SessionDeleted)) == 2 - len(results)
            with pytest.raises(holdfast.SessionDeleted):
                handle.load()
        stats = first.maintenance.stats()
        assert (stats.sessions, stats.revisions, stats.nodes, stats.blobs, stats.pending_batches) == (0, 0, 0, 0, 0)

    def test_a_fork_that_meets_the_deletion_of_its_source_keeps_everything_or_is_refused(
        self, stores: list[BlockingStore]
    ) -> None:
        first, second, *_ = stores
        for number in range(ROUNDS):
            source = first.sessions.create(f"source-{number}")
            graph = holdfast.Append([holdfast.Node("n1", payload="kept")], leaf="n1")
            source.commit(holdfast.Commit(graph=graph, checkpoint=holdfast.Checkpoint(turn_state="kept")))
            calls: list[Callable[[], Any]] = [
                lambda: second.sessions.delete(f"source-{number}"),
                lambda: first.sessions.fork(f"source-{number}", into=f"fork-{number}"),
            ]
            results, refusals = race(*calls)
            only(refusals, holdfast.SessionDeleted)
            for fork in results[1:]:
                view = fork.load()
                assert [node.payload for node in view.graph.nodes] == ["kept"]
                assert view.checkpoint == holdfast.Checkpoint(turn_state="kept")
        assert first.maintenance.verify().findings == ()

    # Housekeeping.

    def test_garbage_is_collected_while_commits_run_and_nothing_live_goes(self, stores: list[BlockingStore]) -> None:
        first, second, third, _ = stores
        handle = first.sessions.create("chat")
        for number in range(ROUNDS):
            state = {"kept": "k" * 400, "n": number % 3}
            manifest = handle.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=state))).manifest
            handle.commit(holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=number)))
            third.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
            again = holdfast.Commit(checkpoint=holdfast.Checkpoint.keeping(manifest))
            calls: list[Callable[[], Any]] = [
                lambda: handle.commit(again),
                second.maintenance.collect_garbage,
                lambda: third.sessions.handle("chat").commit(
                    holdfast.Commit(checkpoint=holdfast.Checkpoint(turn_state=state))
                ),
            ]
            _, refusals = race(*calls)
            only(refusals, UnknownRef)
            assert len(refusals) <= 1
            view = handle.load()
            assert view is not None
            assert view.checkpoint == holdfast.Checkpoint(turn_state=state)
            assert first.maintenance.verify().findings == ()

    @pytest.mark.parametrize("outside", [False, True], ids=["in the database", "in a folder"])
    def test_an_attachment_put_while_a_sweep_runs_is_there(
        self, bench: Bench, clock: ManualClock, outside: bool
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            first, second = (bench.open(attachments=Folder(folder) if outside else None) for _ in range(2))
            source = first.sessions.create("chat")
            source.commit(holdfast.Commit())
            fork = second.sessions.fork("chat", into="fork")
            for number in range(ROUNDS):
                data = b"%d" % number * 100
                source.attachments.put(data)
                clock.advance(1_000)
                calls: list[Callable[[], Any]] = [
                    lambda: second.attachments.sweep(older_than_ms=1_000),
                    lambda: source.attachments.put(data),
                    lambda: fork.attachments.put(data),
                ]
                results, refusals = race(*calls)
                assert refusals == []
                assert results[1].id == results[2].id
                assert source.attachments.get(results[1].id).data == data
                assert fork.attachments.get(results[1].id).data == data
                assert source.attachments.commit_refs([results[1].id]) == 1
            assert first.maintenance.verify().findings == ()

    def test_a_commit_never_promises_an_attachment_that_a_sweep_took(
        self, stores: list[BlockingStore], clock: ManualClock
    ) -> None:
        first, second, *_ = stores
        handle = first.sessions.create("chat")
        for number in range(ROUNDS):
            name = handle.attachments.put(b"%d" % number).id
            clock.advance(1_000)
            calls: list[Callable[[], Any]] = [
                lambda: second.attachments.sweep(older_than_ms=1_000),
                lambda: handle.commit(holdfast.Commit(attachments=[name])),
            ]
            results, refusals = race(*calls)
            if refusals:
                only(refusals, UnknownRef)
                assert results[0].forgotten_intents == 1
            else:
                assert results[0].forgotten_intents == 0
                assert handle.attachments.get(name).data == b"%d" % number

    # Work.

    def test_one_source_key_enqueued_several_times_at_once_is_one_batch(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            draft = holdfast.WorkDraft(session_id="chat", payloads=[number], source_key=f"message-{number}")
            results, refusals = each(stores, lambda store, _: store.queue.enqueue(draft))
            assert refusals == []
            assert len({batch.batch_id for batch in results}) == 1
        assert stores[0].maintenance.stats().pending_batches == ROUNDS

    def test_one_source_key_for_two_works_is_given_to_one(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            results, refusals = each(
                stores,
                lambda store, index: store.queue.enqueue(
                    holdfast.WorkDraft(session_id="chat", payloads=[index], source_key=f"message-{number}")
                ),
            )
            assert len(results) == 1
            assert len(only(refusals, SourceKeyConflict)) == CALLERS - 1

    def test_many_owners_claim_every_batch_once_and_in_order(self, stores: list[BlockingStore]) -> None:
        total = 100
        for number in range(total):
            stores[0].queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number], slot="exclusive"))

        def work(store: BlockingStore, index: int) -> list[int]:
            mine: list[int] = []
            while (claim := store.queue.claim("chat", owner_id=f"w{index}")) is not None:
                mine.extend(item.payload for batch in claim.batches for item in batch.items)
                store.sessions.handle("chat").commit(holdfast.Commit(completes=[claim]))
            return mine

        results, refusals = each(stores, work)
        assert refusals == []
        assert sorted(number for mine in results for number in mine) == [*range(total)]
        assert all(mine == sorted(mine) for mine in results)

    def test_an_exclusive_claim_is_given_to_one_owner(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            for _ in range(CALLERS):
                stores[0].queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{number}", payloads=[1]))
            results, refusals = each(
                stores,
                lambda store, index: store.queue.claim(
                    f"chat-{number}", owner_id=f"w{index}", exclusive=True, max_batches=1
                ),
            )
            assert refusals == []
            assert sorted(claim is None for claim in results) == [False, True, True, True]

    def test_a_batch_is_claimed_or_cancelled_and_never_both(self, stores: list[BlockingStore]) -> None:
        first, second, *_ = stores
        for number in range(ROUNDS):
            batch = first.queue.enqueue(
                holdfast.WorkDraft(session_id="chat", payloads=[number], source_key=f"k{number}")
            )
            calls: list[Callable[[], Any]] = [
                lambda: first.queue.claim("chat", owner_id="w1"),
                lambda: second.queue.cancel("chat", batch.batch_id),
            ]
            (claim, cancelled), refusals = race(*calls)
            assert refusals == []
            assert (claim is None) != (cancelled is None)
            stored = first.queue.get("chat", batch.batch_id)
            assert stored is not None
            assert stored.state == ("claimed" if claim is not None else "cancelled")

    def test_an_expired_claim_never_beats_the_one_that_takes_over(
        self, stores: list[BlockingStore], clock: ManualClock
    ) -> None:
        first, second, *_ = stores
        handle = first.sessions.create("chat")
        for number in range(ROUNDS):
            first.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number]))
            held = first.queue.claim("chat", owner_id="w1", ttl_ms=1_000)
            assert held is not None
            clock.advance(1_000)
            calls: list[Callable[[], Any]] = [
                partial(second.queue.claim, "chat", owner_id="w2"),
                partial(handle.commit, holdfast.Commit(completes=[held])),
                partial(first.queue.renew, held),
            ]
            results, refusals = race(*calls)
            assert len(only(refusals, holdfast.ClaimLost)) == 2
            (taken,) = results
            assert taken.fence == held.fence + 1
            assert handle.commit(holdfast.Commit(completes=[taken])).revision == number + 1

    def test_work_taken_over_after_expiry_is_completed_by_one_owner_only(
        self, stores: list[BlockingStore], clock: ManualClock
    ) -> None:
        first, second, *_ = stores
        handle = first.sessions.create("chat")
        for number in range(ROUNDS):
            first.queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number]))
            held = first.queue.claim("chat", owner_id="w1", ttl_ms=1_000)
            assert held is not None

            def take_over() -> holdfast.WorkClaim | None:
                clock.advance(1_000)
                return second.queue.claim("chat", owner_id="w2", ttl_ms=1_000)

            finish = holdfast.Commit(completes=[held])
            calls: list[Callable[[], Any]] = [
                take_over,
                lambda: handle.commit(finish),
                partial(first.queue.renew, held),
            ]
            results, refusals = race(*calls)
            only(refusals, holdfast.ClaimLost)
            taken = results[0]
            done = any(isinstance(one, CommitReceipt) for one in results)
            renewed = any(isinstance(one, holdfast.WorkClaim) for one in results[1:])
            assert not (done and taken)
            if taken is not None:
                assert taken.fence > held.fence
                second.sessions.handle("chat").commit(holdfast.Commit(completes=[taken]))
            elif not done:
                assert renewed
                clock.advance(1_000)
                late = second.queue.claim("chat", owner_id="w2")
                assert late is not None
                second.sessions.handle("chat").commit(holdfast.Commit(completes=[late]))
            assert len(first.queue.list("chat")) == 0
        view = handle.load()
        assert view is not None
        assert view.revision == ROUNDS
