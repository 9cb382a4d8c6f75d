"""The steps of one call of a handler: found in the journal, or recorded there, each once.

The calls of a handler are compared with the recorded ones. A refusal comes before the call of a function.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import holdfast
from holdfast.step_names import DETACHED, FAILED, OWN, RESULT, RETRIED, STARTED, TAKEN
from holdfast.worker.error_records import recorded_error
from holdfast.worker.journal import Journal, JournalUse, size_of
from holdfast.worker.retries import GiveUp
from holdfast.worker.run_errors import Continued, StepConflict, Suspended
from holdfast.worker.running import described
from holdfast.worker.unawaited import Unawaited

T = TypeVar("T")
CUT = "cut"
"""The field of a failure of a step that waits until it is cancelled again."""
ASK_S = 0.1
"""Time in which tasks and threads of a handler that waits make their first call."""
LONGEST_S = 366 * 24 * 3600.0

_INSIDE: ContextVar[str | None] = ContextVar("step", default=None)
_BRANCH: ContextVar[str] = ContextVar("branch", default="")
"""The branch of `run.gather` that this code belongs to: for each call of it around, its number and the branch's."""


class Persist(Protocol):
    """Makes an idempotent call, again while the database is down."""

    async def __call__(self, message: str, call: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Make the call."""
        ...


@contextmanager
def in_step(name: str) -> Generator[None]:
    """Mark the code of a step, in which no other step may begin."""
    inside = _INSIDE.set(name)
    try:
        yield
    finally:
        _INSIDE.reset(inside)


@contextmanager
def in_branch(branch: str) -> Generator[None]:
    """Mark the code of a branch, which counts its calls by itself: the order of branches is not always the same."""
    outside = _BRANCH.set(branch)
    try:
        yield
    finally:
        _BRANCH.reset(outside)


class Steps:
    """The steps that a handler asked for in this call, and the journal that has those of earlier calls."""

    def __init__(self, process_id: str, journal: Journal, persist: Persist) -> None:
        self.process_id = process_id
        self.journal = journal
        self.persist = persist
        self.asked: set[str] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._asleep: dict[str, Suspended] = {}
        self._failed: dict[str, tuple[str, asyncio.Task[Any] | None, dict[str, Any]]] = {}
        self._lost: holdfast.LeaseLost | None = None
        self.reached: dict[str, int] = {}
        """The bytes of the events that the handler has got to, by the keys of `Journal.sizes`."""
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] | None = None
        """The task of an `async def` handler and those of the branches of `run.gather`; None for a plain handler."""
        self._continued: dict[str, Continued] = {}
        self.unawaited = Unawaited()
        self.has_ended = False
        """True once the call of the handler has ended."""
        self.may_be_lost: Callable[[], bool] = lambda: False
        """Returns True once the lease of the run may have expired, in a process that was stopped for example."""
        self.was_given_up: Callable[[], bool] = lambda: False
        """Returns True once the worker has cancelled the call of the handler."""
        self.has_other_tasks = False
        """True once a step was asked for in a task or a thread that the handler made."""
        self.conflict: StepConflict | None = None
        """The first place at which the handler did not ask for what is recorded. Nothing is called after it."""

    # Places.

    @property
    def is_in_branch(self) -> bool:
        """Return True in a branch of `run.gather`."""
        return _BRANCH.get() != ""

    @property
    def is_in_own_task(self) -> bool:
        """Return False in a task that the handler made: its errors may reach the handler, or be caught there."""
        return self.tasks is None or asyncio.current_task() in self.tasks

    def number(self, what: str) -> str:
        """Return the number of the next call of this kind in this branch, the same whenever the handler runs again."""
        branch = _BRANCH.get()
        self._counts[branch, what] += 1
        return f"{branch}{self._counts[branch, what]}"

    @property
    def is_cancelled(self) -> bool:
        """True once the run is to be cancelled, or the handler was: it may swallow that, and makes no call after it.

        The count of the task does not tell: up to Python 3.12, a `TaskGroup` with an error leaves it at 1.
        """
        return self.journal.cancel is not None or self.was_given_up()

    def require_outside(self, call: str) -> None:
        """Raise `InvalidRequest` inside of a step, and whatever ended this branch if it has ended."""
        if _INSIDE.get() is not None:
            raise holdfast.InvalidRequest(call, f"is inside of step {_INSIDE.get()!r}: call it outside of that step")
        self.require_running(call)
        self._require_branch()
        if (over := self._continued.get(_BRANCH.get())) is not None:
            raise over  # code of a `finally` or a bare `except`, as for a wait

    def require_running(self, call: str) -> None:
        """Raise `InvalidRequest` once the handler has ended: the run may be called again beside a task of this call."""
        if self.has_ended:
            raise holdfast.InvalidRequest(call, "is made after the handler has ended: let it wait for all its tasks")

    def require_lease(self) -> None:
        """Raise `LeaseLost` once another worker may have the run, and call the step."""
        if self._lost is None and self.may_be_lost():
            self._lost = holdfast.LeaseLost(f"process {self.process_id!r}")
        if self._lost is not None:
            raise self._lost

    def _require_branch(self) -> None:
        if self.is_cancelled:
            raise asyncio.CancelledError
        self.require_lease()
        if self.conflict is not None:
            raise self.conflict
        asleep = self._asleep.get(_BRANCH.get())
        if asleep is not None:
            # Code of a `finally` or a bare `except`, or of a task: the handler gets here again, once the wait is over.
            if not self.is_in_own_task and (task := asyncio.current_task()) is not None:
                task.add_done_callback(_retrieved)
            raise asleep

    def suspend(self, asleep: Suspended) -> NoReturn:
        """End the call of the handler in this branch. Later calls there raise the same: the run sleeps already."""
        self._asleep[_BRANCH.get()] = asleep
        raise asleep

    def continue_as_new(self, over: Continued) -> NoReturn:
        """End the call of the handler in this branch. The run continues as a new one whatever the handler returns."""
        self._continued.setdefault(_BRANCH.get(), over)
        raise over

    def require_not_continued(self) -> None:
        """Raise the first `Continued` of the call, which the handler may have caught."""
        for over in self._continued.values():
            raise over

    def end_of(self, branch: str) -> Suspended | Continued | None:
        """Return the end of a branch of `run.gather`, which its code may have caught; None if it has not ended so."""
        return self._continued.get(branch) or self._asleep.get(branch)

    # The part of the journal that the handler has got to.

    @property
    def use(self) -> JournalUse:
        """The number and the bytes of the events that the handler has got to, the same whenever it runs again."""
        whole = self.journal.use
        return JournalUse(len(self.reached), sum(self.reached.values()), whole.most_events, whole.most_bytes)

    def reach(self, key: str, size: int | None = None) -> None:
        """Count an event that the handler has got to, once."""
        self.reached[key] = self.journal.sizes.get(key, 0) if size is None else size

    # Steps.

    def find(self, name: str, facts: dict[str, Any] | None = None, *, call: str = "run.step") -> dict[str, Any] | None:
        """Return a step that is recorded, None if it is not. Raises `StepConflict` if it is another one."""
        self.has_other_tasks |= not self.is_in_own_task
        self.require_outside(call if name.startswith(OWN) else f"run.step({name!r})")
        if name in self.asked:
            raise holdfast.InvalidRequest(*_used_before(name, call))
        self.asked.add(name)
        found = self.journal.steps.get(name)
        failed = self.journal.retried.get(name)
        self._require_same(name, found or (failed[-1] if failed else None), facts or {})
        for one in (*(failed or ()), *(() if found is None else (found,))):
            self.reach(one["name"])
        return found

    def _require_same(self, name: str, before: dict[str, Any] | None, facts: dict[str, Any]) -> None:
        for key, now in facts.items():
            recorded = None if before is None else before.get(key)
            if None not in (recorded, now) and recorded != now:
                # Only a hash of the arguments is recorded, which is of no use in a message.
                changed = f"its {key} was {recorded}, and is {now} now"
                self.refuse(name, "its arguments are not those that it recorded" if key == "args" else changed)

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise `StepConflict`, also at each later call of the run if the handler catches it."""
        conflict = StepConflict(self.process_id, name, problem)
        if self.conflict is None:
            self.conflict = conflict
        raise conflict

    def require_room(self, name: str) -> None:
        """Raise `JournalFull` if the journal has no room for a step that is about to be called."""
        self.journal.require_room(name, self.reached)

    async def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Record a step. Return it as it is recorded."""
        found = await self.write("cannot record a step", lambda: self.journal.record(name, facts))
        self.reach(name)
        return found

    async def uncut(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make an idempotent call, and once more if a time limit of the handler cuts it.

        A step that the handler takes for cut must not be recorded with a result: it would go another way next time.
        """
        try:
            return await call()
        except asyncio.CancelledError:
            if self.is_cancelled or cancels_of_task() == 0:
                raise
            return await call()

    async def write(self, message: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make an idempotent write under the run's lease. A time limit of the handler does not cut it; see `uncut`.

        Once the lease is lost, another worker runs the handler: nothing more is called.
        """
        try:
            return await self.uncut(lambda: self.persist(message, call))
        except holdfast.LeaseLost as error:
            self._lost = error
            raise

    async def read(self, message: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Read, again while the database is down. A time limit of the handler does not cut it; see `uncut`."""
        return await self.uncut(lambda: self.persist(message, call))

    def error_text(self, error: BaseException) -> str:
        """Return the text of an error as it is recorded."""
        return described(error, self.journal.limits)

    def recordable(self, error: Exception) -> dict[str, Any] | None:
        """Return an error as it is recorded beside its text, None if it cannot be made again from that."""
        limits = self.journal.limits
        room = (limits.document_bytes // 2, limits.document_depth - 2)
        found = recorded_error(error, *room)
        if found is None and isinstance(error, GiveUp):
            return recorded_error(GiveUp(self.error_text(error)), *room)  # it must give up whatever else it holds
        return found

    def note_failure(self, name: str, facts: dict[str, Any]) -> None:
        """Note a step that failed without a further attempt. It is recorded if the handler continues without it."""
        record = f"{RETRIED}{name}:{len(self.journal.retried.get(name, ())) + 1}"
        self._failed[record] = (_BRANCH.get(), self._task(), facts)
        self.reach(record, size_of({"name": record, **facts}))

    def adopt_failures(self, place: str) -> None:
        """Let this task answer for the failures in the branches that it has waited for."""
        for name, (branch, _, facts) in self._failed.items():
            if branch.startswith(f"{place}."):
                self._failed[name] = (branch, self._task(), facts)

    async def record_failures(self) -> None:
        """Record the failures that the handler caught in this branch: it must go the same way when it runs again.

        A task that the handler made sees only its own: the handler may not have caught that of another task.
        """
        branch, task, is_own = _BRANCH.get(), self._task(), self.is_in_own_task
        for name, (place, failed_in, facts) in list(self._failed.items()):
            if place.startswith(branch) and (is_own or failed_in is task):
                del self._failed[name]
                await self.record(name, facts)

    def _task(self) -> asyncio.Task[Any] | None:
        return None if self.tasks is None else asyncio.current_task()

    async def record_last_failures(self) -> None:
        """Record the failures that end the attempt of the run, for people: the next attempt makes these calls again."""
        failed = [facts for _, _, facts in self._failed.values()]
        self._failed.clear()
        for facts in failed:
            step = facts["step"]
            name = f"{FAILED}{step}:{self.journal.failed[step] + 1}"
            shown = {key: facts[key] for key in ("step", "attempt", "error", "took_ms")}
            await self.persist("cannot record a failure", partial(self.journal.record, name, shown))

    async def once(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]], *, call: str) -> Any:
        """Return the value of a step of the run's own: the recorded one, or a new one. Errors name the call."""
        found = self.find(name, call=call)
        if found is None:
            if not name.startswith(TAKEN):  # there are no more of them than signals
                self.require_room(name)
            await self.record_failures()
            found = await self.record(name, {"value": await self.uncut(make)})
        return found["value"]

    def require_all_asked(self) -> None:
        """Raise `StepConflict` if the handler returned without a step that this run has recorded.

        A retry may leave out copied steps: what failed before may succeed now, and lead another way. A handler that
        caught the end of its call, and returned, sleeps nevertheless.
        """
        self._require_branch()
        for name in self.unasked():
            self.refuse(name, "it is recorded, and the handler returned without it")

    async def require_all_asked_before_a_wait(self) -> None:
        """Raise `StepConflict` if the handler waits before it has asked for a step that this run has recorded.

        It got further in an earlier call. A handler with tasks or threads of its own is compared when it ends: the
        wait may begin before they ask.
        """
        if self.unasked():
            await asyncio.sleep(ASK_S)
        for name in () if self.has_other_tasks else self.unasked():
            self.refuse(name, "it is recorded, and the handler waits before it")

    def require_children_asked(self) -> None:
        """Raise `StepConflict` if the handler of a run that was held starts a child in place of a recorded one.

        The end of each child wakes the run: a handler with random ids would start children without a pause.
        """
        if not self.journal.held or self.is_in_branch or not self.is_in_own_task:
            return
        for name in self.unasked():
            if name.startswith((STARTED, DETACHED)):
                self.refuse(name, "it is recorded, and the handler starts another child before it")

    def unasked(self) -> list[str]:
        """Return the steps that this run has recorded, and that the handler has not asked for in this call."""
        known = self.asked | self.journal.copied
        # A call that was cut may be cut before it begins when the handler runs again.
        failed = (name for name, failures in self.journal.retried.items() if CUT not in failures[-1])
        return [name for name in dict.fromkeys((*self.journal.steps, *failed)) if name not in known]


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Take the end of a task whose run sleeps: asyncio would log that no code awaited it."""
    if not task.cancelled():
        task.exception()


def _used_before(name: str, call: str) -> tuple[str, str]:
    """Return the call and the problem of a step that was asked for twice, in the user's words."""
    for prefix, user_call in ((STARTED, "run.start"), (DETACHED, "run.start"), (RESULT, "child.result")):
        if name.startswith(prefix):
            child = name.removeprefix(prefix)
            return user_call, f"was called for child {child!r} before in this run: give each child its own id, once"
    return call, f"{name!r} was used before in this run: give each its own name"


def milliseconds(call: str, argument: str, seconds: object) -> int:
    """Return a length of time in milliseconds. Raises `InvalidRequest`, which names the call, if it is not one."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_S:
        problem = f"{argument} must be a number of seconds from 0 to {LONGEST_S:.0f}, which are 366 days"
        raise holdfast.InvalidRequest(call, problem)
    return int(1000 * seconds)


def cancels_of_task() -> int:
    """Return the number of times that this task was cancelled, without those that it took back."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
