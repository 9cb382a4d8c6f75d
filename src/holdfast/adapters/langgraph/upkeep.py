"""Copy, prune and erase threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import cast

from holdfast.adapters.langgraph.payloads import Group, StoredCheckpoint
from holdfast.adapters.langgraph.ports import Port
from holdfast.adapters.langgraph.reads import all_places, ancestors, places_of, read_groups, with_values
from holdfast.adapters.langgraph.threads import Threads
from holdfast.adapters.langgraph.values import Found, Place, delta_channels, draft_of, stored_channels


class Upkeep:
    """Operations on whole threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def delete_thread(self, port: Port, thread_id: str) -> None:
        """Erase a thread with its subgraphs."""
        for place in reversed(await places_of(port, thread_id)):
            self._threads.forget(place.session_id)
            await port.delete(place.session_id)

    async def copy_thread(self, port: Port, source: str, target: str) -> None:
        """Copy a thread. Idempotent: a copy that was interrupted goes on when it is called again."""
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
        """Keep the newest checkpoint of each namespace, and what its delta channels are made of."""
        for place in await places_of(port, thread_id):
            newest = await self._threads.get(port, place, None)
            if newest is None:
                continue
            needed = set(delta_channels(newest.checkpoint))
            kept = {newest.checkpoint.id}
            if needed - stored_channels(newest.checkpoint):
                needed -= stored_channels(newest.checkpoint)
                async for group in ancestors(port, place, newest.checkpoint.id):
                    checkpoint = cast("StoredCheckpoint", group.checkpoint)
                    kept.add(checkpoint.id)
                    needed -= stored_channels(checkpoint)
                    if not needed:
                        break
            await self._keep(port, place, partial(_is_one_of, kept))

    async def delete_runs(self, port: Port, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs, with the writes on them."""
        runs = set(run_ids)
        for place in await all_places(port):
            await self._keep(port, place, lambda checkpoint: checkpoint.metadata.get("run_id") not in runs)

    async def _keep(self, port: Port, place: Place, wanted: Callable[[StoredCheckpoint], bool]) -> None:
        """Rewrite a session with some of its checkpoints, in one transaction. Erases everything else."""
        groups = [group async for group in read_groups(port, place)]
        kept = [group for group in groups if group.checkpoint is not None and wanted(group.checkpoint)]
        if len(kept) == len(groups):
            return
        self._threads.forget(place.session_id)
        if not kept and not place.namespace and len(await places_of(port, place.thread_id)) == 1:
            await port.delete(place.session_id)
            return
        loaded = [(group, await with_values(port, place, group)) for group in reversed(kept)]
        async with port.transaction() as transaction:
            await transaction.delete(place.session_id)
            await self._threads.create(transaction, place)
            await self._store(transaction, place, loaded)
        self._threads.forget(place.session_id)


def _is_one_of(ids: Set[str], checkpoint: StoredCheckpoint) -> bool:
    return checkpoint.id in ids
