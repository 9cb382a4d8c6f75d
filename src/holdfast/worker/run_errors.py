"""Errors of a run, and the two ways in which a call of its handler ends without a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import holdfast
from holdfast.step_names import shown_step


class Suspended(BaseException):
    """Ends the call of a handler whose run sleeps. Not an `Exception`: `finally` blocks run, `except Exception` not."""

    def __init__(
        self,
        due_at_ms: int | None,
        wait: holdfast.processes.SignalWait | None = None,
        waits: Sequence[holdfast.processes.RunWait] = (),
    ) -> None:
        super().__init__("the run sleeps")
        self.due_at_ms = due_at_ms
        self.wait = wait
        self.waits = tuple(waits)
        """The waits of the run, for people."""


class Continued(BaseException):
    """Ends the call of a handler whose run continues as a new one. Not an `Exception`, like `Suspended`."""

    def __init__(self, args: Any, version: str | None) -> None:
        super().__init__("the run continues as a new one")
        self.next_args = args
        self.version = version


class StepConflict(holdfast.Conflict):
    """The handler does not repeat the steps that its run has recorded: its code has changed, or is not deterministic.

    Give changed code a new version. Take values that may differ at each call from steps, `run.now()` and `run.uuid()`.
    The run is held meanwhile: it loses no attempt, and continues once a worker has code that fits.
    """

    def __init__(self, process_id: str, name: str, problem: str) -> None:
        super().__init__(
            f"run {process_id!r}, {shown_step(name)}: {problem}: if its code has changed, let the old code finish its "
            "runs, and register the changed handler under a new version; if not, the handler is not deterministic: "
            "take times, random values and outside data from run.now(), run.uuid() and steps; compare with "
            f"`holdfast runs replay {process_id} --app MODULE:WORKER`"
        )
        self.process_id = process_id
        self.name = name
        self.problem = problem


class StepFailed(Exception):
    """A step failed at the last attempt that its `retry` allows, or with an error that cannot be recorded whole.

    `error` is the text of the last error, and `raised` the full name of its class. Raised whenever the handler runs
    again, too.
    """

    def __init__(self, process_id: str, name: str, attempts: int, error: str, raised: str = "") -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"run {process_id!r}, step {name!r} failed {times}: {error}")
        self.process_id = process_id
        self.name = name
        self.attempts = attempts
        self.error = error
        self.raised = raised


class JournalFull(holdfast.Conflict):
    """The journal of a run has no room for another step. Nothing was called. `run.continue_as_new(args)` continues."""

    def __init__(self, process_id: str, name: str, has: str) -> None:
        super().__init__(
            f"run {process_id!r}, {shown_step(name)}: the journal {has}: call run.continue_as_new(args) before that, "
            "which continues with an empty journal"
        )
        self.process_id = process_id
        self.name = name


class SignalsLeft(holdfast.Conflict):
    """A run has too many signals that it did not take, and so cannot continue as a new one. Nothing was changed.

    `left` counts them by name: take them with `run.signal(name)`, and continue then.
    """

    def __init__(self, process_id: str, left: Mapping[str, int], most: int) -> None:
        counts = ", ".join(f"{count} of {name!r}" for name, count in left.items())
        super().__init__(
            f"run {process_id!r} has signals that it did not take ({counts}), and carries over at most {most}: take "
            "them with run.signal(name) before run.continue_as_new(args)"
        )
        self.process_id = process_id
        self.left = dict(left)
        self.most = most


class ChildrenLeft(holdfast.Conflict):
    """A run has too many children that have not ended, and so cannot continue as a new one. Nothing was changed."""

    def __init__(self, process_id: str, count: int, most: int) -> None:
        super().__init__(
            f"run {process_id!r} has {count} children that have not ended, and takes at most {most} of them along: "
            "wait for them with child.result() before run.continue_as_new(args), or start them with detached=True"
        )
        self.process_id = process_id
        self.count = count
        self.most = most


class ChildFailed(Exception):
    """A child run ended without a result. `outcome` says how."""

    def __init__(self, process_id: str, outcome: holdfast.processes.ProcessOutcome) -> None:
        super().__init__(f"child run {process_id!r}: {type(outcome).__name__}: {getattr(outcome, 'message', '')}")
        self.process_id = process_id
        self.outcome = outcome
