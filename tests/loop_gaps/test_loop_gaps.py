"""No call blocks the event loop: 50 ms at the most for calls up to 8 MiB, 150 ms at the limits, on every backend.

Every public call is measured here, or is named in `FEW_ROWS` because its arguments and its result are a few small rows.

Each call runs until it stays within its bound, twelve times at the most: other load can only lengthen a gap. The bound
grows with the time that a slow machine needs for a fixed piece of work. With
`HOLDFAST_WHOLE=1` every call is measured at both sizes on every backend; otherwise those that compute the most, at the
limits on PostgreSQL alone, where the driver's work is added. Memory adds nothing to the computation that SQLite needs.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.loop_gaps.calls import CALLS, LARGEST, SMALL, Size
from tests.loop_gaps.gaps import best_gap_ms, slowness
from tests.loop_gaps.many_rows import MANY_ROWS
from tests.loop_gaps.schemas import SCHEMAS
from tests.observing.test_operations import public_operations

import holdfast

TRIES = 12
WHOLE = bool(os.environ.get("HOLDFAST_WHOLE"))
# At the limits the driver's own copies come near the bound. The usual run, on shared cores, allows twice that.
BOUNDS_MS = {SMALL: 50.0, LARGEST: 150.0 if WHOLE else 300.0}
KINDS = ["memory", "sqlite", "postgres"]
USUAL = {
    SMALL: [
        "commit of large texts",
        "commit of many small values",
        "commit of 10,000 nodes",
        "commit of a changed large state",
        "commit that replaces a graph",
        "add_nodes",
        "load of a path",
        "load of documents",
        "load of a state",
        "queue.enqueue",
        "events.append",
        "events.after",
        "processes.register",
        "attachments.put",
        "maintenance.verify",
        "commit that finds 1,000 batches",
        "triggers.emit to 1,000 subscriptions",
        "processes.register with many patterns",
        "events.append of validated records",
    ],
    LARGEST: ["commit of 10,000 nodes", "commit of large bytes", "load of a path", "load of many nodes"],
}
IN_MEMORY = [
    "queue.sessions",
    "sessions.delete",
    "maintenance.vacuum",
    "maintenance.collect_garbage",
    "maintenance.verify of many nodes",
]
"""In memory, on every run and at the limits: an operation goes over whole tables, and only its budget stops it."""
MEASURED = CALLS | MANY_ROWS | SCHEMAS
FEW_ROWS = {
    "artifacts.delete",
    "events.ack_wake",
    "events.count",
    "events.request_cancel",
    "grants.grant",
    "grants.has",
    "grants.revoke",
    "leases.claim",
    "leases.holder",
    "leases.release",
    "leases.renew",
    "leases.revoke",
    "maintenance.explain_process",
    "maintenance.explain_schedule",
    "processes.clear_wait",
    "processes.retry_later",
    "processes.set_external_ref",
    "processes.set_wait",
    "processes.suspend",
    "processes.wait_next",
    "queue.pause",
    "queue.resume",
    "queue.wait",
    "queue.wait_next",
    "schedules.fire_next",
    "schedules.get",
    "schedules.pause",
    "schedules.put",
    "schedules.remove",
    "schedules.restore",
    "schedules.resume",
    "schedules.run_now",
    "schedules.wait_next",
    "session.attachments.entry",
    "session.attachments.forget",
    "session.attachments.record_intent",
    "session.pause",
    "session.resume",
    "session.set_labels",
    "sessions.open",
    "store.close",
    "store.open",
    "triggers.cancel",
    "triggers.redeliver",
    "triggers.wait_undelivered",
    "workers.leave",
}
LIKE = {
    "workers.renew": "workers.release of 1,000 claims",
    "artifacts.put_content": "artifacts.put",
    "attachments.list_uncommitted": "attachments.list",
    "events.wait_for": "events.after",
    "events.wakes": "events.after of one type",
    "grants.list_live": "grants.list",
    "grants.of_process": "grants.list",
    "processes.claim_next": "processes.get",
    "processes.complete_and_claim_next": "processes.complete",
    "processes.get": "processes.list",
    "processes.retry": "processes.restore",
    "processes.start": "processes.register",
    "maintenance.explain_session": "queue.list",
    "processes.wait": "processes.complete",
    "queue.cancel": "queue.claim",
    "queue.drop": "queue.claim",
    "queue.find": "queue.claim",
    "queue.get": "queue.claim",
    "queue.depths": "triggers.list",
    "queue.limits": "triggers.list",
    "queue.paused_sessions": "queue.sessions",
    "queue.release": "queue.claim",
    "queue.remove_limit": "queue.set_limit",
    "queue.restore": "queue.enqueue",
    "queue.retry": "queue.claim",
    "queue.wait_settled": "queue.claim",
    "triggers.failed": "triggers.undelivered",
    "schedules.list": "triggers.list",
    "session.attachments.commit_refs": "sessions.fork with attachments",
    "session.attachments.list_uncommitted": "attachments.list",
    "session.enqueue": "queue.enqueue",
    "session.interrupt": "queue.claim",
    "triggers.forget_session": "sessions.delete",
    "triggers.mark_failed": "triggers.deliveries",
    "triggers.mark_started": "triggers.deliveries",
    "triggers.record": "triggers.emit",
    "triggers.reserve": "triggers.emit to 1,000 subscriptions",
    "triggers.restore": "triggers.subscribe with many patterns",
    "triggers.restore_occurrence": "triggers.emit",
    "workers.list": "triggers.list",
    "workers.held_sessions": "triggers.list",
}
"""Calls that read or write the same rows as one that is measured."""


def url_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new store."""
    if kind == "postgres":
        url: str = request.getfixturevalue("clean_postgres_url")
        return url
    return "memory:" if kind == "memory" else str(folder / "gaps.db")


async def gap_of(url: str, name: str, size: Size, bound_ms: float) -> float:
    """Return the longest gap during a call: the best of several tries."""
    async with holdfast.open(url) as store:
        return await best_gap_ms(lambda: MEASURED[name](store, size), tries=TRIES, enough_ms=bound_ms)


def check_gap(kind: str, name: str, size: Size, folder: Path, request: pytest.FixtureRequest) -> None:
    """Fail if a call blocks the event loop for too long on one kind of store."""
    # In memory, with no driver that copies, there is no more to do on the loop at the limits than below them.
    bound_ms = BOUNDS_MS[SMALL if name in IN_MEMORY and kind == "memory" else size] * slowness()
    assert asyncio.run(gap_of(url_of(kind, folder, request), name, size, bound_ms)) <= bound_ms


@pytest.mark.parametrize(
    ("kind", "size", "name"),
    [
        pytest.param(kind, size, name, id=f"{kind}-{size.name} - {name}")
        for kind in KINDS
        for size, usual in USUAL.items()
        for name in (MEASURED if WHOLE else IN_MEMORY if kind == "memory" else usual)
        if WHOLE or kind == "postgres" or size is (LARGEST if kind == "memory" else SMALL)
    ],
)
def test_a_call_leaves_the_event_loop_to_others(
    kind: str, size: Size, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    check_gap(kind, name, size, tmp_path, request)


def test_every_public_call_is_measured_or_known_to_be_small() -> None:
    def is_measured(operation: str) -> bool:
        name = operation.removeprefix("session.")
        return any(one == name or one.startswith(f"{name} ") for one in MEASURED)

    operations = public_operations()
    found = {one for one in operations if is_measured(one)}
    assert operations - found - FEW_ROWS - set(LIKE) == set()
    assert {one for one in {*FEW_ROWS, *LIKE} if one not in operations or one in found} == set()
    assert {like for like in LIKE.values() if like not in MEASURED and like not in LIKE} == set()
