"""`store.workers`: the live workers of a store, and everything that one of them holds."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.operations import workers as operations
from holdfast.records.common import Page
from holdfast.records.leases import Lease
from holdfast.records.queue import WorkClaim
from holdfast.records.workers import Heartbeat, WorkerInfo, WorkerRelease
from holdfast.rules import checks
from holdfast.rules import workers as rules
from holdfast.store.context import Context, FacetBase


class Workers(FacetBase):
    """The live workers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def heartbeat(
        self,
        worker: WorkerInfo | None = None,
        *,
        ttl_ms: int,
        claims: Sequence[WorkClaim] = (),
        leases: Sequence[Lease] = (),
    ) -> Heartbeat:
        """Renew claims and leases in one trip, each on its own, and report the worker that holds them, if it is named.

        A lost claim or lease is None in the answer; the others are still renewed. None of them ends
        earlier than before. The worker is listed until `ttl_ms` from now, unless it reports itself again.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> claim = store.queue.claim_next(owner_id="worker-1", ttl_ms=1000)
        >>> me = holdfast.workers.WorkerInfo("worker-1", host="here", pid=7, kinds=["turn"])
        >>> answer = store.workers.heartbeat(me, ttl_ms=60_000, claims=[claim])
        >>> answer.claims[0].expires_at_ms > claim.expires_at_ms
        True
        """
        limits = self._context.limits
        request = operations.HeartbeatRequest(
            worker=None if worker is None else rules.check_worker(worker, limits),
            claims=rules.check_claims(claims, limits),
            leases=rules.check_leases(leases, limits),
            ttl_ms=self._context.ttl_ms(ttl_ms),
        )
        return await self._context.backend.write(
            lambda tx: operations.heartbeat(tx, request), single_write=True, idempotent=True
        )

    async def list(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[WorkerInfo]:
        """Return one page of the live workers, by id.

        >>> _ = store.workers.heartbeat(holdfast.workers.WorkerInfo("worker-1", host="here", pid=7), ttl_ms=60_000)
        >>> [worker.id for worker in store.workers.list()]
        ['worker-1']
        """
        place = checks.cursor("workers", after, [str])
        start = "" if place is None else str(place[0])
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(
            lambda tx: operations.list_page(tx, after=start, limit=size), view=operations.one_more(start, size)
        )

    async def held_sessions(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[str]:
        """Return one page of the sessions of which workers that stopped reporting hold work or the lease.

        They come by worker and id. `maintenance.explain_session` says when each is free, and what helps.

        >>> len(store.workers.held_sessions())
        0
        """
        place = checks.cursor(operations.HELD_SESSIONS, after, [str, str])
        start = ("", "") if place is None else (str(place[0]), str(place[1]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: operations.held_sessions(tx, after=start, limit=size))

    async def leave(self, worker_id: str) -> bool:
        """Remove a worker from the list when it shuts down. Return False if it was not listed.

        >>> store.workers.leave("worker-1")
        False
        """
        checked = self._context.identifier("worker_id", worker_id)
        return await self._context.backend.write(lambda tx: operations.leave(tx, checked))

    async def renew(self, worker_id: str, *, ttl_ms: int) -> int:
        """Renew the claims and the leases of runs that a live worker holds, also those of which it does not know yet.

        A worker calls it while it waits long for the answer to a claim: it may hold that claim already. Expired ones
        are not renewed, and none is shortened. Return how many were renewed, at most a page of each.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> _ = store.queue.claim_next(owner_id="worker-1")
        >>> store.workers.renew("worker-1", ttl_ms=60_000)
        1
        """
        checked = self._context.identifier("worker_id", worker_id)
        ttl = self._context.ttl_ms(ttl_ms)
        most = self._context.limits.page
        return await self._context.backend.write(lambda tx: operations.renew(tx, checked, ttl, most), idempotent=True)

    async def release(self, worker_id: str) -> WorkerRelease:
        """End every claim and every lease that a dead worker holds, so that others take its work over now.

        Call it only for a worker that is known to be dead. Work of a live one would be done twice, though that one can
        store nothing more under an ended claim. The attempts count, as they do when a claim expires.

        >>> _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=[1]))
        >>> _ = store.queue.claim_next(owner_id="dead-worker")
        >>> store.workers.release("dead-worker").batches
        1
        >>> store.queue.claim_next(owner_id="worker-1").batches[0].attempts
        2
        """
        checked = self._context.identifier("worker_id", worker_id)
        most = self._context.limits.page
        batches = runs = sessions = 0
        while True:
            part = await self._context.backend.write(lambda tx: operations.release(tx, checked, most))
            batches, runs, sessions = batches + part.batches, runs + part.runs, sessions + part.sessions
            if max(part.batches, part.runs, part.sessions) < most:
                return WorkerRelease(batches, runs, sessions)
