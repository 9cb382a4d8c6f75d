"""Racer processes that meet at a barrier before each round; no racer ever sleeps.

Its answers are values that travel: what it was given, or the name of the error with the facts that the error carries.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import holdfast
from holdfast.leases import OnProcess, OnSession
from holdfast.processes import External

RACERS = 4
TIMEOUT_S = 120
TTL_MS = 1_000

Answer = tuple[Any, ...]
Race = Callable[["Racer", int], Answer]


class SharedClock:
    """One clock for all processes, which stands still until a racer advances it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def now_ms(self) -> int:
        return int(self._value.value)

    def advance(self, milliseconds: int) -> None:
        with self._value.get_lock():
            self._value.value += milliseconds


class Racer:
    """One process of a race: its number, its owner id, the shared clock and a store."""

    def __init__(self, url: str, me: int, barrier: Any, clock: SharedClock) -> None:
        self.me = me
        self.owner = f"w{me}"
        self.clock = clock
        self._barrier = barrier
        self.store = holdfast.open_blocking(url, clock=clock)

    def meet(self) -> None:
        """Wait until all racers have arrived."""
        self._barrier.wait(TIMEOUT_S)

    def run(self, race: Race, rounds: int) -> list[Answer]:
        answers = []
        for number in range(rounds):
            self.meet()
            try:
                answers.append(race(self, number))
            except holdfast.HoldfastError as error:
                found = {name: value for name, value in vars(error).items() if isinstance(value, int | str)}
                answers.append((type(error).__name__, found))
        return answers


def live(url: str, me: int, barrier: Any, value: Any, orders: Connection) -> None:
    """Run one race after another until there are no more orders."""
    racer = Racer(url, me, barrier, SharedClock(value))
    with suppress(EOFError):
        while True:
            name, rounds = orders.recv()
            orders.send(racer.run(RACES[name], rounds))
    racer.store.close()


class Field:
    """The racers of a test, and the methods that start them."""

    def __init__(self, url: str) -> None:
        ways = multiprocessing.get_context("spawn")
        self._value = ways.Value("q", 1_000_000)
        self.clock = SharedClock(self._value)
        # Kept alive: processes that are still starting find it by its name, which disappears with it.
        self._barrier = ways.Barrier(RACERS)
        pipes = [ways.Pipe() for _ in range(RACERS)]
        self._ends = [here for here, _ in pipes]
        self._processes = [
            ways.Process(target=live, args=(url, me, self._barrier, self._value, there), daemon=True)
            for me, (_, there) in enumerate(pipes)
        ]
        for process, (_, there) in zip(self._processes, pipes, strict=True):
            process.start()
            there.close()

    def run(self, name: str, rounds: int) -> list[tuple[Answer, ...]]:
        """Return the answers of all racers, round by round."""
        for end in self._ends:
            end.send((name, rounds))
        for end in self._ends:
            assert end.poll(TIMEOUT_S), f"{name}: a racer does not answer"
        return list(zip(*(end.recv() for end in self._ends), strict=True))

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(TIMEOUT_S)
            process.close()


# Races. In even rounds all racers send the same call, in odd ones different calls, if that matters.


def commit_on_revision(racer: Racer, number: int) -> Answer:
    node = holdfast.Node(f"n{number}-{racer.me}", payload=racer.me)
    commit = holdfast.Commit(expected_revision=number, graph=holdfast.Append([node], leaf=node.id), config=racer.me)
    return "won", racer.store.sessions.handle("chat").commit(commit).revision


def first_commit(racer: Racer, number: int) -> Answer:
    commit = holdfast.Commit(expected_revision=0, config=racer.me)
    return "won", racer.store.sessions.handle(f"first-{number}").commit(commit).revision


def enqueue_source_key(racer: Racer, number: int) -> Answer:
    draft = holdfast.WorkDraft(session_id="inbox", payloads=[said(racer, number)], source_key=f"message-{number}")
    return "won", racer.store.queue.enqueue(draft).batch_id


def register(racer: Racer, number: int) -> Answer:
    wanted = holdfast.ProcessRegistration(f"job-{number}", External(said(racer, number)))
    process = racer.store.processes.register(wanted)
    return "won", process.registration_hash, process.created_at_ms


def emit(racer: Racer, number: int) -> Answer:
    found = racer.store.triggers.emit("cron", "daily", idempotency_key=f"day-{number}", payload=said(racer, number))
    return "won", found.occurrence.occurrence_id, found.replayed, [one.process_id for one in found.deliveries]


def claim_batches(racer: Racer, number: int) -> Answer:
    claim = racer.store.queue.claim(f"queue-{number}", owner_id=racer.owner)
    return ("lost",) if claim is None else ("won", [batch.batch_id for batch in claim.batches])


def claim_lease(racer: Racer, number: int) -> Answer:
    lease = racer.store.leases.claim(leased(number), owner_id=racer.owner, ttl_ms=TTL_MS)
    return "won", lease.fence, lease.expires_at_ms


def complete_or_take_over(racer: Racer, number: int) -> Answer:
    """One racer completes its claim, while another lets the claim expire and all the rest try to take over."""
    name, role = f"worked-{number}", (racer.me + number) % RACERS
    held = racer.store.queue.claim(name, owner_id=racer.owner, ttl_ms=TTL_MS) if role == 0 else None
    racer.meet()
    if held is not None:
        receipt = racer.store.sessions.handle(name).commit(holdfast.Commit(completes=[held], config="completed"))
        return "completed", receipt.revision
    if role == 1:
        racer.clock.advance(TTL_MS)
    claim = racer.store.queue.claim(name, owner_id=racer.owner, ttl_ms=TTL_MS)
    return ("lost",) if claim is None else ("took over", claim.fence)


def leased(number: int) -> OnSession | OnProcess:
    return OnSession(f"leased-{number}") if number % 2 == 0 else OnProcess(f"leased-{number}")


def said(racer: Racer, number: int) -> Any:
    return "same" if number % 2 == 0 else racer.me


RACES: dict[str, Race] = {
    race.__name__: race
    for race in (
        commit_on_revision,
        first_commit,
        enqueue_source_key,
        register,
        emit,
        claim_batches,
        claim_lease,
        complete_or_take_over,
    )
}
