"""Fault: a forked child opens its parent's store. It is refused, or no acknowledged write is lost."""

from __future__ import annotations

import os
import random
from functools import partial
from multiprocessing import Pipe
from typing import Any, Final

import holdfast
from holdfast.torture import turns, workers
from holdfast.torture.children import TIMEOUT_S, Child, Port
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch
from holdfast.torture.soundness import unsound

FORKS_A_RUN: Final = 5
TURNS: Final = 3
THIRD: Final = "third"
REFUSED: Final = "StoreForked"


def fork_then_open(scratch: Scratch, seed: int) -> Ran:
    """Fork with the store open or closed, open it in the child, and close it in the parent before that or after."""
    place = scratch.fresh().unsynced()
    wrong: list[str] = []
    reported: dict[str, int] = {}
    with Child(workers.writer, place, THIRD) as third, Child(parent, place, seed, FORKS_A_RUN) as forking:
        third.receive()
        for _ in range(FORKS_A_RUN):
            was_open, answer, more = forking.receive()
            reported |= more
            must_refuse = was_open and place.kind == "sqlite"
            if answer != (REFUSED if must_refuse else "open"):
                wrong.append(f"I9: a child that opens a store which was {'open' if was_open else 'closed'}: {answer}")
        last = max((revision for _, revision in third.kill()), default=0)
    with place.open() as store:
        for session_id, revision in reported.items():
            wrong += turns.check(store, session_id, revision, revision)
        wrong += turns.check(store, THIRD, last, last + 1)
        wrong += unsound(store)
    return Ran(FORKS_A_RUN, tuple(wrong))


def parent(port: Port, place: Place, seed: int, forks: int) -> None:
    """Fork repeatedly, write here and in each child, and report each child's answer and the stored turns."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    for number in range(forks):
        is_open, parent_first = rng.random() < 0.7, rng.random() < 0.5
        ends: Any = Pipe()
        ours, theirs = ends
        store = place.open()
        mine, its = f"parent-{number}", f"child-{number}"
        turns.begin(store, mine)
        reported = {mine: turns.write(store, mine, 1)}
        if not is_open:
            store.close()
        pid = os.fork()
        if pid == 0:
            _child(theirs, place, its)
        theirs.close()
        answer: str = ours.recv()
        end = partial(_write_and_close, store, mine) if is_open else dict[str, int]
        if parent_first:
            reported |= end()
        ours.send("go")
        if not ours.poll(TIMEOUT_S):
            raise TimeoutError("the child of a fork does not answer")
        reported |= ours.recv()
        os.waitpid(pid, 0)
        if not parent_first:
            reported |= end()
        port.send((is_open, answer, reported))
    port.recv()


def _write_and_close(store: holdfast.BlockingStore, session_id: str) -> dict[str, int]:
    reported = {session_id: turns.write(store, session_id, 2)}
    store.close()
    return reported


def _child(port: Port, place: Place, session_id: str) -> None:
    """Open the store, report the answer, and write some turns if it was opened."""
    reported: dict[str, int] = {}
    try:
        try:
            store = place.open()
        except holdfast.HoldfastError as error:
            port.send(type(error).__name__)
            port.recv()
        else:
            port.send("open")
            turns.begin(store, session_id)
            turns.write(store, session_id, 1)
            port.recv()
            for number in range(2, TURNS + 1):
                reported = {session_id: turns.write(store, session_id, number)}
            store.close()
    finally:
        port.send(reported)
        os._exit(0)


FORKED_OPEN = Fault(
    "fork-then-open",
    "a child of a fork opens the store; its parent closes first or last, and a third process writes",
    ("I1", "I2", "I9", "I10"),
    {"sqlite": Numbers(10, 300), "postgres": Numbers(3, 300)},
    fork_then_open,
    unit="forks",
)
