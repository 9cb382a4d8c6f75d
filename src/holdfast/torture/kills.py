"""Fault: a process is killed at any moment. Acknowledged turns are stored, the one in progress is whole or absent."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext

import holdfast
from holdfast.torture import turns, workers
from holdfast.torture.checkers.feeds import Entry, check_reader
from holdfast.torture.children import Child
from holdfast.torture.clients import LOG
from holdfast.torture.concurrent import end_of_log
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch
from holdfast.torture.soundness import unsound

KILLS_A_STORE = 5
MOST_RECEIVED = 8
WRITERS = (1, 3)
"""Numbers of threads of a process that write at a time."""

START_S, BETWEEN_S = 0.04, 0.003
"""Approximate times for a child to start, and for a turn."""

EVENTS = 12


def kill_writers(scratch: Scratch, seed: int) -> Ran:
    """Kill one writer after another on one store."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    wrong: list[str] = []
    # A file without an open connection is recovered when it is opened. On a server there is nothing to recover.
    watching = place.open() if place.kind == "postgres" else None
    for number in range(KILLS_A_STORE):
        # A single writer's calls are committed alone; those of several share a group.
        names = [f"session-{number}-{writer}" for writer in range(rng.choice(WRITERS))]
        count = rng.randrange(MOST_RECEIVED)
        with Child(workers.writer, place, *names) as child:
            reported = [child.receive() for _ in range(count)]
            if rng.random() < 0.7:
                # Kill at a random moment, with nothing synchronised.
                time.sleep(rng.uniform(0, START_S if count == 0 else BETWEEN_S))
            reported += child.kill()
        with place.open() if watching is None else nullcontext(watching) as store:
            for name in names:
                last = max((revision for session_id, revision in reported if session_id == name), default=0)
                wrong += turns.check(store, name, last, last + 1)
            wrong += unsound(store)
    if watching is not None:
        watching.close()
    return Ran(KILLS_A_STORE, tuple(wrong))


def kill_readers(scratch: Scratch, seed: int) -> Ran:
    """Kill readers of a log until one reaches the end, and check the effects of each event."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    kinds = [holdfast.events.EventType("note")]
    with place.open() as store:
        store.processes.register(holdfast.ProcessRegistration(LOG, holdfast.processes.External(), event_types=kinds))
        for number in range(EVENTS):
            store.events.append(LOG, "note", number)
    kills = 0
    while True:
        with Child(workers.reader, place, EVENTS) as child:
            reported: list[object] = []
            for _ in range(rng.randrange(4)):
                if "ended" not in reported:
                    reported.append(child.receive())
            time.sleep(rng.uniform(0, BETWEEN_S))
            reported += child.kill()
        if "ended" in reported:
            break
        kills += 1
    with place.open() as store:
        page = store.sessions.handle("reader").nodes(limit=1_000)
        done = [Entry(node.payload[0], node.payload[1]) for node in page if node.payload is not None]
        wrong = [f"I8: {one}" for one in check_reader(end_of_log(store), done)]
        wrong += unsound(store)
    return Ran(max(1, kills), tuple(wrong))


KILLED_WRITER = Fault(
    "kill-writer",
    "kill -9 of the process that writes, at any moment",
    ("I1", "I2", "I3", "I10"),
    {"sqlite": Numbers(40, 5_000), "postgres": Numbers(15, 1_000)},
    kill_writers,
    unit="kills",
)

KILLED_READER = Fault(
    "kill-reader",
    "kill -9 of the process that reads a log and keeps its cursor in a turn",
    ("I8", "I10"),
    {"sqlite": Numbers(10, 500), "postgres": Numbers(5, 200)},
    kill_readers,
    unit="kills",
)
