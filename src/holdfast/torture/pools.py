"""A pool of worker processes on one store, the work that it was given, and the judgement of what became of it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

import holdfast
from holdfast.torture.agents import Agents
from holdfast.torture.checkers.pools import Called, Ended, Piece, Shape, check_pool
from holdfast.torture.children import TIMEOUT_S, Child
from holdfast.torture.places import Place
from holdfast.torture.pool_worker import MAIL, RESEARCH, STEPS, Note, Terms, calls_in, drawn_beside, read_notes, serve
from holdfast.torture.soundness import unsound

T = TypeVar("T")

CHATS, POSTS = 4, 2
"""Sessions of turns, and of jobs."""
SHAPES: Sequence[Shape | None] = ("turn", "turn", "job", "job", "job", "run", None)
"""Shapes of the pieces, as often as each is given. None stands for an agent."""


class Pool:
    """Workers, and the work that they were given."""

    def __init__(self, place: Place, notes: Path, rng: random.Random, size: int, terms: Terms = Terms()) -> None:  # noqa: B008 - a value
        self._place = place
        self._notes = notes
        self._rng = rng
        self._terms = terms
        self._count = 0
        self._stopped: dict[int, threading.Timer] = {}
        self._stopping = threading.Lock()
        self._leaving: list[Child] = []
        self._batches: dict[str, str] = {}
        self.pieces: list[Piece] = []
        self.store = place.open()
        self.agents = Agents(self.store, drawn_beside(notes), rng, self._again)
        self.workers = [self._begun() for _ in range(size)]
        for worker in self.workers:
            worker.receive()

    def _begun(self) -> Child:
        self._count += 1
        skew_s = (0, 1, -1)[self._count % 3] * self._terms.skew_s
        terms = msgspec.structs.replace(self._terms, skew_s=skew_s)
        return Child(serve, self._place, self._notes, terms)

    # Work.

    def give(self, count: int) -> None:
        """Give the pool pieces of work, of any shape, to sessions at random."""
        for _ in range(count):
            shape = self._rng.choice(SHAPES)
            self.agents.send_due()
            if shape is None:
                self.agents.give()
                continue
            number = self._rng.randrange(POSTS if shape == "job" else CHATS)
            self._give(f"{shape}-{len(self.pieces)}", shape, f"{'post' if shape == 'job' else 'chat'}-{number}")

    def _give(self, name: str, shape: Shape, session_id: str) -> None:
        given_ns = time.monotonic_ns()
        if shape == "run":
            self._again(lambda: self.store.processes.start(RESEARCH, id=name))
        else:
            kind = "turn" if shape == "turn" else self._rng.choice((MAIL, f"{MAIL}-in-thread"))
            draft = holdfast.WorkDraft(session_id=session_id, payloads=[name], kind=kind, source_key=name)
            self._batches[name] = self._again(lambda: self.store.queue.enqueue(draft)).batch_id
        self.pieces.append(Piece(name, shape, session_id, given_ns))

    # Faults.

    def kill_one(self) -> None:
        """Kill a worker at random, and start another in its place."""
        number = self._rng.randrange(len(self.workers))
        self._forget_stop(number)
        self.workers[number].kill()
        self.workers[number] = self._begun()

    def stop_one(self) -> None:
        """Stop a worker at random until its claims have expired. One of them continues.

        A timer resumes it in a thread of its own, because the caller may wait for the worker meanwhile: it may hold a
        lock, or all server connections of a pooler.
        """
        with self._stopping:
            running = [number for number in range(len(self.workers)) if number not in self._stopped]
        if len(running) > 1:
            number = self._rng.choice(running)
            self.workers[number].stop()
            stop_s = self._terms.lease_s * self._rng.uniform(1.1, 1.6)
            timer = threading.Timer(stop_s, self._resume, (number,))
            timer.daemon = True
            with self._stopping:
                self._stopped[number] = timer
            timer.start()

    def _resume(self, number: int) -> None:
        with self._stopping:
            if self._stopped.get(number) is threading.current_thread():
                self.workers[number].resume()
                del self._stopped[number]

    def _forget_stop(self, number: int) -> None:
        """Leave a worker stopped, if it is: it is about to be killed."""
        with self._stopping:
            timer = self._stopped.pop(number, None)
        if timer is not None:
            timer.cancel()

    def restart_one(self, number: int) -> None:
        """Tell a worker to end by SIGTERM, and start another in its place at once."""
        leaving = self.workers[number]
        os.kill(leaving.pid, signal.SIGTERM)
        self._leaving.append(leaving)
        self.workers[number] = self._begun()

    # The end.

    def wait(self) -> None:
        """Wait until everything is settled, or for as long as nothing should take."""
        deadline_s = time.monotonic() + TIMEOUT_S

        def left_ms() -> int:
            return max(1, int(1000 * (deadline_s - time.monotonic())))

        for piece in self.pieces:
            with suppress(holdfast.WaitTimeout):
                self._again(partial(self._wait_for, piece, left_ms))
        for timer in [*self._stopped.values()]:
            timer.join()
        self.agents.send_due(to_the_end=True)
        with suppress(holdfast.WaitTimeout):
            self.agents.wait(left_ms)

    def _again(self, call: Callable[[], T]) -> T:
        """Retry a call while the database is down, or a stopped worker has a lock for too long."""
        deadline_s = time.monotonic() + TIMEOUT_S / 2
        while True:
            try:
                return call()
            except holdfast.Unavailable:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.02)

    def _wait_for(self, piece: Piece, left_ms: Callable[[], int]) -> None:
        if piece.shape == "run":
            self.store.processes.wait(piece.id, timeout_ms=left_ms())
        else:
            self.store.queue.wait_settled(piece.session_id, self._batches[piece.id], timeout_ms=left_ms())

    def end(self) -> None:
        """Wait for workers that were asked to end, and kill the others."""
        for worker in self._leaving:
            worker.rest()
            worker.join()
        self._leaving = []
        for number, worker in enumerate(self.workers):
            self._forget_stop(number)
            worker.kill()

    def calls(self) -> list[Called]:
        """Return the calls that the handlers noted."""
        return calls_in(read_notes(self._notes))

    def ends(self) -> dict[str, Ended]:
        """Return what the store shows of each piece."""
        claims: dict[str, list[Note]] = {}
        for note in read_notes(self._notes):
            if note.claim is not None:
                claims.setdefault(note.piece_id, []).append(note)
        found = (self._end_of(piece, claims.get(piece.id, [])) for piece in self.pieces)
        return {end.piece_id: end for end in found if end is not None}

    def _end_of(self, piece: Piece, noted: list[Note]) -> Ended | None:
        if piece.shape == "run":
            process = self.store.processes.get(piece.id)
            if process is None:
                return None
            outcome = process.outcome
            if not isinstance(outcome, holdfast.processes.Completed):
                return Ended(piece.id, "running" if outcome is None else type(outcome).__name__, (), process.attempt)
            value: Any = outcome.value
            return Ended(piece.id, "completed", (value["fence"],), process.attempt)
        batch = self.store.queue.get(piece.session_id, self._batches[piece.id])
        if batch is None:
            return None
        is_done = batch.state == "completed"
        fences = tuple(sorted({note.fence for note in noted if is_done and self._has_settled(note.claim)}))
        return Ended(piece.id, batch.state, fences, batch.attempts)

    def _has_settled(self, claim: holdfast.WorkClaim) -> bool:
        """Return whether this claim settled its work: only that one can be completed again."""
        try:
            self.store.queue.complete(claim)
        except holdfast.ClaimLost:
            return False
        return True

    def paths(self) -> dict[str, list[str]]:
        """Return the pieces that each conversation shows."""
        found: dict[str, list[str]] = {}
        for number in range(CHATS):
            name = f"chat-{number}"
            if self.store.sessions.handle(name).load() is not None:
                found[name] = [message["piece"] for message in self.store.sessions.handle(name).messages()]
        return found

    def judge(self) -> list[str]:
        """Return the problems of the pool, of the logs of its runs, and of the store."""
        wrong = check_pool(self.pieces, self.calls(), self.ends(), self.paths())
        wrong += [problem for piece in self.pieces if piece.shape == "run" for problem in self._steps_of(piece)]
        return [*(f"I6: {one}" for one in [*wrong, *self.agents.judge()]), *unsound(self.store)]

    def _steps_of(self, piece: Piece) -> Iterator[str]:
        payloads: list[Any] = [
            event.payload for event in holdfast.every(self.store.events.after, piece.id, 0) if event.type == "step"
        ]
        names = [payload["name"] for payload in payloads]
        if names != list(STEPS):
            yield f"run {piece.id} recorded the steps {names}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(len(self.workers)):
            self._forget_stop(number)
        for worker in (*self.workers, *self._leaving):
            worker.__exit__(kind, error, trace)
        self.store.close()


def paced(pool: Pool, count: int, every_s: float, act: Callable[[int], None]) -> None:
    """Give so many pieces in a steady rhythm, and act after each."""
    next_s = time.monotonic()
    for number in range(count):
        pool.give(1)
        act(number)
        next_s += every_s
        time.sleep(max(0.0, next_s - time.monotonic()))
