"""Notify other processes of changes: after the commit, outside its transaction, seldom while changes keep coming.

A NOTIFY inside a transaction holds a server-wide lock until its commit is on disk. So topics are collected and sent
together. If this process dies before it sends, waiters find the change by their slow poll.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from hashlib import blake2b

from holdfast.backends.postgres.driver_errors import DriverFailure
from holdfast.errors import HoldfastError
from holdfast.log import WARNING, log_event

EVERY_S, BUSY_EVERY_S, LONGEST_EVERY_S = 0.002, 0.01, 0.05
"""Shortest interval between two notifications: after the first, while changes keep coming, and on a busy machine."""
SHARE = 10
"""While changes keep coming, a notification is sent in one part of so many of the time.

It costs this process and the server a trip, and wakes each process that listens.
"""
TRIES = 3
TOPICS_A_PAYLOAD = 400
"""PostgreSQL takes less than 8,000 bytes; a digest has 16 and a comma."""


@lru_cache(maxsize=1_000)
def digest(topic: str) -> str:
    """Return a topic's short name. Topics with the same digest only wake each other for nothing."""
    return blake2b(topic.encode(), digest_size=8).hexdigest()


def channel_of(schema: str) -> str:
    """Return the channel of a schema. Channels belong to a whole database, and their names are short."""
    return "holdfast_" + blake2b(schema.encode(), digest_size=16).hexdigest()


class Notifier:
    """Collects digests of topics and sends them in batches."""

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self._send = send
        self._origin = secrets.token_hex(8)
        self._pending: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, digests: Iterable[str]) -> None:
        """Queue digests to be sent soon."""
        self._pending.update(dict.fromkeys(digests))
        if self._pending and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def from_others(self, payload: str) -> list[str]:
        """Return the digests in a payload; none of this store's own, which has woken its waiters already."""
        origin, _, digests = payload.partition(":")
        return [] if origin == self._origin else digests.split(",")

    async def _run(self) -> None:
        pause_s = EVERY_S
        try:
            while self._pending:
                began_s = time.monotonic()
                await self._send_pending()
                longest_s = min(max((time.monotonic() - began_s) * SHARE, BUSY_EVERY_S), LONGEST_EVERY_S)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, longest_s)
        finally:
            self._task = None

    async def _send_pending(self) -> None:
        digests = list(self._pending)
        self._pending.clear()
        try:
            for first in range(0, len(digests), TOPICS_A_PAYLOAD):
                chosen = digests[first : first + TOPICS_A_PAYLOAD]
                await self._try_to_send(f"{self._origin}:{','.join(chosen)}")
        except asyncio.CancelledError:
            # The event loop ends: `close` sends them.
            self._pending.update(dict.fromkeys(digests))
            raise

    async def _try_to_send(self, payload: str) -> None:
        for _ in range(TRIES):
            try:
                await self._send(payload)
            except (DriverFailure, HoldfastError):
                continue
            return
        log_event(
            "notifier",
            WARNING,
            "could not notify other processes of a change: their waiters find it at the next poll",
        )

    async def close(self) -> None:
        """Send all pending digests, also those of a task that was cancelled at the end of its event loop."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self._pending:
            await self._send_pending()
