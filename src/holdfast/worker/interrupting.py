"""Notices that a turn was interrupted, cancels its handler, and stores what the handler keeps.

The interrupt has settled the work and reserved the session for this worker: the next turn of the session waits until
the reservation is released here, or ends by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker import running
from holdfast.worker.claim_renewal import Held
from holdfast.worker.claiming import LOOK_AGAIN_MS

WATCH_AFTER_S = 0.2
"""A call that is shorter than this is not watched for interrupts."""
KEEP_MS = 10_000
"""Time for an interrupted handler to end, and then for the commit of what its turn keeps."""


class InterruptWatch:
    """Watches the work of one turn while its handler runs."""

    def __init__(self, runner: running.Runner, turn: holdfast.Turn, held: Held) -> None:
        self._runner = runner
        self._store = runner.store
        self._turn = turn
        self._held = held
        self._cancels = 0
        assert isinstance(held.claim, holdfast.WorkClaim)
        self._batch = held.claim.batches[0]

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.cancel()
        if error is None:
            await asyncio.sleep(0)  # a cancel that came just before the end is raised here, and not in the commit
            if self._turn.interrupted:
                raise asyncio.CancelledError  # the handler swallowed it

    async def _watch(self) -> None:
        await asyncio.sleep(WATCH_AFTER_S)
        while True:
            try:
                batch = await self._store.queue.wait_settled(
                    self._batch.session_id, self._batch.batch_id, timeout_ms=LOOK_AGAIN_MS
                )
            except holdfast.WaitTimeout:
                continue
            except holdfast.Unavailable:
                await asyncio.sleep(running.AWAY_S)
            except holdfast.HoldfastError:
                return  # the session was deleted: the next renewal notices
            else:
                if batch.state == "interrupted":
                    self._interrupted()
                    if not self._cancels:
                        self._cancel()
                    await asyncio.sleep(KEEP_MS / 1000)
                    self._cancel()  # the session is not reserved any longer: nothing can be kept
                return

    def _cancel(self) -> None:
        self._cancels += 1
        self._task.cancel()

    def _interrupted(self) -> None:
        self._turn.interrupted = self._turn.cancelled = True
        # The claim is gone, as a renewal would find. That is not a loss, and its time limits the handler no more.
        self._held.is_settling = True
        self._runner.stop_renewing(self._held)
        self._cancels += self._held.has_cancelled  # a renewal came first

    async def was_interrupted(self, error: BaseException) -> bool:
        """Return whether the call ended because a person interrupted the turn. Checks again if its claim is lost."""
        if self._turn.interrupted:
            return True
        if not self._held.is_lost_by(error) and not self._held.is_lost:
            return False
        with suppress(holdfast.HoldfastError):
            batch = await self._store.queue.get(self._batch.session_id, self._batch.batch_id)
            if batch is not None and batch.state == "interrupted":
                self._interrupted()
        return self._turn.interrupted

    async def settle(self) -> None:
        """Store what the handler keeps, and let the next turn of the session begin."""
        for _ in range(self._cancels):
            self._task.uncancel()
        self._runner.tally.interrupted += 1
        log_event("worker", INFO, "a turn was interrupted")
        resource = holdfast.leases.OnSession(self._batch.session_id)
        owner_id = self._runner.owner_id
        try:
            holder = await self._store.leases.holder(resource)
            if holder is None or holder.owner_id != owner_id:
                if self._turn.keeps:
                    log_event("worker", WARNING, "an interrupted turn ended too late to keep anything")
                return
            lease = await self._store.leases.claim(resource, owner_id=owner_id, ttl_ms=KEEP_MS)
            try:
                await self._turn.commit_kept(lease)
            finally:
                await self._store.leases.release(lease)
        except holdfast.HoldfastError as error:
            message = "an interrupted turn could not be ended properly (%(error_class)s)"
            log_event("worker", WARNING, message, error_class=type(error).__name__)
