"""Loops that claim work while there is a free slot, and sleep while there is no work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import holdfast
from holdfast.log import ERROR, WARNING, log_event
from holdfast.worker.claim_renewal import Ask
from holdfast.worker.running import AWAY_S, Runner

C = TypeVar("C")

Claimed: TypeAlias = tuple[C, Ask]
"""A claim, and the call that took it."""
LOOK_AGAIN_MS = 600_000
"""Longest sleep. New or due work ends a sleep at once; a database polls for lost notifications itself."""


class Slots:
    """The number of calls that may run at once."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self._waiting: list[Claimer[Any]] = []

    def are_wanted_by_others(self, claimer: Claimer[Any]) -> bool:
        """Return whether another claimer waits for a slot."""
        return any(waiting is not claimer for waiting in self._waiting)

    async def take(self, claimer: Claimer[Any]) -> None:
        """Wait for a free slot and take it."""
        self._waiting.append(claimer)
        try:
            await self._free.acquire()
        finally:
            self._waiting.remove(claimer)

    def give_back(self) -> None:
        """Free a slot."""
        self._free.release()


class Source(Protocol[C]):
    """Work of some kinds: claimed, run, and waited for."""

    async def wait(self) -> None:
        """Wait for something to claim; `WaitTimeout` if none comes for a while."""
        ...

    async def claim(self) -> Claimed[C] | None:
        """Claim the next work. Return None if nothing can be claimed."""
        ...

    async def run(self, claimed: Claimed[C], *, may_claim_next: Callable[[], bool]) -> Claimed[C] | None:
        """Run a claim to its settlement. While `may_claim_next()`, it may take the next claim in the same trip."""
        ...


class Claimer(Generic[C]):
    """Claims work of one source and starts a call for each claim."""

    def __init__(self, runner: Runner, slots: Slots, source: Source[C]) -> None:
        self._runner = runner
        self._slots = slots
        self._source = source

    async def serve(self) -> None:
        """Claim and start work for ever."""
        while True:
            try:
                if not await self.start_one():
                    await self._source.wait()
            except holdfast.WaitTimeout:
                continue
            except holdfast.Unavailable as error:
                self._runner.outages.note(error)
                if not error.retryable:
                    raise
                log_event("worker", WARNING, "cannot claim work (%(error_class)s)", error_class=type(error).__name__)
                await asyncio.sleep(AWAY_S)

    async def start_one(self) -> bool:
        """Claim work and start its call. Return False if no work is claimable. Passes over damaged work."""
        await self._slots.take(self)
        claimed = None
        try:
            await self._runner.give_back_lost()
            claimed = await self._source.claim()
        except holdfast.Corrupt as damage:
            if damage.table == "database":
                raise
            # The row is postponed: claim the next one.
            log_event(
                "worker", ERROR, "passed over a damaged row of %(table)s: run holdfast verify", table=damage.table
            )
            await asyncio.sleep(AWAY_S)
            return True
        finally:
            if claimed is None:
                self._slots.give_back()
        if claimed is None:
            return False
        self._runner.start(self._work_off(claimed))
        return True

    async def _work_off(self, claimed: Claimed[C]) -> None:
        """Run a claim, and whatever follows it, in one slot."""
        following: Claimed[C] | None = claimed
        try:
            while following is not None:
                asked = following[1]
                try:
                    following = await self._source.run(following, may_claim_next=self._may_claim_next)
                finally:
                    self._runner.drop_answer(asked)
        finally:
            self._slots.give_back()

    def _may_claim_next(self) -> bool:
        """Return whether this slot may take the next claim together with a settlement."""
        return not self._runner.is_finishing and not self._slots.are_wanted_by_others(self)


class Serving(Protocol):
    """A loop of a worker: it claims work, or runs a background task."""

    async def serve(self) -> None:
        """Continue for ever."""
        ...

    async def start_one(self) -> bool:
        """Start the next piece of work. Return False if nothing is left."""
        ...


async def serve(claimers: Sequence[Serving]) -> None:
    """Serve all kinds until cancelled."""
    tasks = [asyncio.create_task(claimer.serve()) for claimer in claimers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            # A second cancellation would cut off a claimer that gives back what it has just claimed.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drain(runner: Runner, claimers: Sequence[Serving]) -> None:
    """Work off everything that can be claimed now, with the work that follows from it."""
    while True:
        # A call that ends meanwhile may enqueue work for a claimer that found nothing.
        running = set(runner.running)
        started = [await claimer.start_one() for claimer in claimers]
        if any(started):
            continue
        if not running and not runner.running:
            return
        if runner.running:
            await asyncio.wait(runner.running, return_when=asyncio.FIRST_COMPLETED)
