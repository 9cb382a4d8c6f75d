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
from holdfast.testing.clock import ManualClock
from holdfast.testing.crash_points import Crash, Points, ProxiedStore, suspending
from holdfast.worker import Worker
from holdfast.worker.handlers import Handlers
from holdfast.worker.processes import Runs
from holdfast.worker.running import Runner
from holdfast.worker.tally import Tally

LEASE_MS = 30_000
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
    the run is also cancelled at every wait. `setup` resets your own fakes before each scenario. `compare` reduces a
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
    scenario = _Scenario(worker, (kind, version, args), signals or {}, effects or Effects(), setup, compare)
    expected, points = scenario.play("crash", None)
    harm: list[str] = []
    for number, label in enumerate(points.labels, 1):
        found, _ = scenario.play("crash", number)
        harm += [f"crash {label}: {problem}" for problem in _differences(expected, found)]
        if signals:
            found, _ = scenario.play("early signal", number)
            harm += [f"signal {label}: {problem}" for problem in _lost(expected, found)]
    for number in range(1, expected.idle + 1):
        found, _ = scenario.play("cancel", number)
        end = found.last
        if end is None or end["type"] != "cancelled":
            harm.append(f"cancel at wait {number}: run 'run' ended as {end or 'nothing: it goes on'}")
    if harm:
        rest = "" if len(harm) <= SHOWN else f"\n… and {len(harm) - SHOWN} more"
        raise AssertionError("\n".join([f"{len(points.labels)} points, harm at:", *harm[:SHOWN]]) + rest)
    return CrashReport(tuple(points.labels), None if expected.last is None else expected.last.get("value"))


class _NoKeeper:
    """Renews nothing: a manual clock does not pass while a handler runs."""

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

    def play(self, kind: Kind, target: int | None) -> tuple[_End, Points]:
        """Play the scenario with a fault at the target, None for none."""
        if self._setup is not None:
            self._setup()
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
                idle += 1
                if idle == cancel_at:
                    await store.processes.handle("run").cancel(reason="by the test")
                elif not await self._let_time_pass(store, clock):
                    return await self._end(store, idle - 1)
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
        """Send a signal that a run waits for, or pass the time until one is due. Return False if all is done."""
        due: list[int] = []
        async for process in holdfast.every(store.processes.list):
            wait = process.wait
            if wait is not None and wait.name in self._signals:
                sent = await store.events.count(process.id, wait.event_type, through=process.event_count)
                if sent < wait.ordinal:
                    await store.events.signal(process.id, wait.name, self._signals[wait.name])
                    return True
            if process.due_at_ms is not None:
                due.append(process.due_at_ms)
        if due:
            clock.advance(max(1, min(due) - clock.now_ms()))
        return bool(due)

    async def _send_all(self, store: holdfast.Store) -> None:
        with suppress(holdfast.AlreadyTerminal):  # the run has ended: it needs no signal
            for name, payload in self._signals.items():
                await store.processes.handle("run").signal(name, payload)

    async def _end(self, store: holdfast.Store, idle: int) -> _End:
        outcomes: dict[str, Any] = {}
        async for process in holdfast.every(store.processes.list, status="any"):
            outcome = None if process.outcome is None else msgspec.to_builtins(process.outcome)
            if outcome is not None and self._compare is not None and "value" in outcome:
                outcome["value"] = self._compare(outcome["value"])
            outcomes[process.id] = outcome
        return _End(outcomes, self._effects.happened(), idle)


def _differences(expected: _End, found: _End) -> list[str]:
    return [*_lost(expected, found), *_other_effects(expected.effects, found.effects)]


def _lost(expected: _End, found: _End) -> list[str]:
    said: list[str] = []
    for id, outcome in expected.outcomes.items():
        now = found.outcomes.get(id)
        if now != outcome:
            said.append(f"run {id!r} ended as {now or 'nothing: it waits or is lost'} instead of {outcome}")
    return said + [f"run {id!r} was started in addition" for id in found.outcomes if id not in expected.outcomes]


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
