"""Warns of work and runs that wait because no handler of this worker is for their kind."""

from __future__ import annotations

import asyncio
from collections import Counter

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.worker.running import Runner

LOOK_EVERY_S = 60.0
MOST_SESSIONS = 20
MOST_BATCHES = 50
"""Sessions, and batches of each, that one look reads: the counts are a lower bound."""


async def unhandled(store: holdfast.Store, handled: list[str]) -> Counter[str]:
    """Count ready batches of other kinds, by kind, in the first sessions that have ready work."""
    found: Counter[str] = Counter()
    now_ms = await store.now_ms()
    for session_id in await store.queue.sessions(limit=MOST_SESSIONS):
        for batch in await store.queue.list_pending(session_id, limit=MOST_BATCHES):
            is_ready = batch.available_at_ms <= now_ms and batch.retry_at_ms <= now_ms
            if is_ready and batch.kind not in handled:
                found[batch.kind] += 1
    return found


async def unhandled_runs(store: holdfast.Store, handled: list[str]) -> Counter[str]:
    """Count runs of other kinds that no worker has begun, by kind, among the first processes that run."""
    found: Counter[str] = Counter()
    for process in await store.processes.list(limit=MOST_BATCHES):
        if (
            isinstance(process.input, holdfast.processes.Run)
            and process.attempt == 0
            and process.input.kind not in handled
        ):
            found[process.input.kind] += 1
    return found


async def note_unhandled(runner: Runner) -> None:
    """Log the kinds that wait without a handler, if the database can tell."""
    handled = [*runner.handlers.kinds("turn"), *runner.handlers.kinds("job")]
    try:
        found = await unhandled(runner.store, handled)
        runs = await unhandled_runs(runner.store, runner.handlers.all_kinds())
    except holdfast.HoldfastError:
        return  # the loops that claim report it
    for kind, count in sorted(found.items()):
        message = "kind %(kind)r has %(count)s ready batches and no handler here: add one, or run its worker"
        log_event("worker", WARNING, message, kind=kind, count=count)
    for kind, count in sorted(runs.items()):
        message = "kind %(kind)r has %(count)s runs that wait and no handler here: add one, or run its worker"
        log_event("worker", WARNING, message, kind=kind, count=count)


async def look_for_unhandled(runner: Runner) -> None:
    """Look now and then, for ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await note_unhandled(runner)
