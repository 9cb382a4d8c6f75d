"""A run as its handler sees it: steps that are done once, durable sleeps and signals, children, progress.

A handler that is run again starts over, and what it recorded before returns at once. State changes once, effects happen
at least once: a step that was killed before it was recorded runs again.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar, cast, overload

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.spilling import value_of
from holdfast.worker.journal import OWN, SIGNAL, Journal, JournalUse, require_few
from holdfast.worker.retries import Retry
from holdfast.worker.run_errors import ChildFailed, Continued, Suspended
from holdfast.worker.steps import Persist, StepCall, Steps, in_step

T = TypeVar("T")
InThread: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a plain function beside the event loop."""

IN_MEMORY_MS = 5_000
"""A wait up to this long keeps the slot of the worker. A longer one suspends the run."""
STARTED = f"{OWN}started:"
_SIGNAL_NAME = re.compile(r"[A-Za-z0-9_-]+")
LONGEST_S = 366 * 24 * 3600.0
RESERVED = "holdfast-"
"""The beginning of names of signals that are the worker's own."""
CHILD_ENDED = f"{RESERVED}child"
"""The signal that a run gets when a child of it has ended."""
LOOK_AT_CHILD_MS = 60_000
"""Time until a run that waits for a child looks at it without a signal: others may have ended the child."""


class Run:
    """The run that a handler was called for."""

    def __init__(
        self, claim: holdfast.processes.RunClaim, store: holdfast.Store, journal: Journal, persist: Persist
    ) -> None:
        self.claim = claim
        self.store: Any = store
        """The worker's store: a `Store` in an `async def` handler, a `BlockingStore` in a plain one."""
        self.cancelled = False
        """True once the worker has given up on this call. A handler in a thread should return then."""
        self.steps = Steps(claim.process.id, journal, persist)
        self._journal = journal
        self._persist = persist
        self._store = store
        self._counts: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        """Counts the signals of each name that the handler has taken."""
        self.in_memory_ms = IN_MEMORY_MS
        self.in_thread: InThread = asyncio.to_thread
        self.wrap_branch: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda branch: branch
        self.children: list[str] = []
        """Ids of the children that are cancelled with this run."""

    def __repr__(self) -> str:
        return f"Run({self.kind!r}, {self.id!r})"

    @property
    def id(self) -> str:
        """The id of the run, which is that of its process."""
        return self.claim.process.id

    @property
    def _input(self) -> holdfast.processes.Run:
        return cast("holdfast.processes.Run", self.claim.process.input)

    @property
    def kind(self) -> str:
        """The kind of the run."""
        return self._input.kind

    @property
    def version(self) -> str:
        """The version of the handler that the run was started for."""
        return self._input.version

    @property
    def args(self) -> Any:
        """The arguments that the run was started with."""
        return self._input.args

    @property
    def attempt(self) -> int:
        """The number of this attempt since the run last slept, from 1 on."""
        return self.claim.process.attempt

    @property
    def journal(self) -> JournalUse:
        """The size of the run's journal, and its limits. `continue_as_new` goes on with an empty one."""
        return self._journal.use

    # Steps.

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        retry: Retry | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[..., T], *args: Any, retry: Retry | None = None, **named: Any
    ) -> T: ...
    async def step(
        self, name: str, function: Callable[..., Any], *args: Any, retry: Retry | None = None, **named: Any
    ) -> Any:
        """Call a function, record its result under the name, and return it. Recorded before: return that at once.

        The result is a JSON document, or a value of the type that the function declares to return. With `retry`, a
        call that fails is made again after a back-off, which holds no worker if it is long; after the last attempt
        `StepFailed` is raised. Pass `run.key(name)` to the outside as an idempotency key.
        """
        call = StepCall(self.steps, name, function, args, named, retry)
        while call.found is None:
            await self.until(call.next_attempt_at_ms())
            began_s = time.monotonic()
            try:
                with in_step(name):
                    document = call.checked(await self._called(function, args, named))
            except Exception as error:
                await call.fail(error, began_s, self._store.now_ms)
            else:
                return await call.record(document, began_s)
        return await call.value()

    async def _called(self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call the function of a step, a plain one in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*args, **named)
        value = await self.in_thread(function, *args, **named)
        return await value if inspect.isawaitable(value) else value

    def key(self, name: str) -> str:
        """Return the idempotency key of a step: the same at each attempt, and unlike that of any other step."""
        # No "/" in the last part: the key of step `b/c` of run `a` is not that of step `c` of run `a/b`.
        part = name.replace("%", "%25").replace("/", "%2F")
        return f"{self.id}/{part}"

    async def until(self, at_ms: int | None) -> None:
        """Wait durably until a time that is recorded, None being now."""
        left_ms = 0 if at_ms is None else at_ms - await self._store.now_ms()
        if left_ms > self.in_memory_ms:
            raise Suspended(at_ms)
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)

    def continue_as_new(self, args: Any = None, *, version: str | None = None) -> NoReturn:
        """End this run, and go on as a new one with these arguments and an empty journal, in one transaction.

        The new run has the wake target, the parent and the signals that this one did not take. `result` of this run is
        that of the new one. `SignalsLeft` if there are more than 1,000 such signals.
        """
        require_few(self.id, self._journal.signals, self.taken)
        raise Continued(typed_values.plain(args), version)

    async def gather(self, *branches: Awaitable[Any]) -> list[Any]:
        """Run branches side by side. If some of them sleep, the run sleeps once no other branch can go on.

        A branch that fails, or continues the run as a new one, does so once the other branches have ended or sleep.
        """
        gathering = asyncio.gather(*(_caught(self.wrap_branch(branch)) for branch in branches))
        # A call that ends before its branches reads their errors nowhere else.
        gathering.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        try:
            results = await gathering
        finally:
            for branch in branches:
                # Cancelled before it began: Python would warn of it.
                if inspect.iscoroutine(branch) and inspect.getcoroutinestate(branch) == inspect.CORO_CREATED:
                    branch.close()
        asleep = [one for one in results if isinstance(one, Suspended)]
        for one in results:
            if isinstance(one, _Failed):
                raise one.error
        for one in results:
            if isinstance(one, Continued):
                raise one
        if asleep:
            times = [one.due_at_ms for one in asleep if one.due_at_ms is not None]
            waits = [one.wait for one in asleep if one.wait is not None]
            raise Suspended(min(times) if times else None, waits[0] if waits else None)
        return results

    # Time and chance.

    async def now(self) -> int:
        """Return the time of the store's clock in milliseconds, the same whenever the handler is run again."""
        return cast("int", await self.steps.once(self._next("now"), self._store.now_ms))

    async def uuid(self) -> str:
        """Return a random UUID, the same whenever the handler is run again."""

        async def make() -> str:
            return str(uuid.uuid4())

        return cast("str", await self.steps.once(self._next("uuid"), make))

    async def sleep(self, seconds: float) -> None:
        """Sleep durably. A sleep of more than 5 s holds no worker, and a crash does not start it anew."""
        length_ms = _milliseconds("run.sleep", seconds)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        await self.until(await self.steps.once(self._next("sleep"), until))

    def _next(self, what: str) -> str:
        self._counts[what] += 1
        return f"{OWN}{what}:{self._counts[what]}"

    # Signals.

    async def signal(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal and return its payload: each is taken once, in order. `TimeoutError` if none comes in time.

        Meanwhile the run is suspended and holds no worker. Send it with `store.events.signal(run_id, name, payload)`.
        """
        _require_signal_name(name)
        place = self._next(f"signal:{name}")
        until_ms = None if timeout_s is None else await self._deadline(place, timeout_s)
        if self._journal.steps.get(f"{place}:timeout") is None:
            payloads = await self._arrived(name, until_ms)
            if payloads:
                self.taken[name] += 1
                return payloads[0]
        await self.steps.once(f"{place}:timeout", partial(_given, None))
        raise TimeoutError(f"no signal {name!r} within {timeout_s:g} s")

    async def _deadline(self, place: str, timeout_s: float) -> int:
        length_ms = _milliseconds("timeout_s", timeout_s)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        return cast("int", await self.steps.once(place, until))

    async def _arrived(self, name: str, until_ms: int | None) -> list[Any]:
        """Return the signals of a name that no earlier call took. Suspend the run if they may still come."""
        while not (payloads := self._journal.signals.get(name, [])[self.taken[name] :]):
            if until_ms is None:
                raise Suspended(None, self._wait(name))
            left_ms = until_ms - await self._store.now_ms()
            if left_ms > self.in_memory_ms:
                raise Suspended(until_ms, self._wait(name))
            if left_ms > 0:
                with suppress(holdfast.WaitTimeout):
                    await self._store.events.wait_for(
                        self.id, f"{SIGNAL}{name}", after=self._journal.seen, timeout_ms=left_ms
                    )
            await self._persist("signals are not read", self._journal.refresh)
            if left_ms <= 0:
                return self._journal.signals.get(name, [])[self.taken[name] :]
        return payloads

    def _wait(self, name: str) -> holdfast.processes.SignalWait:
        return holdfast.processes.SignalWait(name, ordinal=self.taken[name] + 1)

    # Children and reports.

    async def start(
        self, kind: str, args: Any = None, *, id: str | None = None, version: str = "1", detached: bool = False
    ) -> Child:
        """Start a child run, once. It is cancelled with this run unless it is `detached`."""
        child_id = f"{self.id}/{self._next('child').removeprefix(OWN)}" if id is None else id
        given = typed_values.plain(args)
        if not detached and f"{STARTED}{child_id}" not in self._journal.steps:
            self.steps.require_room(f"{STARTED}{child_id}")
        provenance = holdfast.processes.Provenance(caused_by={"type": "run", "process_id": self.id})
        await self._persist(
            "a child is not started",
            lambda: self._store.processes.start(kind, given, id=child_id, version=version, provenance=provenance),
        )
        if not detached:
            self.children.append(child_id)
            await self.steps.once(f"{STARTED}{child_id}", partial(_given, child_id))
        return Child(self, child_id)

    async def result_of(self, child_id: str, declared: Any = None) -> Any:
        """Return the result of a run once it has ended. Meanwhile this run is suspended."""
        place = f"{OWN}result:{child_id}"
        found = self.steps.find(place)
        if found is None:
            outcome = await self._persist("a child is not read", lambda: self._outcome_of(child_id))
            if outcome is None:
                self.steps.asked.discard(place)
                raise Suspended(await self._store.now_ms() + LOOK_AT_CHILD_MS, self._wait(CHILD_ENDED))
            if isinstance(outcome, holdfast.processes.Completed):
                # The whole value: the journal of this run must not depend on artifacts of the child, which may be
                # pruned first.
                ended = outcome
                result = await self._persist("a result is not read", lambda: value_of(self._store.artifacts, ended))
                outcome = holdfast.processes.Completed(result)
            found = await self.steps.record(place, {"value": msgspec.to_builtins(outcome)})
        value = await self._persist("a result is not read", lambda: self._journal.value_of(found))
        outcome = msgspec.convert(value, holdfast.processes.ProcessOutcome)
        if not isinstance(outcome, holdfast.processes.Completed):
            raise ChildFailed(child_id, outcome)
        return outcome.value if declared is None else typed_values.decoded(outcome.value, declared)

    async def _outcome_of(self, child_id: str) -> holdfast.processes.ProcessOutcome | None:
        """Return the outcome of a run or of the one that it continued as, None if that has not ended."""
        next_id: str | None = child_id
        outcome: holdfast.processes.ProcessOutcome | None = None
        while next_id is not None:
            process = await self._store.processes.get(next_id)
            if process is None:
                raise holdfast.UnknownProcess(next_id)
            outcome = process.outcome
            next_id = process.continued_as
        return outcome

    async def progress(self, payload: Any) -> None:
        """Append a report for those who follow the run with `store.events.follow(run.id)`."""
        key = self._journal.next_progress()
        await self._persist("progress is not reported", lambda: self._journal.report(payload, key))


class Child:
    """A run that another run has started."""

    def __init__(self, parent: Run, id: str) -> None:
        self._parent = parent
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    @overload
    async def result(self) -> Any: ...
    @overload
    async def result(self, declared: type[T]) -> T: ...
    async def result(self, declared: Any = None) -> Any:
        """Return the child's result once it has ended, as a value of a type if one is given.

        `ChildFailed` if it has no result.
        """
        return await self._parent.result_of(self.id, declared)


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _caught(branch: Awaitable[Any]) -> Any:
    try:
        return await branch
    except (Suspended, Continued) as over:
        return over
    except Exception as error:  # raised once the other branches have ended
        return _Failed(error)


async def _given(value: Any) -> Any:
    return value


def _require_signal_name(name: object) -> None:
    if not isinstance(name, str) or not _SIGNAL_NAME.fullmatch(name) or name.startswith(RESERVED):
        problem = f"needs a name of letters, digits, '_' and '-' that does not begin with {RESERVED!r}, not {name!r}"
        raise holdfast.InvalidRequest("run.signal", problem)


def _milliseconds(field: str, seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_S:
        raise holdfast.InvalidRequest(field, f"must be a number of seconds from 0 to {LONGEST_S:g}")
    return int(1000 * seconds)
