"""Limits: no more claims of a kind or of a key live at once than declared, and no freed slot stays empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.queue import QueueDepth
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.jobs import FREEING, HOUR_MS, next_of
from holdfast.testing.contract.queue import settle, take, work

WAIT_MS = 60_000


def limit_mail(store: BlockingStore, name: str, most: int, *, keep: bool = False) -> holdfast.queue.KindLimit:
    """Set one of the two limits, by its name."""
    if name == "at_once":
        return store.queue.set_limit("mail", at_once=most, keep=keep)
    return store.queue.set_limit("mail", per_key=most, keep=keep)


def mail(store: BlockingStore, session_id: str, key: str | None = None, **policy: Any) -> str:
    """Enqueue a mail, and return the id of its batch."""
    return store.queue.enqueue(work("mail", session_id, kind="mail", key=key, **policy)).batch_id


def claimed(store: BlockingStore, **options: Any) -> list[holdfast.WorkClaim]:
    """Claim until nothing is left, and return the claims."""
    claims: list[holdfast.WorkClaim] = []
    while (claim := store.queue.claim_next(owner_id="w1", max_batches=1, **options)) is not None:
        claims.append(claim)
    return claims


def served(claims: list[holdfast.WorkClaim]) -> list[str]:
    """Return the sessions of claims."""
    return [claim.session_id for claim in claims]


MISTAKES: list[tuple[str, Callable[[Any], Any]]] = [
    ("at_once", lambda store: store.queue.set_limit("mail", at_once=0)),
    ("per_key", lambda store: store.queue.set_limit("mail", at_once=1, per_key=-1)),
    ("at_once", lambda store: store.queue.set_limit("mail")),
    ("at_once", lambda store: store.queue.set_limit("mail", at_once=1.5)),
    ("at_once", lambda store: store.queue.set_limit("mail", at_once=True)),
    ("kind", lambda store: store.queue.set_limit("", at_once=1)),
    ("kind", lambda store: store.queue.remove_limit(" ")),
    ("kind", lambda store: store.queue.pause("")),
    ("kind", lambda store: store.queue.resume(1)),
    ("limit", lambda store: store.queue.limits(limit=0)),
    ("after", lambda store: store.queue.limits(after="x")),
    ("after", lambda store: store.queue.paused_sessions(after="x")),
    ("draft.key", lambda store: mail(store, "a", key="")),
    ("draft.key", lambda store: mail(store, "a", key=1)),  # type: ignore[arg-type]
]
"""The field that a call gets wrong, and the call."""


class LimitContract(Contract):
    """`store.queue`: set_limit, remove_limit, limits, depths."""

    # Counting.

    def test_no_more_claims_of_a_kind_live_than_its_limit(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=2)
        for name in "abcd":
            mail(store, name)
        store.queue.enqueue(work("turn", "other"))
        claims = claimed(store)
        assert served(claims) == ["a", "b", "other"]
        store.queue.complete(claims[0])
        assert served(claimed(store)) == ["c"]

    def test_no_more_claims_of_a_key_live_than_its_limit(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        for name, key in (("a1", "ada"), ("a2", "ada"), ("b1", "bob"), ("b2", "bob"), ("c1", "cai")):
            mail(store, name, key)
        claims = claimed(store)
        assert served(claims) == ["a1", "b1", "c1"]
        store.queue.complete(claims[1])
        assert served(claimed(store)) == ["b2"]
        store.queue.complete(claims[0])
        assert served(claimed(store)) == ["a2"]

    def test_both_limits_hold_together(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=3, per_key=2)
        for number in range(4):
            mail(store, f"a{number}", "ada")
        for number in range(4):
            mail(store, f"b{number}", "bob")
        first = claimed(store)
        assert served(first) == ["a0", "a1", "b0"]
        store.queue.complete(first[2])
        assert served(claimed(store)) == ["b1"]
        store.queue.complete(first[0])
        assert served(claimed(store)) == ["a2"]

    @pytest.mark.parametrize("given", ["at_once", "per_key"])
    def test_a_limit_that_is_not_given_stays_if_it_is_to_be_kept(self, store: BlockingStore, given: str) -> None:
        shown = limit_mail(store, given, 5, keep=True)
        assert {"at_once": shown.at_once, "per_key": shown.per_key} == {"at_once": None, "per_key": None, given: 5}
        store.queue.set_limit("mail", at_once=3, per_key=2)
        store.queue.pause("mail")
        shown = limit_mail(store, given, 1, keep=True)
        assert {"at_once": shown.at_once, "per_key": shown.per_key} == {"at_once": 3, "per_key": 2, given: 1}
        assert shown.paused
        assert list(store.queue.limits()) == [shown]
        replaced = limit_mail(store, given, 1)
        assert [replaced.at_once, replaced.per_key].count(None) == 1

    def test_work_without_a_key_counts_for_its_kind_only(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=3, per_key=1)
        for name in "abcd":
            mail(store, name)
        assert served(claimed(store)) == ["a", "b", "c"]
        assert store.queue.list("a")[0].key is None

    def test_a_claim_of_several_batches_takes_one_slot_and_never_mixes_keys(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=2, per_key=1)
        for key in ("ada", "ada", "bob"):
            mail(store, "chat", key, merge_key="payload_default")
        claim = next_of(store)
        assert [batch.key for batch in claim.batches] == ["ada", "ada"]
        other = next_of(store)
        assert [batch.key for batch in other.batches] == ["bob"]
        mail(store, "later", "bob")
        assert store.queue.claim_next(owner_id="w1") is None
        store.queue.complete(other)
        assert next_of(store).session_id == "later"

    def test_work_of_another_key_does_not_join_a_claim(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        mail(store, "chat", "ada")
        claim = take(store)
        mail(store, "chat", "ada")
        wider = take(store, holding=claim)
        assert len(wider.batches) == 2
        mail(store, "chat", "bob")
        assert store.queue.claim("chat", owner_id="w1", holding=wider) is None
        settle(store, wider)
        assert [batch.key for batch in next_of(store).batches] == ["bob"]

    # Every way to claim.

    def test_every_way_to_claim_keeps_the_limit(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=1)
        batch_id = mail(store, "a")
        mail(store, "b")
        claim = next_of(store)
        second = mail(store, "a")
        assert store.queue.claim("b", owner_id="w2") is None
        assert store.queue.claim_exactly("a", [second], owner_id="w2") is None
        assert store.queue.claim_next(owner_id="w2", kinds=["mail"]) is None
        assert store.queue.claim_next(owner_id="w2", exclusive=True) is None
        assert claim.batches[0].batch_id == batch_id
        _, following = store.queue.complete_and_claim_next(claim, owner_id="w1")
        assert following is not None
        assert following.session_id == "b"
        assert store.queue.claim_exactly("a", [second], owner_id="w2") is None
        store.queue.complete(following)
        assert store.queue.claim_exactly("a", [second], owner_id="w2") is not None

    def test_a_blocked_batch_holds_back_what_follows_in_its_session(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        mail(store, "x", "ada")
        held = next_of(store)
        mail(store, "chat", "ada")
        store.queue.enqueue(work("behind", "chat"))
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.complete(held)
        assert [batch.key for batch in next_of(store).batches] == ["ada"]

    # Freeing.

    @pytest.mark.parametrize("end", FREEING)
    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_the_end_of_a_claim_frees_its_slot(self, store: BlockingStore, limit: str, end: str) -> None:
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        claim = next_of(store, exclusive=True)
        mail(store, "b", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        FREEING[end](store, claim)
        assert store.queue.claim_next(owner_id="w2") is not None
        assert store.queue.claim_next(owner_id="w2") is None
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_a_deleted_session_frees_its_slots(self, store: BlockingStore, limit: str) -> None:
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        next_of(store)
        mail(store, "b", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        store.sessions.delete("a")
        assert next_of(store).session_id == "b"

    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_an_expired_claim_frees_its_slot(self, store: BlockingStore, clock: ManualClock, limit: str) -> None:
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        next_of(store, ttl_ms=1_000)
        mail(store, "b", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(999)
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(1)
        assert next_of(store).session_id in {"a", "b"}
        assert store.queue.claim_next(owner_id="w2") is None

    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_a_renewed_claim_keeps_its_slot(self, store: BlockingStore, clock: ManualClock, limit: str) -> None:
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        claim = next_of(store, ttl_ms=1_000)
        mail(store, "b", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(900)
        claim = store.queue.renew(claim, ttl_ms=1_000)
        clock.advance(900)
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.complete(claim)
        assert next_of(store).session_id == "b"

    def test_a_widened_claim_keeps_its_slot(self, store: BlockingStore, clock: ManualClock) -> None:
        store.queue.set_limit("mail", per_key=1)
        mail(store, "a", "ada")
        claim = next_of(store, ttl_ms=1_000)
        mail(store, "a", "ada")
        clock.advance(900)
        take(store, session_id="a", holding=claim, ttl_ms=1_000)
        mail(store, "b", "ada")
        clock.advance(900)
        assert store.queue.claim_next(owner_id="w2") is None
        clock.advance(100)
        assert store.queue.claim_next(owner_id="w2") is not None

    # Order.

    def test_sessions_that_wait_for_a_key_are_served_in_their_order(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        for name in ("first", "second", "third", "fourth"):
            mail(store, name, "ada")
        mail(store, "urgent", "ada", priority=5)
        claim = next_of(store)
        assert claim.session_id == "urgent"
        assert store.queue.claim_next(owner_id="w2") is None
        order: list[str] = []
        for _ in range(4):
            store.queue.complete(claim)
            claim = next_of(store)
            order.append(claim.session_id)
        assert order == ["first", "second", "third", "fourth"]

    def test_work_given_back_at_a_limit_keeps_its_place(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        first, second = mail(store, "chat", "ada"), mail(store, "chat", "ada")
        claim = next_of(store, max_batches=1)
        store.queue.give_back(claim)
        again = next_of(store, max_batches=1)
        assert [batch.batch_id for batch in again.batches] == [first]
        store.queue.fail(again, "broke", retry_in_ms=0)
        last = next_of(store, max_batches=1)
        assert [batch.batch_id for batch in last.batches] == [first]
        store.queue.complete(last)
        assert [batch.batch_id for batch in next_of(store).batches] == [second]

    def test_more_work_for_a_waiting_session_does_not_cost_its_place(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", per_key=1)
        mail(store, "a", "ada")
        claim = next_of(store)
        mail(store, "first", "ada")
        mail(store, "second", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        mail(store, "first", "ada")
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.complete(claim)
        assert next_of(store).session_id == "first"

    def test_every_key_is_served_however_many_sessions_wait_for_another(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=2, per_key=1)
        for number in range(10):
            mail(store, f"a{number}", "ada")
        mail(store, "b0", "bob")
        mail(store, "c0", "cai")
        claims = claimed(store)
        order = served(claims)
        for _ in range(4):
            store.queue.complete(claims.pop(0))
            claims += claimed(store)
            order.append(claims[-1].session_id)
        assert order[:2] == ["a0", "b0"]
        assert "c0" in order[2:4]

    # Declarations.

    def test_the_newest_declaration_wins(self, store: BlockingStore, bench: Bench) -> None:
        store.queue.set_limit("mail", at_once=5, per_key=5)
        declared = bench.open().queue.set_limit("mail", at_once=1)
        assert (declared.at_once, declared.per_key, declared.paused) == (1, None, False)
        assert list(store.queue.limits()) == [declared]
        for name in "ab":
            mail(store, name, "ada")
        assert served(claimed(store)) == ["a"]

    def test_the_same_declaration_again_changes_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        first = store.queue.set_limit("mail", at_once=1)
        before = bench.dump()
        clock.advance(5)
        assert store.queue.set_limit("mail", at_once=1) == first
        assert bench.dump() == before

    def test_a_limit_counts_claims_that_were_made_before_it(self, store: BlockingStore, clock: ManualClock) -> None:
        for name in "abcd":
            mail(store, name, "ada")
        claims = [next_of(store, ttl_ms=1_000), next_of(store, ttl_ms=HOUR_MS)]
        store.queue.set_limit("mail", at_once=2)
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.renew(claims[0], ttl_ms=2_000)
        clock.advance(1_500)
        assert store.queue.claim_next(owner_id="w2") is None
        store.queue.complete(claims[0])
        assert served(claimed(store)) == ["c"]

    def test_lowering_a_limit_lets_what_runs_run(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=3, per_key=3)
        for number in range(5):
            mail(store, f"a{number}", "ada")
        claims = claimed(store)
        store.queue.set_limit("mail", at_once=3, per_key=1)
        for claim in claims[:2]:
            store.queue.complete(claim)
            assert store.queue.claim_next(owner_id="w2") is None
        store.queue.complete(claims[2])
        assert served(claimed(store)) == ["a3"]

    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_raising_or_removing_a_limit_frees_its_waiters(self, store: BlockingStore, limit: str) -> None:
        limit_mail(store, limit, 1)
        for number in range(6):
            mail(store, f"a{number}", "ada")
        assert served(claimed(store)) == ["a0"]
        limit_mail(store, limit, 3)
        assert served(claimed(store)) == ["a1", "a2"]
        assert store.queue.remove_limit("mail")
        assert sorted(served(claimed(store))) == ["a3", "a4", "a5"]
        assert not store.queue.remove_limit("mail")
        assert store.maintenance.verify().findings == ()

    def test_a_limit_that_comes_back_counts_what_was_claimed_without_one(self, store: BlockingStore) -> None:
        store.queue.set_limit("mail", at_once=2)
        for name in "abcd":
            mail(store, name)
        claims = claimed(store)
        store.queue.remove_limit("mail")
        claims.append(next_of(store))
        store.queue.set_limit("mail", at_once=3)
        assert store.queue.claim_next(owner_id="w2") is None
        renewed = store.queue.renew(claims[0], ttl_ms=HOUR_MS)
        store.queue.complete(renewed)
        assert served(claimed(store)) == ["d"]

    def test_limits_are_listed_by_kind(self, store: BlockingStore) -> None:
        for kind in ("b", "a", "c"):
            store.queue.set_limit(kind, per_key=1)
        store.queue.pause("c")
        page = store.queue.limits(limit=2)
        assert [one.kind for one in page] == ["a", "b"]
        assert [(one.kind, one.paused) for one in store.queue.limits(after=page.next)] == [("c", True)]

    def test_a_limit_that_makes_no_sense_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        for field, call in MISTAKES:
            with refused(bench, holdfast.InvalidRequest) as info:
                call(store)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == field

    def test_a_limit_of_zero_points_to_the_pause(self, store: BlockingStore) -> None:
        with pytest.raises(holdfast.InvalidRequest, match="pause"):
            store.queue.set_limit("mail", at_once=0)

    # Waiting.

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    @pytest.mark.parametrize("cause", ["complete", "raise", "remove"])
    def test_a_wait_at_the_limit_is_ended_by(
        self, store: BlockingStore, bench: Bench, elsewhere: bool, limit: str, cause: str
    ) -> None:
        other = bench.open() if elsewhere else store
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        claim = next_of(store, ttl_ms=HOUR_MS)
        mail(store, "b", "ada")
        acts: dict[str, Callable[[], Any]] = {
            "complete": lambda: other.queue.complete(claim),
            "raise": lambda: limit_mail(other, limit, 2),
            "remove": lambda: other.queue.remove_limit("mail"),
        }
        anywhere = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        here = in_background(lambda: store.queue.wait("b", timeout_ms=WAIT_MS))
        bench.parked()
        acts[cause]()
        anywhere.result(TIMEOUT_S)
        here.result(TIMEOUT_S)
        assert next_of(store).session_id == "b"

    @pytest.mark.parametrize("limit", ["at_once", "per_key"])
    def test_a_wait_at_the_limit_ends_in_its_timeout(self, store: BlockingStore, bench: Bench, limit: str) -> None:
        limit_mail(store, limit, 1)
        mail(store, "a", "ada")
        next_of(store)
        mail(store, "b", "ada")
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait_next(timeout_ms=1)
        with refused(bench, holdfast.WaitTimeout):
            store.queue.wait_next(timeout_ms=1)
        with refused(bench, holdfast.WaitTimeout):
            store.queue.wait("b", timeout_ms=1)

    # Depths.

    def test_depths_count_the_work_of_each_kind(self, store: BlockingStore, clock: ManualClock) -> None:
        assert store.queue.depths().items == ()
        at_ms = clock.now_ms()
        for number in range(3):
            store.queue.enqueue(work(f"m{number}", session_id=f"m{number}", kind="mail"))
        store.queue.enqueue(work("later", session_id="later", kind="mail", available_at_ms=at_ms + 1_000))
        store.queue.enqueue(work("t", session_id="t"))
        clock.advance(10)
        claim = store.queue.claim("m0", owner_id="w1", ttl_ms=5_000)
        assert claim is not None
        dead = store.queue.claim("m1", owner_id="w1")
        assert dead is not None
        store.queue.fail(dead, "no", retry_in_ms=None)
        mail, turn = store.queue.depths()
        assert mail == QueueDepth("mail", ready=1, delayed=1, claimed=1, dead=1, oldest_ready_at_ms=at_ms)
        assert turn == QueueDepth("turn", ready=1, delayed=0, claimed=0, dead=0, oldest_ready_at_ms=at_ms)
        settle(store, take(store, session_id="t"))
        clock.advance(6_000)  # the claim has ended, and the delay is over
        (mail,) = store.queue.depths()
        assert (mail.ready, mail.delayed, mail.claimed, mail.dead) == (3, 0, 0, 1)

    def test_depths_come_in_pages(self, store: BlockingStore) -> None:
        for kind in ("a", "b", "c"):
            store.queue.enqueue(work(kind, session_id=kind, kind=kind))
        page = store.queue.depths(limit=2)
        assert [one.kind for one in page] == ["a", "b"]
        assert [one.kind for one in store.queue.depths(after=page.next)] == ["c"]
