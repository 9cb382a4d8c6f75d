"""One step of a run: found in the journal, or called, tried again and recorded.

A function is called at least once, and its result is recorded once. No effect is lost by a refusal: it comes before the
call.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.worker.journal import OWN, RETRIED, Journal
from holdfast.worker.retries import Retry
from holdfast.worker.run_errors import JournalFull, StepConflict, StepFailed
from holdfast.worker.running import described

T = TypeVar("T")

_INSIDE: ContextVar[str | None] = ContextVar("step", default=None)


class Persist(Protocol):
    """Makes an idempotent call, again while the database is away."""

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


class Steps:
    """The steps that a handler asked for in this call, and the journal that has those of earlier calls."""

    def __init__(self, process_id: str, journal: Journal, persist: Persist) -> None:
        self.process_id = process_id
        self.journal = journal
        self.persist = persist
        self.asked: set[str] = set()

    def find(self, name: str, facts: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return a step that is recorded, None if it is not. Raises `StepConflict` if it is another one."""
        if _INSIDE.get() is not None:
            raise holdfast.InvalidRequest(
                "run.step", f"{name!r} is inside of step {_INSIDE.get()!r}: call it beside that one"
            )
        if name in self.asked:
            raise holdfast.InvalidRequest("run.step", f"{name!r} was used before in this run: give each its own name")
        self.asked.add(name)
        found = self.journal.steps.get(name)
        failed = self.journal.retried.get(name)
        self._require_same(name, found or (failed[-1] if failed else None), facts or {})
        return found

    def _require_same(self, name: str, before: dict[str, Any] | None, facts: dict[str, Any]) -> None:
        for key, said in facts.items():
            recorded = None if before is None else before.get(key)
            if None not in (recorded, said) and recorded != said:
                raise StepConflict(self.process_id, name, f"its {key} was {recorded}, and is {said} now")

    def require_room(self, name: str) -> None:
        """Raise `JournalFull` if the journal has no room for a step that is about to be called."""
        problem = self.journal.use.problem
        if problem is not None:
            raise JournalFull(self.process_id, name, problem)

    async def record(self, name: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Record a step. Return it as it is recorded."""
        return await self.persist("a step is not recorded", lambda: self.journal.record(name, facts))

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value of a step of the run's own: the recorded one, or a new one."""
        found = self.find(name)
        if found is None:
            self.require_room(name)
            found = await self.record(name, {"value": await make()})
        return found["value"]

    def require_all_asked(self) -> None:
        """Raise `StepConflict` if the handler returned without a step that was recorded."""
        for name in (*self.journal.steps, *self.journal.retried):
            if name not in self.asked:
                raise StepConflict(self.process_id, name, "it is recorded, and the handler returned without it")


class StepCall:
    """One call of `run.step`."""

    def __init__(
        self,
        steps: Steps,
        name: object,
        function: object,
        args: tuple[Any, ...],
        named: dict[str, Any],
        retry: object,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or name.startswith(OWN):
            raise holdfast.InvalidRequest("run.step", f"needs a name that is not blank and does not begin with {OWN!r}")
        if not callable(function):
            raise holdfast.InvalidRequest("run.step", f"needs a function to call, not {type(function).__name__}")
        if retry is not None and not isinstance(retry, Retry):
            raise holdfast.InvalidRequest(f"run.step({name!r})", f"retry must be a Retry, not {type(retry).__name__}")
        self._steps = steps
        self._retry = retry
        self._facts = _facts_of(function, args, named)
        self.name = name
        self._declared = typed_values.result_type(function)
        self.found = steps.find(name, self._facts)
        if self.found is None:
            steps.require_room(name)

    @property
    def _failures(self) -> list[dict[str, Any]]:
        return self._steps.journal.retried.get(self.name, [])

    def next_attempt_at_ms(self) -> int | None:
        """Return the time of the next attempt, None if it is the first. Raises `StepFailed` if there is none."""
        if not self._failures:
            return None
        last = self._failures[-1]
        if last["until_ms"] is None:
            raise self._failed(last["error"])
        return int(last["until_ms"])

    def _failed(self, error: str) -> StepFailed:
        return StepFailed(self._steps.process_id, self.name, len(self._failures), error)

    async def fail(self, error: Exception, began_s: float, now_ms: Callable[[], Awaitable[int]]) -> None:
        """Record a failed attempt, so that the next one comes after the back-off whatever happens meanwhile.

        Raises the error itself if the step has no retry, and `StepFailed` after its last attempt.
        """
        if self._retry is None:
            raise error
        attempt = len(self._failures) + 1
        delay_ms = self._retry.delay_after(attempt, error, chance=random.random())  # noqa: S311 - spreads retries
        facts = {
            **self._facts,
            "step": self.name,
            "attempt": attempt,
            "error": described(error),
            "took_ms": _milliseconds_since(began_s),
            "until_ms": None if delay_ms is None else await now_ms() + delay_ms,
        }
        await self._steps.record(f"{RETRIED}{self.name}:{attempt}", facts)
        if delay_ms is None:
            raise self._failed(described(error)) from error

    def checked(self, value: Any) -> Any:
        """Return a result as a document. One that is not of the declared type fails its attempt, unrecorded."""
        if self._declared is None:
            return value
        try:
            document = typed_values.encoded(value)
            typed_values.decoded(document, self._declared)
        except (TypeError, msgspec.MsgspecError) as error:
            problem = f"returned what is not a {self._declared}: {error}"
            raise holdfast.InvalidRequest(f"run.step({self.name!r})", problem) from error
        return document

    async def record(self, document: Any, began_s: float) -> Any:
        """Record the result. Return it as a later call of the handler gets it."""
        facts = {**self._facts, "took_ms": _milliseconds_since(began_s)}
        if self._failures:
            facts["attempt"] = len(self._failures) + 1
        try:
            self.found = await self._steps.record(self.name, {**facts, "value": document})
        except (holdfast.InvalidRequest, TypeError, msgspec.MsgspecError) as error:
            hint = "" if self._declared is not None else ": declare the type that the function returns"
            problem = f"returned what cannot be stored: {error}{hint}"
            raise holdfast.InvalidRequest(f"run.step({self.name!r})", problem) from error
        return await self.value()

    async def value(self) -> Any:
        """Return the recorded result, as the type that the function declares."""
        assert self.found is not None
        found = self.found
        value = await self._steps.persist("a result is not read", lambda: self._steps.journal.value_of(found))
        if self._declared is None:
            return value
        try:
            return typed_values.decoded(value, self._declared)
        except (TypeError, msgspec.ValidationError) as error:
            problem = f"recorded what is not a {self._declared}: {error}: give changed types a new version"
            raise holdfast.InvalidRequest(f"run.step({self.name!r})", problem) from error


def _facts_of(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by which changed code is noticed: the name of the function, and a hash of its arguments."""
    try:
        given = msgspec.json.encode([args, named], enc_hook=typed_values.dump_model)
        hashed = hashlib.sha256(given).hexdigest()[:16]
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        hashed = None  # not a document, and so not comparable
    return {"function": getattr(function, "__qualname__", type(function).__name__), "args": hashed}


def _milliseconds_since(began_s: float) -> int:
    return int(1000 * (time.monotonic() - began_s))
