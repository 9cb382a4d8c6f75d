"""Background tasks of a worker: each acts while there is something to do, and sleeps otherwise."""

from __future__ import annotations

import asyncio
import importlib.util

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.claiming import LOOK_AGAIN_MS
from holdfast.worker.handlers import Handlers
from holdfast.worker.running import AWAY_S
from holdfast.worker.schedules import Schedules

PUT_OFF_S = 60.0
"""Pause after an error that only an operator can fix."""


class BackgroundTask:
    """One task. Several workers may act at once: each act is decided by the database."""

    name = ""

    async def act(self) -> bool:
        """Do the next thing. Return False if there is nothing to do."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Wait for something to do; `WaitTimeout` if none comes for a while."""
        raise NotImplementedError

    async def start_one(self) -> bool:
        """Act once, for a worker that runs until it is idle."""
        return await self.act()

    async def serve(self) -> None:
        """Act and wait for ever."""
        while True:
            try:
                if not await self.act():
                    await self.wait()
            except holdfast.WaitTimeout:
                continue
            except holdfast.HoldfastError as error:
                away = isinstance(error, holdfast.Unavailable)
                if away and not error.retryable:
                    raise
                message = "%(task)s cannot continue (%(error_class)s)"
                log_event("worker", WARNING, message, task=self.name, error_class=type(error).__name__)
                await asyncio.sleep(AWAY_S if away else PUT_OFF_S)


class Ticker(BackgroundTask):
    """Fires the schedules that are due, of all workers: each tick once, whichever worker is first."""

    name = "firing schedules"

    def __init__(self, store: holdfast.Store, schedules: Schedules, handlers: Handlers) -> None:
        self._store = store
        self._schedules = schedules
        self._handlers = handlers
        self._was_due = True
        """True at the start, and after a wait that ended because a schedule was due."""
        self._logged: dict[str, int] = {}
        """The last failed tick of each schedule that was logged."""
        self._can_fire = importlib.util.find_spec("cronsim") is not None

    async def declare(self) -> None:
        """Declare the schedules of this worker."""
        await self._schedules.declare(self._store, self._handlers)
        if not self._can_fire and len(await self._store.schedules.list(limit=1)):
            message = "schedules of other programs are not fired here: pip install 'holdfast[schedules]'"
            log_event("worker", WARNING, message)

    async def act(self) -> bool:
        """Fire one schedule."""
        if not self._can_fire:
            return False
        firing = await self._store.schedules.fire_next()
        if firing is None:
            if self._was_due:
                await self._log_failures()
            self._was_due = False
            return False
        log_event("worker", INFO, "schedule %(schedule)r fired", schedule=firing.name, tick_ms=firing.tick_ms)
        return True

    async def wait(self) -> None:
        """Wait for the next tick, by the clock of the database."""
        if not self._can_fire:
            await asyncio.sleep(PUT_OFF_S)
            return
        await self._store.schedules.wait_next(timeout_ms=LOOK_AGAIN_MS)
        self._was_due = True

    async def _log_failures(self) -> None:
        """Log ticks that started nothing, each once. A tick that another worker fired leaves nothing to log."""
        async for one in holdfast.every(self._store.schedules.list):
            if one.failure is not None and self._logged.get(one.name) != one.seen_ms:
                self._logged[one.name] = one.seen_ms
                message = "schedule %(schedule)r started nothing: see holdfast schedules list"
                log_event("worker", WARNING, message, schedule=one.name, tick_ms=one.seen_ms)
