"""Runs a worker's handler on a memory store and crashes it at every point: each store call and each suspension.

Time is a manual clock: durable sleeps and back-offs pass at once. After each crash another worker goes on. The end is
compared with that of a run without a crash: an effect that happened twice or never is named with its point.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

import holdfast
from holdfast.records.processes import CHILD_ENDED
from holdfast.run_chains import parent_run
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


class _RunEnd(msgspec.Struct, frozen=True):
    """The end of one run. The outcome is None if it has not ended."""

    kind: str
    outcome: dict[str, Any] | None
    parent: str | None
    is_bound: bool
    """A crash may abandon it: its handler says that it must not be called again."""

    @property
    def is_abandoned(self) -> bool:
        """True if it was abandoned as its handler says."""
        return self.is_bound and self.outcome is not None and self.outcome["type"] == "abandoned"


class _End(msgspec.Struct, frozen=True):
    """The state in which a scenario ended."""

    runs: dict[str, _RunEnd]
    sessions: dict[str, Counter[str]]
    """The messages of each session."""
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
        outcome: Any = self.runs["run"].outcome
        while outcome is not None and "continued_as" in (outcome.get("control") or {}):
            outcome = self.runs[outcome["control"]["continued_as"]].outcome
        return None if outcome is None else dict(outcome)

    def touched_by_abandoned(self) -> set[str]:
        """Return the runs that were abandoned as their handlers say, and those above them, which may end otherwise."""
        found: set[str] = set()
        ids: list[str | None] = [id for id, run in self.runs.items() if run.is_abandoned]
        while ids:
            id = ids.pop()
            for each, run in self.runs.items():
                if each not in found and _is_or_continues(each, id):
                    found.add(each)
                    ids.append(run.parent)
        return found


def _is_or_continues(run_id: str, first: str | None) -> bool:
    return first is not None and (run_id == first or run_id.startswith(f"{first}~"))


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
    compare_message: Callable[[Any], Any] | None = None,
) -> CrashReport:
    """Start a run, crash its worker at every point in turn, and raise `AssertionError` if one of them does harm.

    `signals` are the payloads that the run gets when it waits for them; each is also sent early, at every point, and
    the run is also cancelled at every wait. A run that waits for another signal fails the test: it would end nowhere.
    Messages in sessions are effects: one that is doubled or lost fails the test. A crash may abandon a run that is
    `owner_bound` or `external`, and then what comes after it does not happen; nothing may happen twice.

    `setup` resets your own fakes before each scenario. `compare` reduces the result of the run to the part that does
    not depend on chance, and `compare_message` a message of a session. With `compare`, of other runs only the way in
    which they end is compared. Runs whose ids depend on chance are told apart by kind and outcome.

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
    comparing = _Comparing(compare, compare_message)
    scenario = _Scenario(worker, (kind, version, args), signals or {}, effects or Effects(), setup, comparing)
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


class _Comparing(msgspec.Struct, frozen=True):
    """Reduces outcomes and messages to the parts that do not depend on chance."""

    result: Callable[[Any], Any] | None
    message: Callable[[Any], Any] | None

    def outcome(self, process: holdfast.processes.Process) -> dict[str, Any] | None:
        """Return the outcome of a run in a form that can be compared."""
        if process.outcome is None:
            return None
        found: dict[str, Any] = msgspec.to_builtins(process.outcome)
        if found["type"] == "abandoned":
            return {"type": "abandoned"}
        if self.result is None or "value" not in found:
            return found
        if not _is_or_continues(process.id, "run"):
            return {"type": found["type"]}
        return {**found, "value": found["value"] if process.continued_as else self.result(found["value"])}

    def messages(self, given: Iterable[Any]) -> Counter[str]:
        """Return messages in a form that can be compared."""
        reduced = given if self.message is None else map(self.message, given)
        return Counter(msgspec.json.encode(one, order="deterministic").decode() for one in reduced)


class _Scenario:
    """One run from its start to its end, with one crash, early signal or cancel."""

    def __init__(
        self,
        worker: Worker,
        run: tuple[str, str, Any],
        signals: Mapping[str, Any],
        effects: Effects,
        setup: Callable[[], object] | None,
        compare: _Comparing,
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
        async for process in holdfast.every(store.processes.list):
            for name, payload in self._signals.items():
                # A run that has ended needs no signal, and one that declares others takes none.
                with suppress(holdfast.AlreadyTerminal, holdfast.errors.UndeclaredSignal):
                    await store.events.signal(process.id, name, payload)

    async def _end(self, store: holdfast.Store, idle: int) -> _End:
        runs: dict[str, _RunEnd] = {}
        waits: list[str] = []
        held: dict[str, str] = {}
        async for process in holdfast.every(store.processes.list, status="any"):
            runs[process.id] = self._run_end(process)
            if process.is_held:
                held[process.id] = f"it is held: {process.last_error}"
            elif process.outcome is None and process.wait is not None:
                name = process.wait.name
                waits.append(f"run {process.id!r} waits for signal {name!r}: give it with signals={{{name!r}: …}}")
        sessions = {
            one.session_id: self._compare.messages(await store.sessions.handle(one.session_id).messages())
            async for one in holdfast.every(store.sessions.list)
        }
        return _End(runs, sessions, self._effects.happened(), idle, tuple(waits), held)

    def _run_end(self, process: holdfast.processes.Process) -> _RunEnd:
        given, handlers = process.input, self._worker.handlers
        is_bound = process.recovery != "rerunnable"
        if isinstance(given, holdfast.processes.Run) and handlers.takes(given):
            is_bound |= handlers.of_run(given.kind, given.version).recovery != "rerunnable"
        parent = parent_run(process.provenance.caused_by)
        return _RunEnd(process.identity.kind, self._compare.outcome(process), parent, is_bound)


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
    is_cut = bool(found.touched_by_abandoned() - expected.touched_by_abandoned())
    return [*_lost(expected, found), *_other_effects(expected, found, is_cut=is_cut)]


def _lost(expected: _End, found: _End) -> list[str]:
    """Say which runs did not end as without a crash. Steps that an abandoned run did not reach are not lost."""
    said: list[str] = []
    excused = found.touched_by_abandoned() - expected.touched_by_abandoned()
    for id in expected.runs.keys() & found.runs.keys():
        before, now = expected.runs[id].outcome, found.runs[id].outcome
        if now != before and (id not in excused or now is None):
            said.append(f"run {id!r} ended as {now or _goes_on(found, id)} instead of {before}")
    # An id that is made by chance is another one in each scenario.
    gone, new = _others(expected, found), _others(found, expected)
    for kind in sorted({*gone, *new}):
        if not excused:
            said += [f"a run of {kind!r} that ended as {one} was lost" for one in _left(gone[kind], new[kind])]
        said += [
            f"a run of {kind!r} was started in addition, and ended as {one}" for one in _left(new[kind], gone[kind])
        ]
    return said


def _others(one: _End, other: _End) -> defaultdict[str, list[Any]]:
    """Return the outcomes of the runs that are in one end only, by kind."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for id, run in one.runs.items():
        if id not in other.runs:
            found[run.kind].append(run.outcome)
    return found


def _left(outcomes: list[Any], matched: list[Any]) -> list[Any]:
    left = list(outcomes)
    for one in matched:
        if one in left:
            left.remove(one)
    return left


def _goes_on(found: _End, id: str) -> str:
    return f"nothing: {found.held.get(id, 'it waits or is lost')}"


def _other_effects(expected: _End, found: _End, *, is_cut: bool) -> list[str]:
    """Say which effects and messages happened more or less often. If a run was abandoned, less often is right."""
    said: list[str] = []
    for name in sorted({*expected.effects, *found.effects}):
        before, now = expected.effects[name], found.effects[name]
        if now > before:
            advice = "give it a key that stays, run.key(step)"
            said.append(f"effect {name!r} was doubled: {now} times instead of {before}; {advice}")
        elif now < before and not is_cut:
            said.append(f"effect {name!r} was lost: {now} times instead of {before}")
    both = expected.sessions.keys() & found.sessions.keys()
    before_by_id, now_by_id = _messages(expected, both), _messages(found, both)
    for id in sorted({*before_by_id, *now_by_id}):
        was, is_now = before_by_id[id], now_by_id[id]
        for text in (is_now - was).elements():
            advice = "add it in a turn whose id stays, session.turn(run.key(step))"
            said.append(f"session {id!r} has message {text[:200]} in addition; {advice}")
        said += [f"session {id!r} lost message {text[:200]}" for text in (was - is_now).elements() if not is_cut]
    return said


def _messages(end: _End, known: Set[str]) -> defaultdict[str, Counter[str]]:
    """Return messages by session. Those of sessions whose ids are made by chance are one."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for id, messages in end.sessions.items():
        found[id if id in known else "(an id of its own)"] += messages
    return found


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
