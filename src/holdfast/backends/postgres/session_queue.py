"""FIFO queue per session, so that local waiters for one row hold no connection.

A statement that waited for a row lock decides on a snapshot older than the row, and has to run again; one that finds
the row free does not. Only speed depends on this queue: the server still serializes access to the row, and a caller
that has waited long enough keeps waiting there, like those of other processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

LONGEST_WAIT_S: Final = 1.0
"""Longest wait in a queue. If callers ahead get no answer from the server, those behind need not wait for that, too."""


class SessionQueue:
    """One FIFO queue per name in use. Belongs to one event loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, name: str) -> bool:
        """Wait for a turn. Return False on timeout: the caller then continues without it, and must not call `leave`."""
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
            return True
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        try:
            # Not wait_for, which in Python 3.11 loses a cancellation that coincides with the result.
            async with asyncio.timeout(LONGEST_WAIT_S):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                # The turn came at the same moment: pass it on.
                self.leave(name)
            else:
                mine.cancel()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def leave(self, name: str) -> None:
        """Give the turn to the next waiter."""
        waiting = self._waiting[name]
        while waiting:
            following = waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        del self._waiting[name]
