"""Wake waiters by LISTEN, without losing changes that LISTEN may miss.

One connection listens for the whole store, only while there are waiters. All waiters are woken once when it begins to
listen, because changes before are unknown; every 30 seconds, because a sender may die between its commit and its
NOTIFY; and when the connection turns out to be dead. If LISTEN is impossible, all are woken once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from holdfast.backends.postgres.connection import Connection
from holdfast.backends.postgres.driver_errors import DRIVER_ERRORS, DriverFailure
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.log import DEBUG, INFO, WARNING, log_event
from holdfast.signals import Signals

POLL_S = 1.0
"""Poll interval of waiters where LISTEN is impossible."""

SAFETY_POLL_S = 30.0
"""Poll interval while listening, for changes whose writer died before its NOTIFY."""

QUIET_S = 2.0
"""Time that an idle connection is kept once no waiter is left."""

PING_EVERY_S = 5.0
PING_TIMEOUT_S = 3.0
"""Timeout of the ping that detects a dead connection."""

LOOK_EVERY_S = 5.0
"""Longest sleep between two looks at what is due."""
SHORTEST_SLEEP_S = 0.001
RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 1.0

Connect = Callable[[], Awaitable[Connection]]


class Listener:
    """Keeps one listening connection while there are watches. Belongs to one event loop."""

    def __init__(
        self,
        signals: Signals,
        hear: Callable[[str], None],
        *,
        channel: str,
        ping: str,
        connect: Connect | None,
        disconnect: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._signals = signals
        self._hear = hear
        self._channel = channel
        self._ping = ping
        self._connect = connect
        self._disconnect = disconnect
        self._task: asyncio.Task[None] | None = None
        self._retry_s = RETRY_FIRST_S
        self._closed = False

    def wake(self) -> None:
        """Start listening if there are watches. Call it on the event loop, after the watch was registered."""
        if self._task is None and not self._closed and self._signals.watched:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        if self._connect is None:
            log_event("listener", INFO, "cannot listen here: waiters poll every %(seconds)s s", seconds=POLL_S)
        try:
            while self._signals.watched and not self._closed:
                if self._connect is None:
                    await asyncio.sleep(POLL_S)
                    self._signals.publish_all()
                else:
                    await self._try_to_listen(self._connect)
            # No suspension between the last check and this: a new watch is seen above, or finds no task and starts one.
        finally:
            self._task = None

    async def _try_to_listen(self, connect: Connect) -> None:
        try:
            connection = await connect()
        except (*DRIVER_ERRORS, DriverFailure, HoldfastError) as error:
            await self._stand_back(error)
            return
        try:
            await self._listen(connection)
        except DRIVER_ERRORS as error:
            await self._stand_back(error)
        finally:
            await self._disconnect(connection)

    async def _stand_back(self, error: Exception) -> None:
        """Log the failure, wake all waiters once, and back off."""
        cause = error.cause if isinstance(error, DriverFailure) else error
        # One warning, and no other until LISTEN has succeeded in between.
        level = WARNING if self._retry_s == RETRY_FIRST_S else DEBUG
        message = "cannot listen (%(error_class)s%(reason)s): waiters poll every %(seconds)s s meanwhile"
        # The text of a refused option says how to correct it, and contains no data and no secrets.
        reason = f": {cause}" if isinstance(cause, InvalidRequest) else ""
        log_event("listener", level, message, error_class=type(cause).__name__, reason=reason, seconds=self._retry_s)
        self._signals.publish_all()
        await asyncio.sleep(self._retry_s)
        self._retry_s = min(self._retry_s * 2, RETRY_LONGEST_S)

    async def _listen(self, connection: Connection) -> None:
        lost = asyncio.Event()

        def end(_: object) -> None:
            lost.set()

        def hear(_connection: object, _process_id: object, _channel: object, payload: object) -> None:
            self._hear(str(payload))

        connection.add_termination_listener(end)
        await connection.add_listener(self._channel, hear)
        again = self._retry_s != RETRY_FIRST_S
        log_event("listener", INFO if again else DEBUG, "listening again" if again else "listening")
        self._retry_s = RETRY_FIRST_S
        # For changes from before LISTEN.
        self._signals.publish_all()
        loop = asyncio.get_running_loop()
        polled_s = pinged_s = now_s = loop.time()
        quiet_s: float | None = None
        while not lost.is_set():
            ends_s = [polled_s + SAFETY_POLL_S, pinged_s + PING_EVERY_S, now_s + LOOK_EVERY_S]
            if quiet_s is not None:
                ends_s.append(quiet_s + QUIET_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), max(SHORTEST_SLEEP_S, min(ends_s) - now_s))
            now_s = loop.time()
            if self._signals.watched:
                quiet_s = None
            elif quiet_s is None:
                quiet_s = now_s
            elif now_s - quiet_s >= QUIET_S:
                return
            if now_s - polled_s >= SAFETY_POLL_S:
                polled_s = now_s
                self._signals.publish_all()
            if now_s - pinged_s >= PING_EVERY_S and not lost.is_set():
                pinged_s = now_s
                await connection.fetch(self._ping, timeout=PING_TIMEOUT_S)
        log_event("listener", WARNING, "lost the listening connection: reconnecting")

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
