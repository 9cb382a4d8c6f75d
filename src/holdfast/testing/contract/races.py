"""Races on one database: what two callers do at once comes out as if one had come first, and both are told the truth."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once

T = TypeVar("T")
E = TypeVar("E", bound=holdfast.HoldfastError)

ROUNDS = 25
"""How often a race is run: each time the threads meet a little differently."""

CALLERS = 4


def race(*calls: Callable[[], T]) -> tuple[list[T], list[holdfast.HoldfastError]]:
    """Results and refusals of calls that run at once; anything else that was raised is a failure."""
    results: list[T] = []
    refusals: list[holdfast.HoldfastError] = []
    for outcome in at_once(*calls):
        if isinstance(outcome, holdfast.HoldfastError):
            refusals.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results.append(outcome)
    return results, refusals


def only(refusals: list[holdfast.HoldfastError], kind: type[E]) -> list[E]:
    """The refusals, all of which must be of one kind."""
    strays = [error for error in refusals if type(error) is not kind]
    assert strays == []
    return [error for error in refusals if isinstance(error, kind)]


class RaceContract(Contract):
    """Several handles and several threads on one database."""

    @pytest.fixture
    def stores(self, bench: Bench) -> list[BlockingStore]:
        """Two handles, each used by two of four callers."""
        first, second = bench.open(), bench.open()
        return [first, second, first, second]

    # Commits.

    def test_of_several_commits_on_one_revision_exactly_one_wins(self, stores: list[BlockingStore]) -> None:
        stores[0].sessions.create("chat")
        handles = [store.sessions.handle("chat") for store in stores]
        for revision in range(ROUNDS):

            def commit(index: int, revision: int = revision) -> tuple[int, holdfast.CommitReceipt]:
                graph = holdfast.Append([holdfast.Node(f"n{revision}-{index}")], leaf=f"n{revision}-{index}")
                return index, handles[index].commit(holdfast.Commit(expected_revision=revision, graph=graph))

            results, refusals = race(*(lambda index=index: commit(index) for index in range(CALLERS)))
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
            results, refusals = race(
                *(
                    lambda store=store: store.sessions.handle(name).commit(holdfast.Commit(expected_revision=0))
                    for store in stores
                )
            )
            assert [receipt.revision for receipt in results] == [1]
            assert [one.actual for one in only(refusals, holdfast.HeadConflict)] == [1] * (CALLERS - 1)
        assert stores[0].maintenance.stats().sessions == ROUNDS

    def test_commits_on_whatever_is_current_all_succeed_with_a_revision_each(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        usage = [holdfast.Usage("turn", "m", input_tokens=1)]
        for number in range(ROUNDS):
            results, refusals = race(
                *(lambda handle=handle: handle.commit(holdfast.Commit(usage=usage)) for handle in handles)
            )
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
            results, refusals = race(*(lambda handle=handle: handle.commit(turn) for handle in handles))
            assert refusals == []
            assert sorted(receipt.replayed for receipt in results) == [False, True, True, True]
            told = {(one.revision, one.checkpoint_ref, one.enqueued, str(one.manifest)) for one in results}
            assert len(told) == 1
            assert results[0].revision == number + 1
        view = handles[0].load()
        assert view is not None
        assert (view.revision, view.node_count, view.ledger[0].input_tokens) == (ROUNDS, ROUNDS, ROUNDS)
        assert stores[0].maintenance.stats().pending_work == ROUNDS

    def test_one_turn_id_for_two_turns_is_given_to_one(self, stores: list[BlockingStore]) -> None:
        handles = [store.sessions.handle("chat") for store in stores]
        for number in range(ROUNDS):
            results, refusals = race(
                *(
                    lambda handle=handle, index=index: handle.commit(
                        holdfast.Commit(turn_id=f"turn-{number}", config=index)
                    )
                    for index, handle in enumerate(handles)
                )
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
            results, refusals = race(
                *(
                    lambda handle=handle, index=index: handle.add_nodes([holdfast.Node(f"n{number}", payload=index)])
                    for index, handle in enumerate(handles)
                )
            )
            assert [one.added for one in results] == [1]
            assert len(only(refusals, holdfast.NodeConflict)) == CALLERS - 1

    # Sessions.

    def test_one_session_created_several_times_at_once_is_one_session(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.sessions.create("chat", name=f"{number}-{index}")
                    for index, store in enumerate(stores)
                )
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
        assert (stats.sessions, stats.revisions, stats.nodes, stats.blobs, stats.pending_work) == (0, 0, 0, 0, 0)

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
            only(refusals, holdfast.UnknownRef)
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
            first, second = (bench.open(attachments=holdfast.Folder(folder) if outside else None) for _ in range(2))
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
                only(refusals, holdfast.UnknownRef)
                assert results[0].forgotten_intents == 1
            else:
                assert results[0].forgotten_intents == 0
                assert handle.attachments.get(name).data == b"%d" % number

    # Work.

    def test_one_source_key_enqueued_several_times_at_once_is_one_batch(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            draft = holdfast.WorkDraft(session_id="chat", payloads=[number], source_key=f"message-{number}")
            results, refusals = race(*(lambda store=store: store.queue.enqueue(draft) for store in stores))
            assert refusals == []
            assert len({batch.batch_id for batch in results}) == 1
        assert stores[0].maintenance.stats().pending_work == ROUNDS

    def test_one_source_key_for_two_works_is_given_to_one(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.queue.enqueue(
                        holdfast.WorkDraft(session_id="chat", payloads=[index], source_key=f"message-{number}")
                    )
                    for index, store in enumerate(stores)
                )
            )
            assert len(results) == 1
            assert len(only(refusals, holdfast.SourceKeyConflict)) == CALLERS - 1

    def test_many_owners_claim_every_batch_once_and_in_order(self, stores: list[BlockingStore]) -> None:
        total = 100
        for number in range(total):
            stores[0].queue.enqueue(holdfast.WorkDraft(session_id="chat", payloads=[number], slot="exclusive"))

        def work(index: int) -> list[int]:
            mine: list[int] = []
            while (claim := stores[index].queue.claim("chat", owner_id=f"w{index}")) is not None:
                mine.extend(item.payload for batch in claim.batches for item in batch.items)
                stores[index].sessions.handle("chat").commit(holdfast.Commit(completes=[claim]))
            return mine

        results, refusals = race(*(lambda index=index: work(index) for index in range(CALLERS)))
        assert refusals == []
        assert sorted(number for mine in results for number in mine) == [*range(total)]
        assert all(mine == sorted(mine) for mine in results)

    def test_an_exclusive_claim_is_given_to_one_owner(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            for _ in range(CALLERS):
                stores[0].queue.enqueue(holdfast.WorkDraft(session_id=f"chat-{number}", payloads=[1]))
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.queue.claim(
                        f"chat-{number}", owner_id=f"w{index}", exclusive=True, max_batches=1
                    )
                    for index, store in enumerate(stores)
                )
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
            calls: list[Callable[[], Any]] = [take_over, lambda: handle.commit(finish), lambda: first.queue.renew(held)]
            results, refusals = race(*calls)
            only(refusals, holdfast.ClaimLost)
            taken = results[0]
            done = any(isinstance(one, holdfast.CommitReceipt) for one in results)
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

    # Processes.

    def test_one_process_registered_several_times_at_once_is_one_process(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            registration = holdfast.ProcessRegistration(f"job-{number}", holdfast.External({"n": number}))
            results, refusals = race(*(lambda store=store: store.processes.register(registration) for store in stores))
            assert refusals == []
            assert len({str(process) for process in results}) == 1
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.processes.register(
                        holdfast.ProcessRegistration(f"other-{number}", holdfast.External(index))
                    )
                    for index, store in enumerate(stores)
                )
            )
            assert len(results) == 1
            assert len(only(refusals, holdfast.RegistrationConflict)) == CALLERS - 1

    def test_events_appended_at_once_have_no_gaps_and_a_replay_key_is_used_once(
        self, stores: list[BlockingStore]
    ) -> None:
        wake = holdfast.WakeRule(input=holdfast.Payload(), dedupe=holdfast.Pointer("/round"))
        stores[0].processes.register(
            holdfast.ProcessRegistration(
                "job",
                holdfast.External(),
                event_types=[holdfast.EventType("news", wake=wake), holdfast.EventType("once")],
                wake_target=holdfast.Scope("chat"),
            )
        )
        for number in range(ROUNDS):
            told, refusals = race(
                *(
                    lambda store=store, index=index: store.events.append("job", "news", {"round": number, "by": index})
                    for index, store in enumerate(stores)
                )
            )
            first = number * (CALLERS + 1) + 1
            assert refusals == []
            assert sorted(one.event.sequence for one in told) == [*range(first, first + CALLERS)]
            assert len({one.batch_id for one in told}) == 1
            once, refusals = race(
                *(
                    lambda store=store: store.events.append("job", "once", number, replay_key=f"{number}")
                    for store in stores
                )
            )
            assert refusals == []
            assert {one.event.sequence for one in once} == {first + CALLERS}
            assert sorted(one.replayed for one in once) == [False, True, True, True]
        assert stores[0].maintenance.stats().pending_work == ROUNDS

    def test_a_process_ends_once_whoever_ends_it(self, stores: list[BlockingStore]) -> None:
        for number in range(ROUNDS):
            name = f"job-{number}"
            stores[0].processes.register(holdfast.ProcessRegistration(name, holdfast.External()))
            outcomes = [
                holdfast.Completed(1), holdfast.Completed(2), holdfast.Failed("no"), holdfast.Cancelled("stop"),
            ]  # fmt: skip
            results, refusals = race(
                *(
                    lambda store=store, outcome=outcome: store.processes.complete(name, outcome)
                    for store, outcome in zip(stores, outcomes, strict=True)
                )
            )
            assert len(results) == 1
            assert len(refusals) == CALLERS - 1
            assert all(isinstance(one, holdfast.ReplayConflict | holdfast.AlreadyTerminal) for one in refusals)
            stored = stores[1].processes.get(name)
            assert stored is not None
            assert stored.outcome == results[0].outcome
            assert stored.event_count == 1

    @pytest.mark.parametrize("kind", ["session", "process"])
    def test_a_lease_has_one_winner_and_the_others_are_told_who(self, stores: list[BlockingStore], kind: str) -> None:
        for number in range(ROUNDS):
            name = f"{kind}-{number}"
            stores[0].processes.register(holdfast.ProcessRegistration(name, holdfast.External()))
            resource = holdfast.OnSession(name) if kind == "session" else holdfast.OnProcess(name)
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.leases.claim(resource, owner_id=f"w{index}")
                    for index, store in enumerate(stores)
                )
            )
            (lease,) = results
            assert lease.fence == 1
            held = only(refusals, holdfast.LeaseHeld)
            assert {(one.owner, one.expires_at_ms) for one in held} == {(lease.owner_id, lease.expires_at_ms)}
            assert len(held) == CALLERS - 1

    def test_a_process_taken_over_after_expiry_is_ended_by_one_holder_only(
        self, stores: list[BlockingStore], clock: ManualClock
    ) -> None:
        first, second, *_ = stores
        for number in range(ROUNDS):
            name = f"job-{number}"
            first.processes.register(holdfast.ProcessRegistration(name, holdfast.External()))
            held = first.leases.claim(holdfast.OnProcess(name), owner_id="w1", ttl_ms=1_000)

            def take_over(name: str = name) -> holdfast.Lease:
                clock.advance(1_000)
                return second.leases.claim(holdfast.OnProcess(name), owner_id="w2", ttl_ms=1_000)

            calls: list[Callable[[], Any]] = [
                take_over,
                lambda: first.processes.complete(name, holdfast.Completed("w1"), lease=held),
            ]
            results, refusals = race(*calls)
            (winner,) = results
            (refusal,) = refusals
            if isinstance(winner, holdfast.Lease):
                assert type(refusal) is holdfast.LeaseLost
                assert winner.fence > held.fence
                second.processes.complete(name, holdfast.Completed("w2"), lease=winner)
            else:
                assert type(refusal) is holdfast.AlreadyTerminal
            stored = first.processes.get(name)
            assert stored is not None
            assert stored.outcome == holdfast.Completed("w2" if isinstance(winner, holdfast.Lease) else "w1")

    def test_a_handle_moved_to_two_places_at_once_arrives_at_one(self, stores: list[BlockingStore]) -> None:
        stores[0].processes.register(holdfast.ProcessRegistration("job", holdfast.External()))
        for _ in range(ROUNDS):
            stores[0].grants.grant(holdfast.Scope("chat"), "job")
            results, refusals = race(
                *(
                    lambda store=store, index=index: store.grants.transfer(
                        holdfast.Scope("chat"), holdfast.Scope(f"other-{index}"), ["job"]
                    )
                    for index, store in enumerate(stores)
                )
            )
            assert len(results) == 1
            assert len(only(refusals, holdfast.NotGranted)) == CALLERS - 1
            (grant,) = stores[0].grants.of_process("job")
            assert grant.scope == results[0][0].scope
            assert stores[0].grants.revoke(grant.scope, "job")

    # Triggers.

    def test_one_occurrence_sent_several_times_at_once_is_delivered_once(self, stores: list[BlockingStore]) -> None:
        drafts = [
            holdfast.SubscriptionDraft(source_type="cron", source_key="daily", key=key, target=holdfast.External())
            for key in ("one", "two")
        ]
        for draft in drafts:
            told, refusals = race(*(lambda store=store: store.triggers.subscribe(draft) for store in stores))
            assert refusals == []
            assert len({one.subscription_id for one in told}) == 1
        for number in range(ROUNDS):
            day = f"day-{number}"
            emitted, refusals = race(
                *(lambda store=store: store.triggers.emit("cron", "daily", idempotency_key=day) for store in stores)
            )
            assert refusals == []
            assert len({one.occurrence.occurrence_id for one in emitted}) == 1
            assert sorted(one.replayed for one in emitted) == [False, True, True, True]
            assert sorted(len(one.deliveries) for one in emitted) == [0, 0, 0, 2]
            occurrence = stores[0].triggers.record("cron", "daily", idempotency_key=f"late-{number}")
            reserved, refusals = race(
                *(lambda store=store: store.triggers.reserve(occurrence.occurrence_id) for store in stores)
            )
            assert refusals == []
            assert sorted(len(one) for one in reserved) == [0, 0, 0, 2]
            recorded, refusals = race(
                *(lambda store=store: store.triggers.record("cron", "hourly", idempotency_key=day) for store in stores)
            )
            assert refusals == []
            assert len({str(one) for one in recorded}) == 1
        assert stores[0].maintenance.stats().occurrences == 3 * ROUNDS
