"""Measures the longest gap of an event loop: the longest time in which no other task could run.

Time in which this process had no CPU does not count: it depends on the other load of the machine. So a gap is never
longer than the CPU time that all threads of the process used in it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import time
from collections.abc import Awaitable, Callable

TICK_S = 0.001
"""Sleep of the ticker: any time beyond it is the gap."""

USUAL_PIECE_S = 0.0025
"""Processor time of one `piece_of_work` on the machine that the bounds were chosen on."""


def piece_of_work() -> None:
    """Encode and decode JSON and add numbers: what large calls spend their time on."""
    json.loads(json.dumps([{"id": number, "text": "x" * 20} for number in range(2_000)]))


def slowness() -> float:
    """Return `relative_time`, but at least 1: a bound that a fast machine also keeps is the promise."""
    return max(1.0, relative_time())


@functools.cache
def relative_time() -> float:
    """Return how many times longer this machine computes than the one that the bounds were chosen on.

    The same machine was seen to compute five times slower on another day.
    """

    def piece_s() -> float:
        before = time.thread_time()
        piece_of_work()
        return time.thread_time() - before

    return min(piece_s() for _ in range(20)) / USUAL_PIECE_S


async def longest_gap_ms(call: Callable[[], Awaitable[object]]) -> float:
    """Run one call; return the longest time between two wake-ups of a ticker on the same loop."""
    longest = 0.0
    running = True

    async def tick() -> None:
        nonlocal longest
        before, computed = time.perf_counter(), time.process_time()
        while running:
            await asyncio.sleep(TICK_S)
            gap = min(time.perf_counter() - before - TICK_S, time.process_time() - computed)
            longest = max(longest, gap)
            before, computed = time.perf_counter(), time.process_time()

    gc.collect()
    ticker = asyncio.create_task(tick())
    await asyncio.sleep(TICK_S)
    try:
        await call()
    finally:
        # The last tick covers the call's work after its last suspension.
        running = False
        await ticker
    return longest * 1000


async def best_gap_ms(
    prepare: Callable[[], Awaitable[Callable[[], Awaitable[object]]]], *, tries: int, enough_ms: float = 0.0
) -> float:
    """Return the longest gap of the best of several calls, each prepared anew: other load only lengthens a gap.

    Ends early once a call stays within `enough_ms`.
    """
    best = float("inf")
    for _ in range(tries):
        best = min(best, await longest_gap_ms(await prepare()))
        if best <= enough_ms:
            break
    return best
