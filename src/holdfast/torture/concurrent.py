"""Clients in several processes use one store at random, and what all of them saw together must have an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.torture import workers
from holdfast.torture.checkers.feeds import Entry, check_log, check_reader
from holdfast.torture.checkers.fences import Accepted, Acquired, check_fences
from holdfast.torture.checkers.histories import Call
from holdfast.torture.checkers.leases import check_lease
from holdfast.torture.checkers.queues import check_queue
from holdfast.torture.checkers.register import check_register
from holdfast.torture.clients import HEAD, LOG, QUEUED, prepare
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch
from holdfast.torture.soundness import unsound

CLIENTS = 3
CALLS_A_CLIENT = 100


def run(scratch: Scratch, seed: int) -> Ran:
    """One history of some hundred calls."""
    place = scratch.fresh()
    with place.open() as store:
        prepare(store)
    members = scratch.crew(CLIENTS).members(CLIENTS)
    for number, member in enumerate(members):
        member.say((workers.client, (place, number, seed, CALLS_A_CLIENT)))
    for member in members:
        member.hear()
    for member in members:
        member.say("go")
    told = [member.hear() for member in members]
    head, lease, queue, log = ([call for one in told for call in one[part]] for part in range(4))
    seen = [one[4] for one in told]
    return Ran(1, tuple(_judge(place, head, lease, queue, log, seen)))


def _judge(
    place: Place, head: list[Call], lease: list[Call], queue: list[Call], log: list[Call], seen: Sequence[Any]
) -> list[str]:
    wrong: list[str] = []
    found = check_register(head)
    if not found.ok:
        wrong.append(f"I3: {HEAD}: {found}")
    held = check_lease(lease)
    if not held.ok:
        wrong.append(f"I5: the lease is {held}")
    wrong += [f"I5: {one}" for one in check_fences(*fenced(lease))]
    with place.open() as store:
        wrong += [f"I6: {one}" for one in check_queue(queue, end_of_queue(store, queue))]
        entries = end_of_log(store)
        noted = [Entry(call.answer, call.given) for call in log if call.outcome == "ok"]
        wrong += [f"I8: {one}" for one in check_log(entries, noted, [call.given for call in log])]
        for one in seen:
            wrong += [f"I8: {text}" for text in check_reader(entries, one, ended=False)]
        wrong += unsound(store)
    return wrong


def fenced(history: Sequence[Call]) -> tuple[list[Acquired], list[Accepted]]:
    """Who was told that he holds the lease, and what was accepted under it."""
    done = [call for call in history if call.outcome == "ok"]
    acquired = [Acquired(call.answer[0], call.answered_ns or 0) for call in done if call.kind == "claim"]
    accepted = [Accepted(call.given, call.answer, call.sent_ns) for call in done if call.kind == "act"]
    return acquired, accepted


def end_of_queue(store: holdfast.BlockingStore, history: Sequence[Call]) -> dict[str, tuple[str, str] | None]:
    """What the store says in the end about every source key."""
    end: dict[str, tuple[str, str] | None] = {}
    for call in history:
        if call.kind == "enqueue" and call.outcome == "ok":
            batch = store.queue.get(QUEUED, call.answer)
            end[call.given] = None if batch is None else (batch.batch_id, batch.state)
    after: str | None = None
    while True:
        page = store.queue.list(QUEUED, after=after, limit=1_000)
        for batch in page:
            end.setdefault(batch.source_key or "", (batch.batch_id, batch.state))
        after = page.next
        if after is None:
            return end


def end_of_log(store: holdfast.BlockingStore) -> list[Entry]:
    """The whole log."""
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
    {"sqlite": Numbers(50, 1_000), "postgres": Numbers(50, 1_000)},
    run,
    unit="histories of 300 calls",
)
