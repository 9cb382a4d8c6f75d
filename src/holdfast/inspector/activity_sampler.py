"""Samples the activity of a store: rates and depths over the last looks, shared by viewers and scrapers of metrics.

It does so while the overview is watched, and at most once a second. Counts of whole tables are taken less often.
A reading that takes long is repeated more rarely.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

import holdfast
from holdfast import metrics
from holdfast.activity import MOST, Activity, Pace, Rates
from holdfast.cli.terminal import length

T = TypeVar("T")

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


class Shared(Generic[T]):
    """A reading of a store that callers share until it is old."""

    def __init__(self, read: Callable[[holdfast.Store], Awaitable[T]], every_s: float) -> None:
        self._read = read
        self._every_s = every_s
        self._reading = asyncio.Lock()
        self._found: tuple[holdfast.Store, Pace, T] | None = None

    async def get(self, store: holdfast.Store) -> T:
        """Return the reading, which is made anew if it is old, or of another store."""
        async with self._reading:
            found, begun_s = self._found, time.monotonic()
            if found is None or found[0] is not store or found[1].is_due(begun_s):
                found = self._found = store, Pace(self._every_s), await self._read(store)
                found[1].done(begun_s=begun_s, now_s=time.monotonic())
            return found[2]


class ActivitySampler:
    """Samples the activity of one store."""

    def __init__(self) -> None:
        self._activity = Activity()
        self._rates: deque[Rates] = deque(maxlen=LOOKS)
        self._ready: deque[int] = deque(maxlen=LOOKS)
        self._waited_s: deque[float] = deque(maxlen=LOOKS)
        self._sampling = Shared(self._look, LEAST_S)
        self._diagnosis = Shared(lambda store: store.maintenance.diagnose(integrity=False), DIAGNOSE_EVERY_S)
        self._stats = Shared(lambda store: store.maintenance.stats(), COUNT_EVERY_S)
        self._families = Shared(self._measured, LEAST_S)

    async def sample(self, store: holdfast.Store) -> tuple[Line, ...]:
        """Return the lines, with a new look if the last one is old enough."""
        await self._sampling.get(store)
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
        return await self._diagnosis.get(store)

    async def stats(self, store: holdfast.Store) -> holdfast.maintenance.Stats:
        """Return the counts of whole tables, which may be some seconds old."""
        return await self._stats.get(store)

    async def families(self, store: holdfast.Store) -> list[metrics.Family]:
        """Return the metrics that all scrapers share."""
        return await self._families.get(store)

    async def _measured(self, store: holdfast.Store) -> list[metrics.Family]:
        return await metrics.of_store(store, await self.stats(store))


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
