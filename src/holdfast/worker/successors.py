"""Finds the run that continues another one: it continued as a new one, or was retried."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast

import holdfast
from holdfast.run_chains import next_in_chain


async def successor_of(store: holdfast.Store, process: holdfast.processes.Process) -> holdfast.processes.Process | None:
    """Return the run that continues this one, None if none does."""
    if process.continued_as is not None:
        return await store.processes.get(process.continued_as)
    following = await store.processes.get(next_in_chain(process.id)) if process.is_retryable else None
    return following if following is not None and following.retries == process.id else None


async def newest_run(store: holdfast.Store, run_id: str) -> holdfast.processes.Process | None:
    """Return the last run that continues this one, itself if none does; None if there is no such run."""
    chain = _newest(run_id)
    asked = next(chain)
    while True:
        try:
            asked = chain.send(await store.processes.get(asked))
        except StopIteration as end:
            return cast("holdfast.processes.Process | None", end.value)


def blocking_newest_run(store: holdfast.BlockingStore, run_id: str) -> holdfast.processes.Process | None:
    """Return the last run that continues this one, as `newest_run` does."""
    chain = _newest(run_id)
    asked = next(chain)
    while True:
        try:
            asked = chain.send(store.processes.get(asked))
        except StopIteration as end:
            return cast("holdfast.processes.Process | None", end.value)


def _newest(run_id: str) -> Generator[str, holdfast.processes.Process | None, holdfast.processes.Process | None]:
    """Ask for one run after another, and return the last of the chain."""
    process = yield run_id
    while process is not None:
        is_over = process.continued_as is None
        if is_over and not process.is_retryable:
            return process
        following = yield process.continued_as or next_in_chain(process.id)
        if is_over and (following is None or following.retries != process.id):
            return process
        process = following
    return None  # it was pruned
