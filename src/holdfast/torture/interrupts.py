"""Fault: signal handlers raise, or use the store, in the middle of blocking calls.

The store stays usable, and a retry has one effect. A call of a handler is applied as a whole, or refused.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import holdfast
from holdfast.errors import NestedCall, StoreClosed
from holdfast.events import EventType
from holdfast.leases import OnSession
from holdfast.processes import External
from holdfast.torture.children import Child, Port
from holdfast.torture.clients import LOG
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Place, Scratch
from holdfast.torture.soundness import unsound

SESSION: Final = "interrupted"
CASES_A_RUN: Final = 60
NEIGHBOURS: Final = 2
"""Threads that use the same store meanwhile. A lock that an interrupt left held would block them."""

HANG_TIMEOUT_S: Final = 15.0
"""A thread that has not ended by then hangs."""

SILENT_S = 30.0
"""A child that sends nothing for this long hangs."""

STORM_S: Final = 0.00002
"""Time between two signals of a storm."""

CLOSES: Final = 5
WAIT_MS: Final = 2


class Stop(BaseException):
    """An interrupt like Ctrl-C."""


class Alarm(TimeoutError):
    """An interrupt like a timeout by SIGALRM, which looks like an error of the operating system."""


Calls = dict[str, Callable[[holdfast.BlockingStore, str], Any]]


def _commit(store: holdfast.BlockingStore, name: str) -> Any:
    turn = holdfast.Commit(turn_id=name, graph=holdfast.Append([holdfast.Node(name)], name))
    return store.sessions.handle(SESSION).commit(turn).revision


def _enqueue(store: holdfast.BlockingStore, name: str) -> Any:
    return store.queue.enqueue(holdfast.WorkDraft(session_id=SESSION, payloads=[name], source_key=name)).batch_id


def _append(store: holdfast.BlockingStore, name: str) -> Any:
    return store.events.append(LOG, "note", name, replay_key=name).event.sequence


def _lease(store: holdfast.BlockingStore, name: str) -> Any:
    return store.leases.claim(OnSession(name), owner_id="one", ttl_ms=600_000).owner_id


def _first_commit(store: holdfast.BlockingStore, name: str) -> Any:
    return store.sessions.unbound().commit(holdfast.Commit(session_id=f"first-{name}", turn_id=name)).revision


def _put(store: holdfast.BlockingStore, name: str) -> Any:
    return store.sessions.handle(SESSION).attachments.put(name.encode()).id


def _load(store: holdfast.BlockingStore, _: str) -> Any:
    view = store.sessions.handle(SESSION).load()
    return None if view is None else view.revision


def _nodes(store: holdfast.BlockingStore, _: str) -> Any:
    return [node.id for node in store.sessions.handle(SESSION).nodes(limit=5)]


def _batches(store: holdfast.BlockingStore, _: str) -> Any:
    return len(store.queue.list(SESSION, limit=5))


def _events(store: holdfast.BlockingStore, _: str) -> Any:
    return [event.sequence for event in store.events.after(LOG, 0, limit=5)]


def _wait_for_event(store: holdfast.BlockingStore, _: str) -> Any:
    try:
        return store.events.wait_for(LOG, "note", after=1_000_000, timeout_ms=WAIT_MS)
    except holdfast.WaitTimeout:
        return "nothing"


def _wait_for_work(store: holdfast.BlockingStore, _: str) -> Any:
    try:
        return store.queue.wait("nobody's", timeout_ms=WAIT_MS)
    except holdfast.WaitTimeout:
        return "nothing"


def _turn(store: holdfast.BlockingStore, name: str) -> Any:
    with store.sessions.handle(f"turn-{name}").turn(name) as turn:
        if not turn.replayed:
            turn.add(name)
    return turn.revision


def _transaction(store: holdfast.BlockingStore, name: str) -> Any:
    # The limit is longer than a thread may hang: one that an interrupt left open would be noticed.
    with store.transaction(timeout_ms=600_000) as tx:
        batch = tx.queue.enqueue(holdfast.WorkDraft(session_id=SESSION, payloads=[name], source_key=name))
        return batch.batch_id, tx.events.append(LOG, "note", name, replay_key=name).event.sequence


def _start(store: holdfast.BlockingStore, name: str) -> Any:
    return store.processes.start("interrupted", [name], id=name).process.id


def _wait_for_run(store: holdfast.BlockingStore, _: str) -> Any:
    try:
        return store.processes.wait_next(kinds=["nobody's"], timeout_ms=WAIT_MS)
    except holdfast.WaitTimeout:
        return "nothing"


CALLS: Final[Calls] = {
    call.__name__.strip("_"): call
    for call in (
        _commit, _enqueue, _append, _lease, _first_commit, _put, _load, _nodes, _batches, _events, _wait_for_event,
        _wait_for_work, _turn, _transaction, _start, _wait_for_run,
    )
}  # fmt: skip


class Nested:
    """Calls of a signal handler on the store whose call it interrupts."""

    def __init__(self, store: holdfast.BlockingStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._numbers = itertools.count()
        self._accepted: list[tuple[str, str]] = []
        self._refused: list[str] = []
        self._wrong: list[str] = []
        self._active = False

    def call(self) -> None:
        """Make a call, unless another one is under way."""
        if self._active:
            return
        kind = self._rng.choice([*CALLS])
        name = f"{kind}-nested-{next(self._numbers)}"
        try:
            self._active = True
            CALLS[kind](self._store, name)
            self._accepted.append((kind, name))
        except (NestedCall, StoreClosed):
            self._refused.append(name)
        except holdfast.InvalidRequest as error:
            # Between two calls of a transaction's block, a write around it is refused.
            if error.field != "store":
                self._wrong.append(f"I9: {name} in a signal handler: {error}")
            self._refused.append(name)
        except BaseException as error:  # any error that a handler sees is judged
            self._wrong.append(f"I9: {name} in a signal handler: {type(error).__name__}: {error}")
        finally:
            self._active = False

    def judge(self) -> list[str]:
        """Return the problems of the calls since the last judgement."""
        wrong, self._wrong = self._wrong, []
        accepted, self._accepted = self._accepted, []
        refused, self._refused = self._refused, []
        for kind, name in accepted:
            wrong += _once_more(self._store, kind, name)
        wrong += [f"I9: {name} was refused, and is stored" for name in refused[:1] if _has_turn(self._store, name)]
        return wrong


class Interrupter:
    """Sends one signal, or a storm of them, at a random moment of a call. Its handler raises, or uses the store."""

    def __init__(self, rng: random.Random, nested: Callable[[], None]) -> None:
        self._rng = rng
        self._nested = nested
        self._rung = False
        self._armed = False
        self._kind: type[BaseException] | None = Stop
        self._typical_s: dict[str, float] = {}
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: object) -> None:
        if not self._armed:
            return
        if self._kind is not None:
            raise self._kind
        self._rung = True
        self._nested()

    def run(self, name: str, call: Callable[[], Any]) -> bool:
        """Make a call, and return whether it was interrupted."""
        rng = self._rng
        self._kind = rng.choice((Stop, Alarm, None))
        self._rung = False
        typical_s = self._typical_s.get(name, 0.001)
        delay_s = max(1e-6, rng.uniform(0, typical_s * 1.2))
        # No storm of calls, which would leave no time for the interrupted one.
        storm_s = STORM_S if self._kind is not None and rng.random() < 0.3 else 0.0
        began_s = time.perf_counter()
        try:
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, delay_s, storm_s)
                call()
            finally:
                self._armed = False
        except (Stop, Alarm):
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._rung:
            return True
        self._typical_s[name] = 0.7 * typical_s + 0.3 * (time.perf_counter() - began_s)
        return False


def interrupted(port: Port, place: Place, seed: int, cases: int) -> None:
    """Make calls in the main thread under interrupts, close under interrupts, and report the problems."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    # Switch threads often, so that more of them are inside a call when the interrupt comes.
    sys.setswitchinterval(0.0005)
    # Silence the interpreter's reports of interrupts in finalizers, and of coroutines that never ran.
    sys.unraisablehook = id
    warnings.simplefilter("ignore")
    store = place.open()
    nested = Nested(store, rng)
    interrupter = Interrupter(rng, nested.call)
    store.sessions.create(SESSION)
    kinds = [EventType("note")]
    store.processes.register(holdfast.ProcessRegistration(LOG, External(), event_types=kinds))
    ended = threading.Event()
    wrong: list[str] = []
    neighbours = [
        threading.Thread(target=_neighbour, args=(store, number, ended, wrong), daemon=True)
        for number in range(NEIGHBOURS)
    ]
    for neighbour in neighbours:
        neighbour.start()
    hits = 0
    for number in range(cases):
        kind = rng.choice([*CALLS])
        name = f"{kind}-{number}"
        try:
            hits += interrupter.run(kind, partial(CALLS[kind], store, name))
        except holdfast.Unavailable as error:
            hits += 1  # the interrupt hit code that reports every failure as its own
            if kind == "commit" and error.outcome == "not_applied" and _has_turn(store, name):
                wrong.append(f"I9: {name} was reported as not applied, and is stored: {error}")
        except BaseException as error:  # any error that a caller sees is judged
            wrong.append(f"I9: {name} under an interrupt: {type(error).__name__}: {error}")
        port.send(name)
        wrong += _once_more(store, kind, name) + nested.judge()
    ended.set()
    for neighbour in neighbours:
        neighbour.join(HANG_TIMEOUT_S)
        if neighbour.is_alive():
            wrong.append("I9: a thread other than the interrupted one hangs")
    for _ in range(CLOSES):
        interrupter.run("close", store.close)
        port.send("closing")
    store.close()
    port.send((hits, wrong))
    port.recv()


def _has_turn(store: holdfast.BlockingStore, name: str) -> bool:
    return name in {entry.turn_id for entry in store.sessions.handle(SESSION).history(limit=1_000)}


def _once_more(store: holdfast.BlockingStore, kind: str, name: str) -> list[str]:
    """Send the call twice more, and check that it has happened once."""
    try:
        first, second = CALLS[kind](store, name), CALLS[kind](store, name)
    except holdfast.HoldfastError as error:
        return [f"I9: after {name} was interrupted: {type(error).__name__}: {error}"]
    # The neighbours change what a read returns.
    return [] if first == second or kind in {"load", "nodes", "batches"} else [f"I4: {name}: {first}, then {second}"]


def _neighbour(store: holdfast.BlockingStore, number: int, ended: threading.Event, wrong: list[str]) -> None:
    turn = 0
    try:
        while not ended.is_set():
            turn += 1
            store.sessions.handle(f"neighbour-{number}").commit(holdfast.Commit(turn_id=f"{number}-{turn}"))
            _load(store, "")
            _wait_for_event(store, "")
    except holdfast.HoldfastError as error:
        wrong.append(f"I9: in another thread than the interrupted one: {type(error).__name__}: {error}")


def interrupt_calls(scratch: Scratch, seed: int) -> Ran:
    """Interrupt every kind of blocking call, also reads and waits, and the closing of the store."""
    place = scratch.fresh().unsynced()
    with Child(interrupted, place, seed, CASES_A_RUN) as child:
        while isinstance(reported := child.receive(SILENT_S), str):
            pass
        hits, wrong = reported
    with place.open() as store:
        wrong += unsound(store)
    return Ran(max(1, hits), tuple(wrong))


INTERRUPTED = Fault(
    "interrupts",
    "a signal handler raises, or uses the store, in the middle of blocking calls, reads and waits too",
    ("I4", "I9", "I10"),
    {"sqlite": Numbers(50, 20_000), "postgres": Numbers(50, 5_000)},
    interrupt_calls,
    unit="interrupts",
)
