"""Send calls of server functions that wait at the same time in one trip and one transaction, with one sync.

Each call keeps its own verdict. A refused call has written nothing, so refusals do not affect the others. An error of
the server undoes the whole trip, and each of its calls is then made alone. A call in a shared trip does not wait for a
session, process, queue or batch that another transaction has locked: its verdict is `busy`, and it is made alone, too.

A call that finds no trip under way is made at once, alone, unless trips take long. While trips are under way, further
calls gather until the event loop has run all tasks that are ready, or until one of `TRIPS` trips has ended. A call for
a row that a trip under way may have locked waits for the end of that trip, or a second, and is then made alone.

Calls that find work locked by other transactions wait for it in one lock-wait trip at a time: its first call waits in
the server, and the others take their work from what that call has locked then. So a process has one waiter in the
server instead of one for each slot, and each commit of a contended session carries several claims. A call that settles
a claim and takes the next waits like that, too, for a while after such a call has met a locked queue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.backends.postgres.connection import Connection, StatementRunner, Values
from holdfast.backends.postgres.driver_errors import DriverFailure, is_in_doubt
from holdfast.backends.postgres.pool import Connections
from holdfast.backends.postgres.session_queue import LONGEST_WAIT_S
from holdfast.backends.postgres.transaction.function_calls import SharedCall
from holdfast.errors import DurabilityUncertain, HoldfastError

T = TypeVar("T")

Place: TypeAlias = tuple[str, Any]
"""A function, and the key of a row that it locks."""

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

PLANNING_S: Final = 0.001
"""Time that two trips in place of one may save for each call, generously: this process plans while the server works."""

SLOW_S: Final = 0.004
"""Usual time of a trip from which on a call waits for the tasks that are ready: their calls may go along."""

RECENT: Final = 0.2
"""Weight of a trip in the usual time of a trip."""

GATHER_S: Final = 0.001
"""Pause between lock-wait trips."""

CONTENDED_S: Final = 0.5
"""Time for which calls wait at once after one has met a locked queue."""

MOST_CONTENDED: Final = 1_000
"""Most queues of which that is remembered."""

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
        self._lock_waits: dict[Place, deque[Waiting]] = {}
        """Calls of the next lock-wait trips."""
        self._lock_wait_tasks: set[asyncio.Task[None]] = set()
        self._contended: dict[Place, float] = {}
        """Until when calls wait at once, because one has met a locked queue."""
        self._alone = 0
        self._is_due = False
        self._usual_s = 0.0
        """Time that a trip has taken lately."""

    @property
    def lets_alone(self) -> bool:
        """True if a call is made at once by itself: no call is under way, none waits, and trips are quick."""
        return not (self._alone or self._tasks or self._is_due or self._usual_s > SLOW_S)

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
        waiting = Waiting(call, begin, asyncio.get_running_loop().create_future())
        self._waiting[call.name].append(waiting)
        self._send_soon()
        return await self._answered(self._waiting[call.name], waiting)

    async def wait(self, call: SharedCall, begin: Callable[[], None]) -> Values | None:
        """Make a call that waits for other transactions, together with such calls of its key. Returns as `call` does.

        Lock-wait trips do not hold up others: they count neither for `TRIPS` nor for `lets_alone`.
        """
        loop = asyncio.get_running_loop()
        waiting, place = Waiting(call, begin, loop.create_future()), (call.name, call.key)
        if place not in self._lock_waits:
            self._lock_waits[place] = deque()
            # After the tasks that are ready now: their calls go along.
            loop.call_soon(self._send_lock_wait, place)
        self._lock_waits[place].append(waiting)
        return await self._answered(self._lock_waits[place], waiting)

    def is_contended(self, call: SharedCall) -> bool:
        """Return whether such a call has met a locked queue lately."""
        until_s = self._contended.get((call.name, call.key))
        if until_s is not None and until_s <= asyncio.get_running_loop().time():
            del self._contended[call.name, call.key]
            return False
        return until_s is not None

    def note(self, call: SharedCall, row: Sequence[Any]) -> None:
        """Note if a call that settles work has found the next one locked."""
        if call.waiting is None or row[CLAIMED[call.name][0]] != BUSY:
            return
        if len(self._contended) >= MOST_CONTENDED:
            self._contended.clear()
        self._contended[call.name, call.key] = asyncio.get_running_loop().time() + CONTENDED_S

    async def _answered(self, queue: deque[Waiting], waiting: Waiting) -> Values | None:
        timer = asyncio.get_running_loop().call_later(LONGEST_WAIT_S, _give_up, queue, waiting)
        try:
            return await waiting.answer
        finally:
            timer.cancel()

    def _send_lock_wait(self, place: Place) -> None:
        """Start the next lock-wait trip, or forget the place."""
        queue = self._lock_waits[place]
        calls = [call for call in queue if not call.answer.done()]
        queue.clear()
        if not calls:
            del self._lock_waits[place]
            return
        most = MOST_CALLS[place[0]]
        taken = calls[:most]
        queue.extend(calls[most:])
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run_lock_wait(queue, taken))
        self._lock_wait_tasks.add(task)

        def abandon(_: object) -> None:
            if all(call.answer.cancelled() for call in taken):
                task.cancel()  # every caller has given up

        def ended(_: object) -> None:
            self._lock_wait_tasks.discard(task)
            # The work of this trip may be done at once: its next calls go along with those that wait.
            loop.call_later(GATHER_S, self._send_lock_wait, place)

        for call in taken:
            call.answer.add_done_callback(abandon)
        task.add_done_callback(ended)

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
                most = (len(waiting) + 1) // 2 if self._splits(len(waiting)) else len(waiting)
                taken = self._take(name, min(most, MOST_CALLS[name]), keys)
                if not taken:
                    break
                task = loop.create_task(self._run(name, taken, keys))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _splits(self, calls: int) -> bool:
        """Return whether calls go in two trips: one is planned here while the server writes the other.

        Not if trips take so long that planning is a small part: the processors, or the way to the server, are the
        limit then, and fewer trips take less of both.
        """
        return not self._alone and not self._tasks and self._usual_s < calls * PLANNING_S

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
            for call, row in zip(calls, await self._trip(connection, name, calls), strict=True):
                _answer(call, row)
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

    async def _run_lock_wait(self, queue: deque[Waiting], taken: list[Waiting]) -> None:
        try:
            connection = await self._connections.acquire()
            calls = [call for call in taken if not call.answer.done()]
            rows = await self._trip(connection, taken[0].call.name, calls, waits=True)
            # Calls behind the first find nothing once it has waited in vain, or they have taken all that it had locked.
            passed = [call for call, row in list(zip(calls, rows, strict=True))[1:] if _is_busy(row)]
            queue.extendleft(reversed(passed))
            for call, row in zip(calls, rows, strict=True):
                if call not in passed:
                    _answer(call, row)
        except DriverFailure as failure:
            _fail(taken, partial(DriverFailure, failure.cause))
        except HoldfastError as error:
            _fail(taken, partial(_same, error))
        except BaseException:
            for call in taken:
                call.answer.cancel()
            raise

    async def _trip(
        self, connection: Connection, name: str, calls: Sequence[Waiting], *, waits: bool = False
    ) -> Sequence[Values | DurabilityUncertain | None]:
        """Make the calls. Return their rows, None for each if the server has undone the trip."""
        if not calls:
            await self._connections.release(connection)
            return ()
        for call in calls:
            call.begin()
        began_s = time.monotonic()
        try:
            runner = self._runner(connection)
            bindings = [call.call.together for call in calls]
            if waits:
                bindings[0] = calls[0].call.waiting or bindings[0]
            rows = await runner.call_together(name, bindings)
            if not waits:
                self._usual_s += RECENT * (time.monotonic() - began_s - self._usual_s)
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
        while self._tasks or self._lock_wait_tasks:
            await asyncio.wait(self._tasks | self._lock_wait_tasks)


def _same(error: HoldfastError) -> HoldfastError:
    return error


def _key_of(call: Waiting) -> Any:
    return call.call.key


def _give_up(queue: deque[Waiting], call: Waiting) -> None:
    """Let a call that no trip has taken be made alone: a trip in its way may wait for a lock."""
    if call in queue and not call.answer.done():
        queue.remove(call)
        call.answer.set_result(None)


def _is_busy(row: Values | DurabilityUncertain | None) -> bool:
    return row is not None and not isinstance(row, DurabilityUncertain) and row[0] == BUSY


def _answer(call: Waiting, row: Values | DurabilityUncertain | None) -> None:
    if call.answer.done():
        return
    if isinstance(row, DurabilityUncertain):
        call.answer.set_exception(row)
    else:
        call.answer.set_result(None if _is_busy(row) else row)


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
