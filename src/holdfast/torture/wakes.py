"""Whoever waits for an event hears of it, whatever moment of his it happens in."""

from __future__ import annotations

import random
import time

import holdfast
from holdfast.torture import workers
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch

WAITS_A_RUN = 50
STOPPED = 0.8
"""How many of the waits are stopped in the middle."""

ASKING_S = (0.0002, 0.0016)
"""How long after its task it looks whether the event is there."""

NEWS_S = 0.006
"""In which the news of an event gets to the waiter's process."""


def wait_for_events(scratch: Scratch, seed: int) -> Ran:
    """One process waits for an event while another appends it, again and again."""
    dice = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    kinds = [holdfast.EventType("note")]
    with place.open() as store:
        store.processes.register(holdfast.ProcessRegistration(LOG, holdfast.External(), event_types=kinds))
    waiter, appender = scratch.crew(2).members(2)
    waiter.say((workers.waiter, (place,)))
    appender.say((workers.appender, (place,)))
    wrong: list[str] = []
    number = 0
    for number in range(WAITS_A_RUN):
        waiter.say(number)
        if dice.random() < STOPPED:
            # What it asked and what it is told of arrive together, in any order, however quick each of them is alone.
            time.sleep(dice.uniform(*ASKING_S))  # chance decides whether it has asked already
            waiter.stop()
            appender.say(0.0)
            stored_ns = appender.hear()
            time.sleep(NEWS_S)
            waiter.resume()
        else:
            appender.say(dice.uniform(0, 0.003))
            stored_ns = appender.hear()
        heard_ns = waiter.hear()
        if heard_ns is None:
            wrong.append(f"I8: event {number + 1} was stored, and who waited for it slept through it")
            break
        if heard_ns - stored_ns > workers.SLEPT_MS * 1_000_000:
            wrong.append(f"I8: event {number + 1} was heard of {(heard_ns - stored_ns) // 1_000_000} ms late")
            break
    waiter.say(None)
    appender.say(None)
    return Ran(number + 1, tuple(wrong))


WAKES = Fault(
    "wakes",
    "an event is appended at any moment of somebody's wait for it, mostly while he is stopped (SIGSTOP)",
    ("I8",),
    {"sqlite": Numbers(500, 10_000), "postgres": Numbers(250, 5_000)},
    wait_for_events,
    unit="waits",
)
