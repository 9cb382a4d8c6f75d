"""Streams: followers see what a turn emits, each value once, whether it became void, and the turn that replaces it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast.blocking import BlockingStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.bench import TIMEOUT_S, Bench, Contract, in_background, refused
from holdfast.testing.contract.interrupts import RESERVED_MS, begun
from holdfast.testing.contract.queue import work

DAY_MS = 24 * 3_600_000
TURN_BYTES = 4 * 1024 * 1024
VALUE_BYTES = 64 * 1024
"""The documented bounds of one turn and of one value."""


def seen(store: BlockingStore, after: str | int | None = None) -> list[holdfast.sessions.StreamItem]:
    """Return what a follower sees now."""
    return list(store.sessions.handle("chat").follow(after, timeout_ms=0))


def contents(items: list[holdfast.sessions.StreamItem]) -> list[Any]:
    """Return items in short: a delta as its value, the others as pairs."""
    found: list[Any] = []
    for item in items:
        match item:
            case holdfast.sessions.StreamDelta(value=value):
                found.append(value)
            case holdfast.sessions.StreamVoid(reason=reason):
                found.append(("void", reason))
            case holdfast.sessions.StreamCommit(messages=messages):
                found.append(("commit", *messages))
    return found


def emitted(store: BlockingStore, claim: holdfast.WorkClaim, *values: Any) -> holdfast.blocking.Turn:
    """Begin the turn of a claim, emit values, and leave it in progress."""
    turn = store.sessions.handle("chat").turn(claim=claim)
    turn.__enter__()
    for value in values:
        turn.emit(value)
        turn.flush()
    return turn


class StreamContract(Contract):
    """`turn.emit` and `session.follow`."""

    def test_a_follower_sees_each_value_once_and_then_the_committed_turn(self, store: BlockingStore) -> None:
        claim = begun(store, "hi")
        turn = emitted(store, claim, "Hel", {"text": "lo"})
        first = seen(store)
        assert contents(first) == ["Hel", {"text": "lo"}]
        assert {item.turn_id for item in first} == {claim.batches[0].batch_id}
        assert contents(seen(store, first[0].cursor)) == [{"text": "lo"}]
        assert seen(store, first[1].cursor) == []
        turn.emit("!")
        turn.flush()
        assert contents(seen(store, first[1].cursor)) == ["!"]
        turn.add("hi", "Hello!")
        turn.__exit__(None, None, None)
        [committed] = seen(store, first[0].cursor)
        assert isinstance(committed, holdfast.sessions.StreamCommit)
        assert (committed.turn_id, committed.revision, committed.messages) == (turn.turn_id, 1, ("hi", "Hello!"))
        assert seen(store, committed.cursor) == []
        assert seen(store) == [], "a new follower begins now"
        assert contents(seen(store, 0)) == [("commit", "hi", "Hello!")]

    def test_the_values_of_an_ended_turn_leave_no_rows(self, bench: Bench, store: BlockingStore) -> None:
        turn = emitted(store, begun(store, "hi"), "a", "b")
        assert len(bench.dump()["stream_blocks"]) == 1, "the block grows in place"
        turn.__exit__(None, None, None)
        assert bench.dump()["stream_blocks"] == []
        claim = begun(store, "hi")
        failed = emitted(store, claim, "a")
        failed.__exit__(ValueError, ValueError("no"), None)
        assert bench.dump()["stream_blocks"] == []
        emitted(store, claim, "a")
        store.sessions.delete("chat")
        assert bench.dump()["stream_blocks"] == []

    def test_values_of_a_turn_that_is_tried_again_are_void(self, store: BlockingStore, clock: ManualClock) -> None:
        claim = begun(store, "hi")
        lost = emitted(store, claim, "once", "upon")
        [one, two] = seen(store)
        clock.advance(900_000)
        again = store.queue.claim_next(owner_id="w2", exclusive=True)
        assert again is not None
        turn = emitted(store, again)
        assert contents(seen(store, one.cursor)) == [("void", "restarted")], "before the new attempt emits anything"
        turn.emit("there was")
        turn.flush()
        assert contents(seen(store, two.cursor)) == [("void", "restarted"), "there was"]
        assert contents(seen(store)) == ["there was"]
        with suppress(holdfast.ClaimLost):
            lost.emit("a time")
            lost.flush()
        with pytest.raises(holdfast.ClaimLost):
            lost.emit("more")
        assert contents(seen(store)) == ["there was"], "a worker that lost its claim emits nothing"
        lost.__exit__(ValueError, ValueError("lost"), None)
        turn.add("there was once")
        turn.__exit__(None, None, None)
        assert contents(seen(store, two.cursor)) == [("commit", "there was once")], "the commit replaces all attempts"

    def test_a_follower_learns_how_a_turn_without_a_commit_ended(self, store: BlockingStore) -> None:
        session = store.sessions.handle("chat")
        interrupted = emitted(store, begun(store, "poem"), "once")
        [delta] = seen(store)
        session.interrupt()
        assert seen(store, delta.cursor) == [], "its worker may keep a part"
        interrupted.__exit__(ValueError, ValueError("stopped"), None)
        assert contents(seen(store, delta.cursor)) == [("void", "interrupted")]
        lease = store.leases.claim(holdfast.leases.OnSession("chat"), owner_id="w1")
        store.leases.release(lease)
        claim = begun(store, "poem")
        dead = emitted(store, claim, "once")
        [delta] = seen(store)
        store.queue.fail(claim, "no", retry_in_ms=None)
        dead.__exit__(ValueError, ValueError("no"), None)
        [void] = seen(store, delta.cursor)
        assert contents([void]) == [("void", "dead")]
        assert seen(store, void.cursor) == []

    @pytest.mark.parametrize("ended", ["dead", "cancelled", "interrupted"])
    @pytest.mark.parametrize("turn_id", [None, "named"])
    def test_values_of_a_killed_worker_are_void_once_its_turn_has_ended(
        self, store: BlockingStore, clock: ManualClock, ended: str, turn_id: str | None
    ) -> None:
        claim = begun(store, "poem")
        killed = store.sessions.handle("chat").turn(turn_id, claim=claim)
        killed.__enter__()
        killed.emit("once")
        killed.flush()
        [delta] = seen(store)
        clock.advance(900_000)
        assert seen(store, delta.cursor) == [], "the turn will be tried again"
        if ended == "dead":
            again = store.queue.claim_next(owner_id="w2", exclusive=True)
            assert again is not None
            store.queue.fail(again, "gave up", retry_in_ms=None)
        elif ended == "cancelled":
            assert store.queue.cancel("chat", claim.batches[0].batch_id)
        else:
            assert store.sessions.handle("chat").interrupt()
        reason = "restarted" if turn_id else ended  # the work of a turn with a name of its own is not known
        assert contents(seen(store, delta.cursor)) == [("void", reason)]
        assert seen(store) == [], "a page that is loaded anew shows nothing of it"
        store.sessions.handle("chat").append("next", turn_id="t2")
        assert contents(seen(store, 0)) == [("commit", "next")]

    def test_values_of_an_interrupted_turn_count_until_its_worker_has_no_time_left(
        self, store: BlockingStore, clock: ManualClock
    ) -> None:
        emitted(store, begun(store, "poem"), "once")
        [delta] = seen(store)
        store.sessions.handle("chat").interrupt()
        clock.advance(RESERVED_MS - 1)
        assert (seen(store, delta.cursor), contents(seen(store))) == ([], ["once"])
        clock.advance(1)
        assert (contents(seen(store, delta.cursor)), seen(store)) == ([("void", "interrupted")], [])

    def test_many_values_are_followed_from_any_place_at_a_flat_cost(self, bench: Bench, store: BlockingStore) -> None:
        turn = emitted(store, begun(store, "hi"), *[f"{number:04}" * 20 for number in range(60)])
        assert 1 < len(bench.dump()["stream_blocks"]) < 10
        items = seen(store)
        assert contents(items) == [f"{number:04}" * 20 for number in range(60)]
        for place in (0, 17, 18, 19, 36, 58):
            assert seen(store, items[place].cursor) == items[place + 1 :]
        turn.__exit__(None, None, None)

    def test_values_of_a_dead_worker_are_removed_by_a_later_turn_that_emits(
        self, bench: Bench, store: BlockingStore, clock: ManualClock
    ) -> None:
        emitted(store, begun(store, "hi"), "left behind")
        clock.advance(DAY_MS)
        store.queue.enqueue(work("hi", session_id="other"))
        claim = store.queue.claim("other", owner_id="w2", exclusive=True)
        assert claim is not None
        with store.sessions.handle("other").turn(claim=claim) as turn:
            turn.emit("new")
            turn.flush()
            assert len(bench.dump()["stream_blocks"]) == 1

    def test_turns_of_others_are_seen_from_a_revision_on(self, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for number in range(45):
            session.append(number, turn_id=f"t{number}")
        session.append(*range(40), turn_id="long")
        items = seen(store, 40)
        assert contents(items) == [*[("commit", number) for number in range(40, 45)], ("commit", *range(40))]
        assert len(seen(store, 0)) == 46

    def test_a_turn_of_a_fork_shows_no_messages_of_its_source(self, store: BlockingStore) -> None:
        """The turns of both count from one: that of the source with the same number is another one."""
        source = store.sessions.create("source")
        for number in range(3):
            source.append(number)
        fork = store.sessions.fork("source", into="chat")
        fork.append("new")
        assert contents(seen(store, 0)) == [("commit",), ("commit", "new")]

    def test_an_emitted_value_wakes_a_follower(self, bench: Bench, store: BlockingStore) -> None:
        turn = emitted(store, begun(store, "hi"))
        session = store.sessions.handle("chat")
        waiting = in_background(lambda: next(iter(session.follow())))
        bench.parked()
        turn.emit("now")
        assert contents([waiting.result(TIMEOUT_S)]) == ["now"]
        [delta] = seen(store)
        waiting = in_background(lambda: next(iter(session.follow(delta.cursor))))
        bench.parked()
        turn.add("now or never")
        turn.__exit__(None, None, None)
        assert contents([waiting.result(TIMEOUT_S)]) == [("commit", "now or never")]

    def test_bad_values_and_places_are_refused(self, bench: Bench, store: BlockingStore) -> None:
        turn = emitted(store, begun(store, "hi"), "a")
        for value in (object(), float("nan"), "x" * VALUE_BYTES, b"bytes"):
            with refused(bench, holdfast.InvalidRequest):
                turn.emit(value)
        for _ in range(TURN_BYTES // (VALUE_BYTES - 2) - 1):
            turn.emit("x" * (VALUE_BYTES - 2))
        with pytest.raises(holdfast.InvalidRequest, match="one turn may emit"):
            turn.emit("x" * (VALUE_BYTES - 2))
        for after in ("nonsense", -1, 1.5):
            with refused(bench, holdfast.InvalidRequest):
                seen(store, after)  # type: ignore[arg-type]
        with (
            store.sessions.create("plain").turn("t") as plain,
            pytest.raises(holdfast.InvalidRequest, match="claim"),
        ):
            plain.emit("a")

    def test_a_place_in_another_session_is_refused(self, bench: Bench, store: BlockingStore) -> None:
        session = store.sessions.create("chat")
        for number in range(3):
            session.append(number, turn_id=f"t{number}")
        *_, last = seen(store, 0)
        store.sessions.create("other").append("hello", turn_id="t0")
        with refused(bench, holdfast.InvalidRequest) as info:
            list(store.sessions.handle("other").follow(last.cursor, timeout_ms=0))
        assert "another session" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            seen(store, 4)
        assert "is at 3" in str(info.value)
        assert seen(store, 3) == []
        store.sessions.delete("chat")
        store.sessions.create("chat").append("anew", turn_id="t0")
        with refused(bench, holdfast.InvalidRequest) as info:
            seen(store, last.cursor)
        assert "before it was deleted" in str(info.value)
        with refused(bench, holdfast.InvalidRequest) as info:
            seen(store, 3)
        assert "is at 1" in str(info.value)
        assert contents(seen(store, 0)) == [("commit", "anew")]

    def test_a_session_that_does_not_exist_yet_can_be_followed(self, store: BlockingStore) -> None:
        assert seen(store) == []
        assert seen(store, 0) == []
