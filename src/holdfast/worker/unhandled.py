"""Warns of work and runs that wait because neither this worker nor another live one has a handler for their kind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.worker import housekeeping
from holdfast.worker.handlers import Handlers
from holdfast.worker.running import Runner

LOOK_EVERY_S = 60.0
MOST_SESSIONS = 20
MOST_BATCHES = 50
"""Sessions, and batches of each, that one look reads: the counts are a lower bound."""


async def unhandled(store: holdfast.Store, handled: Collection[str]) -> Counter[str]:
    """Count ready batches of other kinds, by kind, in the first sessions that have ready work."""
    found: Counter[str] = Counter()
    now_ms = await store.now_ms()
    for session_id in await store.queue.sessions(limit=MOST_SESSIONS):
        for batch in await store.queue.list_pending(session_id, limit=MOST_BATCHES):
            is_ready = batch.available_at_ms <= now_ms and batch.retry_at_ms <= now_ms
            if is_ready and batch.kind not in handled:
                found[batch.kind] += 1
    return found


async def unhandled_runs(
    store: holdfast.Store, handlers: Handlers, others: Sequence[holdfast.workers.WorkerInfo]
) -> Counter[tuple[str, str]]:
    """Count runs of other kinds or versions that no worker has begun, among the first processes that run."""
    found: Counter[tuple[str, str]] = Counter()
    for process in await store.processes.list(limit=MOST_BATCHES):
        run = process.input
        if not isinstance(run, holdfast.processes.Run) or process.attempt > 0 or run.kind == housekeeping.NAME:
            continue
        if not handlers.takes(run) and not any(_takes(worker, run) for worker in others):
            found[run.kind, run.version] += 1
    return found


def _takes(worker: holdfast.workers.WorkerInfo, run: holdfast.processes.Run) -> bool:
    """Return whether another worker has a handler of this run."""
    return run.kind in worker.kinds and run.version in worker.versions.get(run.kind, (run.version,))


async def note_unhandled(runner: Runner) -> None:
    """Log the kinds that wait without a handler, if the database can tell."""
    handled = {*runner.handlers.kinds("turn"), *runner.handlers.kinds("job")}
    try:
        workers = [one async for one in holdfast.every(runner.store.workers.list) if one.id != runner.owner_id]
        found = await unhandled(runner.store, handled.union(*(one.kinds for one in workers)))
        runs = await unhandled_runs(runner.store, runner.handlers, workers)
    except holdfast.HoldfastError:
        return  # the loops that claim report it
    for kind, count in sorted(found.items()):
        message = "kind %(kind)r has %(count)s ready batches and no handler here: add one, or run its worker"
        log_event("worker", WARNING, message, kind=kind, count=count)
    for (kind, version), count in sorted(runs.items()):
        message = "kind %(kind)r has %(count)s runs of version %(version)r that wait and no handler here: %(advice)s"
        here = runner.handlers.versions(kind)
        others = f"handled here are {', '.join(here)}; pass version= to the start, or run the worker of that version"
        advice = others if here else "add one, or run its worker"
        log_event("worker", WARNING, message, kind=kind, version=version, count=count, advice=advice)


async def look_for_unhandled(runner: Runner) -> None:
    """Look now and then, for ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await note_unhandled(runner)
