"""Runs a recorded run again without effects, and says where the code differs from the record.

Steps return what they recorded and are never called, nothing is written, and the call stops at the first step that has
no record. Code between steps runs, as it does whenever a worker claims the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, cast

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.large_results import value_of
from holdfast.step_names import HANDED_OVER
from holdfast.worker.blocking_calls import OnLoop
from holdfast.worker.blocking_run import BlockingRun
from holdfast.worker.calls import Caller
from holdfast.worker.handlers import Registered, arguments_of, handler_of
from holdfast.worker.journal import Journal
from holdfast.worker.run import Run
from holdfast.worker.run_errors import Continued, StepConflict, Suspended
from holdfast.worker.running import described
from holdfast.worker.steps import Steps
from holdfast.worker.worker import Worker

T = TypeVar("T")
DifferenceKind: TypeAlias = Literal["conflict", "not recorded", "not asked for", "other end"]
"""A step is another one, a step has no record, a recorded step was not asked for, or the run ends in another way."""


class Difference(msgspec.Struct, frozen=True):
    """One place at which the code differs from the record."""

    kind: DifferenceKind
    step: str | None
    problem: str


class Replay(msgspec.Struct, frozen=True):
    """A replay: the steps that were found, the place at which it stopped, and the differences."""

    run_id: str
    handler: str
    steps: int
    """Recorded steps that the handler asked for."""
    stopped_at: str | None
    """The step, the signal or the sleep beyond which there is no record, None if the handler returned or raised."""
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """True if the code does what the record says, as far as that goes."""
        return not self.differences


def replay(store: holdfast.BlockingStore, worker: Worker, run_id: str) -> Replay:
    """Run a recorded run again without effects, with the handler that the worker has for it.

    >>> from holdfast.worker import replay
    >>> worker = holdfast.Worker("agent.db")
    >>> @worker.process("research")
    ... async def research(run):
    ...     return await run.step("search", len, "why?")
    >>> _ = store.processes.start("research", id="run-1")
    >>> replay(store, worker, "run-1").stopped_at
    "step 'search'"
    """
    process = store.processes.get(run_id)
    if process is None:
        raise holdfast.UnknownProcess(run_id)
    if not isinstance(process.input, holdfast.processes.Run):
        raise holdfast.InvalidRequest("run_id", f"process {run_id!r} is not a run: it has no handler")
    handler = handler_of(worker, process.input.kind, process.input.version)
    events = list(holdfast.every(store.events.after, run_id, limit=store.limits.page))
    return asyncio.run(_Replaying(store, process, handler, events).replay())


class _Replaying:
    def __init__(
        self,
        store: holdfast.BlockingStore,
        process: holdfast.processes.Process,
        handler: Registered,
        events: Iterable[holdfast.events.ProcessEvent],
    ) -> None:
        self._store = store
        self._process = process
        self._handler = handler
        recorded: Any = _RecordedStore(store)
        no_lease = cast("Any", None)  # it is for writes only
        claim = holdfast.processes.RunClaim(process, no_lease, must_abandon=False)
        self._journal = _RecordedJournal(recorded, claim)
        self._journal.read(events)
        self._run = Run(claim, recorded, self._journal, _once)
        self._steps = self._run.steps = _RecordedSteps(process.id, self._journal, _once)
        self._run.in_memory_ms = 0
        self._run.store = _NoStore(self._journal)

    async def replay(self) -> Replay:
        """Call the handler, and compare what it did."""
        stopped_at: str | None = None
        found: list[Difference] = []
        try:
            value = await self._call_to_its_stop()
            self._steps.require_not_continued()
        except StepConflict:
            pass  # the steps have it
        except Continued as over:
            found += self._unasked() + await self._continued(over)
        except Suspended as asleep:
            stopped_at = self._place(asleep)
            found += self._stopped(stopped_at)
        except (Exception, SystemExit, GeneratorExit, BaseExceptionGroup) as error:
            found += self._raised(error)
        else:
            found += self._unasked() + await self._returned(value)
        conflict = self._steps.conflict
        if conflict is not None:  # also one that the handler caught
            found.insert(0, Difference("conflict", conflict.name, str(conflict)))
        steps = sum(name in self._steps.asked for name in self._journal.steps)
        return Replay(self._process.id, self._handler.name, steps, stopped_at, tuple(found))

    async def _call_to_its_stop(self) -> Any:
        """Call the handler. Raises `Suspended` if it was stopped, whatever it catches or raises then."""
        try:
            value = await self._call()
        except (StepConflict, Suspended):
            raise
        except (Exception, SystemExit, GeneratorExit, BaseExceptionGroup):
            if self._journal.missing is None:
                raise
        else:
            asleep = self._steps.end_of("")
            if isinstance(asleep, Suspended):
                raise asleep  # the handler caught it
            if self._journal.missing is None:
                return value
        raise Suspended(None)

    async def _call(self) -> Any:
        run, handler, caller = self._run, self._handler, Caller()
        run.signals.declared = handler.signals
        given = run if handler.is_async else BlockingRun(run, OnLoop(caller.loop), run.store)
        args, named = arguments_of(handler, given, run.args)
        return await caller.call(handler, args, run, named)

    def _place(self, asleep: Suspended) -> str:
        if self._journal.missing is not None:
            return self._journal.missing
        return f"signal {asleep.wait.name!r}" if asleep.wait is not None else "a sleep"

    # Comparing.

    def _unasked(self) -> list[Difference]:
        problem = "it is recorded, and the handler did not ask for it"
        names = [name for name in self._steps.unasked() if name != HANDED_OVER]
        return [Difference("not asked for", name, problem) for name in names]

    def _stopped(self, place: str) -> list[Difference]:
        """Return the differences of a call that stopped: none if the record ends there, too."""
        unasked = self._unasked()
        if not unasked and not isinstance(self._process.outcome, holdfast.processes.Completed):
            return []
        consequence = "the record continues without it" if unasked else "the run ended without it"
        kind: DifferenceKind = "other end" if self._journal.missing is None else "not recorded"
        hint = "" if self._journal.missing is None else ": the code is new, or the step failed and the error was caught"
        return [
            Difference(kind, self._journal.missing_step, f"the handler stops at {place}, and {consequence}{hint}"),
            *unasked,
        ]

    def _raised(self, error: BaseException) -> list[Difference]:
        text, outcome = described(error, self._store.limits), self._process.outcome
        recorded = outcome.message if isinstance(outcome, holdfast.processes.Failed) else self._process.last_error
        if text == recorded or isinstance(outcome, holdfast.processes.Cancelled | holdfast.processes.Abandoned):
            return []
        return [Difference("other end", None, f"the handler raises {text}, and the record says {_ending(outcome)}")]

    async def _returned(self, value: Any) -> list[Difference]:
        outcome = self._process.outcome
        if outcome is None or isinstance(outcome, holdfast.processes.Cancelled | holdfast.processes.Abandoned):
            return []
        if isinstance(outcome, holdfast.processes.Completed) and self._process.continued_as is None:
            recorded = await value_of(cast("Any", _RecordedArtifacts(self._store)), outcome)
            if _same(value, recorded):
                return []
            problem = f"the handler returns {_short(value)}, and the record says {_short(recorded)}"
        else:
            problem = f"the handler returns {_short(value)}, and the record says {_ending(outcome)}"
        return [Difference("other end", None, problem)]

    async def _continued(self, over: Continued) -> list[Difference]:
        following = self._process.continued_as
        if following is None:
            outcome = self._process.outcome
            if outcome is None:
                return []
            return [Difference("other end", None, f"the handler continues as new, the record says {_ending(outcome)}")]
        process = await asyncio.to_thread(self._store.processes.get, following)
        if process is None or not isinstance(process.input, holdfast.processes.Run):
            return []
        if _same(over.next_args, process.input.args):
            return []
        now, before = _short(over.next_args), _short(process.input.args)
        return [Difference("other end", None, f"the handler continues with {now}, the record with {before}")]


class _RecordedJournal(Journal):
    """A journal that is read, and never written."""

    missing: str | None = None
    """The first place that has no record."""
    missing_step: str | None = None

    def read(self, events: Iterable[holdfast.events.ProcessEvent]) -> None:
        """Take the events of the run."""
        for event in events:
            self._add(event)
        self.cancel = None  # a run that was cancelled is replayed as far as it got

    def stop(self, place: str, step: str | None = None) -> NoReturn:
        """End the call of the handler: what it asks for is not recorded."""
        if self.missing is None:
            self.missing, self.missing_step = place, step
        raise Suspended(None)

    async def refresh(self) -> None:
        """Read nothing: a replay ends with the events that were there when it began."""

    async def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as of its class
        """Stop: nothing is recorded."""
        self.stop(f"step {name!r}", name)

    async def report(self, payload: Any, key: str) -> None:
        """Report nothing."""


class _RecordedSteps(Steps):
    """Steps that are found in the journal, and never called."""

    journal: _RecordedJournal

    def require_room(self, name: str) -> None:
        """Stop before a step is called. A step whose last attempt failed raises that error again instead."""
        failed = self.journal.retried.get(name)
        if not failed or failed[-1]["until_ms"] is not None:
            self.journal.stop(f"step {name!r}", name)


class _RecordedStore:
    """The part of a store that a run needs, without writes."""

    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store
        self.limits = store.limits
        self.artifacts = _RecordedArtifacts(store)
        self.processes = _RecordedProcesses(store)

    async def now_ms(self) -> int:
        return await asyncio.to_thread(self._store.now_ms)


class _RecordedArtifacts:
    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store

    async def get(self, kind: str, ref: str) -> holdfast.artifacts.Artifact | None:
        return await asyncio.to_thread(self._store.artifacts.get, kind, ref)


class _RecordedProcesses:
    def __init__(self, store: holdfast.BlockingStore) -> None:
        self._store = store

    async def get(self, process_id: str) -> holdfast.processes.Process | None:
        return await asyncio.to_thread(self._store.processes.get, process_id)


class _NoStore:
    """Stands for `run.store`, whose answers are not recorded: using it ends the replay."""

    def __init__(self, journal: _RecordedJournal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> NoReturn:
        self._journal.stop(f"run.store.{name}, which is not recorded: use it inside of a step")


async def _once(message: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:  # noqa: ARG001 - as a worker's
    return await call()


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same once they are stored."""
    try:
        return bool(_stored(one) == _stored(other))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _stored(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(typed_values.plain(value)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _ending(outcome: holdfast.processes.ProcessOutcome | None) -> str:
    if outcome is None:
        return "that the run continues"
    if isinstance(outcome, holdfast.processes.Completed):
        return "that it completed"
    return f"{type(outcome).__name__}: {_short(outcome.message)}"
