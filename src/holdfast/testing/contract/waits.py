"""Waits: a wait ends with the change that it waits for, through any handle, and never sleeps through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.events import EventType, Payload, WakeRule
from holdfast.leases import OnSession
from holdfast.processes import External
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.queue import take, texts, work

WAIT_MS = TIMEOUT_S * 1_000
"""Timeout of a wait that must end by a change."""

HOUR_MS = 3_600_000
CHAT = OnSession("chat")

Act = Callable[[], object]


def _wake(store: BlockingStore) -> Act:
    kinds = [EventType("news", wake=WakeRule(Payload()))]
    registration = holdfast.ProcessRegistration(
        "build", External(), event_types=kinds, wake_target=holdfast.Scope("chat")
    )
    store.processes.register(registration)
    return partial(store.events.append, "build", "news", "done")


def _give_back(store: BlockingStore) -> Act:
    store.queue.enqueue(work("1"))
    return partial(store.queue.give_back, take(store, ttl_ms=HOUR_MS))


def _give_back_exclusive(store: BlockingStore) -> Act:
    store.queue.enqueue(work("1"))
    store.queue.enqueue(work("2"))
    return partial(store.queue.give_back, take(store, exclusive=True, ttl_ms=HOUR_MS))


def _settle_exclusive(store: BlockingStore) -> Act:
    store.queue.enqueue(work("0"))
    store.queue.enqueue(work("1"))
    claim = take(store, exclusive=True, ttl_ms=HOUR_MS)
    return partial(store.sessions.handle("chat").commit, holdfast.Commit(completes=[claim]))


def _release_lease(store: BlockingStore) -> Act:
    store.queue.enqueue(work("1"))
    return partial(store.leases.release, store.leases.claim(CHAT, owner_id="w1", ttl_ms=HOUR_MS))


CAUSES: dict[str, Callable[[BlockingStore], Act]] = {
    "an enqueue": lambda store: partial(store.queue.enqueue, work("1")),
    "a commit that enqueues": lambda store: partial(
        store.sessions.handle("mail").commit, holdfast.Commit(enqueues=[work("1")])
    ),
    "a wake": _wake,
    "a claim given back": _give_back,
    "an exclusive claim given back": _give_back_exclusive,
    "a commit that settles an exclusive claim": _settle_exclusive,
    "a lease released": _release_lease,
}
"""Acts that let an owner other than `w1` claim work of the session. Each prepares the store and returns the act."""


class WaitContract(Contract):
    """`store.queue.wait`. The waits for events and for the end of a process are in the classes of those."""

    @pytest.fixture(params=["the same handle", "another handle"])
    def elsewhere(self, request: pytest.FixtureRequest, store: BlockingStore, bench: Bench) -> BlockingStore:
        """The handle that makes the change."""
        return store if request.param == "the same handle" else bench.open()

    def test_a_wait_ends_at_once_when_there_is_work(self, store: BlockingStore) -> None:
        store.queue.enqueue(work("x"))
        store.queue.wait("chat", timeout_ms=0)
        assert texts(take(store).batches) == ["x"]

    def test_a_wait_without_work_ends_in_its_timeout(self, store: BlockingStore, bench: Bench) -> None:
        store.queue.enqueue(work("elsewhere", session_id="mail"))
        with refused(bench, holdfast.WaitTimeout) as info:
            store.queue.wait("chat", timeout_ms=1)
        assert isinstance(info.value, holdfast.WaitTimeout)
        assert info.value.timeout_ms == 1
        assert info.value.retryable

    @pytest.mark.parametrize("cause", CAUSES)
    def test_a_wait_is_ended_by(self, store: BlockingStore, bench: Bench, elsewhere: BlockingStore, cause: str) -> None:
        act = CAUSES[cause](elsewhere)
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=0, owner_id="w2")
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS, owner_id="w2"))
        bench.parked()
        act()
        assert waiting.result(TIMEOUT_S) is None
        assert len(take(store, "w2").batches) == 1

    def test_a_wait_is_held_back_by_an_exclusive_claim_and_by_another_owners_lease(self, store: BlockingStore) -> None:
        _give_back_exclusive(store)
        for owner_id in ("w1", "w2", None):
            with pytest.raises(holdfast.WaitTimeout):
                store.queue.wait("chat", timeout_ms=1, owner_id=owner_id)
        mail = OnSession("mail")
        store.queue.enqueue(work("x", session_id="mail"))
        store.leases.claim(mail, owner_id="w1", ttl_ms=HOUR_MS)
        store.queue.wait("mail", timeout_ms=0, owner_id="w1")
        for owner_id in ("w2", None):
            with pytest.raises(holdfast.WaitTimeout):
                store.queue.wait("mail", timeout_ms=1, owner_id=owner_id)

    def test_a_wait_knows_the_boundary_and_notices_a_cancelled_batch(
        self, store: BlockingStore, bench: Bench, elsewhere: BlockingStore
    ) -> None:
        batch = store.queue.enqueue(work("later", delivery="after_current_turn_commit"))
        store.queue.enqueue(work("now"))
        store.queue.wait("chat", timeout_ms=0, boundary="idle")
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=1, boundary="active_turn_checkpoint")
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS, boundary="active_turn_checkpoint"))
        bench.parked()
        elsewhere.queue.cancel("chat", batch.batch_id)
        assert waiting.result(TIMEOUT_S) is None

    def test_a_wait_on_a_session_that_is_deleted_meanwhile_says_so(
        self, store: BlockingStore, bench: Bench, elsewhere: BlockingStore
    ) -> None:
        store.sessions.create("chat")
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS))
        bench.parked()
        elsewhere.sessions.delete("chat")
        with pytest.raises(holdfast.SessionDeleted):
            waiting.result(TIMEOUT_S)

    # By time alone.

    def test_a_wait_ends_when_the_time_of_waiting_work_comes(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        store.queue.enqueue(work("x", available_at_ms=clock.now_ms() + HOUR_MS))
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS))
        bench.parked()
        clock.advance(HOUR_MS)
        assert waiting.result(TIMEOUT_S) is None

    @pytest.mark.parametrize("held", ["by a claim", "by an exclusive claim", "by a lease"])
    def test_a_wait_ends_when_what_kept_it_expires(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, held: str
    ) -> None:
        {"by a claim": _give_back, "by an exclusive claim": _give_back_exclusive, "by a lease": _release_lease}[held](
            store
        )
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait("chat", timeout_ms=1, owner_id="w2")
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS, owner_id="w2"))
        bench.parked()
        clock.advance(HOUR_MS)
        assert waiting.result(TIMEOUT_S) is None

    def test_a_wait_behind_a_lease_that_is_claimed_again_for_less_plans_anew(
        self, store: BlockingStore, bench: Bench, elsewhere: BlockingStore, clock: ManualClock
    ) -> None:
        store.queue.enqueue(work("1"))
        store.leases.claim(CHAT, owner_id="w1", ttl_ms=HOUR_MS)
        waiting = in_background(lambda: store.queue.wait("chat", timeout_ms=WAIT_MS, owner_id="w2"))
        bench.parked()
        elsewhere.leases.claim(CHAT, owner_id="w1", ttl_ms=1_000)
        # It has checked again, or it would not wait again: now until the new end, and not for an hour.
        bench.parked()
        clock.advance(1_000)
        assert waiting.result(TIMEOUT_S) is None
