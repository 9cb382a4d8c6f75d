"""Counts of a worker's calls, and the failures that it reports to its listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.log import WARNING, log_event

SHOWN_LINES = 6
"""Last lines of a traceback that a report of a failure shows."""


class Failure(msgspec.Struct, frozen=True):
    """One failed attempt of a handler.

    `id` names the batch or the run, `session_id` the session of a batch. `retry_in_ms` is None if it was the last
    attempt: the batch is a dead letter then, and the run has failed. A run is `held` if its code has changed: that was
    no attempt, and the run waits for the code that fits its record.
    """

    shape: Literal["turn", "job", "process"]
    kind: str
    id: str
    session_id: str | None
    attempt: int
    error: BaseException
    retry_in_ms: int | None
    held: bool = False

    @property
    def is_last(self) -> bool:
        """True if it is not tried again."""
        return self.retry_in_ms is None

    def __str__(self) -> str:
        what = f"{self.shape} {self.kind!r}" if self.kind != self.shape else self.shape
        where = "" if self.session_id is None else f" of session {self.session_id!r}"
        then = "no attempt is left" if self.retry_in_ms is None else f"tried again in {self.retry_in_ms / 1000:g} s"
        if self.held:
            return f"{what} {self.id!r} is held, because its code has changed, {then}"
        return f"{what} {self.id!r}{where} failed at attempt {self.attempt}, {then}"

    def trace(self) -> str:
        """Return the last lines of the traceback, for people."""
        import traceback  # slow to load

        lines = "".join(traceback.format_exception(self.error)).rstrip().splitlines()
        return "\n".join(f"    {line}" for line in lines[-SHOWN_LINES:])


Listener = Callable[[Failure], object]


class Tally:
    """Counts of finished calls."""

    def __init__(self) -> None:
        self.done = 0
        """Calls whose work was settled."""
        self.failed = 0
        """Failed attempts that are tried again."""
        self.dead = 0
        """Work that failed at its last attempt."""
        self.lost = 0
        """Calls whose claim was lost: other workers have their work."""
        self.interrupted = 0
        """Turns that a person stopped."""
        self.held = 0
        """Calls of runs whose code has changed. They are tried again."""
        self.listeners: list[Listener] = []

    def __repr__(self) -> str:
        lost = f", {self.lost} lost" if self.lost else ""
        stopped = f", {self.interrupted} interrupted" if self.interrupted else ""
        held = f", {self.held} held" if self.held else ""
        return f"{self.done} done, {self.failed} failed, {self.dead} dead{lost}{stopped}{held}"

    def count(self, failure: Failure) -> None:
        """Count a failed attempt and tell the listeners."""
        if failure.held:
            self.held += 1
        elif failure.is_last:
            self.dead += 1
        else:
            self.failed += 1
        for listener in self.listeners:
            try:
                listener(failure)
            except Exception as error:  # a listener must not cost the worker its work
                log_event(
                    "worker",
                    WARNING,
                    "a listener of failures failed (%(error_class)s)",
                    error_class=type(error).__name__,
                )
