"""Runs a worker's handler on a memory store and crashes it at every point: each store call and each suspension.

Time is a manual clock: durable sleeps and back-offs pass at once. After each crash another worker goes on. The end is
compared with that of a run without a crash: an effect that happened twice or never is named with its point.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

import holdfast
from holdfast.records.processes import CHILD_ENDED
from holdfast.testing.clock import ManualClock
from holdfast.testing.crash_points import Crash, Points, ProxiedStore, suspending
from holdfast.worker import Worker
from holdfast.worker.handlers import Handlers, handler_of
from holdfast.worker.outages import Outages
from holdfast.worker.processes import Runs
from holdfast.worker.running import Runner
from holdfast.worker.tally import Tally

LEASE_MS = 1
"""A crash costs this much time of the manual clock: a wait that a crash does not touch ends as without it."""
MOST_ROUNDS = 1_000
"""Claims and sleeps of one scenario. More, and the run is taken for one that never ends."""
SHOWN = 20
"""Points that one failure lists."""
Kind: TypeAlias = Literal["crash", "early signal", "cancel"]


class Effects:
    """The effects of a handler on the outside, as a test counts them: call `record` in place of the outside.

    An effect with a key is idempotent by it: the outside does it once. Without a key each call counts.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self._points: Points | None = None

    def record(self, name: str, key: str | None = None) -> bool:
        """Count an effect. Return False if its key was there before, so that the outside does nothing."""
        if self._points is not None and self._points.is_dead:
            return False  # of a worker that was killed
        is_new = key is None or (name, key) not in self.seen
        self.seen.append((name, key))
        return is_new

    def begin(self, points: Points) -> None:
        """Forget what was counted, and count for another scenario."""
        self.seen, self._points = [], points

    def happened(self) -> Counter[str]:
        """Count by name what the outside did: each key once, and each call without one."""
        keyed = {one for one in self.seen if one[1] is not None}
        return Counter([*(name for name, _ in keyed), *(name for name, key in self.seen if key is None)])


class CrashReport(msgspec.Struct, frozen=True):
    """The points at which the handler was crashed, and the result that it had after each."""

    points: tuple[str, ...]
    result: Any


class _End(msgspec.Struct, frozen=True):
    """The state in which a scenario ended."""

    outcomes: dict[str, Any]
    effects: Counter[str]
    idle: int
    """Times that nothing could be claimed while the run had not ended."""
    waits: tuple[str, ...] = ()
    """Runs that wait for a signal that does not come, with its name."""
    held: dict[str, str] = {}
    """The errors of runs that are held, because a later call of the handler asks for other steps."""

    @property
    def last(self) -> dict[str, Any] | None:
        """The outcome of the run, or of the last one that it continued as."""
        outcome: Any = self.outcomes["run"]
        while outcome is not None and "continued_as" in (outcome.get("control") or {}):
            outcome = self.outcomes[outcome["control"]["continued_as"]]
        return None if outcome is None else dict(outcome)


def survives_crashes(
    worker: Worker,
    kind: str,
    args: Any = None,
    *,
    version: str = "1",
    signals: Mapping[str, Any] | None = None,
    effects: Effects | None = None,
    setup: Callable[[], object] | None = None,
    compare: Callable[[Any], Any] | None = None,
) -> CrashReport:
    """Start a run, crash its worker at every point in turn, and raise `AssertionError` if one of them does harm.

    `signals` are the payloads that the run gets when it waits for them; each is also sent early, at every point, and
    the run is also cancelled at every wait. A run that waits for another signal fails the test: it would end nowhere.
    `setup` resets your own fakes before each scenario. `compare` reduces a
    result to the part that does not depend on chance.

    >>> from holdfast.testing.crashes import Effects, survives_crashes
    >>> worker, effects = holdfast.Worker("memory:"), Effects()
    >>> @worker.process("order")
    ... def order(run, amount):
    ...     run.step("charge", effects.record, "charge", run.key("charge"))
    ...     return f"charged {amount}"
    >>> survives_crashes(worker, "order", {"amount": 7}, effects=effects).result
    'charged 7'
    """
    handler = handler_of(worker, kind, version)
    scenario = _Scenario(worker, (kind, version, args), signals or {}, effects or Effects(), setup, compare)
    expected, points = scenario.play("crash", None)
    if expected.last is None and handler.recovery != "external":
        said = "; ".join([*expected.held.values(), *expected.waits]) or "it waits for nothing"
        raise AssertionError(f"without a crash the run does not end, so nothing is shown: {said}")
    if expected.last is not None and expected.last.get("type") != "success":
        raise AssertionError(f"without a crash the run fails, so nothing is shown: {expected.last.get('message')}")
    harm: list[str] = []
    for number, label in enumerate(points.labels, 1):
        found, _ = scenario.play("crash", number)
        harm += [f"crash {label}: {problem}" for problem in _differences(expected, found)]
        if signals:
            found, _ = scenario.play("early signal", number)
            harm += [f"signal {label}: {problem}" for problem in _lost(expected, found)]
    for number in range(1, expected.idle + 1):
        found, _ = scenario.play("cancel", number)
        harm += [f"cancel at wait {number}: {problem}" for problem in _not_cancelled(expected, found, number)]
    if harm:
        rest = "" if len(harm) <= SHOWN else f"\n… and {len(harm) - SHOWN} more"
        raise AssertionError("\n".join([f"{len(points.labels)} points, harm at:", *harm[:SHOWN]]) + rest)
    return CrashReport(tuple(points.labels), None if expected.last is None else expected.last.get("value"))


class _NoKeeper:
    """Renews nothing: a manual clock does not pass while a handler runs."""

    outages = Outages()

    def hold(self, held: object) -> None: ...
    def drop(self, held: object) -> None: ...
    def give_up_overdue(self) -> None: ...


class _Scenario:
    """One run from its start to its end, with one crash, early signal or cancel."""

    def __init__(
        self,
        worker: Worker,
        run: tuple[str, str, Any],
        signals: Mapping[str, Any],
        effects: Effects,
        setup: Callable[[], object] | None,
        compare: Callable[[Any], Any] | None,
    ) -> None:
        self._worker = worker
        self._run = run
        self._signals = signals
        self._effects = effects
        self._setup = setup
        self._compare = compare
        self._looked: dict[str, int] = {}

    def play(self, kind: Kind, target: int | None) -> tuple[_End, Points]:
        """Play the scenario with a fault at the target, None for none."""
        if self._setup is not None:
            self._setup()
        self._looked = {}
        points = Points(target if kind != "cancel" else None, crashes=kind == "crash")
        self._effects.begin(points)
        return asyncio.run(self._play(points, target if kind == "cancel" else None)), points

    async def _play(self, points: Points, cancel_at: int | None) -> _End:
        clock = ManualClock()
        async with holdfast.open("memory:", clock=clock) as store:
            kind, version, args = self._run
            await store.processes.start(kind, args, id="run", version=version)
            if self._signals:
                points.instead = partial(self._send_all, store)
            idle = 0
            for _ in range(MOST_ROUNDS):
                try:
                    if await self._work(store, points):
                        continue
                except Crash:
                    await _end_other_tasks()
                    clock.advance(LEASE_MS + 1)
                    points.revive()
                    continue
                run = store.processes.handle("run")
                newest = await store.processes.get(await run.newest_id())
                is_over = newest is None or newest.is_terminal  # others that it started may go on
                if not is_over and idle + 1 == cancel_at:
                    await run.cancel(reason="by the test")
                elif not await self._let_time_pass(store, clock):
                    return await self._end(store, idle)
                idle += not is_over
        raise AssertionError(
            f"the run did not end within {MOST_ROUNDS} rounds: a sleep starts anew, or a loop has no end"
        )

    async def _work(self, store: holdfast.Store, points: Points) -> bool:
        """Run what can be claimed now. Return False if nothing can."""
        handlers = _stepping(self._worker.handlers, points)
        proxied: Any = ProxiedStore(store, points)
        keeper: Any = _NoKeeper()
        runner = Runner(proxied, handlers, keeper, "tester", LEASE_MS, stopping=asyncio.Event(), tally=Tally())
        for kinds in handlers.runs(LEASE_MS).values():
            runs = Runs(runner, kinds, LEASE_MS, in_memory_ms=0, in_thread=_inline)
            claimed = await runs.claim()
            if claimed is not None:
                await runs.run(claimed, goes_on=lambda: False)
                return True
        return False

    async def _let_time_pass(self, store: holdfast.Store, clock: ManualClock) -> bool:
        """Send a signal that a run waits for, or pass the time until one is due. Return False if nothing goes on."""
        due: list[int] = []
        logs: dict[str, int] = {}
        goes_on = False
        async for process in holdfast.every(store.processes.list):
            wait = process.wait
            if wait is not None and wait.name in self._signals:
                sent = await store.events.count(process.id, wait.event_type, through=process.event_count)
                if sent < wait.ordinal:
                    await store.events.signal(process.id, wait.name, self._signals[wait.name])
                    return True
            if process.is_held:
                continue  # the code is the same whenever it is tried again
            if process.due_at_ms is not None and process.recovery != "external":
                _require_handler(self._worker, process, clock)
                due.append(process.due_at_ms)
                logs[process.id] = process.event_count
                goes_on |= wait is None or wait.name != CHILD_ENDED
        # Runs that only look again at children, and find nothing new, go on for ever.
        if not due or (not goes_on and logs == self._looked):
            return False
        self._looked = {} if goes_on else logs
        clock.advance(max(1, min(due) - clock.now_ms()))
        return True

    async def _send_all(self, store: holdfast.Store) -> None:
        with suppress(holdfast.AlreadyTerminal):  # the run has ended: it needs no signal
            for name, payload in self._signals.items():
                await store.processes.handle("run").signal(name, payload)

    async def _end(self, store: holdfast.Store, idle: int) -> _End:
        outcomes: dict[str, Any] = {}
        waits: list[str] = []
        held: dict[str, str] = {}
        async for process in holdfast.every(store.processes.list, status="any"):
            outcome = None if process.outcome is None else msgspec.to_builtins(process.outcome)
            if outcome is not None and self._compare is not None and "value" in outcome:
                outcome["value"] = self._compare(outcome["value"])
            outcomes[process.id] = outcome
            if process.is_held:
                held[process.id] = f"it is held: {process.last_error}"
            elif outcome is None and process.wait is not None:
                name = process.wait.name
                waits.append(f"run {process.id!r} waits for signal {name!r}: give it with signals={{{name!r}: …}}")
        return _End(outcomes, self._effects.happened(), idle, tuple(waits), held)


def _require_handler(worker: Worker, process: holdfast.processes.Process, clock: ManualClock) -> None:
    """Raise if a run is due that no handler takes: time alone does not help it."""
    given = process.input
    if isinstance(given, holdfast.processes.Run) and process.due_at_ms is not None:
        if process.due_at_ms > clock.now_ms():
            return
        try:
            handler_of(worker, given.kind, given.version)
        except holdfast.InvalidRequest as error:
            raise AssertionError(f"run {process.id!r} is not run: {error}") from None


def _not_cancelled(expected: _End, found: _End, number: int) -> list[str]:
    """Say in which way a run that was cancelled at a wait did not end so."""
    end = found.last
    if found.idle < number:
        return [f"there was none: the run waited {found.idle} times, and {expected.idle} times before, by chance"]
    if end is None or end["type"] != "cancelled":
        return [f"run 'run' ended as {end or 'nothing: it goes on'}"]
    return []


def _differences(expected: _End, found: _End) -> list[str]:
    return [*_lost(expected, found), *_other_effects(expected.effects, found.effects)]


def _lost(expected: _End, found: _End) -> list[str]:
    said: list[str] = []
    for id, outcome in expected.outcomes.items():
        now = found.outcomes.get(id)
        if now != outcome:
            said.append(f"run {id!r} ended as {now or _goes_on(found, id)} instead of {outcome}")
    return said + [f"run {id!r} was started in addition" for id in found.outcomes if id not in expected.outcomes]


def _goes_on(found: _End, id: str) -> str:
    return f"nothing: {found.held.get(id, 'it waits or is lost')}"


def _other_effects(expected: Counter[str], found: Counter[str]) -> list[str]:
    said: list[str] = []
    for name in sorted({*expected, *found}):
        before, now = expected[name], found[name]
        if now > before:
            advice = "give it a key that stays, run.key(step)"
            said.append(f"effect {name!r} was doubled: {now} times instead of {before}; {advice}")
        elif now < before:
            said.append(f"effect {name!r} was lost: {now} times instead of {before}")
    return said


def _stepping(handlers: Handlers, points: Points) -> Handlers:
    """Return the handlers of runs, whose suspensions are points."""
    made = Handlers()
    for one in handlers.of_runs():
        function = suspending(one.function, points) if one.is_async else one.function
        made.add(msgspec.structs.replace(one, function=function))
    return made


async def _inline(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return function(*args, **named)


async def _end_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
