"""A worker process of a pool. Its handlers note their own calls in a file, which outlives the process."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.torture import agents
from holdfast.torture.checkers.pools import Called
from holdfast.torture.children import Port
from holdfast.torture.places import Place

MAIL, RESEARCH = "mail", "research"
STEPS = ("plan", "search", "write")
RETRY = holdfast.Retry(1_000, backoff_s=0)
"""A killed worker costs an attempt. None of these faults may use up all of them."""


class Terms(msgspec.Struct, frozen=True):
    """The terms of a worker."""

    lease_s: float = 0.5
    grace_s: float = 5.0
    concurrency: int = 4
    longest_s: float = 0.02
    """The longest call of a handler."""
    skew_s: float = 0.0
    """The error of its clock."""


class Note(msgspec.Struct, frozen=True):
    """A line of the file: a call began, or it returned."""

    piece_id: str
    fence: int
    attempt: int
    at_ns: int
    claim: Any = None
    """The claim of a call that begins. None in the note of its end."""


class Notes:
    """A file that all workers append to. A write is there as a whole once it has returned, even after a kill."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.are_begun = False
        """True once a handler of this process was called."""

    def add(self, note: Note) -> None:
        """Append a note."""
        self.are_begun = True
        os.write(self._file, pickle.dumps(note).hex().encode() + b"\n")

    @contextmanager
    def call(self, piece_id: str, claim: Any, attempt: int) -> Generator[None]:
        """Note that a call begins, and that it returns unless it raises."""
        self.add(Note(piece_id, claim.fence, attempt, time.monotonic_ns(), claim))
        yield
        self.add(Note(piece_id, claim.fence, attempt, time.monotonic_ns()))


def drawn_beside(path: Path) -> Path:
    """Return the file for the notes of agents, beside that of the other notes."""
    return path.with_name(f"{path.name}-agents")


def read_notes(path: Path) -> list[Note]:
    """Return all notes of a pool."""
    if not path.exists():
        return []
    return [pickle.loads(bytes.fromhex(line)) for line in path.read_text(encoding="ascii").splitlines()]  # noqa: S301 - our own file


def calls_in(notes: list[Note]) -> list[Called]:
    """Return the calls in the notes."""
    ends: dict[tuple[str, int], list[int]] = {}
    for note in notes:
        if note.claim is None:
            ends.setdefault((note.piece_id, note.fence), []).append(note.at_ns)
    begun = [note for note in notes if note.claim is not None]
    return [
        Called(one.piece_id, one.fence, one.attempt, one.at_ns, max(ends.get((one.piece_id, one.fence), [0])) or None)
        for one in begun
    ]


def serve(port: Port, place: Place, path: Path, terms: Terms) -> None:
    """Run a worker until SIGTERM. One that finds no database when it starts is started again, as by a supervisor."""
    if terms.skew_s:
        _set_clock(terms.skew_s)
    notes = Notes(path)
    worker = made(place, notes, terms)
    agents.register(worker, drawn_beside(path), lambda: random.uniform(0, terms.longest_s))  # noqa: S311 - spreads kills
    port.send("ready")
    while True:
        try:
            worker.run()
        except holdfast.Unavailable:
            if notes.are_begun:
                raise  # a worker outlasts an outage
            time.sleep(0.05)
        else:
            return


def made(place: Place, notes: Notes, terms: Terms) -> holdfast.Worker:
    """Return a worker for turns, jobs and plain runs."""
    worker = holdfast.Worker(
        place.url,
        options=place.options,
        concurrency=terms.concurrency,
        lease_s=terms.lease_s,
        grace_s=terms.grace_s,
        housekeeping_s=None,
    )

    def pause_s() -> float:
        return random.uniform(0, terms.longest_s)  # noqa: S311 - spreads the moments of kills

    async def answer(turn: holdfast.Turn) -> None:
        assert turn.claim is not None
        with notes.call(turn.input, turn.claim, turn.claim.batches[0].attempts):
            await asyncio.sleep(pause_s())
            turn.add({"piece": turn.input, "fence": turn.claim.fence})

    worker.turn(answer, retry=RETRY)

    @worker.job(MAIL, retry=RETRY)
    async def send(job: Any) -> None:
        with notes.call(job.payload, job.claim, job.attempt):
            await asyncio.sleep(pause_s())

    @worker.job(f"{MAIL}-in-thread", retry=RETRY)
    def send_in_thread(job: Any) -> None:
        with notes.call(job.payload, job.claim, job.attempt):
            time.sleep(pause_s())

    async def part() -> None:
        await asyncio.sleep(pause_s() / len(STEPS))

    @worker.process(RESEARCH, retry=RETRY)
    async def research(run: Any) -> dict[str, Any]:
        with notes.call(run.id, run.claim.lease, run.attempt):
            for name in STEPS:
                await run.step(name, part)
        return {"fence": run.claim.lease.fence}

    return worker


def _set_clock(skew_s: float) -> None:
    """Make every clock of this process wrong that shows the time of day."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + skew_s
    time.time_ns = lambda: right_ns() + int(skew_s * 1e9)
