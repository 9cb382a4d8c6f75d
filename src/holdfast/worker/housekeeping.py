"""Collects garbage periodically, in one worker at a time: housekeeping is a run that sleeps between its rounds.

Another worker takes it over when its worker dies, and its process shows the error of a round that failed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.background_tasks import BackgroundTask
from holdfast.worker.claiming import LOOK_AGAIN_MS
from holdfast.worker.running import Runner, described

NAME = "holdfast:housekeeping"
"""The kind and the id of the run."""


class Housekeeping(BackgroundTask):
    """Collects garbage, and prunes as the policy says; without a policy it prunes nothing."""

    name = "housekeeping"

    def __init__(self, runner: Runner, every_ms: int, policy: holdfast.RetentionPolicy | None) -> None:
        self._store = runner.store
        self._owner_id = runner.owner_id
        self._lease_ms = runner.lease_ms
        self._every_ms = every_ms
        self._policy = policy
        self._is_declared = False

    async def start_one(self) -> bool:
        """Do nothing: a worker that runs until it is idle leaves the garbage to the others."""
        return False

    async def act(self) -> bool:
        """Do one round, if it is due and no other worker does."""
        if not self._is_declared:
            due_at_ms = await self._store.now_ms() + self._every_ms
            await self._store.processes.start(NAME, id=NAME, due_at_ms=due_at_ms)
            self._is_declared = True
        claim = await self._store.processes.claim_next(owner_id=self._owner_id, kinds=[NAME], ttl_ms=self._lease_ms)
        if claim is None:
            return False
        keeping = asyncio.create_task(self._keep(claim.lease))
        try:
            await self._round()
        except asyncio.CancelledError:
            await self._store.leases.release(claim.lease)
            raise
        except holdfast.HoldfastError as error:
            log_event("worker", WARNING, "housekeeping failed (%(error_class)s)", error_class=type(error).__name__)
            await self._store.processes.retry_later(
                claim.lease, described(error, self._store.limits), retry_in_ms=self._every_ms
            )
        else:
            due_at_ms = await self._store.now_ms() + self._every_ms
            await self._store.processes.suspend(claim.lease, seen=claim.process.event_count, due_at_ms=due_at_ms)
        finally:
            keeping.cancel()
        return True

    async def wait(self) -> None:
        """Wait for the next round."""
        await self._store.processes.wait_next(timeout_ms=LOOK_AGAIN_MS, kinds=[NAME])

    async def _round(self) -> None:
        pruned = 0
        if self._policy is not None:
            report = await self._store.maintenance.prune(self._policy)
            pruned = report.revisions + report.batches + report.processes + report.occurrences
        garbage = await self._store.maintenance.collect_garbage()
        log_event(
            "worker",
            INFO,
            "housekeeping pruned %(pruned)s rows and deleted %(blobs)s blobs, %(bytes)s bytes",
            pruned=pruned,
            blobs=garbage.deleted_blobs,
            bytes=garbage.deleted_bytes,
        )

    async def _keep(self, lease: holdfast.leases.Lease) -> None:
        """Renew the lease of a long round. Losing it is safe: two workers may collect garbage at once."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            with suppress(holdfast.Unavailable):
                try:
                    lease = await self._store.leases.renew(lease, ttl_ms=self._lease_ms)
                except holdfast.LeaseLost:
                    return
