"""The right calls that pools of workers make, with the kinds of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import holdfast
from holdfast.testing.contract.hostile_calls import CLAIM, PAGE, always
from holdfast.testing.contract.hostile_runs import RUNS
from holdfast.testing.contract.hostile_world import Call, World, parts

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


def a_dead_batch(world: World) -> Mapping[str, Any]:
    """Return arguments that name a dead batch."""
    [dead] = world.store.queue.fail(a_claim(world, "dead"), "no", retry_in_ms=None)
    return {"session_id": "dead", "batch_id": dead.batch_id}


JOBS = [
    *RUNS,
    Call("queue.claim_next", asked, NEXT),
    Call("queue.wait_next", a_waiting_batch, "timeout_ms:timeout kinds:sequence? kinds[0]:id exclusive:flag"),
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
    Call("queue.retry", a_dead_batch, "session_id:id batch_id:id"),
    Call("queue.drop", a_dead_batch, "session_id:id batch_id:id"),
    Call("queue.wait_settled", a_settled_batch, "session_id:id batch_id:id timeout_ms:timeout"),
]
