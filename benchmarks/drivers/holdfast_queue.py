"""Holdfast's queue: work of any session is claimed and completed, apart or in one call; or a commit settles the claim.

There is a session for each worker, or one for all, or as many as requested, each with one job.
"""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from benchmarks import child
from benchmarks.drivers import durable


class Queue:
    """One store, several workers."""

    async def open(self, url: str, *, own_sessions: bool = True, how: str = "apart") -> dict[str, Any]:
        self.own_sessions = own_sessions
        self.turn = {"apart": self._apart, "fused": self._fused, "turns": self._turn}[how]
        self.store = await holdfast.open(url)
        self.waiting: dict[str, int] = {}
        self.held: dict[int, Any] = {}
        return durable.of_store(self.store)

    def _session(self, worker: int) -> str:
        return f"lane-{worker if self.own_sessions else 0}"

    async def _fill(self, session: str, wanted: int) -> None:
        missing = wanted - self.waiting.get(session, 0)
        for first in range(0, missing, 50):
            drafts = [
                holdfast.WorkDraft(session_id=session, payloads=[f"job {each}"], merge_key=holdfast.queue.Group("any"))
                for each in range(first, min(first + 50, missing))
            ]
            await asyncio.gather(*map(self.store.queue.enqueue, drafts))
        self.waiting[session] = wanted

    async def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0, idle: int = 0) -> dict[str, Any]:
        """Claim and complete jobs, while `idle` sessions have work of another kind, or none that is due."""
        await self._fill_idle(idle)
        each = jobs // batch // workers
        lanes = [[(worker, self._session(worker), batch)] * each for worker in range(workers)]
        for session in {lane[0][1] for lane in lanes}:
            count = sum(len(lane) for lane in lanes if lane[0][1] == session)
            await self._fill(session, count * batch + backlog)
        answer = await child.at_once(lanes, self.turn)
        for lane in lanes:
            self.waiting[lane[0][1]] -= len(lane) * batch
        return answer | {"count": answer["count"] * batch}

    async def _fill_idle(self, wanted: int) -> None:
        known = self.waiting.setdefault("idle", 0)
        for first in range(known, wanted, 50):
            drafts = [
                holdfast.WorkDraft(
                    session_id=f"idle-{each}",
                    payloads=["job"],
                    kind="other" if each % 2 else "turn",
                    available_at_ms=0 if each % 2 else 4_000_000_000_000,
                )
                for each in range(first, min(first + 50, wanted))
            ]
            await asyncio.gather(*map(self.store.queue.enqueue, drafts))
        self.waiting["idle"] = max(known, wanted)

    async def enqueue(self, workers: int, jobs: int) -> dict[str, Any]:
        """Enqueue single jobs, one after another for each worker."""
        lanes = [
            [holdfast.WorkDraft(session_id=self._session(worker), payloads=["job"])] * (jobs // workers)
            for worker in range(workers)
        ]
        return await child.at_once(lanes, self.store.queue.enqueue)

    async def _turn(self, asked: tuple[int, str, int]) -> None:
        worker, session, batch = asked
        claim = await self.store.queue.claim(session, owner_id=f"worker-{worker}", max_batches=batch)
        assert claim is not None
        assert len(claim.batches) == batch
        await self.store.sessions.handle(session).commit(holdfast.Commit(completes=[claim]))

    async def _apart(self, asked: tuple[int, str, int]) -> None:
        worker, _, batch = asked
        claim = await self.store.queue.claim_next(owner_id=f"worker-{worker}", kinds=["turn"], max_batches=batch)
        assert claim is not None
        assert len(claim.batches) == batch
        await self.store.queue.complete(claim)

    async def _fused(self, asked: tuple[int, str, int]) -> None:
        """Complete the last claim and claim the next."""
        worker, _, batch = asked
        held, asks = self.held.get(worker), {"owner_id": f"worker-{worker}", "kinds": ["turn"], "max_batches": batch}
        if held is None:
            claim = await self.store.queue.claim_next(**asks)
        else:
            _, claim = await self.store.queue.complete_and_claim_next(held, **asks)
        assert claim is not None
        assert len(claim.batches) == batch
        self.held[worker] = claim

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Queue())
