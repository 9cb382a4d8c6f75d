"""Fault: a connection is cut at each byte of a call and of its answer. Sent again, the call has one effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

import holdfast
from holdfast.events import AppendReceipt, EventType
from holdfast.processes import Completed, External, Process
from holdfast.sessions import ActivePath, CommitReceipt
from holdfast.torture.children import Port
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.proxy import Direction, Proxy, Unreachable, target_of
from holdfast.torture.soundness import unsound

T = TypeVar("T")

DIRECTIONS: tuple[Direction, ...] = ("asking", "answering")
PARTS = 4
"""Number of processes that share the bytes of a call: each spends most of a cut waiting for a new connection."""

WARM = 4
"""Number of calls that are measured."""

CERTAIN = 0.6
"""Share of the measured bytes that surely belongs to the call. Notifications of the store follow it."""

STRIDE = 9
"""A run cuts at every so many bytes, and the next seed at those beside them."""
SPARSE = {"unnamed-commit": 24}
"""Larger strides: a commit without an id is the same call, and only its error differs when it is cut."""

MOST_WRONG = 3
SWEEP_S = 600.0
"""Time limit for all the cuts of one process."""


class Trial(NamedTuple):
    """A call, its preparation, a test whether it is stored, and a check afterwards; each takes a name and a number."""

    prepare: Callable[[holdfast.BlockingStore, str, int], Any]
    call: Callable[[holdfast.BlockingStore, str, int], Any]
    stored: Callable[[holdfast.BlockingStore, str, int], bool]
    check: Callable[[holdfast.BlockingStore, str, int, Any], list[str]]


def _created(store: holdfast.BlockingStore, name: str, number: int) -> None:
    if number == 1:
        store.sessions.create(name)


def _turn(store: holdfast.BlockingStore, name: str, number: int) -> CommitReceipt:
    turn = holdfast.Commit(
        turn_id=f"turn-{number}",
        expected_revision=number - 1,
        graph=holdfast.Append([holdfast.Node(f"node-{number}")], f"node-{number}"),
        usage=[holdfast.Usage("turn", "model", input_tokens=1)],
    )
    return store.sessions.handle(name).commit(turn)


def _is_turned(store: holdfast.BlockingStore, name: str, number: int) -> bool:
    view = store.sessions.handle(name).load(ActivePath(last=1))
    return view is not None and view.revision >= number


def _turned(store: holdfast.BlockingStore, name: str, number: int, receipt: CommitReceipt | None) -> list[str]:
    # Send it once more in any case: that must change nothing.
    receipt = receipt or _turn(store, name, number)
    view = store.sessions.handle(name).load(ActivePath(last=1))
    assert view is not None
    stands = (receipt.revision, view.revision, view.node_count, view.ledger[0].input_tokens)
    return [] if stands == (number,) * 4 else [f"I4: turn {number} is at {stands}"]


def _unnamed(store: holdfast.BlockingStore, name: str, number: int) -> CommitReceipt:
    # Without an id the store cannot find out by itself whether it was applied, and has to report that.
    return store.sessions.handle(name).commit(holdfast.Commit(expected_revision=number - 1))


def _unnamed_turned(store: holdfast.BlockingStore, name: str, number: int, receipt: CommitReceipt | None) -> list[str]:
    if receipt is None and not _is_turned(store, name, number):
        _unnamed(store, name, number)
    view = store.sessions.handle(name).load(ActivePath(last=1))
    revision = None if view is None else view.revision
    return [] if revision == number else [f"I4: turn {number} without an id is at {revision}"]


def _enqueued(store: holdfast.BlockingStore, name: str, number: int) -> None:
    # One session each: a claim whose answer was lost must not block the next.
    store.queue.enqueue(holdfast.WorkDraft(session_id=f"{name}-{number}", payloads=[number], source_key="work"))


def _claim(store: holdfast.BlockingStore, name: str, number: int) -> holdfast.WorkClaim | None:
    return store.queue.claim(f"{name}-{number}", owner_id="worker", ttl_ms=600_000)


def _is_claimed(store: holdfast.BlockingStore, name: str, number: int) -> bool:
    return [batch.state for batch in store.queue.list(f"{name}-{number}")] == ["claimed"]


def _claimed(store: holdfast.BlockingStore, name: str, number: int, claim: holdfast.WorkClaim | None) -> list[str]:
    session_id = f"{name}-{number}"
    if claim is None:
        # Either held by a claim whose answer was lost, until that expires; or free.
        if _is_claimed(store, name, number):
            again = _claim(store, name, number)
            return [] if again is None else [f"I6: claim {number} is held, and was given once more"]
        claim = _claim(store, name, number)
        if claim is None:
            return [f"I6: claim {number} gave nothing, and no claim holds the work"]
    store.sessions.handle(session_id).commit(holdfast.Commit(turn_id="settle", completes=[claim]))
    settled = store.queue.get(session_id, claim.batches[-1].batch_id)
    state = None if settled is None else settled.state
    return [] if state == "completed" else [f"I6: batch {number} is {state}"]


def _logged(store: holdfast.BlockingStore, name: str, number: int) -> None:
    if number == 1:
        kinds = [EventType("note")]
        store.processes.register(holdfast.ProcessRegistration(name, External(), event_types=kinds))


def _append(store: holdfast.BlockingStore, name: str, number: int) -> AppendReceipt:
    return store.events.append(name, "note", number, replay_key=f"event-{number}")


def _is_appended(store: holdfast.BlockingStore, name: str, number: int) -> bool:
    return any(event.payload == number for event in store.events.recent(name, limit=1))


def _appended(store: holdfast.BlockingStore, name: str, number: int, receipt: AppendReceipt | None) -> list[str]:
    receipt = receipt or _append(store, name, number)
    last = store.events.recent(name, limit=1)
    stands = (receipt.event.sequence, last[0].sequence, last[0].payload)
    return [] if stands == (number,) * 3 else [f"I8: event {number} is at {stands}"]


def _registered(store: holdfast.BlockingStore, name: str, number: int) -> None:
    store.processes.register(holdfast.ProcessRegistration(f"{name}-{number}", External()))


def _complete(store: holdfast.BlockingStore, name: str, number: int) -> Process:
    return store.processes.complete(f"{name}-{number}", Completed(number))


def _is_completed(store: holdfast.BlockingStore, name: str, number: int) -> bool:
    process = store.processes.get(f"{name}-{number}")
    return process is not None and process.outcome is not None


def _completed(store: holdfast.BlockingStore, name: str, number: int, process: Process | None) -> list[str]:
    process = process or _complete(store, name, number)
    ends = [event for event in store.events.after(f"{name}-{number}") if event.terminal_state is not None]
    fits = process.outcome == Completed(number) and len(ends) == 1
    return [] if fits else [f"I4: process {number} is at {process.outcome} with {len(ends)} ends"]


TRIALS = {
    "commit": Trial(_created, _turn, _is_turned, _turned),
    "unnamed-commit": Trial(_created, _unnamed, _is_turned, _unnamed_turned),
    "claim": Trial(_enqueued, _claim, _is_claimed, _claimed),
    "append": Trial(_logged, _append, _is_appended, _appended),
    "complete": Trial(_registered, _complete, _is_completed, _completed),
}


class Sweep:
    """Cuts one call at its share of the bytes, in both directions."""

    def __init__(self, direct: holdfast.BlockingStore, store: holdfast.BlockingStore, proxy: Proxy, kind: str) -> None:
        self._direct = direct
        self._store = store
        self._proxy = proxy
        self._trial = TRIALS[kind]
        self._kind = kind
        self._name = kind
        self._number = 0
        self.cuts = 0
        self.wrong: list[str] = []

    def run(self, part: int, parts: int, shift: int) -> None:
        """Cut at intervals of bytes until a call succeeds."""
        self._name = f"{self._kind}-{part}"
        sparse = SPARSE.get(self._kind, STRIDE)
        lengths = self._measured()
        for direction in DIRECTIONS:
            after = part * sparse + shift % sparse
            while len(self.wrong) < MOST_WRONG:
                if not self._once(direction, after):
                    # Every call has this byte, so the cut must have happened. Otherwise the run would prove nothing.
                    if after < lengths[direction]:
                        self.wrong.append(f"I9: byte {after} of {lengths[direction]} was not cut ({direction})")
                    break
                after += parts * sparse

    def _measured(self) -> dict[Direction, int]:
        """Return how many bytes a call surely has in each direction, once the server has prepared its statement."""
        seen: list[dict[Direction, int]] = []
        for _ in range(WARM):
            self._proxy.settle()
            self._make(None)
            seen.append(self._proxy.seen)
        return {direction: int(min(one[direction] for one in seen) * CERTAIN) for direction in DIRECTIONS}

    def _once(self, direction: Direction, after: int) -> bool:
        """Cut at one byte. Return False if the call ended before it came to that byte."""
        # The first call on a new connection prepares the statement. The call that is cut should be one without that.
        self._make(None)
        before = self._proxy.cuts
        reported = self._make((direction, after))
        self.wrong += [f"{one} ({self._kind}, {direction}, byte {after})" for one in reported]
        cut = self._proxy.cuts > before
        self.cuts += cut
        return cut

    def _make(self, cut: tuple[Direction, int] | None) -> list[str]:
        self._number += 1
        trial, name, number = self._trial, self._name, self._number
        trial.prepare(self._direct, name, number)
        if cut is None:
            self._proxy.measure()
        else:
            self._proxy.cut(*cut)
        answer: Any = None
        problems: list[str] = []
        try:
            answer = trial.call(self._store, name, number)
        except Exception as error:  # any error that a caller sees is judged
            problems = untyped(error)
            if not problems and getattr(error, "outcome", "") == "not_applied" and trial.stored(
                self._direct, name, number
            ):  # fmt: skip
                problems.append(f"I9: {number} was reported as not applied, and is stored: {error}")
        finally:
            self._proxy.measure()
        return problems if cut is None else problems + trial.check(self._direct, name, number, answer)


def untyped(error: Exception) -> list[str]:
    """Return the problems of an error that a cut connection led to."""
    if isinstance(error, holdfast.Unavailable) and error.retryable and error.outcome in {"not_applied", "unknown"}:
        return []
    return [f"I9: {type(error).__name__}: {error}"]


def sweep(port: Port, place: Place, kinds: Sequence[str], part: int, seed: int) -> None:
    """Cut some calls at this part of their bytes, and report the number of cuts and the problems."""
    proxy = Proxy(place.url)
    # One connection, so that the statement of the call that is cut is prepared on it.
    through = Place(proxy.url, msgspec.structs.replace(place.options, max_connections=1))
    cuts = 0
    wrong: list[str] = []
    # Check the store past the proxy, which needs no new connection.
    with place.open() as direct, through.open() as store:
        for kind in kinds:
            one = Sweep(direct, store, proxy, kind)
            one.run((part + seed) % PARTS, PARTS, seed)
            cuts += one.cuts
            wrong += one.wrong
            if wrong:
                break
    proxy.close()
    port.send((cuts, wrong))


def _sweep(scratch: Scratch, seed: int, *kinds: str) -> Ran:
    assert isinstance(scratch, PostgresScratch)
    place = scratch.fresh()
    members = scratch.children(PARTS).members(PARTS)
    for number, member in enumerate(members):
        # The seed decides which process cuts where, and so the length of the numbers in each call.
        member.send((sweep, (place, kinds, number, seed)))
    reported = [member.receive(SWEEP_S) for member in members]
    wrong = [one for _, some in reported for one in some]
    with place.open() as store:
        wrong += unsound(store)
    return Ran(sum(cuts for cuts, _ in reported), tuple(wrong))


def cut_commit_and_claim(scratch: Scratch, seed: int) -> Ran:
    """Cut bytes of a commit and of a claim."""
    return _sweep(scratch, seed, "unnamed-commit", "commit", "claim")


def cut_append_and_complete(scratch: Scratch, seed: int) -> Ran:
    """Cut bytes of an append and of a completion."""
    return _sweep(scratch, seed, "append", "complete")


def skip_reason(scratch: Scratch) -> str | None:
    """Return why no proxy can stand before this database, or None."""
    try:
        target_of(scratch.url)
    except Unreachable as error:
        return str(error)
    return None


CUT_COMMIT_AND_CLAIM = Fault(
    "cut-commit-and-claim",
    "the connection is cut in each byte of a commit and of a claim, and of their answers",
    ("I4", "I6", "I9", "I10"),
    {"postgres": Numbers(200, 3_400)},
    cut_commit_and_claim,
    unit="cuts",
    skip_reason=skip_reason,
)

CUT_APPEND_AND_COMPLETE = Fault(
    "cut-append-and-complete",
    "the connection is cut in each byte of an append and of a completion, and of their answers",
    ("I4", "I8", "I9", "I10"),
    {"postgres": Numbers(0, 8_000)},
    cut_append_and_complete,
    unit="cuts",
    skip_reason=skip_reason,
)
