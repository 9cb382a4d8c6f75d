"""Turns as blocks: what a block adds is one commit at its end, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore, Session, Turn
from holdfast.errors import SessionBindingConflict, SourceKeyConflict
from holdfast.sessions import Graph, ReplaceGraph, Unchanged
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.queue import work


class Broken(Exception):
    """Raised by a block."""


def chat(store: BlockingStore, session_id: str = "chat") -> Session:
    """Return the handle of a new session."""
    return store.sessions.create(session_id)


class Text(str):
    """A subclass of str, as ids of some frameworks are."""

    __slots__ = ()


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "append": lambda messages: messages.append("lost without a word"),
    "replace": lambda messages: messages.__setitem__(0, {"n": 1}),
    "replace its own": lambda messages: messages.__setitem__(-1, {"n": 3}),
    "remove": lambda messages: messages.pop(0),
    "move": lambda messages: messages.reverse(),
}


class TurnContract(Contract):
    """`session.turn`, `session.append`, `session.enqueue`, `session.messages`."""

    def test_a_block_is_one_commit_with_everything_that_it_added(self, store: BlockingStore) -> None:
        session = chat(store)
        store.queue.enqueue(work("hello"))
        claim = store.queue.claim("chat", owner_id="w1")
        assert claim is not None
        with session.turn("message-1") as turn:
            assert (turn.replayed, turn.revision, turn.messages, turn.state) == (False, 0, [], {})
            turn.add({"role": "user"}, {"role": "assistant"})
            turn.add("noted", kind="note")
            turn.state["count"] = 1
            turn.usage("some-model", input_tokens=3, output_tokens=2)
            ref = turn.attach(b"cat", media_type="image/png")
            turn.enqueue(holdfast.WorkDraft(payloads=["follow up"], session_id="other"))
            turn.complete(claim)
            assert turn.messages == [{"role": "user"}, {"role": "assistant"}, "noted"]
        receipt = turn.receipt
        assert receipt is not None
        assert (receipt.revision, receipt.replayed, turn.revision) == (1, False, 1)
        view = session.load()
        assert view is not None
        assert [(node.id, node.parent, node.kind) for node in view.graph.nodes] == [
            ("message-1/0", None, "event"),
            ("message-1/1", "message-1/0", "event"),
            ("message-1/2", "message-1/1", "note"),
        ]
        assert view.checkpoint == holdfast.Checkpoint(turn_state={"count": 1})
        assert view.ledger == (holdfast.Usage("turn", "some-model", 3, 2),)
        assert session.attachments.get(ref.id).data == b"cat"
        assert [entry.turn_id for entry in session.history()] == ["message-1"]
        [settled] = [store.queue.get("chat", batch.batch_id) for batch in claim.batches]
        assert settled is not None
        assert (settled.state, settled.settled_revision) == ("completed", 1)
        assert [item.payload for batch in store.queue.list("other") for item in batch.items] == ["follow up"]

    def test_a_turn_for_claimed_work_settles_it_and_what_joined_it(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        first = store.queue.enqueue(work("one"))
        claim = store.queue.claim("chat", owner_id="w1", exclusive=True)
        assert claim is not None
        with session.turn(claim=claim) as turn:
            assert (turn.turn_id, turn.inputs, turn.more()) == (first.batch_id, ["one"], [])
            second = bench.open().queue.enqueue(work("two"))
            assert (turn.more(), turn.input, turn.inputs) == (["two"], "one", ["one", "two"])
            turn.add("both")
        for batch_id in (first.batch_id, second.batch_id):
            settled = store.queue.get("chat", batch_id)
            assert settled is not None
            assert (settled.state, settled.settled_revision) == ("completed", 1)
        with refused(bench, holdfast.InvalidRequest):
            store.sessions.handle("other").turn(claim=claim)

    def test_a_turn_whose_claim_is_lost_commits_nothing(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        session = chat(store)
        store.queue.enqueue(work("one"))
        claim = store.queue.claim("chat", owner_id="w1", ttl_ms=1000)
        with refused(bench, holdfast.ClaimLost), session.turn(claim=claim) as turn:
            turn.add("late")
            clock.advance(1000)

    def test_a_turn_without_a_claim_has_no_input(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        asks: list[Callable[[Turn], object]] = [lambda turn: turn.input, lambda turn: turn.more()]
        for ask in asks:
            with refused(bench, holdfast.InvalidRequest) as info, session.turn("t1") as turn:
                assert turn.inputs == []
                ask(turn)
            assert "claim=" in str(info.value)

    def test_the_next_turn_sees_the_last_one(self, store: BlockingStore) -> None:
        session = chat(store)
        with session.turn("t1") as turn:
            turn.add("one", "two")
            turn.state = ["any", "document"]
        with session.turn("t2", last=1) as turn:
            assert (turn.revision, turn.messages, turn.state) == (1, ["two"], ["any", "document"])
            turn.add("three")
        assert session.messages() == ["one", "two", "three"]
        assert session.messages(last=2) == ["two", "three"]

    def test_an_exception_in_the_block_commits_nothing(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        session.append("before")
        with refused(bench, Broken), session.turn("t1") as turn:
            turn.add("lost")
            turn.state = {"lost": True}
            raise Broken
        assert (turn.receipt, session.messages()) == (None, ["before"])

    def test_a_turn_that_was_committed_before_shows_its_result(self, store: BlockingStore) -> None:
        session = chat(store)
        for number in (1, 2, 3):
            with session.turn(f"t{number}") as turn:
                turn.add(f"message {number}")
                turn.state["n"] = number
        for number in (1, 2, 3):
            with session.turn(f"t{number}") as turn:
                assert turn.replayed
                assert turn.messages == [f"message {one}" for one in range(1, number + 1)]
                assert turn.state == {"n": number}
                assert turn.receipt is not None
                assert (turn.receipt.revision, turn.receipt.replayed) == (number, True)
        assert len(list(session.history())) == 3

    def test_a_replayed_turn_takes_no_values(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        with session.turn("t1") as turn:
            turn.add("one")
        for add in (
            lambda: turn.add("two"),
            lambda: turn.usage("m", input_tokens=1),
            lambda: turn.enqueue(work("x")),
            lambda: turn.attach(b"x"),
        ):
            with refused(bench, holdfast.TurnConflict) as info, session.turn("t1") as turn:
                add()
            assert "turn.replayed" in str(info.value)
            assert "revision 1" in str(info.value)

    def test_a_turn_that_was_committed_meanwhile_is_replayed_and_its_values_dropped(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        session, other = chat(store), bench.open().sessions.handle("chat")
        with session.turn("t1") as turn:
            turn.add("late")
            with other.turn("t1") as first:
                first.add("early")
                first.state = {"by": "first"}
        assert turn.replayed
        assert (turn.messages, turn.state, session.messages()) == (["early"], {"by": "first"}, ["early"])

    def test_a_turn_that_another_one_overtook_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        session, other = chat(store), bench.open().sessions.handle("chat")
        turn = session.turn("t1")

        def run() -> None:
            with turn:
                turn.add("mine")
                other.append("theirs")

        with pytest.raises(holdfast.HeadConflict) as info:
            run()
        assert (info.value.expected, info.value.actual) == (0, 1)
        assert session.messages() == ["theirs"]

    def test_a_message_may_be_completed_after_it_was_added(self, store: BlockingStore) -> None:
        session = chat(store)
        with session.turn("t1") as turn:
            streamed = {"role": "assistant", "content": ""}
            turn.add(streamed)
            for part in ("hel", "lo"):
                streamed["content"] += part
        assert session.messages() == [{"role": "assistant", "content": "hello"}]

    def test_other_parts_of_the_checkpoint_stay(self, store: BlockingStore) -> None:
        session = chat(store)
        checkpoint = holdfast.Checkpoint(turn_state={"n": 1}, tool_state=["kept"], others={"memory": "kept"})
        session.commit(holdfast.Commit(checkpoint=checkpoint))
        with session.turn("t1") as turn:
            turn.state["n"] += 1
        view = session.load()
        assert view is not None
        assert view.checkpoint == holdfast.Checkpoint(
            turn_state={"n": 2}, tool_state=["kept"], others={"memory": "kept"}
        )

    def test_a_state_that_is_only_read_is_not_stored(self, store: BlockingStore) -> None:
        session = chat(store)
        with session.turn("t1") as turn:
            assert turn.state.get("count", 0) == 0
        view = session.load()
        assert view is not None
        assert (view.revision, view.checkpoint) == (1, None)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_a_changed_list_of_messages_is_refused(
        self, store: BlockingStore, bench: Bench, change: Callable[[list[Any]], object]
    ) -> None:
        session = chat(store)
        session.append({"n": 1}, {"n": 2}, turn_id="t0")
        with refused(bench, holdfast.InvalidRequest) as info, session.turn("t1") as turn:
            turn.add({"n": 3})
            change(turn.messages)
        assert "turn.add" in str(info.value)
        assert session.messages() == [{"n": 1}, {"n": 2}]

    def test_a_turn_takes_values_only_inside_its_block(self, store: BlockingStore, bench: Bench) -> None:
        turn = chat(store).turn("t1")
        with refused(bench, holdfast.InvalidRequest):
            turn.add("too early")
        with turn:
            turn.add("in time")
        with refused(bench, holdfast.InvalidRequest):
            turn.state = {"too": "late"}
        with refused(bench, holdfast.InvalidRequest), turn:
            pass
        failed = store.sessions.handle("chat").turn("t2")
        with refused(bench, Broken), failed:
            failed.add("of a block that failed")
            raise Broken
        with refused(bench, holdfast.InvalidRequest), failed:
            pass

    def test_a_message_that_json_cannot_hold_is_refused(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        with refused(bench, holdfast.InvalidRequest) as info, session.turn("t1") as turn:
            turn.add({"at": object()})
        assert "turn.add[0]" in str(info.value)

    def test_a_turn_needs_a_session_and_an_id(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        for turn_id in ("", "x" * store.limits.id_bytes):
            with refused(bench, holdfast.InvalidRequest) as info:
                session.turn(turn_id)
            assert "turn_id" in str(info.value)
        with refused(bench, SessionBindingConflict):
            store.sessions.unbound().turn("t1")

    def test_a_session_enqueues_what_a_draft_would(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.handle("chat")
        batch = session.enqueue("one", {"two": 2}, source_key="k", kind="mail", priority=3, slot="exclusive")
        draft = holdfast.WorkDraft(
            session_id="chat", payloads=["one", {"two": 2}], source_key="k", kind="mail", priority=3, slot="exclusive"
        )
        assert (batch.session_id, store.queue.enqueue(draft)) == ("chat", batch)
        assert session.enqueue("one", {"two": 2}, source_key="k", kind="mail", slot="exclusive") == batch
        with refused(bench, SourceKeyConflict):
            session.enqueue("other", source_key="k")
        for given, field in (((), "payloads"), (("x", {1}), "payloads[1]")):
            with refused(bench, holdfast.InvalidRequest) as info:
                session.enqueue(*given)
            assert isinstance(info.value, holdfast.InvalidRequest)
            assert info.value.field == field
        with refused(bench, SessionBindingConflict):
            store.sessions.unbound().enqueue("x")

    def test_a_handle_on_a_deleted_session_enqueues_nothing_in_the_next_one(
        self, store: BlockingStore, bench: Bench
    ) -> None:
        old = chat(store)
        assert old.enqueue("before").state == "pending"
        store.sessions.delete("chat")
        with refused(bench, holdfast.SessionDeleted):
            old.enqueue("after")
        new = chat(store)
        with refused(bench, holdfast.SessionDeleted):
            old.enqueue("after")
        new.enqueue("mine")
        assert [batch.items[0].payload for batch in store.queue.list("chat")] == ["mine"]

    def test_append_follows_whatever_came_before(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        assert session.messages() == []
        session.append("one", "two")
        bench.open().sessions.handle("chat").append("three", turn_id="t3")
        assert session.append("three", turn_id="t3").replayed
        assert session.messages() == ["one", "two", "three"]
        with refused(bench, holdfast.InvalidRequest):
            session.append()
        with refused(bench, holdfast.TurnConflict):
            session.append("other", turn_id="t3")

    def test_append_waits_for_the_turn_of_a_worker(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        store.queue.enqueue(work("hello"))
        claim = store.queue.claim_next(owner_id="w1", exclusive=True, ttl_ms=3_600_000)
        assert claim is not None
        other = bench.open().sessions.handle("chat")
        ended = in_background(lambda: other.append("late", wait_ms=TIMEOUT_S * 1_000))
        bench.parked()
        with session.turn(claim=claim) as turn:
            turn.add("answer")
        assert ended.result(TIMEOUT_S).revision == 2
        assert session.messages() == ["answer", "late"]

    def test_append_is_refused_while_the_turn_of_a_worker_continues(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        session.append("before", turn_id="t1")
        store.queue.enqueue(work("hello"))
        claim = store.queue.claim_next(owner_id="w1", exclusive=True, ttl_ms=3_600_000)
        assert claim is not None
        with refused(bench, holdfast.LeaseHeld) as info:
            session.append("late", wait_ms=1)
        held = info.value
        assert isinstance(held, holdfast.LeaseHeld)
        assert (held.owner, held.expires_at_ms) == ("w1", claim.expires_at_ms)
        assert "session.enqueue" in str(held)
        with refused(bench, holdfast.LeaseHeld), store.transaction() as tx:
            tx.sessions.handle("chat").append("late")
        assert session.append("before", turn_id="t1").replayed, "a turn that was committed has nothing to wait for"
        store.queue.give_back(claim)
        shared = store.queue.claim_next(owner_id="w1")
        assert shared is not None
        assert session.append("beside a job").revision == 2

    def test_a_block_waits_for_the_turn_of_a_worker(self, store: BlockingStore, bench: Bench) -> None:
        session = chat(store)
        store.queue.enqueue(work("hello"))
        claim = store.queue.claim_next(owner_id="w1", exclusive=True, ttl_ms=3_600_000)
        assert claim is not None
        other = bench.open().sessions.handle("chat")

        def run() -> list[object]:
            with other.turn("t2", wait_ms=TIMEOUT_S * 1_000) as turn:
                turn.add("late")
            return turn.messages

        ended = in_background(run)
        bench.parked()
        with session.turn(claim=claim) as turn:
            turn.add("answer")
        assert ended.result(TIMEOUT_S) == ["answer", "late"]

    def test_a_block_is_refused_while_the_turn_of_a_worker_continues(
        self, store: BlockingStore, bench: Bench, clock: ManualClock
    ) -> None:
        session = chat(store)
        session.append("before", turn_id="t1")
        store.queue.enqueue(work("hello"))
        claim = store.queue.claim_next(owner_id="w1", exclusive=True, ttl_ms=60_000)
        assert claim is not None
        for last in (None, 0, 1):
            with refused(bench, holdfast.LeaseHeld) as info, session.turn("t2", last=last, wait_ms=1):
                raise AssertionError("the block was entered")
            assert "session.enqueue" in str(info.value)
        with refused(bench, holdfast.LeaseHeld), store.transaction() as tx, tx.sessions.handle("chat").turn("t2"):
            raise AssertionError("the block was entered")
        with session.turn("t1", wait_ms=0) as turn:
            assert turn.replayed
        clock.advance(60_001)
        with session.turn("t2", wait_ms=0) as turn:
            turn.add("after the claim ended")
        assert turn.revision == 2

    def test_an_id_may_be_of_a_subclass_of_text(self, store: BlockingStore, bench: Bench) -> None:
        session = store.sessions.create(Text("chat"), labels={"user": Text("ann")})
        session.commit(
            holdfast.Commit(turn_id=Text("t1"), graph=holdfast.Append([holdfast.Node(Text("n1"))], Text("n1")))
        )
        session.commit(holdfast.Commit(graph=Unchanged(leaf=Text("n1"))))
        replaced = ReplaceGraph(Graph([holdfast.Node(Text("n2"))], Text("n2")))
        draft = holdfast.WorkDraft(payloads=[1], source_key=Text("s"))
        assert session.commit(holdfast.Commit(graph=replaced, enqueues=[draft])).enqueued
        view = session.load()
        assert view is not None
        assert [node.id for node in view.graph.nodes] == ["n2"]
        assert [one.session_id for one in store.sessions.list(labels={"user": Text("ann")})] == ["chat"]
        with refused(bench, holdfast.InvalidRequest):
            session.commit(holdfast.Commit(graph=Unchanged(leaf=Text("no"))))
