"""Failed jobs: retried at their old place, dead after the last attempt, brought back or dropped."""

from __future__ import annotations

import itertools

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, refused
from holdfast.testing.contract.claims import fill, ids_of
from holdfast.testing.contract.jobs import complete, fail, next_of, sessions_served
from holdfast.testing.contract.queue import settle, take, texts, work


class JobFailureContract(Contract):
    """`store.queue`: fail, dead_letters, retry, drop."""

    # Failing.

    def test_failed_work_is_tried_again_later_at_its_old_place(self, store: BlockingStore, clock: ManualClock) -> None:
        first, _ = fill(store, "1", "2")
        claim = next_of(store, exclusive=True)
        (failed,) = store.queue.fail(claim, "no answer", retry_in_ms=1_000)
        assert (failed.batch_id, failed.state, failed.attempts) == (first, "pending", 1)
        assert (failed.last_error, failed.retry_at_ms) == ("no answer", clock.now_ms() + 1_000)
        assert (failed.claimed_by, failed.available_at_ms) == (None, 0)
        assert store.queue.get("chat", first) == failed
        # Nothing overtakes it in an ordered session.
        for session_claim in (True, False):
            if session_claim:
                assert store.queue.claim("chat", owner_id="w1", exclusive=True) is None
            else:
                assert store.queue.claim_next(owner_id="w1", exclusive=True) is None
        clock.advance(1_000)
        again = next_of(store, exclusive=True)
        assert (texts(again.batches), again.batches[0].attempts, again.fence) == (["1"], 2, 2)

    def test_claims_that_share_a_session_pass_work_in_back_off(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1", "2", "3")
        store.queue.fail(next_of(store), "no answer", retry_in_ms=1_000)
        assert texts(next_of(store).batches) == ["2"]
        clock.advance(1_000)
        assert texts(next_of(store).batches) == ["1"]
        assert texts(next_of(store).batches) == ["3"]

    def test_an_exclusive_claim_takes_what_stands_before_work_in_back_off_alone(self, store: BlockingStore) -> None:
        fill(store, "1", "2", "3", merge_key=holdfast.queue.Group("g"))
        both = take(store, max_batches=1)
        other = take(store, "w2", max_batches=1)
        store.queue.give_back(both)
        store.queue.fail(other, "broke", retry_in_ms=1_000)
        assert texts(next_of(store, exclusive=True).batches) == ["1"]

    def test_a_session_whose_work_is_in_back_off_does_not_hold_up_others(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        for number in range(20):
            fill(store, "1", "2", session_id=f"s{number}")
        for _ in range(20):
            store.queue.fail(next_of(store, exclusive=True), "down", retry_in_ms=1_000)
        fill(store, "x", session_id="sound")
        assert sessions_served(store, exclusive=True) == ["sound"]
        clock.advance(1_000)
        assert len(sessions_served(store, exclusive=True)) == 20

    def test_work_is_dead_after_its_last_attempt_and_the_queue_continues(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        first, second = fill(store, "1", "2")
        failures: list[holdfast.WorkBatch] = []
        for attempt in (1, 2):
            claim = next_of(store, exclusive=True)
            assert claim.batches[0].attempts == attempt
            failures += store.queue.fail(claim, f"error {attempt}", max_attempts=2)
        failed = failures[-1]
        assert (failed.state, failed.settled_at_ms, failed.last_error) == ("dead", clock.now_ms(), "error 2")
        assert ids_of(next_of(store, exclusive=True)) == (second,)
        assert [one.batch_id for one in store.queue.dead_letters()] == [first]
        assert store.queue.cancel("chat", first) is None

    def test_each_batch_of_a_claim_has_attempts_of_its_own(self, store: BlockingStore) -> None:
        group = holdfast.queue.Group("g")
        fill(store, "1", merge_key=group)
        store.queue.fail(next_of(store), "once")
        fill(store, "2", merge_key=group)
        claim = next_of(store)
        assert [batch.attempts for batch in claim.batches] == [2, 1]
        assert [batch.state for batch in store.queue.fail(claim, "twice", max_attempts=2)] == ["dead", "pending"]

    def test_work_that_is_given_back_has_used_no_attempt(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1")
        store.queue.give_back(next_of(store))
        claim = next_of(store, ttl_ms=1_000)
        assert claim.batches[0].attempts == 1
        clock.advance(1_000)
        assert next_of(store).batches[0].attempts == 2

    def test_a_failed_claim_is_over(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        claim = next_of(store)
        store.queue.fail(claim, "broke", retry_in_ms=1_000)
        for call in (complete, fail, settle):
            with refused(bench, holdfast.ClaimLost):
                call(store, claim)
        assert store.queue.give_back(claim) == 0

    def test_a_dead_batch_cannot_becompleted_by_the_claim_that_failed_it(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        fill(store, "1")
        claim = next_of(store)
        store.queue.fail(claim, "broke", retry_in_ms=None)
        with refused(bench, holdfast.ClaimLost):
            store.queue.complete(claim)

    # Dead letters.

    def test_dead_letters_are_listed_by_session_and_kind_in_pages(self, store: BlockingStore) -> None:
        for number, (name, kind) in enumerate(itertools.product(("a", "b"), ("mail", "turn"))):
            store.queue.enqueue(work(str(number), name, kind=kind))
        while (claim := store.queue.claim_next(owner_id="w1")) is not None:
            store.queue.fail(claim, "broke", retry_in_ms=None)
        first = store.queue.dead_letters(limit=3)
        rest = store.queue.dead_letters(limit=3, after=first.next)
        assert texts([*first, *rest]) == ["0", "1", "2", "3"]
        assert rest.next is None
        assert {(one.session_id, one.state, one.last_error) for one in first} == {
            ("a", "dead", "broke"),
            ("b", "dead", "broke"),
        }
        assert texts(store.queue.dead_letters(session_id="b")) == ["2", "3"]
        assert texts(store.queue.dead_letters(kind="mail")) == ["0", "2"]
        assert texts(store.queue.dead_letters(session_id="a", kind="turn")) == ["1"]
        assert list(store.queue.dead_letters(session_id="never")) == []

    def test_a_dead_batch_that_is_retried_stands_where_it_stood(self, store: BlockingStore) -> None:
        first, second = fill(store, "1", "2")
        store.queue.fail(next_of(store), "broke", retry_in_ms=None)
        batch = store.queue.retry("chat", first)
        assert batch is not None
        assert (batch.state, batch.attempts, batch.last_error, batch.settled_at_ms) == ("pending", 0, "broke", None)
        assert [one.batch_id for one in store.queue.list("chat")] == [first, second]
        claim = next_of(store, exclusive=True)
        assert (ids_of(claim), claim.fence, claim.batches[0].attempts) == ((first,), 2, 1)
        assert list(store.queue.dead_letters()) == []

    def test_a_dead_batch_that_is_dropped_counts_as_cancelled(self, store: BlockingStore) -> None:
        draft = work("1", source_key="k")
        batch = store.queue.enqueue(draft)
        store.queue.fail(next_of(store), "broke", retry_in_ms=None)
        dropped = store.queue.drop("chat", batch.batch_id)
        assert dropped is not None
        assert (dropped.state, dropped.last_error) == ("cancelled", "broke")
        assert list(store.queue.dead_letters()) == []
        assert store.queue.enqueue(draft).state == "cancelled"

    def test_only_what_is_dead_is_retried_or_dropped(self, store: BlockingStore, bench: Bench) -> None:
        waiting, done = fill(store, "1", "2")
        store.queue.cancel("chat", done)
        before = bench.dump()
        for batch_id in (waiting, done, "batch:unknown"):
            assert store.queue.retry("chat", batch_id) is None
            assert store.queue.drop("chat", batch_id) is None
        assert store.queue.retry("never", waiting) is None
        assert bench.dump() == before

    def test_retention_forgets_settled_work_and_keeps_dead_letters(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        done, dead, cancelled = fill(store, "1", "2", "3")
        claim = next_of(store)
        store.queue.complete(claim)
        store.queue.fail(next_of(store), "broke", retry_in_ms=None)
        store.queue.cancel("chat", cancelled)
        clock.advance(1_000)
        policy = holdfast.RetentionPolicy(settled_batches_older_than_ms=1_000)
        assert store.maintenance.prune(policy, dry_run=True).batches == 2
        assert store.maintenance.prune(policy).batches == 2
        assert [store.queue.get("chat", one) is None for one in (done, dead, cancelled)] == [True, False, True]
        with pytest.raises(holdfast.ClaimLost):
            store.queue.complete(claim)
        assert store.maintenance.verify().findings == ()
