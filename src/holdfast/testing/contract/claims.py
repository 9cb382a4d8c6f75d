"""Claims: each batch has one owner at a time, and a commit settles all batches that its claim still holds, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import SourceKeyConflict
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnSession, Token
from holdfast.processes import External
from holdfast.queue import Group, WorkCompletion
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import Bench, Contract, at_once, refused
from holdfast.testing.contract.queue import settle, take, texts, work

GROUP = Group("g")


def fill(store: BlockingStore, *names: str, session_id: str = "chat", **policy: Any) -> list[str]:
    """Enqueue one batch a name, and return their ids."""
    return [store.queue.enqueue(work(name, session_id=session_id, **policy)).batch_id for name in names]


def forged(claim: holdfast.WorkClaim, **changes: Any) -> WorkCompletion:
    """Return the claim's completion with some fields changed."""
    return msgspec.structs.replace(claim.completion(), **changes)


def ids_of(claim: holdfast.WorkClaim) -> tuple[str, ...]:
    """Return the ids of the batches that a claim holds."""
    return tuple(batch.batch_id for batch in claim.batches)


ALTERED: dict[str, Callable[[holdfast.WorkClaim, holdfast.WorkClaim], WorkCompletion]] = {
    "fewer": lambda held, _: forged(held, batch_ids=ids_of(held)[:1]),
    "none": lambda held, _: forged(held, batch_ids=()),
    "more": lambda held, other: forged(held, batch_ids=ids_of(held) + ids_of(other)),
    "unknown": lambda held, _: forged(held, batch_ids=(*ids_of(held), "batch:unknown")),
    "foreign": lambda held, other: forged(held, batch_ids=ids_of(other)),
    "duplicate": lambda held, _: forged(held, batch_ids=ids_of(held)[:1] * 2),
    "duplicate beside all": lambda held, _: forged(held, batch_ids=ids_of(held) + ids_of(held)[:1]),
    "token": lambda held, other: forged(held, token=other.token),
    "fence": lambda held, _: forged(held, fence=2),
    "claim of another": lambda held, other: forged(held, claim_id=other.claim_id),
    "claim of nobody": lambda held, _: forged(held, claim_id="claim:unknown"),
}
"""Completions that differ from the claim on two batches that they pretend to be, beside another owner's claim."""


class ClaimContract(Contract):
    """`store.queue`: claims, and their settlement in a commit."""

    def test_a_claim_names_its_owner_batches_and_end(self, store: BlockingStore, clock: ManualClock) -> None:
        ids = fill(store, "1", "2", merge_key=GROUP)
        claim = take(store, ttl_ms=1_000)
        assert (claim.session_id, claim.owner_id, claim.fence) == ("chat", "w1", 1)
        assert (claim.claimed_at_ms, claim.expires_at_ms) == (1_700_000_000_000, 1_700_000_001_000)
        assert [batch.batch_id for batch in claim.batches] == ids
        assert {batch.state for batch in claim.batches} == {"claimed"}
        assert claim.completion().batch_ids == tuple(ids)

    def test_a_claimed_batch_is_passed_over_and_the_next_one_goes_to_another_owner(self, store: BlockingStore) -> None:
        fill(store, "1", "2")
        assert texts(take(store, "w1").batches) == ["1"]
        assert texts(take(store, "w2").batches) == ["2"]
        assert store.queue.claim("chat", owner_id="w3") is None

    def test_of_many_claimers_at_once_each_gets_other_work_and_all_of_it_is_handed_out(self, bench: Bench) -> None:
        handles = [bench.open() for _ in range(4)]
        fill(handles[0], "1", "2", "3")
        outcomes = at_once(
            *(
                lambda handle=handle, index=index: handle.queue.claim("chat", owner_id=f"w{index}")
                for index, handle in enumerate(handles)
            )
        )
        claims = [outcome for outcome in outcomes if isinstance(outcome, holdfast.WorkClaim)]
        assert sorted(name for claim in claims for name in texts(claim.batches)) == ["1", "2", "3"]
        assert [outcome for outcome in outcomes if not isinstance(outcome, holdfast.WorkClaim)] == [None]

    def test_an_expired_claim_can_be_claimed_again_with_a_higher_fence(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1")
        first = take(store, ttl_ms=1)
        clock.advance(1)
        second = take(store, "w2")
        assert (first.fence, second.fence) == (1, 2)
        with refused(bench, holdfast.ClaimLost):
            settle(store, first)

    def test_fences_rise_after_a_claim_expires_or_is_given_back(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1")
        first = take(store, "w1", ttl_ms=1_000)
        clock.advance(1_000)
        second = take(store, "w2", ttl_ms=1_000)
        assert store.queue.give_back(second) == 1
        third = take(store, "w1", ttl_ms=1_000)
        assert (first.fence, second.fence, third.fence) == (1, 2, 3)
        assert len({first.claim_id, second.claim_id, third.claim_id}) == 3
        assert len({first.token, second.token, third.token}) == 3

    def test_a_claim_on_several_batches_has_a_fence_above_each_of_theirs(self, store: BlockingStore) -> None:
        fill(store, "1", "2", merge_key=GROUP)
        store.queue.give_back(take(store, max_batches=1))
        store.queue.give_back(take(store, max_batches=1))
        assert take(store).fence == 3

    @pytest.mark.parametrize(
        "ttl_ms", [0, -1, 7 * 24 * 3_600_000 + 1, True, 1.5], ids=["none", "past", "long", "flag", "part"]
    )
    def test_a_time_to_live_out_of_range_is_refused(self, store: BlockingStore, bench: Bench, ttl_ms: Any) -> None:
        fill(store, "1", "2")
        claim = take(store, max_batches=1)
        calls: list[Callable[[], object]] = [
            lambda: store.queue.claim("chat", owner_id="w1", ttl_ms=ttl_ms),
            lambda: store.queue.claim_exactly("chat", ["b"], owner_id="w1", ttl_ms=ttl_ms),
            lambda: store.queue.renew(claim, ttl_ms=ttl_ms),
        ]
        for call in calls:
            with refused(bench, holdfast.InvalidRequest) as info:
                call()
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == "ttl_ms"

    # Exactly these.

    def test_exact_ids_are_claimed_only_if_they_come_next(self, store: BlockingStore, bench: Bench) -> None:
        first, second = fill(store, "1", "2")
        before = bench.dump()
        assert store.queue.claim_exactly("chat", [second], owner_id="w1") is None
        assert store.queue.claim_exactly("chat", [], owner_id="w1") is None
        assert store.queue.claim_exactly("chat", ["batch:unknown"], owner_id="w1") is None
        assert store.queue.claim_exactly("nobody", [first], owner_id="w1") is None
        assert bench.dump() == before
        claim = store.queue.claim_exactly("chat", [first], owner_id="w1")
        assert claim is not None
        assert (texts(claim.batches), claim.fence) == (["1"], 1)
        assert texts(store.queue.list_pending("chat")) == ["2"]

    def test_exact_ids_are_claimed_together_in_order_or_not_at_all(self, store: BlockingStore, bench: Bench) -> None:
        first, second, third = fill(store, "1", "2", "3", merge_key=GROUP)
        fourth = fill(store, "4")[0]
        before = bench.dump()
        assert store.queue.claim_exactly("chat", [second, first, third], owner_id="w1") is None
        assert store.queue.claim_exactly("chat", [first, second, third, fourth], owner_id="w1") is None
        assert bench.dump() == before
        claim = store.queue.claim_exactly("chat", [first, second, third], owner_id="w1")
        assert claim is not None
        assert texts(claim.batches) == ["1", "2", "3"]

    def test_exact_ids_know_the_boundary_and_name_no_batch_twice(self, store: BlockingStore, bench: Bench) -> None:
        (only,) = fill(store, "1", delivery="after_current_turn_commit")
        assert store.queue.claim_exactly("chat", [only], owner_id="w1", boundary="active_turn_checkpoint") is None
        with refused(bench, holdfast.InvalidRequest):
            store.queue.claim_exactly("chat", [only, only], owner_id="w1")
        assert store.queue.claim_exactly("chat", [only], owner_id="w1") is not None

    # Renewing and giving back.

    def test_a_renewed_claim_is_the_same_claim_with_a_later_end(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1", "2", merge_key=GROUP)
        claim = take(store, ttl_ms=1_000)
        clock.advance(600)
        renewed = store.queue.renew(claim, ttl_ms=1_000)
        ends = 1_700_000_001_600
        batches = tuple(msgspec.structs.replace(batch, claim_expires_at_ms=ends) for batch in claim.batches)
        assert renewed == msgspec.structs.replace(claim, expires_at_ms=ends, batches=batches)
        clock.advance(900)
        assert store.queue.claim("chat", owner_id="w2") is None
        settle(store, renewed)
        assert len(store.queue.list("chat")) == 0

    def test_a_renewal_never_shortens_a_claim(self, store: BlockingStore, clock: ManualClock) -> None:
        fill(store, "1")
        claim = take(store, ttl_ms=60_000)
        assert store.queue.renew(claim, ttl_ms=1).expires_at_ms == 1_700_000_060_000
        clock.advance(59_999)
        assert store.queue.claim("chat", owner_id="w2") is None

    def test_a_claim_that_is_lost_cannot_be_renewed(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1")
        expired = take(store, "w1", ttl_ms=1_000)
        clock.advance(1_000)
        with refused(bench, holdfast.ClaimLost):
            store.queue.renew(expired)
        live = take(store, "w2")
        for lost in (
            expired,
            msgspec.structs.replace(live, token=Token("0" * 32)),
            msgspec.structs.replace(live, fence=live.fence + 1),
            msgspec.structs.replace(live, batches=()),
            msgspec.structs.replace(live, claim_id="claim:unknown"),
            msgspec.structs.replace(live, session_id="nobody"),
        ):
            with refused(bench, holdfast.ClaimLost):
                store.queue.renew(lost)
        settle(store, live)
        with refused(bench, holdfast.ClaimLost):
            store.queue.renew(live)

    def test_give_back_returns_only_what_the_claim_still_holds(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2", merge_key=GROUP)
        first = take(store, "w1", ttl_ms=1_000)
        clock.advance(1_000)
        second = take(store, "w2", max_batches=1)
        before = bench.dump()
        assert store.queue.give_back(forged(second, token=Token("0" * 32))) == 0
        assert store.queue.give_back(forged(second, fence=7)) == 0
        assert store.queue.give_back(forged(second, session_id="nobody")) == 0
        assert bench.dump() == before
        assert store.queue.give_back(first) == 1
        assert [batch.state for batch in store.queue.list("chat")] == ["claimed", "pending"]
        assert store.queue.give_back(second.completion()) == 1
        assert store.queue.give_back(second) == 0

    # Secrets.

    def test_tokens_are_long_and_stay_out_of_texts_and_tables(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1", "2")
        first, second = take(store), take(store)
        lease = store.leases.claim(OnSession("chat"), owner_id="w1")
        shown = repr([first, first.completion(), lease, bench.dump(), store.queue.list("chat"), store])
        for token in (first.token, second.token, lease.token):
            assert len(bytes.fromhex(token)) >= 16
            assert token not in shown
        with pytest.raises(holdfast.ClaimLost) as info:
            store.queue.renew(msgspec.structs.replace(first, fence=9))
        assert first.token not in f"{info.value!r} {info.value} {vars(info.value)}"

    # Settlement in a commit.

    def test_a_commit_settles_its_claims_whole_and_once(self, store: BlockingStore, clock: ManualClock) -> None:
        keyed = store.queue.enqueue(work("1", source_key="k", merge_key=GROUP))
        plain = store.queue.enqueue(work("2", merge_key=GROUP))
        store.queue.enqueue(work("3"))
        both, third = take(store), take(store)
        turn = holdfast.Commit(turn_id="turn-1", completes=[both, third.completion()])
        receipt = store.sessions.handle("chat").commit(turn)
        assert (receipt.revision, receipt.replayed) == (1, False)
        assert len(store.queue.list("chat")) == 0
        for batch in (keyed, plain):
            settled = store.queue.get("chat", batch.batch_id)
            assert settled is not None
            assert (settled.state, settled.settled_at_ms) == ("completed", clock.now_ms())
            assert (settled.settled_revision, settled.attempts) == (1, 1)
        again = store.sessions.handle("chat").commit(turn)
        assert (again.revision, again.replayed) == (1, True)
        assert store.queue.give_back(both) == 0

    def test_a_commit_with_another_claim_of_the_same_work_is_the_same_turn(self, store: BlockingStore) -> None:
        fill(store, "1")
        claim = take(store)
        store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-1", completes=[claim]))
        retry = forged(claim, token=Token("0" * 32), fence=2, claim_id="claim:other")
        assert store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-1", completes=[retry])).replayed

    @pytest.mark.parametrize("how", ALTERED)
    def test_a_completion_that_is_not_exactly_the_claim_refuses_the_whole_commit(
        self, store: BlockingStore, bench: Bench, how: str
    ) -> None:
        fill(store, "1", "2", merge_key=GROUP)
        fill(store, "3")
        held, other = take(store, "w1"), take(store, "w2")
        with refused(bench, holdfast.ClaimLost) as info:
            store.sessions.handle("chat").commit(
                holdfast.Commit(
                    turn_id="turn-1",
                    graph=holdfast.Append([holdfast.Node("n1")], leaf="n1"),
                    completes=[ALTERED[how](held, other)],
                    enqueues=[holdfast.WorkDraft(payloads=["follow-up"])],
                )
            )
        assert isinstance(info.value, holdfast.ClaimLost)
        assert info.value.session_id == "chat"
        assert store.sessions.handle("chat").load() is None
        receipt = store.sessions.handle("chat").commit(holdfast.Commit(turn_id="turn-1", completes=[held, other]))
        assert receipt.revision == 1
        assert len(store.queue.list("chat")) == 0

    def test_a_commit_cannot_settle_what_expired_or_was_taken_over(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2", merge_key=GROUP)
        late = take(store, "w1", ttl_ms=1_000)
        clock.advance(1_000)
        with refused(bench, holdfast.ClaimLost):
            settle(store, late)
        thief = take(store, "w2", max_batches=1)
        with refused(bench, holdfast.ClaimLost):
            settle(store, late)
        assert store.queue.give_back(thief) == 1
        with refused(bench, holdfast.ClaimLost):
            settle(store, thief)
        assert texts(store.queue.list("chat")) == ["1", "2"]

    def test_a_commit_cannot_settle_what_was_completed_before(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        claim = take(store)
        settle(store, claim)
        with refused(bench, holdfast.ClaimLost):
            settle(store, claim)

    def test_a_commit_cannot_settle_another_sessions_work(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        fill(store, "2", session_id="mail")
        theirs = take(store, session_id="mail")
        chat = store.sessions.handle("chat")
        with refused(bench, holdfast.ClaimLost):
            chat.commit(holdfast.Commit(completes=[theirs]))
        with refused(bench, holdfast.ClaimLost):
            chat.commit(holdfast.Commit(completes=[forged(theirs, session_id="chat")]))
        assert texts(store.queue.list("mail")) == ["2"]

    def test_one_lost_claim_refuses_the_others_of_the_commit_too(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        fill(store, "1", "2")
        short, long = take(store, ttl_ms=1_000), take(store, ttl_ms=60_000)
        clock.advance(1_000)
        with refused(bench, holdfast.ClaimLost):
            store.sessions.handle("chat").commit(holdfast.Commit(completes=[long, short]))
        settle(store, long)
        assert texts(store.queue.list("chat")) == ["1"]

    def test_a_commit_that_names_a_claim_twice_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        fill(store, "1")
        claim = take(store)
        with refused(bench, holdfast.InvalidRequest) as info:
            store.sessions.handle("chat").commit(holdfast.Commit(completes=[claim, claim.completion()]))
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == "completes[1]"

    def test_of_two_commits_at_once_that_settle_one_claim_one_is_refused(self, bench: Bench) -> None:
        handles = [bench.open() for _ in range(2)]
        fill(handles[0], "1")
        claim = take(handles[0])
        outcomes = at_once(
            *(
                lambda handle=handle: handle.sessions.handle("chat").commit(holdfast.Commit(completes=[claim]))
                for handle in handles
            )
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ClaimLost", "CommitReceipt"]
        assert len(handles[0].sessions.handle("chat").history()) == 1

    # Work that follows from a turn.

    def test_a_commit_enqueues_for_itself_and_for_others(self, store: BlockingStore, clock: ManualClock) -> None:
        receipt = store.sessions.handle("chat").commit(
            holdfast.Commit(
                enqueues=[holdfast.WorkDraft(payloads=["mine"], slot="exclusive"), work("theirs", session_id="mail")]
            )
        )
        (mine,) = store.queue.list("chat")
        (theirs,) = store.queue.list("mail")
        assert receipt.enqueued == (mine.batch_id, theirs.batch_id)
        assert (texts([mine]), mine.slot, mine.enqueued_at_ms) == (["mine"], "exclusive", clock.now_ms())
        assert texts([theirs]) == ["theirs"]
        assert mine.enqueue_seq < theirs.enqueue_seq

    def test_a_commit_enqueues_a_source_key_once(self, store: BlockingStore, bench: Bench) -> None:
        earlier = store.queue.enqueue(work("x", source_key="k"))
        settle(store, take(store))
        receipt = store.sessions.handle("chat").commit(
            holdfast.Commit(
                enqueues=[work("x", source_key="k"), work("y", source_key="new"), work("y", source_key="new")]
            )
        )
        assert receipt.enqueued[0] == earlier.batch_id
        assert receipt.enqueued[1] == receipt.enqueued[2]
        assert texts(store.queue.list("chat")) == ["y"]
        for drafts in (
            [work("changed", source_key="k")],
            [work("a", source_key="fresh"), work("b", source_key="fresh")],
        ):
            with refused(bench, SourceKeyConflict):
                store.sessions.handle("chat").commit(holdfast.Commit(enqueues=drafts))

    def test_a_replayed_commit_enqueues_nothing_again(self, store: BlockingStore) -> None:
        turn = holdfast.Commit(turn_id="turn-1", enqueues=[work("x")])
        first = store.sessions.handle("chat").commit(turn)
        settle(store, take(store))
        again = store.sessions.handle("chat").commit(turn)
        assert (again.enqueued, again.replayed) == (first.enqueued, True)
        assert len(store.queue.list("chat")) == 0

    def test_a_commit_that_enqueues_for_a_deleted_session_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("mail")
        store.sessions.delete("mail")
        store.sessions.create("chat")
        with refused(bench, holdfast.SessionDeleted) as info:
            store.sessions.handle("chat").commit(
                holdfast.Commit(enqueues=[work("mine"), work("theirs", session_id="mail")])
            )
        assert isinstance(info.value, holdfast.SessionDeleted)
        assert info.value.session_id == "mail"

    def test_the_work_of_a_process_wake_is_claimed_once_and_settled_like_any_other(self, store: BlockingStore) -> None:
        news = EventType("news", wake=WakeRule(input=Payload()))
        store.processes.register(
            holdfast.ProcessRegistration("build", External(), event_types=[news], wake_target=holdfast.Scope("chat"))
        )
        first = store.events.append("build", "news", "done", replay_key="r1")
        again = store.events.append("build", "news", "done", replay_key="r1")
        assert first.batch_id is not None
        assert again.batch_id == first.batch_id
        claim = take(store)
        assert [batch.batch_id for batch in claim.batches] == [first.batch_id]
        ((item,),) = (batch.items for batch in claim.batches)
        assert item.payload["type"] == "process_wake"
        settle(store, claim)
        assert len(store.queue.list("chat")) == 0
        assert store.queue.claim("chat", owner_id="w1") is None
