"""The facts of a run for people and tools: its wait, its steps, its worker and its children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

import holdfast
from holdfast.records.processes import CHILD_ENDED
from holdfast.run_chains import next_in_chain
from holdfast.step_names import INHERITED, OWN, REJECTED, RETRIED, STARTED
from holdfast.worker.journal import MOST_BYTES, MOST_EVENTS, STEP, JournalUse

WaitKind: TypeAlias = Literal["worker", "claim", "signal", "child", "sleep", "step retry", "retry", "code"]
"""The reason for which a run has not ended: a worker runs it, it can be claimed, or it waits for something.

A run that waits for `code` is held: a step that it has recorded does not fit the code of the workers.
"""


class RunWait(msgspec.Struct, frozen=True):
    """The wait of a run: the name of the signal, step or worker, and the time at which the run goes on by itself."""

    kind: WaitKind
    name: str | None = None
    until_ms: int | None = None


class StepFacts(msgspec.Struct, frozen=True):
    """One step: its last attempt, how long it took, and the error if it failed."""

    name: str
    state: Literal["done", "failed", "retried"]
    attempt: int
    took_ms: int | None
    error: str | None
    at_ms: int
    next_at_ms: int | None = None


class ChildFacts(msgspec.Struct, frozen=True):
    """A run that the run has started, and its status."""

    id: str
    status: holdfast.processes.ProcessStatus | None


class RejectedSignal(msgspec.Struct, frozen=True):
    """A signal whose payload was not of the type that the handler declares, counted from 1 among those of its name."""

    name: str
    ordinal: int
    error: str
    at_ms: int


class RunFacts(msgspec.Struct, frozen=True):
    """Everything that says why a run is where it is."""

    process: holdfast.processes.Process
    wait: RunWait | None
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
    children = [ChildFacts(id, _status(store.processes.get(id))) for id in children_in(events)]
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
        wait=_wait(process, steps, holder, now_ms),
        steps=tuple(steps),
        worker=holder,
        children=tuple(children),
        journal=JournalUse(len(log), size_bytes, MOST_EVENTS, MOST_BYTES),
        retries=process.retries,
        rejected=tuple(_rejected(log)),
        retried_as=following.id if following is not None and following.retries == process.id else None,
    )


def children_in(events: Iterable[holdfast.events.ProcessEvent]) -> list[str]:
    """Return the ids of the children that a run has: those of the run that it continues, and its own."""
    found: list[str] = []
    for _, payload in _recorded(events):
        if payload["name"] == INHERITED:
            found += payload["value"]
        elif payload["name"].startswith(STARTED):
            found.append(payload["value"])
    return found


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
        is_failure = name.startswith(RETRIED)
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


def _wait(
    process: holdfast.processes.Process,
    steps: list[StepFacts],
    holder: holdfast.leases.LeaseHolder | None,
    now_ms: int,
) -> RunWait | None:
    if process.is_terminal:
        return None
    if holder is not None:
        return RunWait("worker", holder.owner_id, holder.expires_at_ms)
    if process.due_at_ms is not None and process.due_at_ms <= now_ms:
        return RunWait("claim", until_ms=process.due_at_ms)
    if process.wait is not None:
        if process.wait.name == CHILD_ENDED:
            return RunWait("child", "child", process.due_at_ms)
        return RunWait("signal", process.wait.name, process.due_at_ms)
    if process.is_held:
        return RunWait("code", None, process.due_at_ms)
    for step in steps:
        if step.state == "retried" and step.next_at_ms == process.due_at_ms:
            return RunWait("step retry", step.name, process.due_at_ms)
    return RunWait("sleep" if process.suspended else "retry", None, process.due_at_ms)


def _status(process: holdfast.processes.Process | None) -> holdfast.processes.ProcessStatus | None:
    return None if process is None else process.status
