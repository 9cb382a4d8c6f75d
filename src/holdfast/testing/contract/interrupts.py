"""Interrupts: a turn in progress ends for good, its claim is lost, and its owner alone may store what it keeps."""

from __future__ import annotations

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.queue import work

RESERVED_MS = 10_000
"""The documented time for the worker of an interrupted turn to store what the turn keeps."""


def begun(store: BlockingStore, *payloads: str, owner_id: str = "w1") -> holdfast.WorkClaim:
    """Enqueue messages, and claim the first as a worker does."""
    for payload in payloads:
        store.queue.enqueue(work(payload))
    return taken(store, owner_id=owner_id)


def taken(store: BlockingStore, *, owner_id: str = "w1") -> holdfast.WorkClaim:
    """Claim the next message as a worker does."""
    claim = store.queue.claim_next(owner_id=owner_id, exclusive=True, max_batches=1)
    assert claim is not None
    return claim


class InterruptContract(Contract):
    """`session.interrupt`."""

    def test_an_interrupted_turn_is_settled_and_its_claim_proves_nothing(
        self, bench: Bench, store: BlockingStore
    ) -> None:
        claim = begun(store, "poem", "next")
        session = store.sessions.handle("chat")
        [ended] = session.interrupt(reason="stopped by ada")
        assert (ended.state, ended.last_error, ended.settled_revision) == ("interrupted", "stopped by ada", None)
        assert ended.batch_id == claim.batches[0].batch_id
        assert store.queue.get("chat", ended.batch_id) == ended
        assert store.queue.wait_settled("chat", ended.batch_id, timeout_ms=1) == ended
        with refused(bench, holdfast.ClaimLost):
            store.queue.complete(claim)
        with refused(bench, holdfast.ClaimLost):
            store.queue.fail(claim, "late", retry_in_ms=0)
        with refused(bench, holdfast.ClaimLost):
            store.queue.renew(claim)
        with refused(bench, holdfast.ClaimLost):
            session.commit(holdfast.Commit(turn_id="t", completes=[claim]))
        assert store.queue.give_back(claim) == 0
        assert [batch.items[0].payload for batch in store.queue.list("chat")] == ["next"]
        assert store.maintenance.verify().findings == ()

    def test_a_session_without_a_turn_in_progress_has_nothing_to_interrupt(self, store: BlockingStore) -> None:
        session = store.sessions.handle("chat")
        assert session.interrupt() == ()
        store.queue.enqueue(work("waits"))
        assert session.interrupt() == ()
        claim = store.queue.claim_next(owner_id="w1", exclusive=True)
        assert claim is not None
        store.queue.complete(claim)
        assert session.interrupt() == ()
        assert store.leases.holder(holdfast.leases.OnSession("chat")) is None

    def test_a_turn_behind_many_delayed_messages_is_found(self, store: BlockingStore) -> None:
        later_ms = store.now_ms() + 3_600_000
        for number in range(120):
            store.queue.enqueue(work(f"reminder {number}", available_at_ms=later_ms))
        session = store.sessions.handle("chat")
        assert session.interrupt() == ()
        claim = begun(store, "poem", "next")
        assert [batch.batch_id for batch in session.interrupt()] == [claim.batches[0].batch_id]

    def test_a_job_continues(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("mail", kind="send-mail"))
        claim = store.queue.claim_next(owner_id="w1")
        assert claim is not None
        assert store.sessions.handle("chat").interrupt() == ()
        store.queue.complete(claim)

    def test_a_message_between_two_attempts_is_not_tried_again(self, store: BlockingStore, clock: ManualClock) -> None:
        claim = begun(store, "poem", "next")
        store.queue.fail(claim, "the model is away", retry_in_ms=60_000)
        session = store.sessions.handle("chat")
        assert [batch.state for batch in session.interrupt()] == ["interrupted"]
        following = store.queue.claim_next(owner_id="w2", exclusive=True)
        assert following is not None, "nothing has to be kept: the next turn begins at once"
        assert following.batches[0].items[0].payload == "next"
        clock.advance(900_000)
        assert [batch.state for batch in session.interrupt()] == ["interrupted"], "an expired claim is taken over"
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None

    def test_a_turn_of_another_kind_between_two_attempts_is_not_tried_again(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        session = store.sessions.handle("chat")
        for ending in ("failed", "given back", "expired"):
            store.queue.enqueue(work(ending, kind="support"))
            claim = taken(store)
            if ending == "expired":
                clock.advance(900_000)
            else:
                store.queue.fail(claim, "the model is away", retry_in_ms=0)
            if ending == "given back":
                store.queue.give_back(taken(store))
            assert store.maintenance.verify().findings == ()
            assert [batch.items[0].payload for batch in session.interrupt()] == [ending]
            assert len(store.queue.list("chat")) == 0

    def test_work_of_another_kind_that_no_turn_has_begun_is_not_interrupted(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("first try", kind="support"))
        session = store.sessions.handle("chat")
        store.queue.give_back(taken(store))
        assert session.interrupt() == ()
        job = store.queue.claim_next(owner_id="w1")
        assert job is not None
        store.queue.fail(job, "no answer", retry_in_ms=60_000)
        assert session.interrupt() == (), "a job is not a turn"
        assert store.maintenance.verify().findings == ()

    def test_all_messages_that_joined_the_turn_are_interrupted(self, store: BlockingStore) -> None:
        claim = begun(store, "poem")
        for number in range(60):
            store.queue.enqueue(work(str(number), merge_key="payload_default"))
        wider = store.queue.claim("chat", owner_id="w1", holding=claim, max_batches=100)
        assert wider is not None
        ended = store.sessions.handle("chat").interrupt()
        assert [batch.batch_id for batch in ended] == [batch.batch_id for batch in wider.batches]
        assert len(ended) == 61
        assert len(store.queue.list("chat")) == 0

    def test_the_next_turn_waits_for_what_the_owner_keeps(
        self, bench: Bench, store: BlockingStore, clock: ManualClock
    ) -> None:
        begun(store, "poem", "next")
        session = store.sessions.handle("chat")
        session.interrupt()
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        resource = holdfast.leases.OnSession("chat")
        with refused(bench, holdfast.LeaseHeld):
            store.leases.claim(resource, owner_id="w2")
        lease = store.leases.claim(resource, owner_id="w1", ttl_ms=RESERVED_MS)
        kept = holdfast.Commit(graph=holdfast.Append([holdfast.Node(payload="once upon")]), lease=lease)
        assert session.commit(kept).revision == 1
        assert store.leases.release(lease)
        claim = store.queue.claim_next(owner_id="w2", exclusive=True)
        assert claim is not None
        assert session.messages() == ["once upon"]
        store.queue.complete(claim)
        begun(store, "dead worker", "last")
        session.interrupt()
        clock.advance(RESERVED_MS - 1)
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        clock.advance(1)
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is not None, "the reservation ends by itself"

    def test_a_lease_that_is_held_already_stays(self, store: BlockingStore) -> None:
        lease = store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w1")
        store.queue.enqueue(work("poem"))
        assert store.queue.claim("chat", owner_id="w1", lease=lease) is not None
        session = store.sessions.handle("chat")
        assert [batch.state for batch in session.interrupt()] == ["interrupted"]
        assert session.commit(holdfast.Commit(turn_id="t", lease=lease)).revision == 1

    def test_an_interrupt_frees_the_slot_of_its_kind(self, store: BlockingStore) -> None:
        store.queue.set_limit("turn", at_once=1)
        begun(store, "poem")
        store.queue.enqueue(work("other", session_id="other"))
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        store.sessions.handle("chat").interrupt()
        claim = store.queue.claim_next(owner_id="w2", exclusive=True)
        assert claim is not None
        assert claim.session_id == "other"

    def test_an_interrupt_wakes_the_one_that_waits_for_the_outcome(self, bench: Bench, store: BlockingStore) -> None:
        claim = begun(store, "poem")
        batch_id = claim.batches[0].batch_id
        waiting = in_background(lambda: store.queue.wait_settled("chat", batch_id, timeout_ms=60_000))
        bench.parked()
        store.sessions.handle("chat").interrupt()
        assert waiting.result(TIMEOUT_S).state == "interrupted"

    def test_a_deleted_session_and_a_bad_reason_are_refused(self, bench: Bench, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        begun(store, "poem")
        with refused(bench, holdfast.InvalidRequest):
            session.interrupt(reason="\0")
        assert [batch.state for batch in store.queue.list("chat")] == ["claimed"]
        store.sessions.delete("chat")
        with refused(bench, holdfast.SessionDeleted):
            session.interrupt()
