"""Functions that run in child processes. Each talks to its parent through a port."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import holdfast
from holdfast.events import ProcessEvent
from holdfast.leases import OnSession
from holdfast.sessions import ActivePath
from holdfast.torture import turns
from holdfast.torture.children import TIMEOUT_S, Port
from holdfast.torture.clients import LEASED, LOG, Client
from holdfast.torture.places import Place

T = TypeVar("T")

CROWDED = "crowded"
"""The session of a writer that runs out of room."""

MOST_LOOKS = 1_000
"""Upper bound on the reads that it takes to reach the end of the log."""

SLEPT_MS = 4_000
"""A waiter that wakes later than this was not woken by the event."""


def client(port: Port, place: Place, number: int, seed: int, calls: int) -> None:
    """Call the store at random, read the log to its end once all clients are done, and report the history."""
    with place.open() as store:
        one = Client(store, number, seed)
        port.send("ready")
        port.recv()
        one.run(calls)
        port.send("ran")
        port.recv()
        any(not one.look() for _ in range(MOST_LOOKS))
        port.send((one.head.calls, one.lease.calls, one.queue.calls, one.log.calls))


def writer(port: Port, place: Place, *session_ids: str) -> None:
    """Write one turn after another to each session, concurrently, and report each stored one."""
    telling = threading.Lock()

    def write(session_id: str) -> None:
        number = 0
        while True:
            number += 1
            revision = turns.write(store, session_id, number)
            with telling:
                port.send((session_id, revision))

    with place.open() as store:
        for session_id in session_ids:
            turns.begin(store, session_id)
        # Concurrent turns are committed in one group, and none may be acknowledged before all are stored.
        with ThreadPoolExecutor(len(session_ids)) as threads:
            for ended in [threads.submit(write, session_id) for session_id in session_ids]:
                ended.result()


def reader(port: Port, place: Place, events: int) -> None:
    """Read a log from the last reader's cursor, process each event, and report."""
    with place.open() as store:
        session = store.sessions.handle("reader")
        view = session.load()
        cursor: int = 0 if view is None or view.config is None else view.config
        while cursor < events:
            for event in store.events.after(LOG, cursor, limit=5):
                process_event(session, event)
                cursor = event.sequence
                port.send(cursor)
        port.send("ended")
        port.recv()


def process_event(session: holdfast.blocking.Session, event: ProcessEvent) -> None:
    """Store an event's effect, and advance the cursor in the same commit."""
    done = holdfast.Node(f"event-{event.sequence}", payload=[event.sequence, event.payload])
    session.commit(holdfast.Commit(config=event.sequence, graph=holdfast.Append([done], done.id)))


def holder(port: Port, place: Place, ttl_ms: int) -> None:
    """Write under a lease until it is lost, and report each write."""
    with place.open() as store:
        lease = store.leases.claim(OnSession(LEASED), owner_id="holder", ttl_ms=ttl_ms)
        port.send((lease.fence, time.monotonic_ns()))
        while True:
            sent_ns = time.monotonic_ns()
            try:
                receipt = store.sessions.handle(LEASED).commit(holdfast.Commit(lease=lease))
            except holdfast.LeaseLost:
                break
            port.send((lease.fence, receipt.revision, sent_ns))
        port.send("lost")
        port.recv()


def waiter(port: Port, place: Place) -> None:
    """Wait for the event after a number, and report the time. Also report that the store is open, and closed."""
    with place.open() as store:
        port.send(None)
        while (after := port.recv()) is not None:
            try:
                store.events.wait_for(LOG, "note", after=after, timeout_ms=SLEPT_MS * 2)
            except holdfast.WaitTimeout:
                port.send(None)
            else:
                port.send(time.monotonic_ns())
    port.send(None)


def appender(port: Port, place: Place) -> None:
    """Append an event after so many seconds, and report when it was stored."""
    with place.open() as store:
        while (pause_s := port.recv()) is not None:
            time.sleep(pause_s)
            store.events.append(LOG, "note")
            port.send(time.monotonic_ns())


def persistent_writer(port: Port, place: Place, session_id: str) -> None:
    """Write one turn after another, and retry each until it is stored."""
    with place.open() as store:
        session = store.sessions.handle(session_id)
        number = 0
        while True:
            number += 1
            turn = turns.repeatable(session_id, number)
            try:
                port.send(_until_stored(session, turn, number))
            except holdfast.HeadConflict as error:
                port.send(f"I1: turn {number - 1} was acknowledged, and then: {error}")
                return
            except Lie as lie:
                port.send(f"I9: {lie}")
                return


class Lie(Exception):
    """The outcome of an error contradicts what is stored."""


def _until_stored(session: holdfast.blocking.Session, turn: holdfast.Commit, number: int) -> int:
    """Return the revision of a turn, retried while the database is unavailable."""

    def once() -> int | None:
        try:
            return session.commit(turn).revision
        except holdfast.Unavailable as error:
            reported = error
        if reported.outcome == "not_applied":
            again(lambda: check_not_applied(session, number, reported))
        raise reported

    revision = again(once)
    assert revision is not None
    return revision


def check_not_applied(session: holdfast.blocking.Session, number: int, reported: holdfast.Unavailable) -> None:
    """Raise `Lie` if a turn that was reported as not applied is stored."""
    view = session.load(ActivePath(last=1))
    if view is not None and view.revision >= number:
        raise Lie(f"turn {number} was reported as not applied, and is stored: {reported}")


def again(call: Callable[[], T]) -> T:
    """Retry a call while the database is unavailable, for half of `TIMEOUT_S`, then raise its error."""
    deadline_s = time.monotonic() + TIMEOUT_S / 2
    while True:
        try:
            return call()
        except holdfast.Unavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


MOST_CROWDED = 40
"""Number of turns that fills any of the sizes."""


def crowded_writer(port: Port, place: Place, most_bytes: int) -> None:
    """Write turns while no file may grow beyond a size; report the first refusal; make room, and write some more."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with place.open() as store:
        session = store.sessions.handle(CROWDED)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
        number, left = 0, MOST_CROWDED
        while left:
            number, left = number + 1, left - 1
            turn = turns.repeatable(CROWDED, number)
            try:
                port.send(session.commit(turn).revision)
            except holdfast.HoldfastError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                view = session.load(ActivePath(last=1))
                stored = view is not None and view.revision >= number
                port.send((f"{type(error).__name__}: {error}", error.outcome, error.retryable, stored))
                number, left = number - 1, 3
    port.send("ended")
    port.recv()


MOST_TURNS = 2_000
"""Number of turns that fills any disk with some pages left."""


def crowded_client(port: Port, place: Place) -> None:
    """Write turns until the server's disk is full; report the refusal; wait for room, and write some more."""
    with place.open() as store:
        session = store.sessions.handle(CROWDED)
        number, left = 0, MOST_TURNS
        while left:
            number, left = number + 1, left - 1
            turn = turns.repeatable(CROWDED, number)
            try:
                port.send(session.commit(turn).revision)
            except holdfast.HoldfastError as error:
                port.send((f"{type(error).__name__}: {error}", error.outcome, error.retryable))
                port.recv()
                view = again(lambda: session.load(ActivePath(last=1)))
                port.send(view is not None and view.revision >= number)
                number, left = number - 1, 3
    port.send("ended")
    port.recv()


def forker(port: Port, place: Place) -> None:
    """Fork with a store open. Report how its calls are answered in the child, and that it still works here."""
    with place.open() as store:
        session = store.sessions.handle("forked")
        session.commit(holdfast.Commit())
        reading, writing = os.pipe()
        with store.transaction() as tx:
            pid = os.fork()
            if pid == 0:
                answers = {
                    "a commit": outcome_text(lambda: session.commit(holdfast.Commit())),
                    "a read": outcome_text(session.load),
                    "a wait": outcome_text(lambda: store.queue.wait("forked", timeout_ms=1_000)),
                    "a call of a transaction": outcome_text(lambda: tx.queue.list("forked")),
                }
                os.write(writing, json.dumps(answers).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                port.send(json.loads(pipe.read()))
            os.waitpid(pid, 0)
            port.send(tx.sessions.handle("forked").commit(holdfast.Commit()).revision)
        port.recv()


def outcome_text(call: Callable[[], object]) -> str:
    """Return the name of the error that a call raises, or the repr of its result."""
    try:
        return repr(call())
    except BaseException as error:  # any error that a caller sees is judged
        return type(error).__name__
