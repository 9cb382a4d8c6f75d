"""Pauses: nothing of a paused session or kind is claimed, running work continues, and a resume wakes waiters."""

from __future__ import annotations

from typing import TypeAlias

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.claims import fill
from holdfast.testing.contract.jobs import HOUR_MS, next_of
from holdfast.testing.contract.queue import take, work
from holdfast.testing.contract.run_claims import claimed_ids, next_run
from holdfast.testing.contract.runs import start

WAIT_MS = 60_000
Kinds: TypeAlias = list[str | tuple[str, str]] | None


def paused(store: BlockingStore, what: str) -> bool:
    """Pause the session "chat", or the kind of its work."""
    return store.sessions.handle("chat").pause() if what == "session" else store.queue.pause("turn")


def resumed(store: BlockingStore, what: str) -> bool:
    """End that pause."""
    return store.sessions.handle("chat").resume() if what == "session" else store.queue.resume("turn")


BOTH = pytest.mark.parametrize("what", ["session", "kind"])


class PauseContract(Contract):
    """`session.pause`, `session.resume`, `store.queue.pause`, `store.queue.resume`."""

    @BOTH
    def test_nothing_is_claimed_during_a_pause(self, store: BlockingStore, what: str) -> None:
        (batch_id,) = fill(store, "1")
        assert paused(store, what)
        assert store.queue.claim_next(owner_id="w1") is None
        assert store.queue.claim_next(owner_id="w1", kinds=["turn"], exclusive=True) is None
        assert store.queue.claim("chat", owner_id="w1") is None
        assert store.queue.claim_exactly("chat", [batch_id], owner_id="w1") is None
        lease = store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w1", ttl_ms=HOUR_MS)
        assert store.queue.claim("chat", owner_id="w1", lease=lease) is None
        store.leases.release(lease)
        assert store.queue.claim_next(owner_id="w1") is None
        assert resumed(store, what)
        assert next_of(store).batches[0].batch_id == batch_id

    @BOTH
    def test_a_pause_and_a_resume_are_idempotent(self, store: BlockingStore, bench: Bench, what: str) -> None:
        fill(store, "1")
        assert not resumed(store, what)
        assert paused(store, what)
        before = bench.dump()
        assert not paused(store, what)
        assert bench.dump() == before
        assert resumed(store, what)
        assert not resumed(store, what)

    @BOTH
    def test_other_work_continues(self, store: BlockingStore, what: str) -> None:
        fill(store, "1")
        paused(store, what)
        store.queue.enqueue(work("x", "other", kind="mail"))
        assert next_of(store).session_id == "other"

    @BOTH
    def test_running_calls_continue(self, store: BlockingStore, what: str) -> None:
        fill(store, "1", "2")
        claim = next_of(store, max_batches=1)
        paused(store, what)
        claim = store.queue.renew(claim, ttl_ms=HOUR_MS)
        store.queue.complete(claim)
        assert store.queue.claim_next(owner_id="w1") is None
        resumed(store, what)
        assert next_of(store) is not None

    @BOTH
    def test_a_claim_becomes_exclusive_during_a_pause_but_no_work_joins_it(
        self, store: BlockingStore, what: str
    ) -> None:
        fill(store, "1")
        claim = next_of(store)
        fill(store, "2")
        paused(store, what)
        if what == "session":
            assert store.queue.claim("chat", owner_id="w1", holding=claim) is None
            wider = take(store, holding=claim, exclusive=True)
            assert (wider.exclusive, len(wider.batches)) == (True, 1)
            store.queue.complete(wider)
        assert store.queue.claim_next(owner_id="w2") is None

    @BOTH
    def test_work_enqueued_during_a_pause_waits_for_the_resume(
        self, store: BlockingStore, clock: ManualClock, what: str
    ) -> None:
        store.sessions.create("chat")
        paused(store, what)
        fill(store, "1")
        fill(store, "2", available_at_ms=clock.now_ms() + 500)
        clock.advance(1_000)
        assert store.queue.claim_next(owner_id="w1") is None
        resumed(store, what)
        assert next_of(store).session_id == "chat"

    @BOTH
    def test_a_pause_survives_a_reopening(self, store: BlockingStore, bench: Bench, what: str) -> None:
        fill(store, "1")
        paused(store, what)
        other = bench.open()
        assert other.queue.claim_next(owner_id="w1") is None
        assert not paused(other, what)
        assert resumed(other, what)
        assert next_of(store).session_id == "chat"

    @BOTH
    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    def test_a_resume_wakes_waiters(self, store: BlockingStore, bench: Bench, what: str, elsewhere: bool) -> None:
        other = bench.open() if elsewhere else store
        fill(store, "1")
        paused(store, what)
        anywhere = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        here = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS))
        bench.parked()
        resumed(other, what)
        anywhere.result(TIMEOUT_S)
        here.result(TIMEOUT_S)

    @BOTH
    def test_a_wait_during_a_pause_ends_in_its_timeout(self, store: BlockingStore, bench: Bench, what: str) -> None:
        fill(store, "1")
        paused(store, what)
        for _ in range(2):
            with refused(bench, holdfast.WaitTimeout):
                store.queue.wait_next(timeout_ms=1)
            with refused(bench, holdfast.WaitTimeout):
                store.queue.wait("chat", timeout_ms=1)

    # Runs.

    def test_no_run_of_a_paused_kind_is_claimed(self, store: BlockingStore, bench: Bench, clock: ManualClock) -> None:
        start(store, "r1")
        start(store, "r2", version="2")
        clock.advance(1)
        start(store, "w1", "write")
        assert store.queue.pause("research")
        anything: tuple[Kinds, ...] = (None, ["research"], [("research", "2")], ["research", ("research", "1")])
        assert claimed_ids(store) == ["w1"]
        for kinds in anything:
            assert bench.open().processes.claim_next(owner_id="w1", kinds=kinds) is None
            with refused(bench, holdfast.WaitTimeout):
                store.processes.wait_next(timeout_ms=1, kinds=kinds)
        store.events.request_cancel("r1")
        assert claimed_ids(store) == [], "a run that is asked to cancel waits, too"
        assert store.queue.resume("research")
        assert claimed_ids(store) == ["r1", "r2"]

    def test_a_limit_of_a_kind_and_its_pause_hold_runs_back_apart(self, store: BlockingStore) -> None:
        store.queue.set_limit("research", at_once=2)
        start(store, "r1")
        start(store, "r2")
        assert claimed_ids(store) == ["r1", "r2"]
        store.queue.pause("research")
        start(store, "r3")
        assert claimed_ids(store) == []
        store.queue.remove_limit("research")
        assert claimed_ids(store) == [], "the pause stays"

    def test_a_run_that_is_held_continues_during_a_pause_until_it_sleeps(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        start(store, "r1")
        lease = next_run(store).lease
        store.queue.pause("research")
        lease = store.leases.renew(lease, ttl_ms=HOUR_MS)
        store.events.append("r1", "step", 1, replay_key="step:a", lease=lease)
        store.processes.suspend(lease, seen=1, due_at_ms=clock.now_ms() + HOUR_MS)
        clock.advance(HOUR_MS)
        assert claimed_ids(store) == []
        store.queue.resume("research")
        lease = next_run(store).lease
        store.queue.pause("research")
        assert store.processes.complete("r1", holdfast.processes.Completed(1), lease=lease).is_terminal

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    def test_a_resume_wakes_waiters_for_a_run(self, store: BlockingStore, bench: Bench, elsewhere: bool) -> None:
        other = bench.open() if elsewhere else store
        start(store, "r1")
        store.queue.pause("research")
        waiting = in_background(lambda: store.processes.wait_next(timeout_ms=WAIT_MS, kinds=["research"]))
        bench.parked()
        other.queue.resume("research")
        waiting.result(TIMEOUT_S)
        assert claimed_ids(store) == ["r1"]

    # Sessions.

    def test_a_session_without_work_stays_paused(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        assert session.pause()
        fill(store, "1")
        batch = store.queue.list("chat")[0]
        assert store.queue.cancel("chat", batch.batch_id) is not None
        fill(store, "2")
        assert store.queue.claim_next(owner_id="w1") is None
        assert store.maintenance.verify().findings == ()
        assert session.resume()
        store.queue.complete(next_of(store))
        assert list(store.queue.paused_sessions()) == []
        assert store.maintenance.verify().findings == ()

    def test_a_session_that_was_never_made_is_neither_paused_nor_resumed(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        never = store.sessions.handle("never")
        with refused(bench, holdfast.UnknownSession):
            never.pause()
        with refused(bench, holdfast.UnknownSession):
            never.resume()

    def test_paused_sessions_are_listed(self, store: BlockingStore) -> None:
        for name in ("a", "b", "c"):
            store.sessions.create(name).pause()
        store.sessions.handle("b").resume()
        page = store.queue.paused_sessions(limit=1)
        assert list(page) == ["a"]
        assert list(store.queue.paused_sessions(after=page.next)) == ["c"]

    def test_a_pause_of_a_deleted_session_ends_with_it(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        session.pause()
        store.sessions.delete("chat")
        assert list(store.queue.paused_sessions()) == []
        with pytest.raises(holdfast.SessionDeleted):
            session.pause()

    def test_a_limit_and_a_pause_of_one_kind_are_independent(self, store: BlockingStore) -> None:
        store.queue.set_limit("turn", at_once=1)
        assert store.queue.pause("turn")
        assert store.queue.set_limit("turn", at_once=2).paused
        assert store.queue.remove_limit("turn")
        assert [(one.kind, one.at_once, one.paused) for one in store.queue.limits()] == [("turn", None, True)]
        fill(store, "1")
        assert store.queue.claim_next(owner_id="w1") is None
        assert store.queue.resume("turn")
        assert list(store.queue.limits()) == []
        assert next_of(store).session_id == "chat"
