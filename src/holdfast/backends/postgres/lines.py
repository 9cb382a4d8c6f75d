"""Those who would wait for one row in the server wait here instead, in the order of coming and without a connection.

A statement that waited for a row decides on a snapshot that is older than the row, and has to be asked again. Whoever
comes when the row is free is not. Nothing but speed rests on it: the server still lets one at a time have the row, and
whoever has waited for long goes there and waits like those of other processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

PATIENCE_S: Final = 1.0
"""How long one waits for those ahead: if they get no answer from the server, others need not wait for that as well."""


class Lines:
    """One line for each name that is in use. Belongs to one event loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, name: str) -> bool:
        """Wait for one's turn. False if that took too long: then one goes on without it, and does not leave."""
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
            return True
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        try:
            # Not wait_for, which in Python 3.11 forgets that it was cancelled when its turn came in the same moment.
            async with asyncio.timeout(PATIENCE_S):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                # The turn came in the same moment.
                self.leave(name)
            else:
                mine.cancel()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def leave(self, name: str) -> None:
        """Let the next one go."""
        waiting = self._waiting[name]
        while waiting:
            following = waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        del self._waiting[name]
