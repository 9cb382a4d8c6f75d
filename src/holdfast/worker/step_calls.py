"""One call of `run.step`: found in the journal, or called, tried again and recorded.

A function is called at least once, and its result is recorded once. No effect is lost by a refusal: it comes before the
call.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

import holdfast
from holdfast import typed_values
from holdfast.step_names import OWN, RETRIED, replay_key
from holdfast.worker.error_records import UnknownErrorClass, class_name, error_of
from holdfast.worker.retries import Retry
from holdfast.worker.run_errors import StepFailed
from holdfast.worker.step_facts import facts_of
from holdfast.worker.steps import CUT, Steps, cancels_of_task


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
        _require_storable(name, steps.journal.limits.id_bytes)
        self._steps = steps
        self._retry = retry
        self._facts = facts_of(function, args, named)
        self.name = name
        self._declared = typed_values.result_type(function)
        _require_type(name, self._declared)
        self.found = steps.find(name, self._facts)
        if self.found is None:
            steps.require_room(name)

    @property
    def function_name(self) -> str:
        """The name of the function, for messages."""
        return str(self._facts["function"])

    @property
    def _failures(self) -> list[dict[str, Any]]:
        return self._steps.journal.retried.get(self.name, [])

    @property
    def _attempt(self) -> int:
        """The number of this call of the step, over all attempts of the run."""
        return self._steps.journal.failed[self.name] + len(self._failures) + 1

    def next_attempt_at_ms(self) -> int | None:
        """Return the time of the next attempt, None before the first. Raises the last error after the last attempt."""
        if not self._failures:
            return None
        last = self._failures[-1]
        if last["until_ms"] is None and CUT not in last:
            raise self._raised(last)
        return None if last["until_ms"] is None else int(last["until_ms"])

    def cut_after_ms(self) -> int | None:
        """Return the length of the last call if a task of the handler's own was cancelled in it, else None."""
        last = self._failures[-1] if self._failures else {}
        return int(last["took_ms"]) if CUT in last else None

    def last_error(self) -> Exception:
        """Return the error of the last call, which is recorded."""
        return self._raised(self._failures[-1])

    def _raised(self, failure: dict[str, Any]) -> Exception:
        """Return the error that the handler gets for a failure, the same each time."""
        recorded = failure.get("raised")
        if recorded is None:
            attempts, text = failure["attempt"], failure["error"]
            return StepFailed(self._steps.process_id, self.name, attempts, text, failure.get("class", ""))
        try:
            return error_of(recorded)
        except UnknownErrorClass as unknown:
            self._steps.refuse(self.name, f"it raised {unknown}, which this program has not imported, or has changed")

    async def fail(self, error: Exception, began_s: float, now_ms: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Record a failed attempt, so that the next one comes after the back-off whatever happens meanwhile.

        Without a retry, raises the error as a copy from its record, which a handler that runs again gets, too. If it
        cannot be recorded whole, and after the last attempt, raises `StepFailed`.
        """
        attempt = len(self._failures) + 1
        if self._retry is None:
            raised = self._raised(self._note(error, began_s))
            if type(raised) is not type(error) or error.__cause__ is not None or error.__context__ is not None:
                raise raised  # keeps the context of the exception for logs
            raise raised.with_traceback(error.__traceback__) from None
        facts = self._failure(error, began_s)
        delay_ms = self._retry.delay_after(attempt, error, chance=random.random())  # noqa: S311 - spreads retries
        cancels = cancels_of_task()
        now = 0 if delay_ms is None else await self._steps.uncut(now_ms)
        facts["until_ms"] = None if delay_ms is None else now + delay_ms
        await self._steps.record(f"{RETRIED}{self.name}:{attempt}", facts)
        if delay_ms is None:
            raise self._raised(facts)
        if cancels_of_task() > cancels:
            cut = asyncio.CancelledError()
            self.note_cut(time.monotonic(), cut)
            raise cut

    def _failure(self, error: BaseException, began_s: float) -> dict[str, Any]:
        return {
            **self._facts,
            "step": self.name,
            "attempt": self._attempt,
            "error": self._steps.error_text(error),
            "class": class_name(error),
            "took_ms": _milliseconds_since(began_s),
            "until_ms": None,
        }

    def _note(self, error: Exception, began_s: float) -> dict[str, Any]:
        facts = {**self._failure(error, began_s), "raised": self._steps.recordable(error)}
        self._steps.note_failure(self.name, facts)
        return facts

    def note_cut(self, began_s: float, cancel: asyncio.CancelledError) -> None:
        """Note a call that was cancelled, as a failure: a handler that continues gets it whenever it runs again.

        A time limit of asyncio becomes a `TimeoutError`. In a task that the handler made, and in a cancel scope of
        anyio, which says so in the error, the step waits until it is cancelled again.
        """
        cut = TimeoutError("the handler was cancelled during this call")
        facts = {**self._failure(cut, began_s), "raised": self._steps.recordable(cut)}
        if cancel.args or not self._steps.is_in_own_task:
            facts[CUT] = True
        self._steps.note_failure(self.name, facts)

    def checked(self, value: Any) -> Any:
        """Return a result as a document. One that is not of the declared type fails its attempt, unrecorded."""
        return checked_result(f"run.step({self.name!r})", value, self._declared)

    async def record(self, document: Any, began_s: float) -> Any:
        """Record the result. Return it as a later call of the handler gets it."""
        facts = {**self._facts, "took_ms": _milliseconds_since(began_s)}
        if self._attempt > 1:
            facts["attempt"] = self._attempt
        try:
            self.found = await self._steps.record(self.name, {**facts, "value": document})
        except (holdfast.InvalidRequest, TypeError, msgspec.MsgspecError) as error:
            helps = self._declared is None and typed_values.is_declarable(document)
            hint = ": declare the type that the function returns" if helps else ""
            problem = f"returned a value that cannot be stored: {self._problem_of(document, error)}{hint}"
            refused = holdfast.InvalidRequest(f"run.step({self.name!r})", problem)
            self._note(refused, began_s)
            raise refused from error
        return await self.value()

    def _problem_of(self, document: Any, error: Exception) -> str:
        """Return the problem of a result in its own terms: it is a part of the event that was refused."""
        # A store in memory, in which the result stands alone.
        with holdfast.open_blocking("memory:", limits=self._steps.journal.limits) as store:
            run = store.processes.start("any")
            try:
                store.processes.complete(run.id, holdfast.processes.Completed(document))
            except holdfast.InvalidRequest as own:
                return own.problem
            except (TypeError, msgspec.MsgspecError):
                pass
        return str(error)

    async def value(self) -> Any:
        """Return the recorded result, as the type that the function declares."""
        assert self.found is not None
        found = self.found
        read = partial(self._steps.journal.value_of, found)
        value = await self._steps.read("cannot read a result", read)
        if not typed_values.is_typed(self._declared):
            return value
        try:
            return typed_values.decoded(value, self._declared)
        except (TypeError, msgspec.ValidationError) as error:
            name = typed_values.name_of(self._declared)
            self._steps.refuse(self.name, f"its recorded value is not a valid {name}: {error}")


def checked_result(place: str, value: Any, declared: Any) -> Any:
    """Return a result as a document. Raises `InvalidRequest` if it is not of the declared type."""
    try:
        return typed_values.result_document(value, declared)
    except (RecursionError, TypeError, msgspec.MsgspecError) as error:
        problem = f"returned a value that is not a valid {typed_values.name_of(declared)}: {error}"
        raise holdfast.InvalidRequest(place, problem) from error


def _require_storable(name: str, most: int) -> None:
    """Raise `InvalidRequest` before the call for a name under which nothing could be recorded after it."""
    if "\0" in name:
        raise holdfast.InvalidRequest(f"run.step({name!r})", "its name must not contain NUL")
    try:
        size = len(replay_key(f"{RETRIED}{name}:000").encode())
    except UnicodeEncodeError:
        raise holdfast.InvalidRequest(f"run.step({name!r})", "its name contains a lone surrogate") from None
    if size > most:
        too_long = f"{name[:40]}…"
        problem = f"its name is {size - most} bytes too long: give it a shorter one, such as a hash of this"
        raise holdfast.InvalidRequest(f"run.step({too_long!r})", problem, limit=most)


def _require_type(name: str, declared: Any) -> None:
    """Raise `InvalidRequest` before the call if its result could not be read back as the declared type."""
    if not typed_values.is_typed(declared):
        return
    try:
        msgspec.json.Decoder(typed_values.readable(declared))
    except TypeError as error:
        problem = f"declares to return {typed_values.name_of(declared)}, which cannot be read back: {error}"
        raise holdfast.InvalidRequest(f"run.step({name!r})", problem) from error


def _milliseconds_since(began_s: float) -> int:
    return int(1000 * (time.monotonic() - began_s))
