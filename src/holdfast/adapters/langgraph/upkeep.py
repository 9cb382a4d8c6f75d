"""Copy, prune and erase threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias, cast

import holdfast
from holdfast.adapters.langgraph.payloads import Group, StoredCheckpoint
from holdfast.adapters.langgraph.ports import Port
from holdfast.adapters.langgraph.reads import all_places, ancestors, places_of, read_groups, with_values
from holdfast.adapters.langgraph.threads import TRIES, Threads
from holdfast.adapters.langgraph.values import Found, Place, delta_channels, draft_of, stored_channels
from holdfast.errors import SessionDeleted

Choose: TypeAlias = Callable[[Port, Place], Awaitable[Callable[[StoredCheckpoint], bool]]]
"""Decides which checkpoints of a session stay."""
SESSIONS_A_TRANSACTION: Final = 500
"""Most sessions of a thread that are erased in one transaction. Nearly every thread has fewer."""


class Upkeep:
    """Operations on whole threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def delete_thread(self, port: Port, thread_id: str) -> None:
        """Erase a thread with its subgraphs."""
        places = [*reversed(await places_of(port, thread_id))]
        for start in range(0, len(places), SESSIONS_A_TRANSACTION):
            async with port.transaction() as transaction:
                for place in places[start : start + SESSIONS_A_TRANSACTION]:
                    self._threads.forget(place.session_id)
                    await transaction.delete(place.session_id)

    async def copy_thread(self, port: Port, source: str, target: str) -> None:
        """Copy a thread. Idempotent: a copy that was interrupted continues when it is called again."""
        for place in await places_of(port, source):
            copies = [group async for group in read_groups(port, place)]
            if copies:
                await self._threads.create(port, Place(target, place.namespace))
                await self._write(port, place, Place(target, place.namespace), reversed(copies))

    async def _write(self, port: Port, source: Place, target: Place, groups: Iterable[Group]) -> None:
        """Store groups of one session in another, or in the same after it was emptied."""
        loaded = [
            (group, None if group.checkpoint is None else await with_values(port, source, group)) for group in groups
        ]
        await self._store(port, target, loaded)

    async def _store(self, port: Port, target: Place, groups: Iterable[tuple[Group, Found | None]]) -> None:
        for group, found in groups:
            if found is not None:
                await self._threads.put(port, target, draft_of(found))
            writes = group.ordered()
            if writes and group.checkpoint is not None:
                await self._threads.put_writes(port, target, group.checkpoint.id, writes)

    async def prune(self, port: Port, thread_id: str) -> None:
        """Keep the newest checkpoint of each namespace, and the checkpoints that its delta channels need."""
        for place in await places_of(port, thread_id):
            await self._keep(port, place, self._newest)

    async def _newest(self, port: Port, place: Place) -> Callable[[StoredCheckpoint], bool]:
        """Choose the newest checkpoint, with the ancestors that its delta channels need."""
        newest = await self._threads.get(port, place, None)
        if newest is None:
            return _is_any
        needed = set(delta_channels(newest.checkpoint)) - stored_channels(newest.checkpoint)
        kept = {newest.checkpoint.id}
        if needed:
            async for group in ancestors(port, place, newest.checkpoint.id):
                checkpoint = cast("StoredCheckpoint", group.checkpoint)
                kept.add(checkpoint.id)
                needed -= stored_channels(checkpoint)
                if not needed:
                    break
        return lambda checkpoint: checkpoint.id in kept

    async def delete_runs(self, port: Port, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs, with the writes on them."""
        runs = set(run_ids)

        async def others(_port: Port, _place: Place) -> Callable[[StoredCheckpoint], bool]:
            return lambda checkpoint: checkpoint.metadata.get("run_id") not in runs

        for place in await all_places(port):
            await self._keep(port, place, others)

    async def _keep(self, port: Port, place: Place, choose: Choose) -> None:
        """Rewrite a session with some of its checkpoints, in one transaction. Erases everything else."""
        for _ in range(TRIES):
            seen = await _extent(port, place)
            wanted = await choose(port, place)
            groups = [group async for group in read_groups(port, place)]
            kept = [group for group in groups if group.checkpoint is not None and wanted(group.checkpoint)]
            if len(kept) == len(groups):
                return
            loaded = [(group, await with_values(port, place, group)) for group in reversed(kept)]
            is_alone = not place.namespace and len(await places_of(port, place.thread_id)) == 1
            self._threads.forget(place.session_id)
            async with port.transaction() as transaction:
                # Holds the session: a checkpoint or a write that came since it was read is not erased unseen.
                await self._threads.create(transaction, place)
                is_same = await _extent(transaction, place) == seen
                if is_same:
                    await transaction.delete(place.session_id)
                if is_same and (kept or not is_alone):
                    await self._threads.create(transaction, place)
                    await self._store(transaction, place, loaded)
            self._threads.forget(place.session_id)
            if is_same:
                return
        raise holdfast.Unavailable(f"thread {place.thread_id!r} changed at each of {TRIES} tries: try again")


async def _extent(port: Port, place: Place) -> tuple[int, int]:
    """Return the revision and the number of nodes of a session. An addition changes one of them."""
    try:
        view = await port.load(place.session_id, at=None, last=0)
    except SessionDeleted:
        view = None
    return (0, 0) if view is None else (view.revision, view.node_count)


def _is_any(_checkpoint: StoredCheckpoint) -> bool:
    return True
