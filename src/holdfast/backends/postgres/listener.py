"""Wake waiters by LISTEN, without losing changes that LISTEN may miss.

One connection listens for the whole store, only while there are waiters. All waiters are woken once when it begins to
listen, because earlier changes are unknown, and when the connection turns out to be dead. Every 30 seconds, those that
missed a change are woken, because a sender may die between its commit and its NOTIFY; once a second if LISTEN is
impossible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress

from holdfast.backends.postgres.connection import Connection
from holdfast.backends.postgres.driver_errors import DRIVER_ERRORS, DriverFailure
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.log import DEBUG, INFO, WARNING, log_event
from holdfast.ports import Operation, Transaction
from holdfast.signals import Signals

POLL_S = 1.0
"""Poll interval of waiters where LISTEN is impossible."""

SAFETY_POLL_S = 30.0
"""Poll interval while listening, for changes whose writer died before its NOTIFY."""

QUIET_S = 2.0
"""Time that an idle connection is kept once no waiter is left."""

POLL_TIMEOUT_S = 10.0
"""Timeout of the read that finds the waiters that missed a change. Then all of them are woken."""

PING_EVERY_S = 5.0
PING_TIMEOUT_S = 3.0
"""Timeout of the ping that detects a dead connection."""

CHECK_EVERY_S = 5.0
"""Longest sleep between two checks for due work."""
SHORTEST_SLEEP_S = 0.001
RETRY_FIRST_S, RETRY_LONGEST_S = 0.05, 1.0

Connect = Callable[[], Awaitable[Connection]]
Read = Callable[[Operation[set[Future[None]]]], Awaitable[set[Future[None]]]]
"""Runs an operation that only reads, in one snapshot."""


class Listener:
    """Keeps one listening connection while there are watches. Belongs to one event loop."""

    def __init__(
        self,
        signals: Signals,
        receive: Callable[[str], None],
        read: Read,
        *,
        channel: str,
        ping: str,
        connect: Connect | None,
        disconnect: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._signals = signals
        self._receive = receive
        self._read = read
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
                    await self._poll()
                else:
                    await self._try_to_listen(self._connect)
            # No suspension between the last check and this: a new watch is seen above, or finds no task and starts one.
        finally:
            self._task = None

    async def _try_to_listen(self, connect: Connect) -> None:
        try:
            connection = await connect()
        except (*DRIVER_ERRORS, DriverFailure, HoldfastError) as error:
            await self._poll_after(error)
            return
        try:
            await self._listen(connection)
        except DRIVER_ERRORS as error:
            await self._poll_after(error)
        finally:
            await self._disconnect(connection)

    async def _poll_after(self, error: Exception) -> None:
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
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[None] = loop.create_future()

        def end(_: object) -> None:
            if not lost.done():
                lost.set_result(None)

        def receive(_connection: object, _process_id: object, _channel: object, payload: object) -> None:
            self._receive(str(payload))

        connection.add_termination_listener(end)
        await connection.add_listener(self._channel, receive)
        again = self._retry_s != RETRY_FIRST_S
        log_event("listener", INFO if again else DEBUG, "listening again" if again else "listening")
        self._retry_s = RETRY_FIRST_S
        # For changes from before LISTEN.
        self._signals.publish_all()
        polled_s = pinged_s = now_s = loop.time()
        quiet_s: float | None = None
        while not lost.done():
            ends_s = [polled_s + SAFETY_POLL_S, pinged_s + PING_EVERY_S, now_s + CHECK_EVERY_S]
            if quiet_s is not None:
                ends_s.append(quiet_s + QUIET_S)
            await asyncio.wait([lost], timeout=max(SHORTEST_SLEEP_S, min(ends_s) - now_s))
            now_s = loop.time()
            if self._signals.watched:
                quiet_s = None
            elif quiet_s is None:
                quiet_s = now_s
            elif now_s - quiet_s >= QUIET_S:
                return
            if now_s - polled_s >= SAFETY_POLL_S:
                polled_s = now_s
                await self._poll()
            if now_s - pinged_s >= PING_EVERY_S and not lost.done():
                pinged_s = now_s
                await connection.fetch(self._ping, timeout=PING_TIMEOUT_S)
        log_event("listener", WARNING, "lost the listening connection: reconnecting")

    async def _poll(self) -> None:
        """Wake the waiters that missed a change. One read asks all that can tell; the others are woken."""
        questions = self._signals.questions()
        unconcerned: set[Future[None]] = set()

        async def ask(tx: Transaction) -> set[Future[None]]:
            return {change for change, concerns in questions if not await concerns(tx)}

        if questions:
            with suppress(TimeoutError, HoldfastError):
                async with asyncio.timeout(POLL_TIMEOUT_S):
                    unconcerned = await self._read(ask)
        self._signals.publish_all(lambda change: change not in unconcerned)

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
