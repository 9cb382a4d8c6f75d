"""Transactions over several sessions, queues, processes and artifacts: all of a block is stored, or nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.errors import StoreClosed, TransactionExpired
from holdfast.events import EventType
from holdfast.leases import OnProcess
from holdfast.processes import External
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, at_once, in_background
from holdfast.testing.contract.queue import work

LARGE = 200_000
"""Bytes of a component that is stored as a delta on its predecessor."""

ROUNDS = 12


class Stop(Exception):
    """Raised by a block that changes its mind."""


def turn(name: str, **more: Any) -> holdfast.Commit:
    """Return a turn with one node."""
    return holdfast.Commit(turn_id=name, graph=holdfast.Append([holdfast.Node(name, payload=name)]), **more)


def fill(tx: BlockingStore) -> None:
    """Write to every part of a store."""
    tx.sessions.create("one").commit(turn("t1"))
    tx.sessions.handle("two").commit(turn("t1", enqueues=[work("later", session_id="one")]))
    tx.queue.enqueue(work("now", session_id="three"))
    tx.processes.register(holdfast.ProcessRegistration("build", External(), event_types=[EventType("news")]))
    tx.events.append("build", "news", {"n": 1})
    tx.leases.claim(OnProcess("build"), owner_id="w", ttl_ms=60_000)
    tx.grants.grant(holdfast.Scope("one"), "build")
    tx.artifacts.put("module", "main", b"print()")
    tx.sessions.handle("one").attachments.put(b"picture")


def stop(tx: BlockingStore) -> NoReturn:
    """Raise inside a block."""
    raise Stop(repr(tx))


REFUSED_INSIDE: dict[str, Callable[[BlockingStore], object]] = {
    "a wait": lambda tx: tx.queue.wait("one", timeout_ms=1),
    "a wait for any session": lambda tx: tx.queue.wait_next(timeout_ms=1),
    "a vacuum": lambda tx: tx.maintenance.vacuum(),
    "garbage collection": lambda tx: tx.maintenance.collect_garbage(),
    "verification": lambda tx: tx.maintenance.verify(),
    "a sweep": lambda tx: tx.attachments.sweep(older_than_ms=0),
    "a read from a replica": lambda tx: tx.reading(),
    "another transaction": lambda tx: tx.transaction(),
    "a transaction of the caller's": lambda tx: tx.within(object()),
    "a close": lambda tx: tx.close(),
}


class TransactionContract(Contract):
    """Rules of `store.transaction()` that every backend keeps."""

    def test_a_block_becomes_visible_as_a_whole(self, store: BlockingStore, bench: Bench) -> None:
        before = bench.dump()
        with store.transaction() as tx:
            fill(tx)
            assert bench.dump() == before
        assert [entry.session_id for entry in store.sessions.list()] == ["one", "two", "three"]
        assert [len(store.queue.list(name)) for name in ("one", "three")] == [1, 1]
        assert [event.payload for event in store.events.after("build")] == [{"n": 1}]
        assert store.artifacts.get("module", "main") is not None
        assert store.leases.holder(OnProcess("build")) is not None
        assert store.maintenance.verify().ok

    def test_a_block_is_stored_like_the_same_calls_one_by_one(self, store: BlockingStore, bench: Bench) -> None:
        with store.transaction() as tx:
            tx.sessions.create("one").commit(turn("t1", enqueues=[work("x", session_id="two", source_key="k")]))
        tables = {name: len(rows) for name, rows in bench.dump().items()}
        store.sessions.create("three").commit(turn("t1", enqueues=[work("x", session_id="four", source_key="k")]))
        for name in ("revisions", "nodes", "batches"):
            assert len(bench.dump()[name]) == 2 * tables[name], name

    def test_an_exception_leaves_no_trace(self, store: BlockingStore, bench: Bench) -> None:
        store.sessions.create("one").commit(turn("t0"))
        before = bench.dump()
        with pytest.raises(Stop), store.transaction() as tx:
            fill(tx)
            stop(tx)
        assert bench.dump() == before
        fill(store)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_an_exit_of_the_program_leaves_no_trace(
        self, store: BlockingStore, bench: Bench, error: type[BaseException]
    ) -> None:
        before = bench.dump()
        with pytest.raises(error), store.transaction() as tx:
            tx.sessions.create("one")
            raise error
        assert bench.dump() == before
        store.sessions.create("one")

    def test_a_call_sees_the_calls_before_it(self, store: BlockingStore) -> None:
        with store.transaction() as tx:
            session = tx.sessions.create("one")
            assert session.commit(turn("t1")).revision == 1
            assert session.commit(turn("t1")).replayed
            view = session.load()
            assert view is not None
            assert view.revision == 1
            assert len(tx.queue.list("one")) == 0
            tx.queue.enqueue(work("1", session_id="one"))
            assert len(tx.queue.list("one")) == 1
            assert tx.queue.claim("one", owner_id="w", ttl_ms=60_000) is not None

    def test_a_refused_call_leaves_the_transaction_usable(self, store: BlockingStore) -> None:
        store.sessions.create("one").commit(turn("t0"))
        with store.transaction() as tx:
            tx.sessions.handle("two").commit(turn("t1"))
            with pytest.raises(holdfast.HeadConflict):
                tx.sessions.handle("one").commit(turn("t1", expected_revision=0))
            with pytest.raises(holdfast.InvalidRequest):
                tx.queue.claim("one", owner_id="", ttl_ms=1)
            with pytest.raises(holdfast.UnknownProcess):
                tx.events.append("nothing", "news", 1)
            tx.sessions.handle("three").commit(turn("t1"))
        heads = {entry.session_id: entry.revision for entry in store.sessions.list()}
        assert heads == {"one": 1, "two": 1, "three": 1}

    def test_a_turn_that_was_rolled_back_is_not_replayed(self, store: BlockingStore) -> None:
        with pytest.raises(Stop), store.transaction() as tx:
            tx.sessions.handle("one").commit(turn("t1"))
            stop(tx)
        assert not store.sessions.handle("one").commit(turn("t1")).replayed
        assert store.sessions.handle("one").commit(turn("t1")).replayed

    def test_handles_learn_nothing_that_a_rollback_undoes(self, store: BlockingStore) -> None:
        with pytest.raises(Stop), store.transaction() as tx:
            handle = tx.sessions.unbound()
            handle.commit(turn("t1", session_id="one"))
            assert handle.session_id is None
            stop(tx)
        assert store.sessions.open("one") is None

    def test_large_states_of_a_rolled_back_block_are_not_built_upon(self, store: BlockingStore) -> None:
        def state(fill: str) -> holdfast.Checkpoint:
            return holdfast.Checkpoint(turn_state={"text": fill * LARGE})

        session = store.sessions.create("one")
        session.commit(holdfast.Commit(turn_id="t1", checkpoint=state("a")))
        with pytest.raises(Stop), store.transaction() as tx:
            tx.sessions.handle("one").commit(holdfast.Commit(turn_id="t2", checkpoint=state("b")))
            stop(tx)
        with store.transaction() as tx:
            tx.sessions.handle("one").commit(holdfast.Commit(turn_id="t2", checkpoint=state("c")))
        session.commit(holdfast.Commit(turn_id="t3", checkpoint=state("d")))
        view = session.load()
        assert view is not None
        assert view.checkpoint is not None
        assert view.checkpoint.turn_state == {"text": "d" * LARGE}
        assert store.maintenance.verify().ok

    # Waiters.

    def test_waiters_are_woken_by_the_commit(self, store: BlockingStore, bench: Bench) -> None:
        other = bench.open()
        wait = in_background(lambda: other.queue.wait("one", timeout_ms=TIMEOUT_S * 1_000))
        bench.parked()
        with store.transaction() as tx:
            tx.queue.enqueue(work("1", session_id="one"))
            tx.queue.enqueue(work("2", session_id="one"))
        wait.result(TIMEOUT_S)
        assert len(other.queue.list("one")) == 2

    def test_waiters_see_nothing_of_a_rollback(self, store: BlockingStore, bench: Bench) -> None:
        other = bench.open()
        wait = in_background(lambda: other.queue.wait("one", timeout_ms=200))
        bench.parked()
        with pytest.raises(Stop), store.transaction() as tx:
            tx.queue.enqueue(work("1", session_id="one"))
            stop(tx)
        assert isinstance(wait.exception(TIMEOUT_S), holdfast.WaitTimeout)

    # Refusals.

    @pytest.mark.parametrize("name", REFUSED_INSIDE)
    def test_inside_is_refused(self, store: BlockingStore, name: str) -> None:
        with store.transaction() as tx:
            tx.sessions.create("one")
            with pytest.raises(holdfast.InvalidRequest) as refusal:
                REFUSED_INSIDE[name](tx)
            assert refusal.value.field in {"transaction", "store"}
        assert store.sessions.open("one") is not None

    def test_bytes_outside_are_refused_inside(self, bench: Bench, tmp_path: Any) -> None:
        from holdfast.folder import Folder

        store = bench.open(attachments=Folder(tmp_path / "bytes"))
        with store.transaction() as tx:
            with pytest.raises(holdfast.InvalidRequest) as refusal:
                tx.sessions.create("one").attachments.put(b"picture")
            assert refusal.value.field == "transaction"

    @pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
    def test_use_after_the_end_is_refused(self, store: BlockingStore, commits: bool) -> None:
        kept: list[Any] = []
        try:
            with store.transaction() as tx:
                kept += [tx, tx.sessions.create("one")]
                if not commits:
                    stop(tx)
        except Stop:
            pass
        tx, handle = kept
        for call in (
            lambda: tx.sessions.create("two"),
            tx.sessions.list,
            lambda: handle.commit(turn("t1")),
            handle.load,
            tx.now_ms,
        ):
            with pytest.raises(holdfast.InvalidRequest, match="has ended") as refusal:
                call()
            assert refusal.value.field == "transaction"
        assert (store.sessions.open("one") is not None) is commits
        assert store.sessions.open("two") is None

    def test_a_write_around_the_transaction_is_refused_in_its_block(self, store: BlockingStore, bench: Bench) -> None:
        handle = store.sessions.create("one")
        with store.transaction() as tx:
            tx.sessions.handle("one").commit(turn("t1"))
            before = bench.dump()
            for call in (
                lambda: store.sessions.create("two"),
                lambda: handle.commit(turn("t2")),
                lambda: store.queue.enqueue(work("1", session_id="one")),
                lambda: store.transaction().__enter__(),
                store.close,
            ):
                with pytest.raises(holdfast.InvalidRequest, match="tx"):
                    call()
            assert bench.dump() == before
            view = handle.load()
            assert view is None or view.revision == 0
        handle.commit(turn("t2", expected_revision=1))

    def test_a_transaction_is_for_one_block(self, store: BlockingStore) -> None:
        block = store.transaction()
        with block as tx:
            tx.sessions.create("one")
        with pytest.raises(holdfast.InvalidRequest), block:
            pass  # pragma: no cover
        store.sessions.create("two")

    @pytest.mark.parametrize("limit", [0, -1, 3_600_001, 1.5, "5", None, True])
    def test_a_limit_must_be_a_time(self, store: BlockingStore, limit: Any) -> None:
        with pytest.raises(holdfast.InvalidRequest) as refusal:
            store.transaction(timeout_ms=limit)
        assert refusal.value.field == "timeout_ms"

    # Others.

    def test_other_writers_wait_and_readers_do_not(self, store: BlockingStore, bench: Bench) -> None:
        other = bench.open()
        other.sessions.create("one")
        with store.transaction() as tx:
            assert tx.sessions.handle("one").commit(turn("t1")).revision == 1
            # It would be revision 1 unless it waited.
            later = in_background(lambda: other.sessions.handle("one").commit(turn("t2")))
            read = in_background(lambda: other.sessions.handle("one").load())
            view = read.result(TIMEOUT_S)
            assert view is None or view.revision == 0
            tx.sessions.create("two")
        assert later.result(TIMEOUT_S).revision == 2

    def test_transactions_of_one_store_follow_one_another(self, store: BlockingStore) -> None:
        store.sessions.create("count").commit(turn("t0"))

        def add(name: str) -> None:
            for number in range(ROUNDS):
                while True:
                    try:
                        with store.transaction(timeout_ms=60_000) as tx:
                            session = tx.sessions.handle("count")
                            view = session.load()
                            assert view is not None
                            session.commit(turn(f"{name}{number}", expected_revision=view.revision))
                            tx.queue.enqueue(work(name, session_id="log"))
                    except holdfast.HoldfastError as error:
                        # On PostgreSQL another transaction may come between the two calls.
                        if not (error.retryable or isinstance(error, holdfast.HeadConflict)):
                            raise
                    else:
                        break

        assert at_once(*(lambda name=name: add(name) for name in "abc")) == [None] * 3
        view = store.sessions.handle("count").load()
        assert view is not None
        assert view.revision == 3 * ROUNDS + 1
        assert len(store.queue.list("log", limit=100)) == 3 * ROUNDS

    def test_transactions_that_cross_lose_nothing(self, store: BlockingStore, bench: Bench) -> None:
        """Two handles move between two sessions in opposite order: one may be refused, and is run again."""
        handles = [store, bench.open()]
        for name in ("one", "two"):
            store.sessions.create(name).commit(turn("t0"))

        def move(handle: BlockingStore, order: tuple[str, str]) -> int:
            refusals = 0
            for number in range(ROUNDS):
                while True:
                    try:
                        with handle.transaction(timeout_ms=60_000) as tx:
                            for name in order:
                                tx.sessions.handle(name).commit(turn(f"{order[0]}-{number}"))
                    except holdfast.Unavailable as error:
                        assert error.retryable
                        assert error.outcome == "not_applied"
                        refusals += 1
                    else:
                        break
            return refusals

        moved = at_once(lambda: move(handles[0], ("one", "two")), lambda: move(handles[1], ("two", "one")))
        assert all(isinstance(count, int) for count in moved), moved
        for name in ("one", "two"):
            view = store.sessions.handle(name).load()
            assert view is not None
            assert view.revision == 2 * ROUNDS + 1
        assert store.maintenance.verify().ok

    def test_a_transaction_that_is_left_open_is_rolled_back(self, store: BlockingStore, bench: Bench) -> None:
        other = bench.open()
        other.sessions.create("one")
        kept: list[BlockingStore] = []
        with pytest.raises(TransactionExpired) as expired, store.transaction(timeout_ms=200) as tx:
            kept.append(tx)
            tx.sessions.handle("one").commit(turn("t1"))
            later = in_background(lambda: other.sessions.handle("one").commit(turn("t2", expected_revision=0)))
            # It waits for the lock, which only the time limit frees.
            assert later.result(TIMEOUT_S).revision == 1
            with pytest.raises(TransactionExpired):
                tx.sessions.create("two")
        assert expired.value.outcome == "not_applied"
        assert expired.value.timeout_ms == 200
        with pytest.raises(TransactionExpired):
            kept[0].sessions.create("two")
        assert [entry.session_id for entry in store.sessions.list()] == ["one"]
        with store.transaction() as tx:
            tx.sessions.handle("one").commit(turn("t3", expected_revision=1))

    def test_an_error_of_the_block_is_not_hidden_by_its_time_limit(self, store: BlockingStore, bench: Bench) -> None:
        other = bench.open()
        other.sessions.create("one")
        with pytest.raises(Stop), store.transaction(timeout_ms=100) as tx:
            tx.sessions.handle("one").commit(turn("t1"))
            in_background(lambda: other.sessions.handle("one").commit(turn("t2"))).result(TIMEOUT_S)
            stop(tx)
        assert len(store.sessions.handle("one").history()) == 1

    def test_a_close_waits_for_an_open_transaction(self, bench: Bench) -> None:
        store, other = bench.open(), bench.open()
        if bench.durability == "ephemeral":
            pytest.skip("handles on memory share one backend")
        closing: Future[None]
        with store.transaction() as tx:
            tx.sessions.create("one")
            closing = in_background(store.close)
            tx.sessions.create("two")
        closing.result(TIMEOUT_S)
        with pytest.raises(StoreClosed), store.transaction():
            pass  # pragma: no cover
        assert [entry.session_id for entry in other.sessions.list()] == ["one", "two"]

    # Positions.

    def test_positions_of_a_transaction_are_reached_by_its_commit(self, store: BlockingStore) -> None:
        with store.transaction() as tx:
            receipt = tx.sessions.handle("one").commit(turn("t1"))
            position = tx.position()
        for after in (receipt, position):
            view = store.reading(after=after).sessions.handle("one").load()
            assert view is not None
            assert view.revision == 1
