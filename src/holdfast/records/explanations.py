"""An explanation says why a session, a process or a schedule is where it is, and which command helps."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.records.common import Record

Subject: TypeAlias = Literal["session", "process", "schedule"]
Standing: TypeAlias = Literal["stuck", "waits", "works", "idle"]
"""The state of a subject, or the effect of one cause.

`stuck`: it needs a remedy, or a worker that is not there. `waits`: it continues by itself. `works`: a worker or another
system works on it. `idle`: there is nothing to do.
"""


class Holder(Record, frozen=True):
    """The owner of a claim or a lease. Host, process and heartbeat are those of a worker; None if it is not one.

    `is_alive` is False for a worker whose reports have stopped, and None for an owner that never reported.
    """

    owner_id: str
    held_since_ms: int
    held_until_ms: int
    host: str | None = None
    pid: int | None = None
    heartbeat_at_ms: int | None = None
    is_alive: bool | None = None


class Cause(Record, frozen=True):
    """One reason. `name` stays the same across versions; `problem` and `next` are for people.

    `subject_id` is the batch or the process that it is about. `next` says what happens by itself, at `next_at_ms` if
    time decides. `remedy` are the words of a command after `holdfast`; empty if nothing has to be done.
    """

    name: str
    standing: Standing
    problem: str
    subject_id: str | None = None
    since_ms: int | None = None
    attempt: int | None = None
    error: str | None = None
    holder: Holder | None = None
    next: str | None = None
    next_at_ms: int | None = None
    remedy: tuple[str, ...] = ()


class Explanation(Record, frozen=True):
    """The causes of the state of a session, a process or a schedule, the most serious first."""

    subject: Subject
    id: str
    standing: Standing
    causes: tuple[Cause, ...]
    explained_at_ms: int

    @property
    def ok(self) -> bool:
        """True unless something is stuck."""
        return self.standing != "stuck"
