"""Runs a worker's handler on a memory store and crashes it at every point: each store call and each suspension.

Time is a manual clock: durable sleeps and back-offs pass at once. After each crash another worker continues. The end is
compared with that of a run without a crash: an effect that happened twice or never is named with its point.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

import holdfast
from holdfast.records.processes import CHILD_ENDED
from holdfast.run_chains import parent_run
from holdfast.testing.clock import ManualClock
from holdfast.testing.crash_ends import Comparing, End, RunEnd, differences, lost, not_cancelled
from holdfast.testing.crash_points import Crash, Points, ProxiedStore, suspending
from holdfast.worker import Worker
from holdfast.worker.claim_renewal import Ask
from holdfast.worker.handlers import QUEUED, Handlers, handler_of
from holdfast.worker.outages import Outages
from holdfast.worker.processes import Runs
from holdfast.worker.running import Runner
from holdfast.worker.tally import Tally
from holdfast.worker.work import Work

LEASE_MS = 1
"""A crash costs this much time of the manual clock: a wait that a crash does not touch ends as without it."""
MOST_ROUNDS = 1_000
"""Claims and sleeps of one scenario. A run with more of them counts as one that never ends."""
SESSION = "session"
"""The session that messages are enqueued to."""
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
    which they end is compared. Runs whose ids depend on chance are distinguished by kind and outcome.

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
    comparing = Comparing(compare, compare_message)
    scenario = _Scenario(worker, (kind, version, args), signals or {}, effects or Effects(), setup, comparing)
    expected, points = scenario.run("crash", None)
    if expected.last is None and handler.recovery != "external":
        waits = "; ".join([*expected.held.values(), *expected.waits]) or "it waits for nothing"
        raise AssertionError(f"without a crash the run does not end, so nothing is shown: {waits}")
    if expected.last is not None and expected.last.get("type") != "success":
        raise AssertionError(f"without a crash the run fails, so nothing is shown: {expected.last.get('message')}")
    harm = _crashed(scenario, expected, points, early_signals=bool(signals))
    for number in range(1, expected.idle + 1):
        found, _ = scenario.run("cancel", number)
        harm += [f"cancel at wait {number}: {problem}" for problem in not_cancelled(expected, found, number)]
    _require_none(harm, points)
    return CrashReport(tuple(points.labels), None if expected.last is None else expected.last.get("value"))


def turns_survive_crashes(
    worker: Worker,
    *messages: Any,
    kind: str = "turn",
    signals: Mapping[str, Any] | None = None,
    effects: Effects | None = None,
    setup: Callable[[], object] | None = None,
    compare_message: Callable[[Any], Any] | None = None,
) -> CrashReport:
    """Enqueue messages to a session, crash the worker at every point in turn, and raise `AssertionError` at harm.

    The handlers of turns and jobs run, and so do the runs that they start. A message of the session that is doubled or
    lost is harm, and work that does not end as without a crash. The result is the list of the session's messages. Other
    arguments are those of `survives_crashes`. `kind="send-mail"` enqueues jobs.

    >>> from holdfast.testing.crashes import turns_survive_crashes
    >>> worker = holdfast.Worker("memory:")
    >>> @worker.turn
    ... def answer(turn):
    ...     turn.add(turn.input)
    ...     turn.add("hello")
    >>> turns_survive_crashes(worker, "hi").result
    ['hi', 'hello']
    """
    if kind not in {one.kind for one in worker.handlers.of_queue()}:
        raise holdfast.InvalidRequest("kind", f"the worker has no handler for turns or jobs of kind {kind!r}")
    comparing = Comparing(None, compare_message)
    drafts = [holdfast.WorkDraft(session_id=SESSION, payloads=[one], kind=kind) for one in messages]
    scenario = _Scenario(worker, drafts, signals or {}, effects or Effects(), setup, comparing)
    expected, points = scenario.run("crash", None)
    undone = [one for work in expected.work.values() for one in work]
    if undone or expected.waits or expected.held:
        waits = "; ".join([*undone, *expected.held.values(), *expected.waits])
        raise AssertionError(f"without a crash the work does not end, so nothing is shown: {waits}")
    _require_none(_crashed(scenario, expected, points, early_signals=bool(signals)), points)
    return CrashReport(tuple(points.labels), expected.messages)


def _crashed(scenario: _Scenario, expected: End, points: Points, *, early_signals: bool) -> list[str]:
    """Crash the worker at each point, and report the harm."""
    harm: list[str] = []
    for number, label in enumerate(points.labels, 1):
        found, _ = scenario.run("crash", number)
        harm += [f"crash {label}: {problem}" for problem in differences(expected, found)]
        if early_signals:
            found, _ = scenario.run("early signal", number)
            harm += [f"signal {label}: {problem}" for problem in lost(expected, found)]
    return harm


def _require_none(harm: list[str], points: Points) -> None:
    if harm:
        rest = "" if len(harm) <= SHOWN else f"\n… and {len(harm) - SHOWN} more"
        raise AssertionError("\n".join([f"{len(points.labels)} points, harm at:", *harm[:SHOWN]]) + rest)


class _NoRenewer:
    """Renews nothing: a manual clock does not pass while a handler runs."""

    outages = Outages()

    def ask(self, ttl_ms: int) -> Ask:
        return Ask(ttl_ms)

    def answered(self, asked: Ask) -> None: ...
    def hold(self, held: object) -> None: ...
    def drop(self, held: object) -> None: ...
    def give_up_overdue(self) -> None: ...

    def is_overdue(self, held: object) -> bool:
        """Return False: the claims of a manual clock last."""
        return False


class _Scenario:
    """One run from its start to its end, with one crash, early signal or cancel."""

    def __init__(
        self,
        worker: Worker,
        given: tuple[str, str, Any] | list[holdfast.WorkDraft],
        signals: Mapping[str, Any],
        effects: Effects,
        setup: Callable[[], object] | None,
        compare: Comparing,
    ) -> None:
        self._worker = worker
        self._given = given
        self._signals = signals
        self._effects = effects
        self._setup = setup
        self._compare = compare
        self._looked: dict[str, int] = {}

    def run(self, kind: Kind, target: int | None) -> tuple[End, Points]:
        """Play the scenario with a fault at the target, None for none."""
        if self._setup is not None:
            self._setup()
        self._looked = {}
        points = Points(target if kind != "cancel" else None, crashes=kind == "crash")
        self._effects.begin(points)
        return asyncio.run(self._run(points, target if kind == "cancel" else None)), points

    async def _run(self, points: Points, cancel_at: int | None) -> End:
        clock = ManualClock()
        async with holdfast.open("memory:", clock=clock) as store:
            await self._begin(store)
            if self._signals:
                points.instead = partial(self._send_all, store)
            idle = 0
            for _ in range(MOST_ROUNDS):
                try:
                    if await self._work(store, points):
                        continue
                except Crash:
                    _take_back_cancels()
                    await _end_other_tasks()
                    clock.advance(LEASE_MS + 1)
                    points.revive()
                    continue
                is_over = await self._is_over(store)
                if not is_over and idle + 1 == cancel_at:
                    await store.processes.handle("run").cancel(reason="by the test")
                elif not await self._let_time_pass(store, clock):
                    return await self._end(store, idle)
                idle += not is_over
        raise AssertionError(
            f"the run did not end within {MOST_ROUNDS} rounds: a sleep starts anew, or a loop has no end"
        )

    async def _begin(self, store: holdfast.Store) -> None:
        if isinstance(self._given, tuple):
            kind, version, args = self._given
            await store.processes.start(kind, args, id="run", version=version)
            return
        await store.sessions.create(SESSION)
        for draft in self._given:
            await store.queue.enqueue(draft)

    async def _is_over(self, store: holdfast.Store) -> bool:
        """Return whether the run has ended. Others that it started may continue."""
        if not isinstance(self._given, tuple):
            return True
        newest = await store.processes.get(await store.processes.handle("run").newest_id())
        return newest is None or newest.is_terminal

    async def _work(self, store: holdfast.Store, points: Points) -> bool:
        """Run what can be claimed now. Return False if nothing can."""
        handlers = _stepping(self._worker.handlers, points)
        proxied: Any = ProxiedStore(store, points)
        renewer: Any = _NoRenewer()
        runner = Runner(proxied, handlers, renewer, "tester", LEASE_MS, stopping=asyncio.Event(), tally=Tally())
        for kinds in handlers.runs(LEASE_MS).values():
            runs = Runs(runner, kinds, LEASE_MS, in_memory_ms=0, in_thread=lambda _: _inline)
            claimed = await runs.claim()
            if claimed is not None:
                await runs.run(claimed, may_claim_next=lambda: False)
                return True
        for shape in QUEUED:
            if handlers.kinds(shape):
                work = Work(runner, handlers.kinds(shape), exclusive=shape == "turn")
                taken = await work.claim()
                if taken is not None:
                    await work.run(taken, may_claim_next=lambda: False)
                    return True
        return False

    async def _let_time_pass(self, store: holdfast.Store, clock: ManualClock) -> bool:
        """Send a signal that a run waits for, or pass the time until one is due. Return False if nothing continues."""
        due: list[int] = []
        logs: dict[str, int] = {}
        is_moving = False
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
                is_moving |= wait is None or wait.name != CHILD_ENDED
        async for batch in _batches(store):
            if batch.state == "pending" and batch.kind in {one.kind for one in self._worker.handlers.of_queue()}:
                due.append(max(batch.available_at_ms, batch.retry_at_ms))
                is_moving = True
        # Runs that only look again at children, and find nothing new, continue for ever.
        if not due or (not is_moving and logs == self._looked):
            return False
        self._looked = {} if is_moving else logs
        clock.advance(max(1, min(due) - clock.now_ms()))
        return True

    async def _send_all(self, store: holdfast.Store) -> None:
        async for process in holdfast.every(store.processes.list):
            for name, payload in self._signals.items():
                # A run that has ended needs no signal, and one that declares others takes none.
                with suppress(holdfast.AlreadyTerminal, holdfast.errors.UndeclaredSignal):
                    await store.events.signal(process.id, name, payload)

    async def _end(self, store: holdfast.Store, idle: int) -> End:
        runs: dict[str, RunEnd] = {}
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
        work: defaultdict[str, Counter[str]] = defaultdict(Counter)
        async for batch in _batches(store):
            error = "" if batch.last_error is None else f": {batch.last_error}"
            work[batch.session_id][f"work of kind {batch.kind!r} that is {batch.state}{error}"] += 1
        messages = await store.sessions.handle(SESSION).messages() if SESSION in sessions else []
        return End(runs, sessions, work, messages, self._effects.happened(), idle, tuple(waits), held)

    def _run_end(self, process: holdfast.processes.Process) -> RunEnd:
        given, handlers = process.input, self._worker.handlers
        is_bound = process.recovery != "rerunnable"
        if isinstance(given, holdfast.processes.Run) and handlers.takes(given):
            is_bound |= handlers.of_run(given.kind, given.version).recovery != "rerunnable"
        parent = parent_run(process.provenance.caused_by)
        return RunEnd(process.identity.kind, self._compare.outcome(process), parent, is_bound)


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


async def _batches(store: holdfast.Store) -> AsyncIterator[holdfast.WorkBatch]:
    """Yield the work that is not settled, and dead letters."""
    async for session in holdfast.every(store.sessions.list):
        async for batch in holdfast.every(store.queue.list, session.session_id):
            yield batch
    async for batch in holdfast.every(store.queue.dead_letters):
        yield batch


def _stepping(handlers: Handlers, points: Points) -> Handlers:
    """Return the handlers, whose suspensions are points."""
    made = Handlers()
    for one in (*handlers.of_runs(), *handlers.of_queue()):
        function = suspending(one.function, points) if one.is_async else one.function
        made.add(msgspec.structs.replace(one, function=function))
    return made


async def _inline(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return function(*args, **named)


def _take_back_cancels() -> None:
    """Forget the cancels of this task: up to Python 3.12, a `TaskGroup` that a crash ended leaves one."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


async def _end_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
