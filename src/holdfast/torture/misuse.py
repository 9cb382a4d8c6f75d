"""Fault: a store is carried over a fork, or closed under a waiter. It must raise the matching error at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.torture import workers
from holdfast.torture.children import TIMEOUT_S, Child
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch
from holdfast.torture.soundness import unsound

SESSION = "misused"
LATEST_S = 20.0


def fork_after_open(scratch: Scratch, _: int) -> Ran:
    """Fork with a store open: the child's calls are refused, and the parent continues."""
    place = scratch.fresh()
    wrong: list[str] = []
    with Child(workers.forker, place) as child:
        answers: dict[str, str] = child.receive()
        for call, answer in answers.items():
            if answer != "StoreForked":
                wrong.append(f"I9: {call} after a fork was answered with {answer}")
        revision = child.receive()
        if revision != 2:
            wrong.append(f"I10: after its child was refused, the parent's turn is at {revision}")
    with place.open() as store:
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


def close_under_waiters(scratch: Scratch, _: int) -> Ran:
    """Close a store while threads wait on it in every way."""
    place = scratch.fresh()
    kinds = [holdfast.events.EventType("note")]
    store = place.open()
    store.sessions.create(SESSION)
    store.processes.register(holdfast.ProcessRegistration(LOG, holdfast.processes.External(), event_types=kinds))
    waits: dict[str, Callable[[], Any]] = {
        "events.wait_for": lambda: store.events.wait_for(LOG, "note", timeout_ms=int(TIMEOUT_S * 1000)),
        "events.follow": lambda: list(store.events.follow(LOG)),
        "processes.wait": lambda: store.processes.wait(LOG, timeout_ms=int(TIMEOUT_S * 1000)),
        "queue.wait": lambda: store.queue.wait(SESSION, timeout_ms=int(TIMEOUT_S * 1000)),
    }
    answers: dict[str, str] = {}

    def wait(name: str) -> None:
        try:
            answers[name] = repr(waits[name]())
        except BaseException as error:  # any error that a caller sees is judged
            answers[name] = type(error).__name__

    threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.02)  # some wait by now, some are about to: both must end
    store.close()
    deadline_s = time.monotonic() + LATEST_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    wrong = [
        f"I9: {name} on a store that was closed: {answers.get(name, 'nothing, it hangs')}"
        for name in waits
        if answers.get(name) != "StoreClosed"
    ]
    with place.open() as store:
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


FORKED = Fault(
    "fork-after-open",
    "a process forks while it has a store open",
    ("I9", "I10"),
    {"sqlite": Numbers(1, 50), "postgres": Numbers(1, 50)},
    fork_after_open,
)

CLOSED = Fault(
    "close-under-waiter",
    "a store is closed while threads wait on it",
    ("I9", "I10"),
    {"sqlite": Numbers(2, 50), "postgres": Numbers(2, 50)},
    close_under_waiters,
)
