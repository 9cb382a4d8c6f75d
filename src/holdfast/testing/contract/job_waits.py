"""Waits for work of any session and for the end of a batch: they end by a change or by time, without polling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import UnknownBatch
from holdfast.leases import OnSession
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.claims import fill
from holdfast.testing.contract.jobs import FREEING, HOUR_MS, next_of
from holdfast.testing.contract.queue import settle, texts, work

WAIT_MS = 60_000

MISTAKES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("owner_id", lambda store, _: store.queue.claim_next(owner_id="")),
    ("kinds", lambda store, _: store.queue.claim_next(owner_id="w", kinds=[])),
    ("kinds", lambda store, _: store.queue.claim_next(owner_id="w", kinds="turn")),
    ("kinds[0]", lambda store, _: store.queue.wait_next(kinds=[""], timeout_ms=1)),
    ("ttl_ms", lambda store, _: store.queue.claim_next(owner_id="w", ttl_ms=0)),
    ("max_batches", lambda store, _: store.queue.claim_next(owner_id="w", max_batches=0)),
    ("exclusive", lambda store, _: store.queue.claim_next(owner_id="w", exclusive=1)),
    ("claim", lambda store, _: store.queue.complete("claim")),
    ("claim", lambda store, _: store.queue.complete_and_claim_next(None, owner_id="w")),
    ("owner_id", lambda store, claim: store.queue.complete_and_claim_next(claim, owner_id=" ")),
    ("error", lambda store, claim: store.queue.fail(claim, 1)),
    ("retry_in_ms", lambda store, claim: store.queue.fail(claim, "e", retry_in_ms=-1)),
    ("max_attempts", lambda store, claim: store.queue.fail(claim, "e", max_attempts=0)),
    ("kind", lambda store, _: store.queue.dead_letters(kind="")),
    ("limit", lambda store, _: store.queue.dead_letters(limit=0)),
    ("after", lambda store, _: store.queue.dead_letters(after="x")),
    ("batch_id", lambda store, _: store.queue.retry("chat", "")),
    ("session_id", lambda store, _: store.queue.drop("", "b")),
    ("timeout_ms", lambda store, _: store.queue.wait_settled("chat", "b", timeout_ms=-1)),
]
"""The field that a call gets wrong, and the call."""


class JobWaitContract(Contract):
    """`store.queue`: wait_next, wait_settled, and input that its calls for jobs refuse."""

    # Waiting.

    def test_a_wait_for_any_work_ends_at_once_or_in_its_timeout(self, store: BlockingStore, bench: Bench) -> None:
        with refused(bench, holdfast.WaitTimeout):
            store.queue.wait_next(timeout_ms=1)
        fill(store, "1", kind="mail")
        store.queue.wait_next(timeout_ms=0)
        store.queue.wait_next(timeout_ms=0, kinds=["turn", "mail"], exclusive=True)
        with pytest.raises(holdfast.WaitTimeout):
            store.queue.wait_next(timeout_ms=1, kinds=["turn"])

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("cause", ["enqueue", "follow-up", "retry", "lease", *FREEING])
    def test_a_wait_for_any_work_is_ended_by(
        self, store: BlockingStore, bench: Bench, elsewhere: bool, cause: str
    ) -> None:
        other = bench.open() if elsewhere else store
        acts: dict[str, Callable[[], Any]] = {
            "enqueue": lambda: fill(other, "1"),
            "follow-up": lambda: other.sessions.handle("chat").commit(holdfast.Commit(enqueues=[work("1", "chat")])),
        }
        if cause == "retry":
            (batch_id,) = fill(store, "1")
            store.queue.fail(next_of(store), "broke", retry_in_ms=None)
            acts[cause] = lambda: other.queue.retry("chat", batch_id)
        elif cause == "lease":
            fill(store, "1")
            lease = store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=HOUR_MS)
            acts[cause] = lambda: other.leases.release(lease)
        elif cause in FREEING:
            fill(store, "1", "2")
            claim = next_of(store, exclusive=True, ttl_ms=HOUR_MS)
            acts[cause] = lambda: FREEING[cause](other, claim)
        waiting = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS))
        bench.parked()
        acts[cause]()
        assert waiting.result(TIMEOUT_S) is None
        assert next_of(store).session_id == "chat"

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    def test_an_eager_wait_ends_at_a_change_and_at_once_if_there_is_work(
        self, store: BlockingStore, bench: Bench, elsewhere: bool
    ) -> None:
        with refused(bench, holdfast.WaitTimeout):
            store.queue.wait_next(timeout_ms=1, eager=True)
        waiting = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS, kinds=["mail"], eager=True))
        bench.parked()
        fill(bench.open() if elsewhere else store, "1", kind="mail" if elsewhere else "turn")
        assert waiting.result(TIMEOUT_S) is None
        assert next_of(store).session_id == "chat"
        fill(store, "2", kind="mail")
        store.queue.wait_next(timeout_ms=0, kinds=["mail"], eager=True)

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("cause", FREEING)
    def test_a_wait_for_exclusive_work_is_ended_where_a_claim_shared_the_session(
        self, store: BlockingStore, bench: Bench, elsewhere: bool, cause: str
    ) -> None:
        other = bench.open() if elsewhere else store
        fill(store, "1", "2")
        claim = next_of(store, ttl_ms=HOUR_MS)
        waiting = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS, exclusive=True))
        bench.parked()
        FREEING[cause](other, claim)
        assert waiting.result(TIMEOUT_S) is None
        assert next_of(store, exclusive=True).session_id == "chat"

    @pytest.mark.parametrize("cause", ["available", "claim", "exclusive", "lease", "back-off"])
    def test_a_wait_for_any_work_ends_by_time_alone(
        self, store: BlockingStore, bench: Bench, clock: ManualClock, cause: str
    ) -> None:
        fill(store, "1", available_at_ms=clock.now_ms() + HOUR_MS if cause == "available" else 0)
        if cause in {"claim", "exclusive"}:
            next_of(store, ttl_ms=HOUR_MS, exclusive=cause == "exclusive")
        elif cause == "lease":
            store.leases.claim(OnSession("chat"), owner_id="w1", ttl_ms=HOUR_MS)
        elif cause == "back-off":
            store.queue.fail(next_of(store), "broke", retry_in_ms=HOUR_MS)
        waiting = in_background(lambda: store.queue.wait_next(timeout_ms=WAIT_MS, exclusive=True))
        bench.parked()
        clock.advance(HOUR_MS)
        assert waiting.result(TIMEOUT_S) is None
        assert texts(next_of(store, exclusive=True).batches) == ["1"]

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["the same handle", "another handle"])
    @pytest.mark.parametrize("outcome", ["completed", "committed", "cancelled", "dead"])
    def test_a_wait_for_a_batch_gives_its_outcome(
        self, store: BlockingStore, bench: Bench, elsewhere: bool, outcome: str
    ) -> None:
        other = bench.open() if elsewhere else store
        batch = store.queue.enqueue(work("1"))
        waiting = in_background(lambda: store.queue.wait_settled("chat", batch.batch_id, timeout_ms=WAIT_MS))
        bench.parked()
        if outcome == "cancelled":
            other.queue.cancel("chat", batch.batch_id)
        else:
            claim = next_of(other)
            if outcome == "completed":
                other.queue.complete(claim)
            elif outcome == "committed":
                settle(other, claim)
            else:
                other.queue.fail(claim, "broke", retry_in_ms=None)
        found = waiting.result(TIMEOUT_S)
        revision = 1 if outcome == "committed" else None
        expected = "completed" if outcome == "committed" else outcome
        assert (found.state, found.settled_revision) == (expected, revision)
        assert store.queue.wait_settled("chat", batch.batch_id, timeout_ms=0) == found

    def test_a_wait_for_a_batch_that_is_not_settled_ends_in_its_timeout(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        (batch_id,) = fill(store, "1")
        with refused(bench, holdfast.WaitTimeout):
            store.queue.wait_settled("chat", batch_id, timeout_ms=1)
        for session_id, name in (("chat", "batch:unknown"), ("never", batch_id)):
            with refused(bench, UnknownBatch) as info:
                store.queue.wait_settled(session_id, name, timeout_ms=1)
            assert isinstance(info.value, UnknownBatch)
            assert (info.value.session_id, info.value.batch_id) == (session_id, name)

    # Bad input.

    @pytest.mark.parametrize("number", range(len(MISTAKES)))
    def test_a_call_that_makes_no_sense_names_its_field(self, store: BlockingStore, bench: Bench, number: int) -> None:
        field, call = MISTAKES[number]
        fill(store, "1")
        claim = next_of(store)
        with refused(bench, holdfast.InvalidRequest) as info:
            call(store, claim)
        assert isinstance(info.value, holdfast.InvalidRequest)
        assert info.value.field == field
