"""Nested calls: a signal handler that interrupts a call uses the store, or is refused. Nothing tears or hangs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import NestedCall, StoreClosed
from holdfast.sessions import CommitReceipt
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract

SIGNAL = getattr(signal, "SIGUSR2", None)
RESEND_S = 0.001


class Handler:
    """Calls a function in the main thread, by a signal."""

    def __init__(self) -> None:
        self._acts: list[Callable[[], object]] = []
        self._ended = threading.Event()
        self.refusals: list[NestedCall] = []

    def handle(self, *_: object) -> None:
        """Handle the signal: act once, and keep the refusal of a nested call."""
        if self._acts:
            try:
                self._acts.pop()()
            except NestedCall as error:
                self.refusals.append(error)
            finally:
                self._ended.set()

    def ring(self, act: Callable[[], object]) -> None:
        """Interrupt the main thread, from any thread, and return once it has acted."""
        assert SIGNAL is not None
        self._ended.clear()
        self._acts.append(act)
        deadline_s = time.monotonic() + TIMEOUT_S
        # Sent again, because a signal just before the main thread blocks does not end its sleep.
        while not self._ended.wait(RESEND_S):
            assert time.monotonic() < deadline_s, "the main thread does not handle signals"
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)


def write(store: BlockingStore) -> object:
    """Commit a turn with a node."""
    graph = holdfast.Append([holdfast.Node("nested")], leaf="nested")
    return store.sessions.handle("nested").commit(holdfast.Commit(turn_id="nested", graph=graph))


def read(store: BlockingStore) -> object:
    """Count the sessions, at one reading of the clock."""
    return store.maintenance.stats()


def wait(store: BlockingStore) -> object:
    """Wait for work."""
    return store.queue.wait("chat", timeout_ms=TIMEOUT_S * 1000)


@pytest.mark.skipif(SIGNAL is None, reason="needs POSIX signals")
class NestedCallContract(Contract):
    """Calls of signal handlers, through the blocking facade."""

    @pytest.fixture
    def handler(self) -> Iterator[Handler]:
        """A handler of a signal that nothing else uses."""
        assert SIGNAL is not None
        handler = Handler()
        before = signal.signal(SIGNAL, handler.handle)
        yield handler
        signal.signal(SIGNAL, before)

    @pytest.fixture
    def in_transaction(self, bench: Bench, handler: Handler, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let the handler act once, in the middle of the next transaction."""
        right = bench.clock.now_ms

        def act(act: Callable[[], object]) -> None:
            def ringing() -> int:
                monkeypatch.setattr(bench.clock, "now_ms", right)
                handler.ring(act)
                return right()

            monkeypatch.setattr(bench.clock, "now_ms", ringing)

        return act

    @pytest.mark.parametrize("nested", [write, read, wait])
    def test_a_call_in_the_middle_of_a_commit_is_refused_and_tears_nothing(
        self, store: BlockingStore, bench: Bench, handler: Handler, in_transaction: Any, nested: Any
    ) -> None:
        session = store.sessions.create("chat")
        in_transaction(lambda: nested(store))
        graph = holdfast.Append([holdfast.Node("one"), holdfast.Node("two", "one")], leaf="two")
        assert session.commit(holdfast.Commit(turn_id="turn", graph=graph)).revision == 1
        assert len(handler.refusals) == 1
        view = bench.open().sessions.handle("chat").load()
        assert view is not None
        assert (view.revision, [node.id for node in view.graph.nodes]) == (1, ["one", "two"])
        assert store.sessions.handle("nested").load() is None
        assert store.maintenance.verify().findings == ()

    @pytest.mark.parametrize("nested", [write, read, wait])
    def test_a_call_in_the_middle_of_a_read_is_refused(
        self, store: BlockingStore, handler: Handler, in_transaction: Any, nested: Any
    ) -> None:
        store.sessions.create("chat").commit(holdfast.Commit(turn_id="turn"))
        in_transaction(lambda: nested(store))
        assert store.maintenance.stats().sessions == 1
        assert len(handler.refusals) == 1
        assert store.sessions.handle("nested").load() is None

    def test_a_refused_call_says_what_to_do_and_was_not_applied(
        self, store: BlockingStore, handler: Handler, in_transaction: Any
    ) -> None:
        in_transaction(lambda: write(store))
        store.sessions.create("chat")
        [error] = handler.refusals
        assert (error.outcome, error.retryable) == ("not_applied", False)
        assert "when the other one has returned" in error.message
        assert isinstance(write(store), CommitReceipt)

    def test_a_refusal_that_the_handler_passes_on_reaches_the_interrupted_caller(
        self, store: BlockingStore, handler: Handler, in_transaction: Any
    ) -> None:
        def pass_on(*_: object) -> None:
            handler.handle()
            if handler.refusals:
                raise handler.refusals.pop()

        assert SIGNAL is not None
        signal.signal(SIGNAL, pass_on)
        in_transaction(lambda: write(store))
        with pytest.raises(NestedCall):
            store.sessions.create("chat")
        assert store.sessions.create("other").session_id == "other"

    @pytest.mark.parametrize("outer", [write, read])
    def test_a_close_takes_effect_after_the_interrupted_call(
        self, bench: Bench, handler: Handler, in_transaction: Any, outer: Any
    ) -> None:
        keeper, store = bench.open(), bench.open()
        keeper.sessions.create("chat").commit(holdfast.Commit(turn_id="turn"))

        def close_twice() -> None:
            store.close()
            store.close()

        in_transaction(close_twice)
        assert outer(store) is not None
        assert handler.refusals == []
        with pytest.raises(StoreClosed):
            read(store)
        store.close()

    def test_a_handler_ends_the_wait_that_it_interrupts(
        self, store: BlockingStore, bench: Bench, handler: Handler
    ) -> None:
        store.sessions.create("chat")
        done: list[str] = []

        def enqueue() -> None:
            draft = holdfast.WorkDraft(session_id="chat", payloads=[1], source_key="one")
            done.append(store.queue.enqueue(draft).batch_id)

        def interrupt() -> None:
            bench.parked()
            # The waiter is counted just before its thread lets handlers in.
            while not done:
                handler.ring(enqueue)

        ringing = threading.Thread(target=interrupt)
        ringing.start()
        wait(store)
        ringing.join(TIMEOUT_S)
        assert [batch.batch_id for batch in store.queue.list("chat")] == done

    def test_a_handler_closes_the_store_whose_wait_it_interrupts(self, bench: Bench, handler: Handler) -> None:
        store = bench.open()
        store.sessions.create("chat")

        def interrupt() -> None:
            bench.parked()
            handler.ring(store.close)

        ringing = threading.Thread(target=interrupt)
        ringing.start()
        with pytest.raises(StoreClosed):
            wait(store)
        ringing.join(TIMEOUT_S)
