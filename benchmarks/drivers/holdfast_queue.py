"""Holdfast's queue: claim, then a commit that settles the claim. Each worker has its own session, or all share one."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from benchmarks import child
from benchmarks.drivers import durable


class Queue:
    """One store, several workers."""

    async def open(self, url: str, *, own_sessions: bool = True, fused: bool = False) -> dict[str, Any]:
        self.own_sessions, self.fused = own_sessions, fused
        self.store = await holdfast.open(url)
        self.waiting: dict[str, int] = {}
        self.connections: dict[int, Any] = {}
        self.held: dict[int, Any] = {}
        self.url = url
        return durable.of_store(self.store)

    def _session(self, worker: int) -> str:
        return f"lane-{worker if self.own_sessions else 0}"

    async def _fill(self, session: str, wanted: int) -> None:
        missing = wanted - self.waiting.get(session, 0)
        for first in range(0, missing, 50):
            drafts = [
                holdfast.WorkDraft(session_id=session, payloads=[f"job {each}"], merge_key=holdfast.Group("any"))
                for each in range(first, min(first + 50, missing))
            ]
            await asyncio.gather(*map(self.store.queue.enqueue, drafts))
        self.waiting[session] = wanted

    async def work(self, workers: int, jobs: int, batch: int = 1, backlog: int = 0) -> dict[str, Any]:
        each = jobs // batch // workers
        lanes = [[(worker, self._session(worker), batch)] * each for worker in range(workers)]
        for session in {lane[0][1] for lane in lanes}:
            count = sum(len(lane) for lane in lanes if lane[0][1] == session)
            await self._fill(session, count * batch + backlog)
        if self.fused:
            await self._connect(workers)
        told = await child.at_once(lanes, self._fused if self.fused else self._turn)
        for lane in lanes:
            self.waiting[lane[0][1]] -= len(lane) * batch
        return told | {"count": told["count"] * batch}

    async def enqueue(self, workers: int, jobs: int) -> dict[str, Any]:
        """Single jobs, one after another for each worker."""
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

    async def _connect(self, workers: int) -> None:
        import asyncpg

        for worker in range(workers):
            if worker not in self.connections:
                self.connections[worker] = await asyncpg.connect(self.url)

    async def _fused(self, asked: tuple[int, str, int]) -> None:
        """The commit that settles one and the claim of the next, in one transaction of our own."""
        worker, session, batch = asked
        connection = self.connections[worker]
        async with connection.transaction():
            store = self.store.within(connection)
            if worker in self.held:
                await store.sessions.handle(session).commit(holdfast.Commit(completes=[self.held[worker]]))
            claim = await store.queue.claim(session, owner_id=f"worker-{worker}", max_batches=batch)
            assert claim is not None
        self.held[worker] = claim

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Queue())
