"""Workers: the programs that claim work, as they report themselves."""

from __future__ import annotations

from holdfast.records.common import Record
from holdfast.records.leases import Lease
from holdfast.records.queue import WorkClaim


class WorkerInfo(Record, frozen=True):
    """A worker as it last reported itself. `id` is the owner id of its claims, and names one life of the worker.

    `boot_id`, `pid_namespace` and `process_start` tell whether a process of this host is that very process; None where
    the system does not tell. `running` names batches and runs that it works on, and `overdue` those whose handlers are
    over their time limit and cannot be stopped, with the milliseconds since. `versions` has the kinds of runs of which
    it takes some versions only. The store fills in the times.

    >>> holdfast.workers.WorkerInfo("worker@host:7:ab", host="host", pid=7, kinds=["turn"]).running
    ()
    """

    id: str
    host: str
    pid: int
    kinds: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    overdue: dict[str, int] = {}
    versions: dict[str, tuple[str, ...]] = {}
    boot_id: str | None = None
    pid_namespace: str | None = None
    process_start: str | None = None
    started_at_ms: int = 0
    heartbeat_at_ms: int = 0
    expires_at_ms: int = 0


class Heartbeat(Record, frozen=True):
    """The claims and leases that a worker renewed, in the order in which it named them; None for each that is lost."""

    claims: tuple[WorkClaim | None, ...] = ()
    leases: tuple[Lease | None, ...] = ()


class WorkerRelease(Record, frozen=True):
    """The number of batches, runs and session leases that a dead worker held, and that others may claim now."""

    batches: int
    runs: int
    sessions: int = 0
