"""Fault: an event is appended at any moment of a wait for it. The waiter must be woken."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, closing

import msgspec

import holdfast
from holdfast.torture import workers
from holdfast.torture.children import Child, Silent
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, PostgresScratch, Scratch
from holdfast.torture.proxy import Proxy, Unreachable

WAITS_A_RUN = 50
HELD = 0.4
"""Share of the waits whose answer is held back, where a proxy can stand before the server."""

STOPPED = 0.8
"""Share of the other waits whose process is stopped in the middle."""

ASKING_S = (0.0002, 0.0016)
"""Time from the start of a wait until it queries the store for the event."""

NOTIFY_S, LATE_NOTIFY_S = 0.006, 0.025
"""Time in which the notification of an event usually, and almost always, reaches the waiter's process."""

ANSWER_S = 10.0
"""Time in which a server answers a query, however busy it is."""


def wait_for_events(scratch: Scratch, seed: int) -> Ran:
    """Let one process wait for an event while another appends it, again and again."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    kinds = [holdfast.events.EventType("note")]
    with place.open() as store:
        store.processes.register(holdfast.ProcessRegistration(LOG, holdfast.processes.External(), event_types=kinds))
    waiter, appender = scratch.children(2).members(2)
    wrong: list[str] = []
    number = 0
    with ExitStack() as ends:
        proxy = _proxy(scratch)
        seen_from = place
        if proxy is not None:
            ends.enter_context(closing(proxy))
            seen_from = _apart(place, proxy)
        waiter.send((workers.waiter, (seen_from,)))
        # Open it before anything is stopped: a process that is stopped while it opens a file locks all others out.
        waiter.receive()
        appender.send((workers.appender, (place,)))
        for number in range(WAITS_A_RUN):
            if proxy is not None and rng.random() < HELD:
                stored_ns = _while_answer_is_held(waiter, appender, proxy, number)
            elif rng.random() < STOPPED:
                stored_ns = _while_stopped(waiter, appender, number, rng.uniform(*ASKING_S))
            else:
                waiter.send(number)
                appender.send(rng.uniform(0, 0.003))
                stored_ns = appender.receive()
            woke_ns = waiter.receive()
            if woke_ns is None:
                wrong.append(f"I8: event {number + 1} was stored, and its waiter did not wake")
                break
            if woke_ns - stored_ns > workers.SLEPT_MS * 1_000_000:
                wrong.append(f"I8: a waiter for event {number + 1} woke {(woke_ns - stored_ns) // 1_000_000} ms late")
                break
        waiter.send(None)
        appender.send(None)
        waiter.receive()
    return Ran(number + 1, tuple(wrong))


def _while_stopped(waiter: Child, appender: Child, number: int, asking_s: float) -> int:
    """Let the waiter's answer and the notification arrive together, in any order, however quick each is alone."""
    waiter.send(number)
    time.sleep(asking_s)  # chance decides whether it has queried already
    waiter.stop()
    appender.send(0.0)
    stored_ns: int = appender.receive()
    time.sleep(NOTIFY_S)
    waiter.resume()
    return stored_ns


def _while_answer_is_held(waiter: Child, appender: Child, proxy: Proxy, number: int) -> int:
    """Append the event after the waiter's query found none, and let the notification arrive before that answer."""
    proxy.hold()
    waiter.send(number)
    if not proxy.await_answer(ANSWER_S):
        raise Silent(f"the server did not answer the waiter in {ANSWER_S} s")
    appender.send(0.0)
    stored_ns: int = appender.receive()
    time.sleep(LATE_NOTIFY_S)
    proxy.release()
    return stored_ns


def _proxy(scratch: Scratch) -> Proxy | None:
    """Return a proxy that holds answers back and lets notifications pass. None on SQLite, and for some servers."""
    if not isinstance(scratch, PostgresScratch) or scratch.options.pooler != "none":
        return None
    try:
        return Proxy(scratch.url)
    except Unreachable:
        return None


def _apart(place: Place, proxy: Proxy) -> Place:
    """Return the place for a client that queries through the proxy, and listens past it."""
    return Place(proxy.url, msgspec.structs.replace(place.options, listen_url=place.url))


WAKES = Fault(
    "wakes",
    "an event is appended at any moment of a wait for it: mostly while the waiter is stopped (SIGSTOP), or after it "
    "asked and before it has the answer",
    ("I8",),
    {"sqlite": Numbers(250, 10_000), "postgres": Numbers(150, 5_000)},
    wait_for_events,
    unit="waits",
)
