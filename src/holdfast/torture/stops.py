"""Fault: the holder of a lease is stopped until long after it expired. Its writes after that are refused."""

from __future__ import annotations

import random
import time

import holdfast
from holdfast.torture import workers
from holdfast.torture.checkers.fences import Accepted, Acquired, check_fences
from holdfast.torture.children import TIMEOUT_S, Child
from holdfast.torture.clients import LEASED
from holdfast.torture.faults import Fault, Numbers, Ran
from holdfast.torture.places import Scratch
from holdfast.torture.soundness import unsound

IN_THE_WAY_MS = 400
"""Time that the successor waits for a database that the stopped process has locked, before that one is resumed."""

TURNS_OF_THE_SUCCESSOR = 3

MOST_LATE = 50
"""A holder that wrote this often after its lease was taken over will no longer be refused."""


def stop_holder(scratch: Scratch, seed: int) -> Ran:
    """Stop a holder, take its lease over, and resume it."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same program again
    place = scratch.fresh()
    ttl_ms = rng.randrange(50, 201)
    acquired: list[Acquired] = []
    accepted: list[Accepted] = []
    with Child(workers.holder, place, ttl_ms) as child, place.with_lock_timeout(IN_THE_WAY_MS).open() as store:
        fence, answered_ns = child.receive()
        acquired.append(Acquired(fence, answered_ns))
        reported: object = None
        for _ in range(rng.randrange(3)):
            reported = reported if reported == "lost" else receive_write(child, accepted)
        time.sleep(rng.uniform(0, 0.004))  # stop at a random moment
        child.stop()
        try:
            successor = take_over(store)
            acquired.append(Acquired(successor.fence, time.monotonic_ns()))
            accepted += [_turn(store, successor) for _ in range(TURNS_OF_THE_SUCCESSOR)]
        except holdfast.Unavailable:
            # It was stopped inside a transaction and has the database locked: a typed error, which ends when it
            # resumes.
            pass
        child.resume()
        late = 0
        while reported != "lost" and late < MOST_LATE:
            reported = receive_write(child, accepted)
            late += 1
        wrong = [f"I5: {one}" for one in check_fences(acquired, accepted)]
        wrong += unsound(store)
    return Ran(1, tuple(wrong))


def receive_write(child: Child, accepted: list[Accepted]) -> object:
    """Return the holder's next message: an accepted write, or that it lost the lease."""
    reported = child.receive()
    if reported != "lost":
        accepted.append(Accepted(*reported))
    return reported


def take_over(store: holdfast.BlockingStore) -> holdfast.leases.Lease:
    """Claim the lease as soon as it is free."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return store.leases.claim(holdfast.leases.OnSession(LEASED), owner_id="successor", ttl_ms=600_000)
        except holdfast.LeaseHeld:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)


def _turn(store: holdfast.BlockingStore, lease: holdfast.leases.Lease) -> Accepted:
    sent_ns = time.monotonic_ns()
    receipt = store.sessions.handle(LEASED).commit(holdfast.Commit(lease=lease))
    return Accepted(lease.fence, receipt.revision, sent_ns)


STOPPED_HOLDER = Fault(
    "stop-holder",
    "SIGSTOP of a lease holder until its lease has expired, then SIGCONT",
    ("I5", "I10"),
    {"sqlite": Numbers(8, 300), "postgres": Numbers(8, 300)},
    stop_holder,
)
