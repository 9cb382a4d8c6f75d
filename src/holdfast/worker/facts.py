"""The facts of a run for people and tools: its wait, its steps, its worker and its children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

import holdfast
from holdfast.run_chains import next_in_chain
from holdfast.step_names import DETACHED, FAILED, INHERITED, OWN, REJECTED, RETRIED, STARTED
from holdfast.worker.journal import MOST_BYTES, MOST_EVENTS, STEP, JournalUse
from holdfast.worker.successors import blocking_newest_run


class StepFacts(msgspec.Struct, frozen=True):
    """One step: its last attempt, how long it took, and the last error if an attempt failed.

    A step that `failed` ended the attempt of its run, or the handler caught its error.
    """

    name: str
    state: Literal["done", "failed", "retried"]
    attempt: int
    took_ms: int | None
    error: str | None
    at_ms: int
    next_at_ms: int | None = None


class ChildFacts(msgspec.Struct, frozen=True):
    """A run that the run has started, and its status; None if it was pruned.

    If the child continued as a new run, or was retried, the status is that of the last such run, `newest_id`.
    """

    id: str
    status: holdfast.processes.ProcessStatus | None
    newest_id: str | None = None
    detached: bool = False


class RejectedSignal(msgspec.Struct, frozen=True):
    """A signal whose payload was not of the type that the handler declares, counted from 1 among those of its name."""

    name: str
    ordinal: int
    error: str
    at_ms: int


class RunFacts(msgspec.Struct, frozen=True):
    """The facts that explain the state of a run."""

    process: holdfast.processes.Process
    waits: tuple[holdfast.processes.RunWait, ...]
    """The waits of the run, several in a `gather`; empty once it has ended."""
    steps: tuple[StepFacts, ...]
    worker: holdfast.leases.LeaseHolder | None
    children: tuple[ChildFacts, ...]
    journal: JournalUse
    retries: str | None = None
    """The run whose steps this one has copied."""
    retried_as: str | None = None
    """The run that has copied the steps of this one."""
    rejected: tuple[RejectedSignal, ...] = ()
    """The signals that the run did not take, because they are not of the declared type."""

    @property
    def wait(self) -> holdfast.processes.RunWait | None:
        """The first of the waits, None if the run has ended."""
        return self.waits[0] if self.waits else None


def run_facts(store: holdfast.BlockingStore, run_id: str) -> RunFacts:
    """Return the facts of a run.

    >>> from holdfast.worker import run_facts
    >>> _ = store.processes.start("research", id="run-1")
    >>> run_facts(store, "run-1").wait.kind
    'claim'
    """
    process = store.processes.get(run_id)
    if process is None:
        raise holdfast.UnknownProcess(run_id)
    if not isinstance(process.input, holdfast.processes.Run):
        raise holdfast.InvalidRequest("run_id", f"process {run_id!r} is not a run: see processes.get()")
    events = list(holdfast.every(store.events.after, run_id, limit=store.limits.page))
    holder = store.leases.holder(holdfast.leases.OnProcess(run_id))
    children = [child_facts(one, blocking_newest_run(store, one.id)) for one in children_in(events)]
    following = store.processes.get(next_in_chain(run_id)) if process.is_retryable else None
    return facts_of(process, events, holder, children, following, now_ms=store.now_ms())


def facts_of(
    process: holdfast.processes.Process,
    events: Iterable[holdfast.events.ProcessEvent],
    holder: holdfast.leases.LeaseHolder | None,
    children: Iterable[ChildFacts],
    following: holdfast.processes.Process | None,
    *,
    now_ms: int,
) -> RunFacts:
    """Return the facts of a run from the rows about it. `following` is the process of the next id in its chain."""
    log = list(events)
    steps = _steps(log)
    size_bytes = sum(len(msgspec.json.encode(event.payload)) for event in log)
    return RunFacts(
        process=process,
        waits=_waits(process, holder, now_ms),
        steps=tuple(steps),
        worker=holder,
        children=tuple(children),
        journal=JournalUse(len(log), size_bytes, MOST_EVENTS, MOST_BYTES),
        retries=process.retries,
        rejected=tuple(_rejected(log)),
        retried_as=following.id if following is not None and following.retries == process.id else None,
    )


class StartedChild(msgspec.Struct, frozen=True):
    """A child as the log of its parent names it."""

    id: str
    detached: bool = False


def children_in(events: Iterable[holdfast.events.ProcessEvent]) -> list[StartedChild]:
    """Return the children of a run, each once: those of the run that it continues, and its own."""
    found: dict[str, StartedChild] = {}
    for _, payload in _recorded(events):
        name: str = payload["name"]
        started: list[str] = []
        if name == INHERITED:
            started = payload["value"]
        elif name.startswith((STARTED, DETACHED)):
            started = [payload["value"]]
        for id in started:
            found.setdefault(id, StartedChild(id, name.startswith(DETACHED)))
    return list(found.values())


def child_facts(child: StartedChild, newest: holdfast.processes.Process | None) -> ChildFacts:
    """Return the facts of a child from the last run that continues it, None if that was pruned."""
    if newest is None:
        return ChildFacts(child.id, None, None, child.detached)
    return ChildFacts(child.id, newest.status, None if newest.id == child.id else newest.id, child.detached)


def _recorded(
    events: Iterable[holdfast.events.ProcessEvent],
) -> list[tuple[holdfast.events.ProcessEvent, dict[str, Any]]]:
    found: list[tuple[holdfast.events.ProcessEvent, dict[str, Any]]] = []
    for event in events:
        payload: Any = event.payload
        if event.type == STEP:
            found.append((event, payload))
    return found


def _rejected(events: Iterable[holdfast.events.ProcessEvent]) -> list[RejectedSignal]:
    return [
        RejectedSignal(payload["signal"], payload["value"] + 1, payload["error"], event.occurred_at_ms)
        for event, payload in _recorded(events)
        if payload["name"].startswith(REJECTED)
    ]


def _steps(events: Iterable[holdfast.events.ProcessEvent]) -> list[StepFacts]:
    steps: dict[str, StepFacts] = {}
    for event, payload in _recorded(events):
        name: str = payload["name"]
        is_failure = name.startswith((RETRIED, FAILED))
        if name.startswith(OWN) and not is_failure:
            continue
        step: str = payload["step"] if is_failure else name
        earlier = steps.pop(step, None)
        next_at_ms: int | None = payload.get("until_ms")
        steps[step] = StepFacts(
            name=step,
            state="done" if not is_failure else "failed" if next_at_ms is None else "retried",
            attempt=payload.get("attempt", 1),
            took_ms=payload.get("took_ms"),
            error=payload.get("error", None if earlier is None else earlier.error),
            at_ms=event.occurred_at_ms,
            next_at_ms=next_at_ms,
        )
    return list(steps.values())


def _waits(
    process: holdfast.processes.Process, holder: holdfast.leases.LeaseHolder | None, now_ms: int
) -> tuple[holdfast.processes.RunWait, ...]:
    wait = holdfast.processes.RunWait
    if process.is_terminal:
        return ()
    if holder is not None:
        return (wait("worker", holder.owner_id, holder.expires_at_ms),)
    if process.due_at_ms is not None and process.due_at_ms <= now_ms:
        return (wait("claim", until_ms=process.due_at_ms),)
    if process.waits:
        return process.waits
    if process.wait is not None:
        return (wait("signal", process.wait.name, process.due_at_ms),)
    if process.is_held:
        return (wait("code", None, process.due_at_ms),)
    return (wait("sleep" if process.suspended else "retry", None, process.due_at_ms),)
