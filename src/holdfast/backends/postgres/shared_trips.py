"""Send calls of server functions that wait at the same time in one trip and one transaction, with one sync.

Each call keeps its own verdict. A refused call has written nothing, so refusals do not affect the others. An error of
the server undoes the whole trip, and each of its calls is then made alone. A call in a shared trip does not wait for a
session, process, queue or batch that another transaction has locked: its verdict is `busy`, and it is made alone, too.

A call that finds no trip under way is made at once, alone. While trips are under way, further calls gather until the
event loop has run all tasks that are ready, or until one of `TRIPS` trips has ended. A call for a row that a trip under
way may have locked waits for the end of that trip, or a second, and is then made alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.backends.postgres.connection import Connection, StatementRunner, Values
from holdfast.backends.postgres.driver_errors import DriverFailure, is_in_doubt
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.session_queue import PATIENCE_S
from holdfast.backends.postgres.transaction.function_calls import SharedCall
from holdfast.errors import DurabilityUncertain, HoldfastError

T = TypeVar("T")

TRIPS: Final = 4
"""Most shared trips at a time. More calls than these carry wait for a trip to end, and then go together."""

MOST_CALLS: Final = {
    "commit_turn": 8,
    "append_event": 16,
    "append_and_claim": 8,
    "claim_next": 8,
    "settle_claim": 8,
    "settle_and_claim": 8,
}
"""Most calls of each function in one trip. Fewer large ones let this process plan while the server writes."""

MOST_BYTES: Final = 1 << 15
"""Most bytes of content in a call that shares a trip."""

BUSY: Final = "busy"

CLAIMED: Final = {"claim_next": (0, 4), "settle_and_claim": (4, 8)}
"""Of functions that claim work, the columns with the verdict on the claim and with the key of its session."""


class Waiting:
    """A call that waits for a shared trip. Its answer is a row, or None: make the call alone."""

    __slots__ = ("answer", "begin", "call")

    def __init__(self, call: SharedCall, begin: Callable[[], None], answer: asyncio.Future[Values | None]) -> None:
        self.call = call
        self.begin = begin
        self.answer = answer


class SharedTrips:
    """Gathers calls and sends them together. Belongs to one event loop."""

    def __init__(self, connections: Connections, runner: Callable[[Connection], StatementRunner]) -> None:
        self._connections = connections
        self._runner = runner
        self._waiting: dict[str, deque[Waiting]] = {name: deque() for name in MOST_CALLS}
        self._held: dict[str, set[Any]] = {name: set() for name in MOST_CALLS}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = 0
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """True if no call is under way and none waits."""
        return not (self._alone or self._tasks or self._is_due)

    async def alone(self, call: SharedCall, make: Callable[[], Awaitable[T]]) -> T:
        """Make a call by itself. Calls that come meanwhile gather."""
        self._alone += 1
        held = self._held[call.name]
        held.add(call.key)
        try:
            return await make()
        finally:
            self._alone -= 1
            held.discard(call.key)
            self._send_waiting()

    async def call(self, call: SharedCall, begin: Callable[[], None]) -> Values | None:
        """Make a call in a shared trip. Return its row once that is durable, or None: make the call alone.

        `begin` is called when the trip begins: an error before that has applied nothing.
        """
        loop = asyncio.get_running_loop()
        waiting = Waiting(call, begin, loop.create_future())
        self._waiting[call.name].append(waiting)
        self._send_soon()
        patience = loop.call_later(PATIENCE_S, self._give_up, waiting)
        try:
            return await waiting.answer
        finally:
            patience.cancel()

    def _give_up(self, call: Waiting) -> None:
        """Let a call that no trip has taken be made alone: a trip in its way may wait for a lock."""
        queue = self._waiting[call.call.name]
        if call in queue and not call.answer.done():
            queue.remove(call)
            call.answer.set_result(None)

    def _send_soon(self) -> None:
        if not self._is_due and len(self._tasks) < TRIPS:
            self._is_due = True
            # After the tasks that are ready now: their calls go along.
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Start trips with the calls that wait."""
        self._is_due = False
        loop = asyncio.get_running_loop()
        for name, waiting in self._waiting.items():
            while len(self._tasks) < TRIPS:
                keys = set[Any]()
                # If nothing else is under way, in two trips: one is planned here while the server writes the other.
                most = len(waiting) if self._alone or self._tasks else (len(waiting) + 1) // 2
                taken = self._take(name, min(most, MOST_CALLS[name]), keys)
                if not taken:
                    break
                task = loop.create_task(self._run(name, taken, keys))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _take(self, name: str, most: int, keys: set[Any]) -> list[Waiting]:
        """Take calls for a trip that has these keys, but none for a row that another trip may have locked."""
        waiting, held = self._waiting[name], self._held[name]
        taken: list[Waiting] = []
        passed: list[Waiting] = []
        while waiting and len(taken) < most:
            call = waiting.popleft()
            key = call.call.key
            if key in held and key not in keys:
                passed.append(call)
            else:
                keys.add(key)
                held.add(key)
                taken.append(call)
        waiting.extendleft(reversed(passed))
        return taken

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._send_waiting()

    def _send_waiting(self) -> None:
        if any(self._waiting.values()):
            self._send_soon()

    async def _run(self, name: str, taken: list[Waiting], keys: set[Any]) -> None:
        calls = taken
        try:
            connection = await self._connections.acquire()
            # Others may have come while all connections were in use.
            taken += self._take(name, MOST_CALLS[name] - len(taken), keys)
            calls = sorted((call for call in taken if not call.answer.done()), key=_key_of)
            _answer(calls, await self._trip(connection, name, calls))
        except DriverFailure as failure:
            _fail(calls, partial(DriverFailure, failure.cause))
        except HoldfastError as error:
            _fail(calls, partial(_same, error))
        except BaseException:
            for call in taken:
                call.answer.cancel()
            raise
        finally:
            self._held[name] -= keys

    async def _trip(
        self, connection: Connection, name: str, calls: Sequence[Waiting]
    ) -> Sequence[Values | DurabilityUncertain | None]:
        """Make the calls. Return their rows, None for each if the server has undone the trip."""
        if not calls:
            await self._connections.release(connection)
            return ()
        for call in calls:
            call.begin()
        try:
            runner = self._runner(connection)
            rows = await runner.call_together(name, [call.call.together for call in calls])
            await _give_back(runner, calls, rows)
        except DriverFailure as failure:
            if is_in_doubt(failure.cause):
                await self._connections.discard(connection)
                raise
            await self._connections.release(connection)
            return [None] * len(calls)
        except BaseException:
            await self._connections.discard(connection)
            raise
        await self._connections.release(connection)
        return rows

    async def close(self) -> None:
        """Wait for all trips: their callers may have been cancelled."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def _same(error: HoldfastError) -> HoldfastError:
    return error


def _key_of(call: Waiting) -> Any:
    return call.call.key


def _answer(calls: Sequence[Waiting], rows: Sequence[Values | DurabilityUncertain | None]) -> None:
    for call, row in zip(calls, rows, strict=True):
        if call.answer.done():
            continue
        if isinstance(row, DurabilityUncertain):
            call.answer.set_exception(row)
        else:
            call.answer.set_result(None if row is None or row[0] == BUSY else row)


async def _give_back(
    runner: StatementRunner, calls: Sequence[Waiting], rows: Sequence[Values | DurabilityUncertain]
) -> None:
    """Give back claims of callers that were cancelled meanwhile: no caller holds them."""
    for call, row in zip(calls, rows, strict=True):
        if call.answer.cancelled() and call.call.claims_with is not None and not isinstance(row, DurabilityUncertain):
            verdict, session_key = CLAIMED[call.call.name]
            if row[verdict] == "claimed":
                with suppress(DriverFailure):
                    await runner.run("give_back_claim", row[session_key], call.call.claims_with)


def _fail(calls: Sequence[Waiting], error: Callable[[], Exception]) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error())
