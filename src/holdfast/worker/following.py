"""Finds the run that goes on for another one: it continued as a new one, or was retried."""

from __future__ import annotations

import holdfast
from holdfast.run_chains import next_in_chain


async def following_run(
    store: holdfast.Store, process: holdfast.processes.Process
) -> holdfast.processes.Process | None:
    """Return the run that goes on for this one, None if none does."""
    if process.continued_as is not None:
        return await store.processes.get(process.continued_as)
    following = await store.processes.get(next_in_chain(process.id)) if process.is_retryable else None
    return following if following is not None and following.retries == process.id else None


async def newest_run(store: holdfast.Store, run_id: str) -> holdfast.processes.Process | None:
    """Return the last run that goes on for this one, itself if none does; None if there is no such run."""
    process = await store.processes.get(run_id)
    while process is not None:
        following = await following_run(store, process)
        if following is None:
            return process if process.continued_as is None else None  # None: that one was pruned
        process = following
    return None
