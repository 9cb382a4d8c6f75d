"""Starts the runs of reserved trigger deliveries. The id of a run follows from its delivery, so each starts once."""

from __future__ import annotations

import asyncio
import random

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.background_tasks import BackgroundTask
from holdfast.worker.claiming import LOOK_AGAIN_MS
from holdfast.worker.running import AWAY_S, described

PAGE = 100
"""Deliveries that are read at a time."""


class Router(BackgroundTask):
    """Starts a run for each delivery whose target is one. Deliveries to other targets are left to their host."""

    name = "starting triggered runs"

    def __init__(self, store: holdfast.Store) -> None:
        self._store = store
        self._is_hurt = False
        """True if the last page had damage."""
        self._logged: set[tuple[str, str]] = set()

    async def act(self) -> bool:
        """Start the runs of one page of deliveries. Return False if none could be started."""
        settled = 0
        after: str | None = None
        self._is_hurt = False
        while True:
            try:
                page = await self._store.triggers.undelivered(runs_only=True, after=after, limit=PAGE)
            except holdfast.Corrupt as damage:
                self._pass(damage)
                return settled > 0
            # Workers that read the same page begin at different ends.
            for delivery in random.sample(page.items, len(page.items)):
                settled += await self._start(delivery)
            after = page.next
            if settled or after is None:
                return settled > 0

    def _pass(self, damage: holdfast.Corrupt) -> None:
        """Leave a damaged delivery to a person, and log it once."""
        self._is_hurt = True
        if (damage.table, damage.key) not in self._logged:
            self._logged.add((damage.table, damage.key))
            message = "passed over a damaged row of %(table)s: run holdfast verify"
            log_event("worker", WARNING, message, table=damage.table)

    async def wait(self) -> None:
        """Wait for a delivery. A damaged one would end every wait, so this polls while there is one."""
        if self._is_hurt:
            await asyncio.sleep(AWAY_S)
            return
        await self._store.triggers.wait_undelivered(timeout_ms=LOOK_AGAIN_MS)

    async def _start(self, delivery: holdfast.triggers.TriggerDelivery) -> bool:
        """Start a run, or note why it cannot be started. Return False if neither could be done."""
        try:
            await self._store.processes.register(holdfast.triggers.registration_for(delivery))
        except (holdfast.InvalidRequest, holdfast.Conflict) as error:
            return await self._fail(delivery, error)
        except holdfast.Corrupt as damage:
            self._pass(damage)
            return False
        log_event("worker", INFO, "a delivery started run %(process_id)s", process_id=delivery.process_id)
        return True

    async def _fail(self, delivery: holdfast.triggers.TriggerDelivery, error: Exception) -> bool:
        log_event("worker", WARNING, "a delivery failed (%(error_class)s)", error_class=type(error).__name__)
        try:
            await self._store.triggers.mark_failed(delivery, described(error, self._store.limits))
        except holdfast.NotFound:
            return True  # its subscription was forgotten meanwhile, with its deliveries
        return True
