"""The right calls that workers make on runs, with the kinds of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.leases import Lease, OnProcess
from holdfast.processes import Abandoned, BySession, Completed, Failed, Provenance, RunWait, SignalWait
from holdfast.testing.contract.hostile_calls import LEASE, always
from holdfast.testing.contract.hostile_world import Call, World, parts

KINDS = "kinds:sequence? kinds[0]:id"
HELD = f"lease:record {parts('lease', LEASE)} lease.resource.process_id:id"


def a_run(world: World) -> Lease:
    """Start a run, and return a lease on it."""
    process = world.store.processes.start("research", id="run-1").process
    return world.store.leases.claim(OnProcess(process.id), owner_id="w1")


def a_failed_run(world: World) -> str:
    """Return a run that has failed."""
    world.store.processes.start("research", id="failed-run")
    world.store.processes.complete("failed-run", Failed("no"))
    return "failed-run"


def a_due_run(world: World) -> Mapping[str, Any]:
    """Return arguments of a wait that ends at once."""
    world.store.processes.start("research", id="run-1")
    return {"timeout_ms": 0, "kinds": ["research"]}


RUNS = [
    Call(
        "processes.start",
        lambda _: {
            "kind": "research",
            "args": {},
            "id": "run-1",
            "version": "1",
            "due_at_ms": 1,
            "wake_target": holdfast.Scope("chat", "f"),
            "provenance": Provenance(BySession(holdfast.Scope("chat", "f")), {}),
            "recovery": "rerunnable",
        },
        "kind:id args:args id:id? version:id due_at_ms:whole? wake_target:record? wake_target.session_id:id "
        "wake_target.frame_id:frame? provenance:record? provenance.originator:record "
        "provenance.originator.scope.session_id:id provenance.caused_by:document? recovery:word?",
    ),
    Call("processes.retry", lambda w: {"process_id": a_failed_run(w)}, "process_id:id"),
    Call("processes.handle", always(process_id="run-1"), "process_id:id"),
    Call(
        "processes.claim_next",
        lambda _: {"owner_id": "w1", "kinds": ["research"], "ttl_ms": 1},
        f"owner_id:id {KINDS} ttl_ms:ttl",
    ),
    Call(
        "processes.claim_next",
        lambda _: {"owner_id": "w1", "kinds": [["research", "1"]], "ttl_ms": 1},
        "kinds[0][0]:id kinds[0][1]:id",
        variant=" of a version",
    ),
    Call(
        "processes.complete_and_claim_next",
        lambda w: {"lease": a_run(w), "outcome": Completed({}), "owner_id": "w1", "kinds": ["research"], "ttl_ms": 1},
        f"{HELD} outcome:record outcome.value:document owner_id:id {KINDS} ttl_ms:ttl",
    ),
    Call("processes.wait_next", a_due_run, f"timeout_ms:timeout {KINDS} eager:flag"),
    Call(
        "processes.suspend",
        lambda w: {
            "lease": a_run(w),
            "seen": 0,
            "due_at_ms": 1,
            "wait": SignalWait("go", 1, 1),
            "error": "no",
            "waits": [RunWait("signal", "go", 1)],
        },
        f"{HELD} seen:whole due_at_ms:whole? wait:record? wait.name:signal wait.ordinal:whole1 wait.since_ms:whole? "
        "waits:sequence waits[0]:record waits[0].kind:word waits[0].name:text? waits[0].until_ms:whole? "
        "error:text?",
    ),
    Call(
        "processes.retry_later",
        lambda w: {"lease": a_run(w), "error": "no", "retry_in_ms": 1},
        f"{HELD} error:text retry_in_ms:delay",
    ),
    Call(
        "processes.complete",
        lambda w: {"process_id": w.process, "outcome": Abandoned("m", {})},
        "outcome.message:message outcome.evidence:document?",
        variant=" as abandoned",
    ),
    Call(
        "events.append",
        lambda w: {"process_id": w.process, "type": "news", "lease": w.process_lease},
        f"lease:record? {parts('lease', LEASE)} lease.resource.process_id:id",
        variant=" under a lease",
    ),
]
