"""Loops that claim work while there is a free slot, and sleep while there is no work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import holdfast
from holdfast.log import WARNING, note
from holdfast.worker.running import AWAY_S, Runner

LOOK_AGAIN_MS = 60_000
"""Longest sleep. Work that comes, or becomes due, ends a sleep at once."""


class Slots:
    """The number of calls that may run at once."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)
        self._waiting: list[Claimer] = []

    def are_wanted_beside(self, claimer: Claimer) -> bool:
        """Return whether another claimer waits for a slot."""
        return any(waiting is not claimer for waiting in self._waiting)

    async def take(self, claimer: Claimer) -> None:
        """Wait for a free slot and take it."""
        self._waiting.append(claimer)
        try:
            await self._free.acquire()
        finally:
            self._waiting.remove(claimer)

    def give_back(self) -> None:
        """Free a slot."""
        self._free.release()


class Claimer:
    """Claims work of some kinds and starts a call for each claim."""

    def __init__(self, runner: Runner, slots: Slots, kinds: Sequence[str], *, exclusive: bool) -> None:
        self._runner = runner
        self._slots = slots
        self._kinds = list(kinds)
        self._exclusive = exclusive

    async def serve(self) -> None:
        """Claim and start work for ever."""
        while True:
            try:
                if not await self.start_one():
                    await self._sleep()
            except holdfast.StoreClosed:
                raise
            except holdfast.Unavailable as error:
                note("worker", WARNING, "no work can be claimed (%(error_class)s)", error_class=type(error).__name__)
                await asyncio.sleep(AWAY_S)

    async def _sleep(self) -> None:
        try:
            await self._runner.store.queue.wait_next(
                timeout_ms=LOOK_AGAIN_MS, kinds=self._kinds, exclusive=self._exclusive
            )
        except holdfast.WaitTimeout:
            return

    async def start_one(self) -> bool:
        """Claim work and start its call. Return False if there is none to claim."""
        await self._slots.take(self)
        claim = None
        try:
            sent_s = time.monotonic()
            claim = await self._runner.claim_next(self._kinds, exclusive=self._exclusive)
        finally:
            if claim is None:
                self._slots.give_back()
        if claim is None:
            return False
        self._runner.start(self._work_off(claim, sent_s))
        return True

    async def _work_off(self, claim: holdfast.WorkClaim, sent_s: float) -> None:
        """Run a claim, and whatever follows it, in one slot."""
        following: tuple[holdfast.WorkClaim, float] | None = (claim, sent_s)
        try:
            while following is not None:
                following = await self._runner.run(*following, self._next_kinds)
        finally:
            self._slots.give_back()

    def _next_kinds(self) -> list[str] | None:
        """Return the kinds to claim together with a settlement, None if this slot must be given back."""
        gives_back = self._exclusive or self._runner.is_finishing or self._slots.are_wanted_beside(self)
        return None if gives_back else self._kinds


async def serve(claimers: Sequence[Claimer]) -> None:
    """Serve all kinds until cancelled."""
    tasks = [asyncio.create_task(claimer.serve()) for claimer in claimers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drain(runner: Runner, claimers: Sequence[Claimer]) -> None:
    """Work off everything that can be claimed now, with the work that follows from it."""
    while True:
        # A call that ends during the looks may leave work behind that they have passed.
        running = set(runner.running)
        started = [await claimer.start_one() for claimer in claimers]
        if any(started):
            continue
        if not running and not runner.running:
            return
        if runner.running:
            await asyncio.wait(runner.running, return_when=asyncio.FIRST_COMPLETED)
