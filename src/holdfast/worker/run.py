"""A run as its handler sees it: steps that are done once, durable sleeps and signals, children, progress.

A handler that is run again starts over, and what it recorded before returns at once. State changes once, effects happen
at least once: a step that was killed before it was recorded runs again.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar, cast, overload

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.large_results import value_of
from holdfast.records.processes import CHILD_ENDED, part_of_id
from holdfast.run_chains import original_run
from holdfast.step_names import DETACHED, OWN, RESULT, STARTED
from holdfast.worker.branches import gathered
from holdfast.worker.children import Child
from holdfast.worker.journal import Journal, JournalUse, report_key, require_few
from holdfast.worker.retries import Retry
from holdfast.worker.run_errors import ChildFailed, Continued, Suspended
from holdfast.worker.run_signals import Signals
from holdfast.worker.step_calls import StepCall
from holdfast.worker.step_facts import hash_of
from holdfast.worker.steps import Persist, Steps, cancels_of_task, in_step, milliseconds
from holdfast.worker.successors import newest_run
from holdfast.worker.unawaited import noted

T = TypeVar("T")
InThread: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a plain function off the event loop."""

IN_MEMORY_MS = 5_000
"""A wait up to this long keeps the slot of the worker. A longer one suspends the run."""
CUT_LATE_MS = 5_000
"""Time that a step waits for the cancel that cut it before, in addition to the length of the cut call."""
LOOK_AT_CHILD_MS = 60_000
"""Interval at which a waiting run reads its child without a signal: another program may have ended the child."""


class Run:
    """The run that a handler was called for."""

    def __init__(
        self, claim: holdfast.processes.RunClaim, store: holdfast.Store, journal: Journal, persist: Persist
    ) -> None:
        self.claim = claim
        self.store: Any = store
        """The worker's store: a `Store` in an `async def` handler, a `BlockingStore` in a plain one."""
        self._given_up = asyncio.Event()
        self.steps = Steps(claim.process.id, journal, persist)
        self._journal = journal
        self._store = store
        self.in_memory_ms = IN_MEMORY_MS
        self.in_thread: InThread = asyncio.to_thread
        self.left_calls: list[asyncio.Future[Any]] = []
        """Steps in threads that continued after the handler was cancelled, or did not wait for them any longer."""
        self.check_start: Callable[[str, str, Any], None] | None = None
        """Refuses arguments that do not fit the handler of a run, if the worker has it."""
        self.wrap_branch: Callable[[Awaitable[Any]], Awaitable[Any]] = lambda branch: branch
        self.signals = Signals(self, store, journal)
        self._children: list[str] = []

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
        """The part of the run's journal up to this point of the handler, and the limits of the whole.

        It is the same whenever the handler runs again, so that the handler may decide by it. Signals that were not
        taken are not in it. `continue_as_new` continues with an empty journal.
        """
        return self.steps.use

    @property
    def cancelled(self) -> bool:
        """True once the worker has given up on this call, or the run is being cancelled: the handler should return."""
        return self._given_up.is_set() or self.steps.is_cancelled

    @cancelled.setter
    def cancelled(self, given_up: bool) -> None:
        (self._given_up.set if given_up else self._given_up.clear)()

    # Steps.

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[..., T], /, *args: Any, retry: Retry | None = None, **named: Any
    ) -> T: ...
    @noted
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, retry: Retry | None = None, **named: Any
    ) -> Any:
        """Call a function, record its result under the name, and return it. Return the record if there is one.

        The result is a JSON document, or a value of the type that the function declares to return. With `retry`, a
        call that fails is made again after a back-off, which holds no worker if it is long; after the last attempt
        `StepFailed` is raised. To pass the function an argument of that name, use `functools.partial(function,
        retry=…)`. Pass `run.key(name)` to the outside as an idempotency key.
        """
        call = StepCall(self.steps, name, function, args, named, retry)
        while call.found is None:
            await self.before(call)
            began_s = time.monotonic()
            try:
                with in_step(name):
                    document = call.checked(await self._called(function, args, named))
            except Exception as error:
                await call.fail(error, began_s, self._store.now_ms)
            except asyncio.CancelledError as cut:
                if not _current_task().cancelling():
                    raised = RuntimeError(f"{call.function_name} raised CancelledError, and was not cancelled")
                    await call.fail(raised, began_s, self._store.now_ms)
                    continue
                call.note_cut(began_s, cut)
                raise
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
        """Return the idempotency key of a step: the same at each attempt, and unlike that of any other step.

        It is the same in a retry of the run, too.
        """
        _require_text("run.key", "name of a step", name)
        # No "/" in the last part: the key of step `b/c` of run `a` is not that of step `c` of run `a/b`.
        return f"{self._original_id}/{part_of_id(name)}"

    @property
    def _original_id(self) -> str:
        """The id after which children and effects are named. A retry finds those of the run that it retries."""
        return original_run(self.id, self.claim.process.provenance.caused_by)

    async def before(self, call: StepCall) -> None:
        """Wait until a step may be called, and record the failed steps before it that the handler caught."""
        due_at_ms, cut_after_ms = call.next_attempt_at_ms(), call.cut_after_ms()
        if cut_after_ms is not None:
            # The handler cancels the step now as it did before. If it does not, its code is another one.
            await self.while_wanted(asyncio.sleep((cut_after_ms + CUT_LATE_MS) / 1000), may_cut=True)
            raise call.last_error()
        if due_at_ms is not None:
            try:
                await self._until(due_at_ms, call.name)
            except asyncio.CancelledError as cut:
                call.note_cut(time.monotonic(), cut)
                raise
        self.steps.require_running(f"run.step({call.name!r})")
        self.steps.require_lease()
        await self.steps.record_failures()

    async def _until(self, at_ms: int | None, step: str | None = None) -> None:
        """Wait durably until a time that is recorded, None being now, to sleep or to call a step again."""
        left_ms = 0 if at_ms is None else at_ms - await self.steps.uncut(self._store.now_ms)
        if left_ms > self.in_memory_ms:
            self._require_own_task("run.step(retry=…)")
            kind: holdfast.processes.WaitKind = "sleep" if step is None else "step retry"
            await self.fall_asleep(at_ms, None, holdfast.processes.RunWait(kind, step, at_ms))
        if left_ms > 0:
            await self.while_wanted(asyncio.sleep(left_ms / 1000), may_cut=step is not None)

    async def while_wanted(self, waiting: Coroutine[Any, Any, T], *, may_cut: bool = False) -> T:
        """Wait in memory. Raises `CancelledError` once the worker has given up on the call, in a thread, too.

        Unless it `may_cut`, a time limit of the handler does not end the wait: it would not end a recorded one either.
        """
        work, given_up = asyncio.ensure_future(waiting), asyncio.ensure_future(self._given_up.wait())
        try:
            while not (work.done() or given_up.done()):
                try:
                    await asyncio.wait([work, given_up], return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    if may_cut or self.steps.is_cancelled or cancels_of_task() == 0:
                        raise
            if given_up.done():
                raise asyncio.CancelledError
            return work.result()
        finally:
            work.cancel()
            given_up.cancel()

    async def fall_asleep(
        self,
        due_at_ms: int | None,
        wait: holdfast.processes.SignalWait | None,
        *waits: holdfast.processes.RunWait,
    ) -> NoReturn:
        """End the call of the handler in this branch. The run sleeps until then, or until a signal comes.

        `waits` says for people what it waits for.
        """
        await self.steps.record_failures()
        self.steps.suspend(Suspended(due_at_ms, wait, waits))

    def continue_as_new(self, args: Any = None, *, version: str | None = None) -> NoReturn:
        """End this run, and continue as a new one with these arguments and an empty journal, in one transaction.

        The new run has the wake target, the parent, the signals that this one did not take, and the children that have
        not ended: `run.children` lists them there, and `run.child(id)` is a handle on one. `result` of this run is that
        of the new one. Not a coroutine: `await` before it is harmless, because it never returns. A handler that catches
        its end, by a bare `except` for example, continues as new all the same.
        `SignalsLeft` if there are more than 1,000 such signals.
        """
        self._require_own_task("run.continue_as_new")
        self.steps.require_outside("run.continue_as_new")
        require_few(self.id, self._journal.signals, self.signals.taken_or_rejected())
        with _naming("run.continue_as_new"):
            given = typed_values.as_documents(args)
            if self.check_start is not None:
                self.check_start(self.kind, version or self.version, args)
        self.steps.continue_as_new(Continued(given, version))

    @noted
    async def gather(self, *branches: Awaitable[Any]) -> list[Any]:
        """Run branches concurrently. If some of them sleep, the run sleeps once no other branch can continue.

        A branch that fails, or continues the run as a new one, does so once the other branches have ended or sleep.
        """
        return await gathered(self, branches)

    def watch_tasks(self) -> None:
        """Refuse from now on that a task which the run does not know lets it sleep. Called in the handler's task."""
        self.steps.tasks = weakref.WeakSet([_current_task()])

    def _require_own_task(self, call: str) -> None:
        """Refuse a call in a task of the handler's own: a wait there would let the run sleep while the others continue.

        And calls without a name are distinguished by their order, which is not always the same between tasks.
        """
        if not self.steps.is_in_own_task:
            raise holdfast.InvalidRequest(
                call,
                "is called in a task that the run does not know: use `await run.gather(...)` in place of "
                "asyncio.gather, TaskGroup and create_task, and `timeout_s=` in place of asyncio.wait_for",
            )

    # Time and chance.

    @noted
    async def now(self) -> int:
        """Return the time of the store's clock in milliseconds, the same whenever the handler is run again."""
        self._require_own_task("run.now")
        return cast("int", await self.steps.once(self._next("now"), self._store.now_ms, call="run.now"))

    @noted
    async def uuid(self) -> str:
        """Return a random UUID, the same whenever the handler is run again."""
        self._require_own_task("run.uuid")

        async def make() -> str:
            return str(uuid.uuid4())

        return cast("str", await self.steps.once(self._next("uuid"), make, call="run.uuid"))

    @noted
    async def sleep(self, seconds: float) -> None:
        """Sleep durably. A sleep of more than 5 s holds no worker, and a crash does not restart it."""
        self._require_own_task("run.sleep")
        length_ms = milliseconds("run.sleep", "the time", seconds)

        async def until() -> int:
            return await self._store.now_ms() + length_ms

        await self._until(await self.steps.once(self._next("sleep"), until, call="run.sleep"))

    def _next(self, what: str) -> str:
        return f"{OWN}{what}:{self.steps.number(what)}"

    # Signals.

    @noted
    async def signal(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal and return its payload: each is taken once, in order. `TimeoutError` if none comes in time.

        Meanwhile the run is suspended and holds no worker. Send it with `store.events.signal(run_id, name, payload)`.
        If the handler declares a type for it, the payload comes as a value of that type. A signal that does not fit is
        rejected: the run records the reason, `run_facts` lists it, and the run waits for the next one.
        """
        self._require_own_task("run.signal")
        self.steps.require_outside("run.signal")
        self.signals.require_known(name)
        return await self.signals.take(name, timeout_s)

    # Children and reports.

    @noted
    async def start(
        self, kind: str, args: Any = None, *, id: str | None = None, version: str = "1", detached: bool = False
    ) -> Child:
        """Start a child run, once. It is cancelled with this run unless it is `detached`."""
        parent_id = self._original_id
        if id is None:
            self._require_own_task("run.start without an id")
        child_id = f"{parent_id}/{self._next('child').removeprefix(OWN)}" if id is None else id
        with _naming("run.start"):
            given = typed_values.as_documents(args)
        provenance = holdfast.processes.Provenance(caused_by={"type": "run", "process_id": parent_id})

        async def start(store: holdfast.Store) -> None:
            await store.processes.start(kind, given, id=child_id, version=version, provenance=provenance)

        place = f"{DETACHED if detached else STARTED}{child_id}"
        facts = {"kind": kind, "version": version, "args": hash_of(given)}
        # Recorded together with the start: a child that has ended since, and was pruned, is not started again.
        if self.steps.find(place, facts, call="run.start") is None:
            self.steps.require_children_asked()
            if self.check_start is not None:
                with _naming("run.start"):
                    self.check_start(kind, version, args)
            self.steps.require_room(place)
            await self.steps.record_failures()
            step = {"value": child_id, **facts}
            with _naming("run.start"):
                await self.steps.write("cannot start a child", lambda: self._journal.record_with(place, step, start))
            self.steps.reach(place)
        if not detached:
            self._children.append(child_id)
        return self.child(child_id)

    def child(self, id: str) -> Child:
        """Return a handle on a child by its id, such as on one of the run that this one continues. Reads nothing."""
        _require_text("run.child", "id of a run", id)
        return Child(self, id)

    @property
    def children(self) -> tuple[str, ...]:
        """The ids of the children that are cancelled with this run, in the order in which they were started.

        First come those of the run that this one continues, if they had not ended then. Detached ones are not listed.
        """
        return tuple(dict.fromkeys([*self._journal.inherited, *self._children]))

    def all_children(self) -> list[str]:
        """Return the children that are cancelled with the run, also those that this call did not get to yet."""
        recorded = (str(step["value"]) for name, step in self._journal.steps.items() if name.startswith(STARTED))
        return list(dict.fromkeys([*self.children, *recorded]))

    async def result_of(self, child_id: str, declared: Any = None) -> Any:
        """Return the result of a run once it has ended. Meanwhile this run is suspended."""
        self._require_own_task("child.result")
        place = f"{RESULT}{child_id}"
        found = self.steps.find(place, call="child.result")
        if found is None:
            await self.steps.record_failures()
            outcome = await self.steps.read("cannot read a child", lambda: self._outcome_of(child_id))
            if outcome is None:
                self.steps.asked.discard(place)
                look_at_ms = await self.steps.uncut(self._store.now_ms) + LOOK_AT_CHILD_MS
                waits_for = holdfast.processes.RunWait("child", child_id)
                await self.fall_asleep(look_at_ms, self.signals.wait(CHILD_ENDED), waits_for)
            if isinstance(outcome, holdfast.processes.Completed):
                # The whole value: the journal of this run must not depend on artifacts of the child, which may be
                # pruned first.
                ended = outcome
                result = await self.steps.read("cannot read a result", lambda: value_of(self._store.artifacts, ended))
                outcome = holdfast.processes.Completed(result)
            found = await self.steps.record(place, {"value": msgspec.to_builtins(outcome)})
        value = await self.steps.read("cannot read a result", lambda: self._journal.value_of(found))
        outcome = msgspec.convert(value, holdfast.processes.ProcessOutcome)
        if not isinstance(outcome, holdfast.processes.Completed):
            raise ChildFailed(child_id, outcome)
        if declared is None:
            return outcome.value
        try:
            return typed_values.decoded(outcome.value, declared)
        except (TypeError, msgspec.ValidationError) as error:
            problem = f"the result of child run {child_id!r} is not a valid {typed_values.name_of(declared)}: {error}"
            raise holdfast.InvalidRequest("declared", problem) from error

    async def _outcome_of(self, child_id: str) -> holdfast.processes.ProcessOutcome | None:
        """Return the outcome of a run or of the one that continued it, None if that has not ended."""
        process = await newest_run(self._store, child_id)
        if process is None:
            raise holdfast.UnknownProcess(child_id)
        return process.outcome

    @noted
    async def progress(self, payload: Any) -> None:
        """Append a report for followers of the run with `store.events.follow(run.id)`, once.

        It is an event of the run's journal: `JournalFull` if that has no room.
        """
        self.steps.require_outside("run.progress")
        key = f"progress:{self.steps.number('progress')}"
        counted = report_key(key)
        if counted not in self._journal.sizes:
            self._journal.require_room(f"{OWN}{key}", self.steps.reached)
            await self.steps.record_failures()
            with _naming("run.progress"):
                await self.steps.write("cannot report progress", lambda: self._journal.report(payload, key))
        self.steps.reach(counted)


@contextmanager
def _naming(call: str) -> Generator[None]:
    """Let a refusal of an argument name the call of the run that it was given to."""
    try:
        yield
    except holdfast.InvalidRequest as error:
        raise holdfast.InvalidRequest(call, f"{error.field}: {error.problem}", limit=error.limit) from None


def _require_text(call: str, wanted: str, value: object) -> None:
    """Raise `InvalidRequest` for a name or an id that is not text."""
    if not isinstance(value, str):
        raise holdfast.InvalidRequest(call, f"needs the {wanted}, not {type(value).__name__}")


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
