"""A run as its handler sees it: steps that are done once, durable sleeps and signals, children, progress.

A handler that is run again starts over, and what it recorded before returns at once. State changes once, effects happen
at least once: a step that was killed before it was recorded runs again.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

import holdfast
from holdfast.worker.journal import SIGNAL, Journal

T = TypeVar("T")

IN_MEMORY_MS = 5_000
"""A wait up to this long keeps the slot of the worker. A longer one suspends the run."""
OWN = "~"
"""The first character of steps that `run` records by itself."""
STARTED = f"{OWN}started:"
LONGEST_S = 366 * 24 * 3600.0
CHILD_ENDED = "child"
"""The signal that a run gets when a child of it has ended."""
LOOK_AT_CHILD_MS = 60_000
"""Time until a run that waits for a child looks at it without a signal: others may have ended the child."""

_INSIDE: ContextVar[str | None] = ContextVar("step", default=None)


@contextmanager
def in_step(name: str) -> Generator[None]:
    """Mark the code of a step, in which no other step may begin."""
    inside = _INSIDE.set(name)
    try:
        yield
    finally:
        _INSIDE.reset(inside)


class Suspended(BaseException):
    """Ends the call of a handler whose run sleeps. Not an `Exception`: `finally` blocks run, `except Exception` not."""

    def __init__(self, due_at_ms: int | None, wait: holdfast.processes.SignalWait | None = None) -> None:
        super().__init__("the run sleeps")
        self.due_at_ms = due_at_ms
        self.wait = wait


class StepConflict(holdfast.Conflict):
    """The handler does not ask for what its run has recorded: its code has changed. Give the new code a new version."""

    def __init__(self, process_id: str, name: str, problem: str) -> None:
        super().__init__(
            f"run {process_id!r}, step {name!r}: {problem}: let the old code finish its runs, and register the changed "
            "handler under a new version"
        )
        self.process_id = process_id
        self.name = name


class ChildFailed(Exception):
    """A child run ended without a result. `outcome` says how."""

    def __init__(self, process_id: str, outcome: holdfast.processes.ProcessOutcome) -> None:
        super().__init__(f"child run {process_id!r}: {type(outcome).__name__}: {getattr(outcome, 'message', '')}")
        self.process_id = process_id
        self.outcome = outcome


class Persist(Protocol):
    """Makes an idempotent call, again while the database is away."""

    async def __call__(self, message: str, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Make the call."""
        ...


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
        self._journal = journal
        self._persist = persist
        self._store = store
        self._asked: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
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

    # Steps.

    async def step(self, name: str, function: Callable[..., Awaitable[T] | T], *args: Any, **named: Any) -> T:
        """Call a function, record its result under the name, and return it. Recorded before: return that at once.

        The result must be a JSON document. Pass `f"{run.id}/{name}"` to the outside as an idempotency key.
        """
        facts = self.facts_of(name, function, args, named)
        found = self.find_step(name, facts)
        if found is not None:
            return cast("T", found["value"])
        began_s = time.monotonic()
        with in_step(name):
            if inspect.iscoroutinefunction(function):
                value: Any = await function(*args, **named)
            else:
                value = await asyncio.to_thread(function, *args, **named)
                if inspect.isawaitable(value):
                    value = await value
        return cast("T", await self.record_step(name, facts, value, began_s))

    def facts_of(self, name: object, function: object, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the facts by which changed code is noticed: the name of the function, and a hash of its arguments."""
        if not isinstance(name, str) or not name.strip() or name.startswith(OWN):
            raise holdfast.InvalidRequest("run.step", f"needs a name that is not blank and does not begin with {OWN!r}")
        if not callable(function):
            raise holdfast.InvalidRequest("run.step", f"needs a function to call, not {type(function).__name__}")
        try:
            given = hashlib.sha256(msgspec.json.encode([args, named])).hexdigest()[:16]
        except (TypeError, ValueError, OverflowError):
            given = None  # not a document, and so not comparable
        return {"function": getattr(function, "__qualname__", type(function).__name__), "args": given}

    def find_step(self, name: str, facts: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return a step that is recorded, None if it is not. Raises `StepConflict` if it is another one."""
        if _INSIDE.get() is not None:
            raise holdfast.InvalidRequest(
                "run.step", f"{name!r} is inside of step {_INSIDE.get()!r}: call it beside that one"
            )
        if name in self._asked:
            raise holdfast.InvalidRequest("run.step", f"{name!r} was used before in this run: give each its own name")
        self._asked.add(name)
        found = self._journal.steps.get(name)
        for key, said in (facts or {}).items():
            before = None if found is None else found.get(key)
            if found is not None and None not in (before, said) and before != said:
                raise StepConflict(self.id, name, f"its {key} was {before}, and is {said} now")
        return found

    async def record_step(self, name: str, facts: dict[str, Any], value: Any, began_s: float) -> Any:
        """Record the result of a step. Return it as it is stored."""
        took_ms = int(1000 * (time.monotonic() - began_s))
        try:
            return (await self._record(name, {**facts, "value": value, "took_ms": took_ms}))["value"]
        except holdfast.InvalidRequest as error:
            problem = f"returned what cannot be stored: {error}"
            raise holdfast.InvalidRequest(f"run.step({name!r})", problem) from error

    async def _record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        return await self._persist("a step is not recorded", lambda: self._journal.record(name, facts))

    def require_all_asked(self) -> None:
        """Raises `StepConflict` if the handler returned without a step that was recorded."""
        for name in self._journal.steps:
            if name not in self._asked:
                raise StepConflict(self.id, name, "it is recorded, and the handler returned without it")

    async def gather(self, *branches: Awaitable[Any]) -> list[Any]:
        """Run branches side by side. If some of them sleep, the run sleeps once no other branch can go on."""
        results = await asyncio.gather(*(_caught(branch) for branch in branches))
        asleep = [one for one in results if isinstance(one, Suspended)]
        for one in results:
            if isinstance(one, _Failed):
                raise one.error
        if asleep:
            times = [one.due_at_ms for one in asleep if one.due_at_ms is not None]
            waits = [one.wait for one in asleep if one.wait is not None]
            raise Suspended(min(times) if times else None, waits[0] if waits else None)
        return results

    # Time and chance.

    async def now(self) -> int:
        """Return the time of the store's clock in milliseconds, the same whenever the handler is run again."""
        return cast("int", (await self._once(self._next("now"), self._store.now_ms))["value"])

    async def uuid(self) -> str:
        """Return a random UUID, the same whenever the handler is run again."""

        async def make() -> str:
            return str(uuid.uuid4())

        return cast("str", (await self._once(self._next("uuid"), make))["value"])

    async def sleep(self, seconds: float) -> None:
        """Sleep durably. A sleep of more than 5 s holds no worker, and a crash does not start it anew."""
        length_ms = _milliseconds("run.sleep", seconds)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        until_ms: int = (await self._once(self._next("sleep"), until))["value"]
        left_ms = until_ms - await self._store.now_ms()
        if left_ms > IN_MEMORY_MS:
            raise Suspended(until_ms)
        if left_ms > 0:
            await asyncio.sleep(left_ms / 1000)

    async def _once(self, name: str, make: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        found = self.find_step(name)
        return await self._record(name, {"value": await make()}) if found is None else found

    def _next(self, what: str) -> str:
        self._counts[what] += 1
        return f"{OWN}{what}:{self._counts[what]}"

    # Signals.

    async def signal(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal and return its payload: each is taken once, in order. `TimeoutError` if none comes in time.

        Meanwhile the run is suspended and holds no worker. Send it with `store.events.signal(run_id, name, payload)`.
        """
        place = self._next(f"signal:{name}")
        until_ms = None if timeout_s is None else await self._deadline(place, timeout_s)
        if self._journal.steps.get(f"{place}:timeout") is None:
            payloads = await self._arrived(name, until_ms)
            if payloads:
                self._taken[name] += 1
                return payloads[0]
        await self._once(f"{place}:timeout", partial(_given, None))
        raise TimeoutError(f"no signal {name!r} within {timeout_s:g} s")

    async def _deadline(self, place: str, timeout_s: float) -> int:
        length_ms = _milliseconds("timeout_s", timeout_s)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        return cast("int", (await self._once(place, until))["value"])

    async def _arrived(self, name: str, until_ms: int | None) -> list[Any]:
        """Return the signals of a name that no earlier call took. Suspend the run if they may still come."""
        while not (payloads := self._journal.signals.get(name, [])[self._taken[name] :]):
            if until_ms is None:
                raise Suspended(None, self._wait(name))
            left_ms = until_ms - await self._store.now_ms()
            if left_ms > IN_MEMORY_MS:
                raise Suspended(until_ms, self._wait(name))
            if left_ms > 0:
                with suppress(holdfast.WaitTimeout):
                    await self._store.events.wait_for(
                        self.id, f"{SIGNAL}{name}", after=self._journal.seen, timeout_ms=left_ms
                    )
            await self._persist("signals are not read", self._journal.refresh)
            if left_ms <= 0:
                return self._journal.signals.get(name, [])[self._taken[name] :]
        return payloads

    def _wait(self, name: str) -> holdfast.processes.SignalWait:
        return holdfast.processes.SignalWait(name, ordinal=self._taken[name] + 1)

    # Children and reports.

    async def start(
        self, kind: str, args: Any = None, *, id: str | None = None, version: str = "1", detached: bool = False
    ) -> Child:
        """Start a child run, once. It is cancelled with this run unless it is `detached`."""
        child_id = f"{self.id}/{self._next('child').removeprefix(OWN)}" if id is None else id
        provenance = holdfast.processes.Provenance(caused_by={"type": "run", "process_id": self.id})
        await self._persist(
            "a child is not started",
            lambda: self._store.processes.start(kind, args, id=child_id, version=version, provenance=provenance),
        )
        if not detached:
            self.children.append(child_id)
            await self._once(f"{STARTED}{child_id}", partial(_given, child_id))
        return Child(self, child_id)

    async def result_of(self, child_id: str) -> Any:
        """Return the result of a run once it has ended. Meanwhile this run is suspended."""
        found = self.find_step(f"{OWN}result:{child_id}")
        if found is None:
            process = await self._persist("a child is not read", lambda: self._store.processes.get(child_id))
            if process is None:
                raise holdfast.UnknownProcess(child_id)
            if process.outcome is None:
                due_at_ms = await self._store.now_ms() + LOOK_AT_CHILD_MS
                self._asked.discard(f"{OWN}result:{child_id}")
                raise Suspended(due_at_ms, self._wait(CHILD_ENDED))
            outcome = process.outcome
            found = await self._record(f"{OWN}result:{child_id}", {"value": msgspec.to_builtins(outcome)})
        outcome = msgspec.convert(found["value"], holdfast.processes.ProcessOutcome)
        if isinstance(outcome, holdfast.processes.Completed):
            return outcome.value
        raise ChildFailed(child_id, outcome)

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

    async def result(self) -> Any:
        """Return the child's result once it has ended; `ChildFailed` if it has none."""
        return await self._parent.result_of(self.id)


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _caught(branch: Awaitable[Any]) -> Any:
    try:
        return await branch
    except Suspended as asleep:
        return asleep
    except Exception as error:  # raised once the other branches have ended
        return _Failed(error)


async def _given(value: Any) -> Any:
    return value


def _milliseconds(field: str, seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_S:
        raise holdfast.InvalidRequest(field, f"must be a number of seconds from 0 to {LONGEST_S:g}")
    return int(1000 * seconds)
