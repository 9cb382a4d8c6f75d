"""Warns of work and runs that wait because neither this worker nor another live one has a handler for their kind.

A search costs the same however much is stored. The next one resumes where it ended, so that it finds each kind in time.
"""

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
LONGEST_PAUSE_S = 300.0
"""Interval of looks, and the one to which it grows while they find nothing: each reads a few listings."""
MOST_SESSIONS = 20
MOST_BATCHES = 50
"""Sessions, and batches of each, that one look reads: the counts are a lower bound."""
MOST_PROCESSES = 2_000
PROCESSES_PER_PAGE = 200
"""Processes that one look reads, and those of one page."""


async def unhandled(
    store: holdfast.Store, handled: Collection[str], after: str | None = None
) -> tuple[Counter[str], str | None]:
    """Count ready batches of other kinds, by kind, in the next sessions that have ready work.

    Also return the place at which the next search resumes, None for the beginning.
    """
    found: Counter[str] = Counter()
    page = await store.queue.sessions(after=after, limit=min(MOST_SESSIONS, store.limits.page))
    now_ms = await store.now_ms() if page.items else 0
    for session_id in page:
        for batch in await store.queue.list_pending(session_id, limit=MOST_BATCHES):
            is_ready = batch.available_at_ms <= now_ms and batch.retry_at_ms <= now_ms
            if is_ready and batch.kind not in handled:
                found[batch.kind] += 1
    return found, page.next


async def unhandled_runs(
    store: holdfast.Store,
    handlers: Handlers,
    others: Sequence[holdfast.workers.WorkerInfo],
    after: str | None = None,
) -> tuple[Counter[tuple[str, str]], str | None]:
    """Count runs of other kinds or versions that no worker has begun, among the next processes that run.

    Also return the place at which the next search resumes, None for the beginning.
    """
    found: Counter[tuple[str, str]] = Counter()
    seen = 0
    while seen < MOST_PROCESSES:
        page = await store.processes.list(after=after, limit=min(PROCESSES_PER_PAGE, store.limits.page))
        for process in page:
            run = process.input
            if not isinstance(run, holdfast.processes.Run) or process.attempt > 0 or run.kind == housekeeping.NAME:
                continue
            if not handlers.takes(run) and not any(_takes(worker, run) for worker in others):
                found[run.kind, run.version] += 1
        seen, after = seen + len(page), page.next
        if after is None:
            break
    return found, after


def _takes(worker: holdfast.workers.WorkerInfo, run: holdfast.processes.Run) -> bool:
    """Return whether another worker has a handler of this run."""
    return run.kind in worker.kinds and run.version in worker.versions.get(run.kind, (run.version,))


class UnhandledKinds:
    """Looks for kinds without a handler, now and then."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._session: str | None = None
        self._process: str | None = None

    async def note(self) -> bool:
        """Log the kinds that wait without a handler, if the database can tell.

        Return True if the search is due again soon: it found some, did not reach the end, or failed.
        """
        runner = self._runner
        handled = {*runner.handlers.kinds("turn"), *runner.handlers.kinds("job")}
        try:
            workers = [one async for one in holdfast.every(runner.store.workers.list) if one.id != runner.owner_id]
            known = handled.union(*(one.kinds for one in workers))
            found, self._session = await unhandled(runner.store, known, self._session)
            runs, self._process = await unhandled_runs(runner.store, runner.handlers, workers, self._process)
        except holdfast.HoldfastError:
            return True  # unknown: the loops that claim report it
        for kind, count in sorted(found.items()):
            message = "kind %(kind)r has %(count)s ready batches and no handler here: add one, or run its worker"
            log_event("worker", WARNING, message, kind=kind, count=count)
        for (kind, version), count in sorted(runs.items()):
            self._note_runs(kind, version, count)
        # A search that has not reached the end continues later.
        return bool(found or runs or self._session or self._process)

    def _note_runs(self, kind: str, version: str, count: int) -> None:
        message = "kind %(kind)r has %(count)s runs of version %(version)r that wait and no handler here: %(advice)s"
        here = self._runner.handlers.versions(kind)
        others = f"handled here are {', '.join(here)}; pass version= to the start, or run the worker of that version"
        advice = others if here else "add one, or run its worker"
        log_event("worker", WARNING, message, kind=kind, version=version, count=count, advice=advice)

    async def watch(self) -> None:
        """Look now and then, for ever."""
        pause_s = LOOK_EVERY_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = LOOK_EVERY_S if await self.note() else min(pause_s * 2, LONGEST_PAUSE_S)
