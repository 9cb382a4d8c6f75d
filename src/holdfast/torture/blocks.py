"""Fault: processes are killed, and connections cut, in the middle of `store.transaction()`.

Each block writes to several sessions, a queue and a log. All of it is there afterwards, or nothing. Some blocks end
with an exception, and some catch the refusal of a call and continue: neither leaves a trace of what was refused.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal, NamedTuple, TypeVar

import holdfast
from holdfast.events import EventType, ProcessEvent
from holdfast.processes import External
from holdfast.torture.children import Child, Port
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.soundness import unsound

T = TypeVar("T")

Reported = tuple[str, Literal["done", "failed", "unknown", "undone"]]
"""A block's name and its end, as its process has seen it."""

SESSIONS: Final = ("one", "two", "three")
QUEUE: Final = "queue"
KILLS_A_STORE: Final = 3
WRITERS: Final = 2
"""Processes that write at a time. Their blocks wait for each other, and on PostgreSQL they deadlock occasionally."""

MOST_RECEIVED: Final = 6
CUTS: Final = 4
BETWEEN_S: Final = 0.01
PAGE: Final = 1_000


class Plan(NamedTuple):
    """The writes of one block, and its end. Drawn from its name, so that the judge draws the same."""

    sessions: tuple[str, ...]
    refused: bool
    raises: bool


def plan_of(name: str) -> Plan:
    """Return the plan of a block."""
    rng = random.Random(name)  # noqa: S311 - the same name must give the same plan
    return Plan(tuple(rng.sample(SESSIONS, 2)), rng.random() < 0.3, rng.random() < 0.25)


class Undone(Exception):
    """Ends a block, which must leave no trace."""


# The writers, in processes of their own.


def writer(port: Port, place: Place, writer: str) -> None:
    """Run one block after another, and report the end of each."""
    with place.open() as store:
        for number in itertools.count():
            name = f"{writer}-{number}"
            port.send((name, run_block(store, name)))


def run_block(store: holdfast.BlockingStore, name: str) -> str:
    """Run a block, and return its end."""
    plan = plan_of(name)
    try:
        with store.transaction() as tx:
            for session_id in plan.sessions:
                tx.sessions.handle(session_id).append(name, turn_id=name)
            if plan.refused:
                with suppress(holdfast.HeadConflict):
                    _refused(tx, name, plan.sessions[0])
            tx.queue.enqueue(holdfast.WorkDraft(session_id=QUEUE, payloads=[name], source_key=name))
            tx.events.append(LOG, "note", name, replay_key=name)
            if plan.raises:
                raise Undone
    except Undone:
        return "undone"
    except holdfast.Unavailable as error:
        return "failed" if error.outcome == "not_applied" else "unknown"
    return "done"


def _refused(tx: holdfast.BlockingStore, name: str, session_id: str) -> None:
    """Commit a turn that expects another head. Nothing of it may be stored."""
    turn = holdfast.Commit(
        turn_id=f"refused-{name}",
        expected_revision=10**6,
        graph=holdfast.Append([holdfast.Node(payload=f"refused-{name}")]),
        enqueues=[holdfast.WorkDraft(session_id=QUEUE, payloads=[0], source_key=f"refused-{name}")],
    )
    tx.sessions.handle(session_id).commit(turn)


# The fault.


def kill_in_blocks(scratch: Scratch, seed: int) -> Ran:
    """Kill writers in the middle of blocks, or cut their connections first. Then judge every block."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    reported: list[Reported] = []
    wrong: list[str] = []
    with place.open() as store:
        kinds = [EventType("note")]
        store.processes.register(holdfast.ProcessRegistration(LOG, External(), event_types=kinds))
    for number in range(KILLS_A_STORE):
        with ExitStack() as stack:
            children = [stack.enter_context(Child(writer, place, f"{seed}-{number}-{one}")) for one in range(WRITERS)]
            for child in children:
                reported += [child.receive() for _ in range(rng.randrange(MOST_RECEIVED))]
            if isinstance(scratch, PostgresScratch):
                cut_connections(scratch, rng)
            time.sleep(rng.uniform(0, BETWEEN_S))  # kill at a random moment
            for child in children:
                reported += child.kill()
        with place.open() as store:
            wrong += judge(reported, found_in(store))
            wrong += unsound(store)
    return Ran(KILLS_A_STORE, tuple(wrong))


def cut_connections(scratch: PostgresScratch, rng: random.Random) -> None:
    """Terminate connections of the writers, also between two calls of a block."""
    for _ in range(rng.randrange(CUTS)):
        time.sleep(rng.uniform(0, BETWEEN_S))
        found = scratch.rows("inside_of_scratch", scratch.schema)
        if found:
            scratch.rows("terminate_backend", rng.choice(found)[0])


def found_in(store: holdfast.BlockingStore) -> dict[str, list[Any]]:
    """Return the names of the blocks that each place holds, in its order."""
    places = {one: store.sessions.handle(one).messages() for one in SESSIONS}
    places[QUEUE] = [one.source_key for one in _all(lambda after: store.queue.list(QUEUE, after=after, limit=PAGE))]
    places[LOG] = [one.payload for one in end_of(store)]
    return places


def end_of(store: holdfast.BlockingStore) -> list[ProcessEvent]:
    """Return all events of the log."""
    events: list[ProcessEvent] = []
    while page := store.events.after(LOG, events[-1].sequence if events else 0, limit=PAGE):
        events += page
    return events


def _all(page_after: Callable[[str | None], holdfast.Page[T]]) -> list[T]:
    found: list[T] = []
    after: str | None = None
    while True:
        page = page_after(after)
        found += page
        after = page.next
        if after is None:
            return found


def judge(reported: Sequence[Reported], places: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the problems of places that hold these blocks, given the reported ends."""
    wrong = [f"I4: {place} holds a block twice" for place, names in places.items() if len(set(names)) < len(names)]
    held = {place: set(names) for place, names in places.items()}
    ends = dict(reported)
    for name in sorted({*ends, *itertools.chain(*held.values())}):
        if name.startswith("refused-"):
            wrong.append(f"I2: a refused write of a block is stored: {name}")
            continue
        wanted = {*plan_of(name).sessions, QUEUE, LOG}
        there = {place for place, names in held.items() if name in names}
        end = ends.get(name, "unknown")
        if there not in (set(), wanted):
            wrong.append(f"I2: block {name} is in {sorted(there)}, and should be in {sorted(wanted)} or nowhere")
        elif end == "done" and not there:
            wrong.append(f"I1: block {name} was acknowledged, and is gone")
        elif there and (end in {"failed", "undone"} or plan_of(name).raises):
            wrong.append(f"I2: block {name} was rolled back ({end}), and is stored")
    return wrong


KILLED_IN_BLOCK = Fault(
    "kill-in-transaction",
    "kill -9 in the middle of blocks over several sessions; on PostgreSQL their connections are cut first",
    ("I1", "I2", "I4", "I10"),
    {"sqlite": Numbers(30, 2_000), "postgres": Numbers(12, 500)},
    kill_in_blocks,
    unit="kills",
)
