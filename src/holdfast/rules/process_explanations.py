"""Explain why a process is stuck. Facts in, causes out, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from types import MappingProxyType

import msgspec

from holdfast.limit_rows import RunLimit
from holdfast.records.explanations import Cause, Explanation
from holdfast.records.processes import CHILD_ENDED, Abandoned, External, Failed, Process, Run, RunWait
from holdfast.rows import DeliveryRow, LeaseRow
from holdfast.rules.explanations import (
    Workers,
    explained,
    holder_of,
    no_worker,
    overdue,
    overdue_s,
    undelivered_processes,
    until,
)

MOST_WAITS = 10
"""Waits of one run that an explanation names."""


class ProcessFacts(msgspec.Struct, frozen=True):
    """The facts about a process, or about a delivery that has not started its process."""

    process_id: str
    now_ms: int
    process: Process | None
    lease: LeaseRow | None
    delivery: DeliveryRow | None
    workers: Workers
    retried_as: str | None = None
    kind_paused: bool = False
    """The kind of the run is paused: none is claimed."""
    full: RunLimit | None = None
    """The limit of the kind of the run, if it is reached."""
    children: Mapping[str, Explanation] = MappingProxyType({})
    """The explanations of running children for which it waits."""


def explain_process(facts: ProcessFacts) -> Explanation:
    """Return every cause that concerns a process."""
    if facts.process is None:
        causes = list(undelivered_processes([facts.delivery] if facts.delivery is not None else []))
    else:
        causes = _process(facts, facts.process)
    return explained("process", facts.process_id, causes, facts.now_ms)


def _process(facts: ProcessFacts, process: Process) -> list[Cause]:
    if process.is_terminal:
        return [_ended(process, facts.retried_as)]
    if facts.lease is not None and facts.lease.is_live(facts.now_ms):
        return [_leased(facts, process, facts.lease)]
    if isinstance(process.input, External):
        return [
            Cause(
                "external",
                "works",
                "it runs outside, and an outside system ends it",
                since_ms=process.created_at_ms,
                next="its outcome arrives",
            )
        ]
    if not _is_due(process, facts.now_ms):
        if process.waits:
            return [_waiting(facts, process, one) for one in process.waits[:MOST_WAITS]]
        if process.wait is not None:
            return [_signal(process, process.wait.name, process.due_at_ms)]
        if process.due_at_ms is not None:
            return [_sleeping(process)]
    if isinstance(process.input, Run):
        return [_unclaimed_run(facts, process, process.input)]
    return [
        Cause(
            "no-holder",
            "waits",
            "no owner holds its lease: the host that runs such processes has not taken it up",
            since_ms=process.updated_at_ms,
        )
    ]


def _is_due(process: Process, now_ms: int) -> bool:
    return process.due_at_ms is not None and process.due_at_ms <= now_ms


def _ended(process: Process, retried_as: str | None) -> Cause:
    """Explain an end, which is final: a retry is a new run."""
    outcome, since_ms, successor = process.outcome, process.updated_at_ms, process.continued_as
    if retried_as is not None:
        problem = f"it ended as {process.status}, and was retried as run {retried_as!r}"
        return Cause("retried", "idle", problem, retried_as, since_ms, remedy=("why", retried_as))
    if successor is not None:
        return Cause(
            "continued", "idle", f"it continues as run {successor!r}", successor, since_ms, remedy=("why", successor)
        )
    remedy = ("processes", "retry", process.id) if process.is_retryable else ()
    anew = "a retry is a new run with its recorded steps" if remedy else "start it again under another id"
    if isinstance(outcome, Failed):
        problem = f"it failed, and its end is final: {anew}"
        return Cause("failed", "stuck", problem, None, since_ms, None, outcome.message, remedy=remedy)
    if isinstance(outcome, Abandoned):
        problem = f"its worker died, its effects are unknown, and it must not run twice: check them first; {anew}"
        return Cause("abandoned", "stuck", problem, None, since_ms, None, outcome.message, remedy=remedy)
    return Cause(process.status, "idle", f"it has ended: {process.status}", None, since_ms, remedy=remedy)


def _leased(facts: ProcessFacts, process: Process, lease: LeaseRow) -> Cause:
    holder = holder_of(facts.workers, lease.owner_id or "", lease.claimed_at_ms, lease.expires_at_ms, facts.now_ms)
    dead = holder.is_alive is False
    over_s = None if dead else overdue_s(facts.workers, holder, process.id, facts.now_ms)
    if over_s is not None:
        return overdue(holder, process.id, over_s, process.attempt or None, process.last_error)
    after = "another worker takes it over" if process.recovery == "rerunnable" else "it is ended as abandoned"
    return Cause(
        "lease-of-a-dead-worker" if dead else "running",
        until(lease.expires_at_ms, facts.now_ms) if dead else "works",
        "the worker that ran it has stopped reporting" if dead else "a worker runs it",
        since_ms=lease.claimed_at_ms,
        attempt=process.attempt or None,
        error=process.last_error,
        holder=holder,
        next=f"when the lease ends, {after}" if dead else "the lease ends unless the worker renews it",
        next_at_ms=lease.expires_at_ms,
        remedy=() if holder.is_alive else ("leases", "release", "--process", process.id),
    )


def children_of(process: Process) -> list[str]:
    """Return the children for which a process waits, as far as an explanation names them."""
    return [one.name for one in process.waits[:MOST_WAITS] if one.kind == "child" and one.name is not None]


def _waiting(facts: ProcessFacts, process: Process, wait: RunWait) -> Cause:
    """Explain one of the waits of a run."""
    if wait.kind == "signal":
        return _signal(process, wait.name or "", wait.until_ms)
    if wait.kind == "child":
        return _child(process, wait.name or "", facts.children.get(wait.name or ""))
    is_retry = wait.kind == "step retry"
    return Cause(
        "retrying-a-step" if is_retry else "sleeping",
        "waits",
        f"its step {wait.name!r} failed and waits for its next attempt" if is_retry else "it sleeps",
        since_ms=process.updated_at_ms,
        next="the step is called again" if is_retry else "it continues",
        next_at_ms=wait.until_ms,
        remedy=("runs", "show", process.id) if is_retry else (),
    )


def _child(process: Process, id: str, child: Explanation | None) -> Cause:
    """Explain a wait for a child, which is stuck if the child is: then what helps the child helps."""
    problem = f"it waits for run {id!r}, which it started"
    if child is None or child.standing != "stuck":
        return Cause("waits-for-a-child", "waits", problem, id, process.updated_at_ms, remedy=("why", id))
    of_child = child.causes[0]
    return msgspec.structs.replace(
        of_child,
        name="waits-for-a-child",
        problem=f"{problem}, and that one is stuck ({of_child.name}): {of_child.problem}",
        subject_id=id,
        remedy=of_child.remedy or ("why", id),
    )


def _signal(process: Process, name: str, until_ms: int | None) -> Cause:
    since_ms = process.updated_at_ms if process.wait is None else process.wait.since_ms
    if name == CHILD_ENDED:
        return Cause(
            "waits-for-a-child",
            "waits",
            "it waits for a run that it started",
            since_ms=since_ms,
            next="it continues when the child ends",
            next_at_ms=until_ms,
            remedy=("runs", "show", process.id),
        )
    return Cause(
        "waits-for-a-signal",
        "waits",
        f"it waits for the signal {name!r}",
        since_ms=since_ms,
        next="nothing, until the signal comes" if until_ms is None else "it continues without the signal",
        next_at_ms=until_ms,
        remedy=("processes", "signal", process.id, name),
    )


def _sleeping(process: Process) -> Cause:
    if process.is_held:
        return Cause(
            "code-changed",
            "stuck",
            "it is held: its handler does not match its recorded steps. If the code has changed, deploy the code "
            "that it began with, or register the changed handler under a new version. If not, the handler is not "
            f"deterministic: mend it. `holdfast runs replay {quote(process.id)} --app MODULE:WORKER` names each "
            "difference",
            since_ms=process.updated_at_ms,
            error=process.last_error,
            next="a worker tries it again, and continues it if the code fits",
            next_at_ms=process.due_at_ms,
            remedy=("runs", "show", process.id),
        )
    is_retry = process.last_error is not None
    return Cause(
        "retrying" if is_retry else "sleeping",
        "waits",
        "it failed and waits for its next attempt" if is_retry else "it sleeps",
        since_ms=process.updated_at_ms,
        attempt=process.attempt or None,
        error=process.last_error,
        next="it is run again" if is_retry else "it continues",
        next_at_ms=process.due_at_ms,
    )


def _unclaimed_run(facts: ProcessFacts, process: Process, run: Run) -> Cause:
    since_ms = process.updated_at_ms if process.due_at_ms is None else process.due_at_ms
    if facts.kind_paused:
        problem = f"kind {run.kind!r} is paused: no run of it is claimed"
        return Cause("kind-paused", "stuck", problem, since_ms=since_ms, remedy=("queue", "resume", run.kind))
    if facts.full is not None:
        return Cause(
            "limit-reached",
            "waits",
            f"kind {run.kind!r} has a limit of {facts.full.at_once} runs at once, and all are held",
            since_ms=since_ms,
            next="it is claimed when another run of the kind ends or sleeps",
            next_at_ms=facts.full.first_end_ms,
            remedy=("queue", "limit", run.kind),
        )
    workers = facts.workers.handle(run.kind)
    if not any(run.version in one.versions.get(run.kind, (run.version,)) for one in workers):
        known = sorted({each for one in workers for each in one.versions[run.kind]})
        handled = ", ".join(map(repr, known))
        of_version = f"it is of version {run.version!r}, and of its kind the live workers handle only {handled}"
        problem = f"{of_version}: start a worker of that version" if workers else no_worker(facts.workers, run.kind)
        return Cause("no-worker", "stuck", problem, since_ms=since_ms, attempt=process.attempt or None)
    return Cause(
        "unclaimed",
        "waits",
        f"it waits for a free worker with a handler of kind {run.kind!r}, version {run.version!r}",
        since_ms=since_ms,
        attempt=process.attempt or None,
        error=process.last_error,
        next="the next free worker claims it",
    )
