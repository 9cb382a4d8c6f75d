"""Fault: clients in several processes use one store at random, and their joint history must be explainable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import holdfast
from holdfast.torture import workers
from holdfast.torture.checkers.feeds import Entry, check_log, check_reader
from holdfast.torture.checkers.fences import Accepted, Acquired, check_fences
from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.leases import check_lease
from holdfast.torture.checkers.linear import Linear, TooWide
from holdfast.torture.checkers.queues import check_queue
from holdfast.torture.checkers.register import check_register
from holdfast.torture.clients import LEASED, LOG, QUEUED, prepare
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch
from holdfast.torture.soundness import unsound

CLIENTS = 3
CALLS_A_CLIENT = 100


def run(scratch: Scratch, seed: int) -> Ran:
    """Run one history of some hundred calls."""
    place = scratch.fresh()
    with place.open() as store:
        prepare(store)
    members = scratch.children(CLIENTS).members(CLIENTS)
    for number, member in enumerate(members):
        member.send((workers.client, (place, number, seed, CALLS_A_CLIENT)))
    for word in ("go", "read to the end"):
        for member in members:
            member.receive()
        for member in members:
            member.send(word)
    reported = [member.receive() for member in members]
    return judge(place, reported)


def judge(place: Place, reported: Sequence[Sequence[list[Call]]]) -> Ran:
    """Judge the joint history of all clients, and the store's state afterwards."""
    wrong: list[str] = []
    unjudged: list[str] = []

    def ask(invariant: str, what: str, check: Callable[[], list[str]]) -> None:
        try:
            wrong.extend(f"{invariant}: {what}{one}" for one in check())
        except TooWide as error:
            unjudged.append(f"{invariant}: {what}{error}")

    head, lease, queue, log = ([call for one in reported for call in one[part]] for part in range(4))
    ask("I3", "the head is ", lambda: problem(check_register(head)))
    wrong += [f"I5: {one}" for one in check_fences(*fenced(lease))]
    with place.open() as store:
        ask("I5", "the lease is ", lambda: problem(check_lease(lease, written_at_ms=times_of(store, LEASED))))
        ask("I6", "", lambda: check_queue(queue, end_of_queue(store, queue), times_of(store, QUEUED)))
        entries = end_of_log(store)
        wrong += [f"I8: {one}" for one in check_log(entries, log)]
        acknowledged = max((call.answer for call in log if call.kind == "append" and call.outcome == "ok"), default=0)
        for one in reported:
            seen = [Entry(*entry) for call in one[3] if call.kind == "look" for entry in call.answer or ()]
            # Events of unknown outcome may have come after the last look.
            wrong += [f"I8: {text}" for text in check_reader(entries, seen, until=acknowledged)]
        wrong += unsound(store)
    return Ran(1, tuple(wrong), tuple(unjudged))


def problem(found: Linear) -> list[str]:
    """Return the problem as a list, empty if all is well."""
    return [] if found.ok else [str(found)]


def fenced(history: Sequence[Call]) -> tuple[list[Acquired], list[Accepted]]:
    """Return the holders that received a fence, and the writes accepted under it."""
    done = [call for call in history if call.outcome == "ok"]
    acquired = [Acquired(call.answer[0], call.answered_ns or 0) for call in done if call.kind == "claim"]
    accepted = [Accepted(call.given[0], call.answer, call.sent_ns) for call in done if call.kind == "act"]
    return acquired, accepted


def times_of(store: holdfast.BlockingStore, session_id: str) -> dict[int, int]:
    """Return the time at which each revision of a session was written, by the store's clock."""
    times: dict[int, int] = {}
    after: str | None = None
    while True:
        page = store.sessions.handle(session_id).history(after=after, limit=1_000)
        times |= {one.revision: one.committed_at_ms for one in page}
        after = page.next
        if after is None:
            return times


def end_of_queue(store: holdfast.BlockingStore, history: Sequence[Call]) -> dict[str, tuple[str, str] | None]:
    """Return the final state of every source key, and of every batch that was claimed."""
    end: dict[str, tuple[str, str] | None] = {}
    for call in history:
        if call.kind == "enqueue" and call.outcome == "ok":
            batch = store.queue.get(QUEUED, call.answer)
            end[call.given] = None if batch is None else (batch.batch_id, batch.state)
        elif call.kind == "claim" and call.outcome == "ok":
            for batch_id in call.answer[4]:
                batch = store.queue.get(QUEUED, batch_id)
                if batch is not None:
                    end[batch.source_key or ""] = (batch.batch_id, batch.state)
    after: str | None = None
    while True:
        page = store.queue.list(QUEUED, after=after, limit=1_000)
        for batch in page:
            end.setdefault(batch.source_key or "", (batch.batch_id, batch.state))
        after = page.next
        if after is None:
            return end


def end_of_log(store: holdfast.BlockingStore) -> list[Entry]:
    """Return the whole log."""
    entries: list[Entry] = []
    while True:
        page = store.events.after(LOG, len(entries), limit=1_000)
        if not page.items:
            return entries
        entries += [Entry(event.sequence, event.payload) for event in page]


CONCURRENT = Fault(
    "concurrent-clients",
    "three processes call the store at random; their histories must be explicable",
    ("I3", "I5", "I6", "I8", "I10"),
    {"sqlite": Numbers(10, 1_000), "postgres": Numbers(6, 1_000)},
    run,
    unit="histories of 300 calls",
)
