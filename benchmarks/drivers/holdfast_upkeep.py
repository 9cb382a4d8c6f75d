"""Holdfast's housekeeping while eight writers commit full turns."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import holdfast
from benchmarks import child, work
from benchmarks.drivers import durable
from benchmarks.drivers.holdfast_turns import commit_of

WRITERS = 8
NODES = 5000
ONLY = holdfast.sessions.Graph([holdfast.Node("only")], "only")


class Upkeep:
    """One store: dead rows in some sessions, writers in others."""

    async def open(self, url: str, dead: int) -> dict[str, Any]:
        self.store = await holdfast.open(url)
        # Ask before the writer is busy: a connection answers one thread at a time.
        facts = durable.of_store(self.store)
        self.lanes = child.Lanes()
        self.sessions = {f"chat-{each}": await self.store.sessions.create(f"chat-{each}") for each in range(WRITERS)}
        for number in range(max(1, dead // NODES)):
            session = await self.store.sessions.create(f"old-{number}")
            count = min(NODES, dead)
            nodes = [
                holdfast.Node(f"n{each}", parent=f"n{each - 1}" if each else None, payload=f"node {number} {each}")
                for each in range(count)
            ]
            await session.commit(holdfast.Commit(graph=holdfast.Append(nodes, leaf=nodes[-1].id)))
            await session.commit(holdfast.Commit(graph=holdfast.sessions.ReplaceGraph(ONLY)))
        return facts

    async def writes(self, seconds: float) -> dict[str, Any]:
        """Run the writers alone."""
        return await self._write_until(asyncio.create_task(asyncio.sleep(seconds)))

    async def upkeep(self) -> dict[str, Any]:
        """Run the writers for as long as the housekeeping takes."""
        task = asyncio.create_task(self._keep())
        answer = await self._write_until(task)
        pruned, garbage = task.result()
        return answer | {"revisions": pruned.revisions, "nodes": garbage.deleted_nodes, "blobs": garbage.deleted_blobs}

    async def _keep(self) -> tuple[Any, Any]:
        pruned = await self.store.maintenance.prune(holdfast.RetentionPolicy(keep_revisions=1))
        return pruned, await self.store.maintenance.collect_garbage()

    async def _write_until(self, over: asyncio.Task[Any]) -> dict[str, Any]:
        latencies: list[float] = []

        async def write(session: str) -> None:
            while not over.done():
                number = self.lanes.done.get(session, 0) + 1
                self.lanes.done[session] = number
                commit = commit_of(work.turn(session, number))
                began = time.perf_counter()
                await self.sessions[session].commit(commit)
                latencies.append((time.perf_counter() - began) * 1000)

        used = child.Processors()
        started = time.perf_counter()
        await asyncio.gather(*(write(session) for session in self.sessions))
        await over
        return child.timing(time.perf_counter() - started, latencies, used)

    async def shut(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    child.serve(Upkeep())
