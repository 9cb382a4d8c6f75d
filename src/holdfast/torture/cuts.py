"""A connection is cut in each byte of a call and of its answer; sent again, the call has happened once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

import holdfast
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.proxy import Direction, Proxy, Unreachable, target_of
from holdfast.torture.soundness import unsound

T = TypeVar("T")

SESSION = "cut"
DIRECTIONS: tuple[Direction, ...] = ("asking", "answering")
MOST_WRONG = 3
STRIDE: dict[Direction, int] = {"asking": 32, "answering": 8}
"""One run cuts in every so many bytes; runs with that many seeds in a row cut in every byte."""


class Trial(NamedTuple):
    """A call, what it needs, and what must be true afterwards; each is given the number of the call."""

    prepare: Callable[[holdfast.BlockingStore, int], Any]
    call: Callable[[holdfast.BlockingStore, int], Any]
    check: Callable[[holdfast.BlockingStore, int, Any], list[str]]


def _nothing(_: holdfast.BlockingStore, _number: int) -> None:
    """Nothing is needed."""


def _turn(store: holdfast.BlockingStore, number: int) -> holdfast.CommitReceipt:
    turn = holdfast.Commit(
        turn_id=f"turn-{number}",
        expected_revision=number - 1,
        graph=holdfast.Append([holdfast.Node(f"node-{number}")], f"node-{number}"),
        usage=[holdfast.Usage("turn", "model", input_tokens=1)],
    )
    return store.sessions.handle(SESSION).commit(turn)


def _turned(store: holdfast.BlockingStore, number: int, receipt: holdfast.CommitReceipt | None) -> list[str]:
    # Sent once more, whatever became of it: that must change nothing.
    receipt = receipt or _turn(store, number)
    view = store.sessions.handle(SESSION).load(holdfast.ActivePath(last=1))
    assert view is not None
    stands = (receipt.revision, view.revision, view.node_count, view.ledger[0].input_tokens)
    return [] if stands == (number,) * 4 else [f"I4: turn {number} stands at {stands}"]


def _enqueued(store: holdfast.BlockingStore, number: int) -> None:
    store.queue.enqueue(holdfast.WorkDraft(session_id=SESSION, payloads=[number], source_key=f"work-{number}"))


def _claim(store: holdfast.BlockingStore, _: int) -> holdfast.WorkClaim | None:
    return store.queue.claim(SESSION, owner_id="worker", ttl_ms=60_000)


def _claimed(store: holdfast.BlockingStore, number: int, claim: holdfast.WorkClaim | None) -> list[str]:
    held = [batch.source_key for batch in store.queue.list(SESSION) if batch.state == "claimed"]
    if claim is None:
        # An unknown outcome: it was taken for somebody who never heard of it, and lapses by itself; or it was not.
        claim = _claim(store, number)
        if claim is None:
            return [f"I6: claim {number} gave nothing, and {held} is held"] if len(held) != 1 else []
    keys = [batch.source_key for batch in claim.batches]
    if f"work-{number}" not in keys:
        return [f"I6: claim {number} gave {keys}"]
    store.sessions.handle(SESSION).commit(holdfast.Commit(turn_id=f"settle-{number}", completes=[claim]))
    settled = store.queue.get(SESSION, claim.batches[-1].batch_id)
    state = None if settled is None else settled.state
    return [] if state == "completed" else [f"I6: batch {number} is {state}"]


def _append(store: holdfast.BlockingStore, number: int) -> holdfast.AppendReceipt:
    return store.events.append(LOG, "note", number, replay_key=f"event-{number}")


def _appended(store: holdfast.BlockingStore, number: int, receipt: holdfast.AppendReceipt | None) -> list[str]:
    receipt = receipt or _append(store, number)
    last = store.events.recent(LOG, limit=1)
    stands = (receipt.event.sequence, last[0].sequence, last[0].payload)
    return [] if stands == (number,) * 3 else [f"I8: event {number} stands at {stands}"]


def _registered(store: holdfast.BlockingStore, number: int) -> None:
    store.processes.register(holdfast.ProcessRegistration(f"job-{number}", holdfast.External()))


def _complete(store: holdfast.BlockingStore, number: int) -> holdfast.Process:
    return store.processes.complete(f"job-{number}", holdfast.Completed(number))


def _completed(store: holdfast.BlockingStore, number: int, process: holdfast.Process | None) -> list[str]:
    process = process or _complete(store, number)
    ends = [event for event in store.events.after(f"job-{number}") if event.terminal_state is not None]
    fits = process.outcome == holdfast.Completed(number) and len(ends) == 1
    return [] if fits else [f"I4: process {number} stands at {process.outcome} with {len(ends)} ends"]


COMMIT = Trial(_nothing, _turn, _turned)
CLAIM = Trial(_enqueued, _claim, _claimed)
APPEND = Trial(_nothing, _append, _appended)
COMPLETE = Trial(_registered, _complete, _completed)


class Sweep:
    """Cuts one call in every so many bytes, in both directions, on one store."""

    def __init__(self, place: Place, trial: Trial, first: int) -> None:
        self._proxy = Proxy(place.url)
        # One connection, so that the call that is cut finds its statement known to the server.
        self._place = Place(self._proxy.url, msgspec.structs.replace(place.options, max_connections=1))
        self._trial = trial
        self._first = first
        self._number = 0
        self.cuts = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        """Cut in one byte after another until a call gets through."""
        with self._place.open() as store:
            for direction in DIRECTIONS:
                after = self._first % STRIDE[direction]
                while self._once(store, direction, after) and len(self.wrong) < MOST_WRONG:
                    after += STRIDE[direction]
        self._proxy.close()

    def _once(self, store: holdfast.BlockingStore, direction: Direction, after: int) -> bool:
        """Cut in one byte; False if the call was over before it came to that byte."""
        # The first call on a new connection teaches the server the statement; what is cut is a call like any other.
        self._make(store, None)
        before = self._proxy.cuts
        self.wrong += [f"{one} ({direction}, byte {after})" for one in self._make(store, (direction, after))]
        cut = self._proxy.cuts > before
        self.cuts += cut
        return cut

    def _make(self, store: holdfast.BlockingStore, cut: tuple[Direction, int] | None) -> list[str]:
        self._number += 1
        self._trial.prepare(store, self._number)
        if cut is not None:
            self._proxy.cut(*cut)
        answer: Any = None
        problems: list[str] = []
        try:
            answer = self._trial.call(store, self._number)
        except Exception as error:  # whatever a caller gets to see is judged
            problems = untyped(error)
        finally:
            self._proxy.measure()
        return problems + self._trial.check(store, self._number, answer)


def untyped(error: Exception) -> list[str]:
    """What is wrong with an error that a cut connection led to."""
    if isinstance(error, holdfast.Unavailable) and error.retryable and error.outcome in {"not_applied", "unknown"}:
        return []
    return [f"I9: {type(error).__name__}: {error}"]


def _sweep(scratch: Scratch, seed: int, *trials: Trial) -> Ran:
    assert isinstance(scratch, PostgresScratch)
    wrong: list[str] = []
    cuts = 0
    kinds = [holdfast.EventType("note")]
    for trial in trials:
        place = scratch.fresh()
        with place.open() as store:
            store.sessions.create(SESSION)
            store.processes.register(holdfast.ProcessRegistration(LOG, holdfast.External(), event_types=kinds))
        sweep = Sweep(place, trial, seed % STRIDE["asking"])
        sweep.run()
        cuts += sweep.cuts
        wrong += sweep.wrong
        with place.open() as store:
            wrong += unsound(store)
    return Ran(cuts, tuple(wrong))


def cut_commit_and_claim(scratch: Scratch, seed: int) -> Ran:
    """Some bytes of a commit and of a claim."""
    return _sweep(scratch, seed, COMMIT, CLAIM)


def cut_append_and_complete(scratch: Scratch, seed: int) -> Ran:
    """Some bytes of an append and of a completion."""
    return _sweep(scratch, seed, APPEND, COMPLETE)


def obstacle(scratch: Scratch) -> str | None:
    """Why no proxy can stand in front of this database, if none can."""
    try:
        target_of(scratch.url)
    except Unreachable as error:
        return str(error)
    return None


CUT_COMMIT_AND_CLAIM = Fault(
    "cut-commit-and-claim",
    "the connection is cut in each byte of a commit and of a claim, and of their answers",
    ("I4", "I6", "I9", "I10"),
    {"postgres": Numbers(1, 10_000)},
    cut_commit_and_claim,
    unit="cuts",
    obstacle=obstacle,
)

CUT_APPEND_AND_COMPLETE = Fault(
    "cut-append-and-complete",
    "the connection is cut in each byte of an append and of a completion, and of their answers",
    ("I4", "I8", "I9", "I10"),
    {"postgres": Numbers(0, 10_000)},
    cut_append_and_complete,
    unit="cuts",
    obstacle=obstacle,
)
