"""The right calls that pools of workers make, and all calls of other files, with the kinds of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.testing.contract.hostile_calls import CLAIM, DRAFT, LEASE, PAGE, always
from holdfast.testing.contract.hostile_moves import MOVES
from holdfast.testing.contract.hostile_runs import RUNS
from holdfast.testing.contract.hostile_schedules import SCHEDULES
from holdfast.testing.contract.hostile_world import DAY_MS, Call, World, parts

NEXT = "owner_id:id kinds:sequence? kinds[0]:id ttl_ms:ttl max_batches:page exclusive:flag"


def asked(world: World, **more: Any) -> dict[str, Any]:
    """Return a worker's arguments with every field set, for a batch that waits."""
    return {"owner_id": "w1", "kinds": [world.batch.kind], "ttl_ms": 1, "max_batches": 1, "exclusive": False, **more}


def a_waiting_batch(world: World) -> Mapping[str, Any]:
    """Return arguments of a wait that ends at once."""
    return {"timeout_ms": 0, "kinds": [world.batch.kind], "exclusive": False}


def a_claim(world: World, session_id: str) -> holdfast.WorkClaim:
    """Claim the only batch of a session of its own."""
    world.store.queue.enqueue(holdfast.WorkDraft(session_id=session_id, payloads=[1]))
    claim = world.store.queue.claim(session_id, owner_id="w1")
    assert claim is not None
    return claim


def a_settled_batch(world: World) -> Mapping[str, Any]:
    """Return arguments of a wait for a settled batch."""
    claim = a_claim(world, "settled")
    world.store.queue.complete(claim)
    return {"session_id": "settled", "batch_id": claim.batches[0].batch_id, "timeout_ms": 0}


def a_claimed_batch(world: World) -> Mapping[str, Any]:
    """Return arguments that name a claimed batch."""
    batch = world.store.queue.enqueue(holdfast.WorkDraft(session_id="claimed", payloads=[1]))
    world.store.queue.claim("claimed", owner_id="w1")
    return {"session_id": "claimed", "batch_id": batch.batch_id}


def a_dead_batch(world: World) -> Mapping[str, Any]:
    """Return arguments that name a dead batch."""
    [dead] = world.store.queue.fail(a_claim(world, "dead"), "no", retry_in_ms=None)
    return {"session_id": "dead", "batch_id": dead.batch_id}


WORKER = holdfast.workers.WorkerInfo(
    "w1", host="here", pid=7, kinds=("turn",), running=("b1",), boot_id="b", pid_namespace="n", process_start="1"
)


JOBS = [
    *RUNS,
    *SCHEDULES,
    *MOVES,
    Call(
        "session.enqueue",
        always(
            payloads=[1],
            source_key="key",
            merge_key=holdfast.queue.Group("g"),
            delivery="earliest_safe_boundary",
            slot="join",
            available_at_ms=0,
            kind="turn",
            priority=0,
            key="ada",
        ),
        DRAFT.removeprefix("payloads:sequence "),
    ),
    Call(
        "workers.heartbeat",
        lambda w: {"worker": WORKER, "ttl_ms": DAY_MS, "claims": [w.claim], "leases": [w.lease]},
        "worker:record? worker.id:id worker.host:text worker.pid:whole worker.kinds:sequence worker.kinds[0]:id "
        "worker.running:sequence worker.running[0]:id worker.boot_id:text? worker.pid_namespace:text? "
        f"worker.process_start:text? ttl_ms:ttl claims:sequence leases:sequence {parts('claims[0]', CLAIM)} "
        f"{parts('leases[0]', ':record', LEASE)}",
    ),
    Call("workers.list", always(limit=1), PAGE),
    Call("workers.held_sessions", always(limit=1), PAGE),
    Call("workers.leave", always(worker_id="w1"), "worker_id:id"),
    Call("workers.renew", always(worker_id="nobody", ttl_ms=DAY_MS), "worker_id:id ttl_ms:ttl"),
    Call("workers.release", always(worker_id="nobody"), "worker_id:id"),
    Call("queue.claim_next", asked, NEXT),
    Call(
        "queue.wait_next", a_waiting_batch, "timeout_ms:timeout kinds:sequence? kinds[0]:id exclusive:flag eager:flag"
    ),
    Call("queue.complete", lambda w: {"claim": w.claim}, parts("claim", CLAIM)),
    Call("queue.complete_and_claim_next", lambda w: asked(w, claim=w.claim), f"{parts('claim', CLAIM)} {NEXT}"),
    Call(
        "queue.fail",
        lambda w: {"claim": w.claim, "error": "no", "retry_in_ms": 1, "max_attempts": 1},
        f"{parts('claim', CLAIM)} error:text retry_in_ms:delay? max_attempts:whole1?",
    ),
    Call(
        "queue.dead_letters",
        always(session_id="chat", kind="turn", limit=1),
        f"session_id:id? kind:id? {PAGE}",
    ),
    Call(
        "queue.set_limit",
        always(kind="mail", at_once=2, per_key=1, keep=True),
        "kind:id at_once:whole1? per_key:whole1? keep:flag",
    ),
    Call("queue.remove_limit", always(kind="mail"), "kind:id"),
    Call("queue.limits", always(limit=1), PAGE),
    Call("queue.depths", always(limit=1), PAGE),
    Call("queue.pause", always(kind="mail"), "kind:id"),
    Call("queue.resume", always(kind="mail"), "kind:id"),
    Call("queue.paused_sessions", always(limit=1), PAGE),
    Call("session.pause", always(), ""),
    Call("session.resume", always(), ""),
    Call("session.follow", always(after=0, timeout_ms=0), "after:place? timeout_ms:timeout?"),
    Call("session.interrupt", always(reason="stop"), "reason:text"),
    Call("queue.retry", a_dead_batch, "session_id:id batch_id:id"),
    Call("queue.drop", a_dead_batch, "session_id:id batch_id:id"),
    Call("queue.release", a_claimed_batch, "session_id:id batch_id:id"),
    Call("queue.wait_settled", a_settled_batch, "session_id:id batch_id:id timeout_ms:timeout"),
]
