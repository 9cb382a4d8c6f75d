"""Samples the activity of a store: rates and depths over the last looks, shared by viewers and scrapers of metrics.

It does so while the overview is watched, and at most once a second. Counts of whole tables are taken less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

import holdfast
from holdfast.activity import MOST, Activity, Rates
from holdfast.cli.terminal import length

LOOKS: Final = 60
"""Looks that a sparkline shows."""
LEAST_S: Final = 1.0
DIAGNOSE_EVERY_S: Final = 1.5
COUNT_EVERY_S: Final = 15.0
"""Age up to which counts of whole tables are shown, and served to scrapers."""
WIDTH: Final = 240
HEIGHT: Final = 40


class Line(msgspec.Struct, frozen=True):
    """One figure over the last looks: its name, its newest value as text, and the points of its line."""

    name: str
    newest: str
    points: str


class ActivitySampler:
    """Samples the activity of one store."""

    def __init__(self) -> None:
        self._sampling = asyncio.Lock()
        self._activity = Activity()
        self._rates: deque[Rates] = deque(maxlen=LOOKS)
        self._ready: deque[int] = deque(maxlen=LOOKS)
        self._waited_s: deque[float] = deque(maxlen=LOOKS)
        self._stats: holdfast.maintenance.Stats | None = None
        self._diagnosing = asyncio.Lock()
        self._diagnosis: holdfast.maintenance.Diagnosis | None = None
        self._diagnosed: holdfast.Store | None = None
        self._looked_s = self._counted_s = self._diagnosed_s = -COUNT_EVERY_S

    async def sample(self, store: holdfast.Store) -> tuple[Line, ...]:
        """Return the lines, with a new look if the last one is old enough."""
        async with self._sampling:
            if time.monotonic() - self._looked_s >= LEAST_S:
                await self._look(store)
                self._looked_s = time.monotonic()
        sign = "" if not self._rates or self._rates[-1].is_complete else "≥ "
        turns, events = ([getattr(one, name) for one in self._rates] for name in ("turns", "events"))
        return (
            Line("turns a second", f"{sign}{turns[-1]:.1f}" if turns else "measuring", points_of(turns)),
            Line("events a second", f"{sign}{events[-1]:.1f}" if events else "measuring", points_of(events)),
            Line("ready work", f"{self._ready[-1]:,}" if self._ready else "measuring", points_of(self._ready)),
            Line("longest wait", length(1000 * self._waited_s[-1]), points_of(self._waited_s)),
        )

    async def _look(self, store: holdfast.Store) -> None:
        now_ms = await store.now_ms()
        since_ms, size = self._activity.since_ms(now_ms), min(MOST, store.limits.page)
        sessions = await store.sessions.list(changed_since_ms=since_ms, newest_first=True, limit=size)
        running = await store.processes.list(limit=size)
        ended = await store.processes.ended(since_ms=since_ms, limit=size)
        is_complete = (sessions.next, running.next, ended.next) == (None, None, None)
        rates = self._activity.look(now_ms, sessions, [*running, *ended], is_complete=is_complete)
        if rates is not None:
            self._rates.append(rates)
        depths = [one async for one in holdfast.every(store.queue.depths)]
        self._ready.append(sum(one.ready for one in depths))
        since = [one.oldest_ready_at_ms for one in depths if one.oldest_ready_at_ms is not None]
        self._waited_s.append(max(0, now_ms - min(since, default=now_ms)) / 1000)

    async def diagnosis(self, store: holdfast.Store) -> holdfast.maintenance.Diagnosis:
        """Return the diagnosis that all viewers share, without the check of pages."""
        async with self._diagnosing:
            is_old = time.monotonic() - self._diagnosed_s >= DIAGNOSE_EVERY_S
            if self._diagnosis is None or is_old or self._diagnosed is not store:
                self._diagnosis = await store.maintenance.diagnose(integrity=False)
                self._diagnosed, self._diagnosed_s = store, time.monotonic()
            return self._diagnosis

    async def stats(self, store: holdfast.Store) -> holdfast.maintenance.Stats:
        """Return the counts of whole tables, which may be some seconds old."""
        async with self._sampling:
            if self._stats is None or time.monotonic() - self._counted_s >= COUNT_EVERY_S:
                self._stats = await store.maintenance.stats()
                self._counted_s = time.monotonic()
            return self._stats


def points_of(values: Iterable[float]) -> str:
    """Return the points of a line that ends at the right, scaled to its highest value.

    >>> from holdfast.inspector.activity_sampler import points_of
    >>> points_of([0, 5, 10])
    '231.9,40.0 235.9,20.0 240.0,0.0'
    """
    known = list(values)
    most = max(known, default=0) or 1
    step = WIDTH / (LOOKS - 1)
    first = WIDTH - step * (len(known) - 1)
    return " ".join(f"{first + step * at:.1f},{HEIGHT * (1 - value / most):.1f}" for at, value in enumerate(known))
