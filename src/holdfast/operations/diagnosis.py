"""Read the facts for a diagnosis. Changes nothing; damage is returned and never raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from holdfast.errors import NotFound, SessionDeleted
from holdfast.operations import workers
from holdfast.ports import Transaction
from holdfast.records.diagnosis import StoreFacts, StuckItems
from holdfast.records.explanations import Explanation
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.workers import WorkerInfo
from holdfast.rules import diagnosis as rules

NAMED = 5
"""Items of each kind that a diagnosis names."""


async def facts(tx: Transaction) -> StoreFacts:
    """Return the database's facts about itself, and counts of expired leases, undelivered deliveries and ready work."""
    return await tx.facts(tx.now_ms)


async def stuck(tx: Transaction) -> StuckItems:
    """Return the ids of the first items that wait."""
    dead_workers, sessions, runs = await _held_by_dead(tx)
    letters = await tx.list_dead(None, None, after=0, limit=NAMED)
    undelivered = await tx.list_undelivered(reserved_until_ms=LARGEST_INTEGER, runs_only=False, after=None, limit=NAMED)
    failed = await tx.list_failed_deliveries(None, after=None, limit=NAMED)
    from holdfast.operations.explanations import live_workers  # only a diagnosis needs it

    due = await tx.oldest_due_run(tx.now_ms)
    live = await live_workers(tx)
    ready = await _ready_sessions(tx, live)
    return StuckItems(
        expired_leases=await _expired_leases(tx, live),
        ready_sessions=tuple((why.id, why.causes[0].name) for why, _ in ready),
        stuck_since_ms=next((since_ms for why, since_ms in ready if not why.ok), None),
        undelivered=tuple(row.process_id for row in undelivered),
        failed_deliveries=tuple(row.process_id for row in failed),
        failed_schedules=tuple(await tx.failed_schedules(NAMED)),
        dead_letters=await _sessions(tx, (row.session_key for row in letters)),
        claimed_by_dead=await _sessions(tx, sessions),
        run_by_dead=tuple(runs[:NAMED]),
        dead_workers=tuple(dead_workers),
        due_run=None if due is None else due[0],
        due_run_at_ms=None if due is None else due[1],
        due_run_cause=None if due is None else await _cause_of_run(tx, *due, live),
    )


async def _cause_of_run(tx: Transaction, process_id: str, due_at_ms: int, live: Sequence[WorkerInfo]) -> str | None:
    """Return the first cause for which a run is not claimed, None if it has been due for a moment only."""
    from holdfast.operations.explanations import explain_process  # only a diagnosis needs it

    if due_at_ms >= tx.now_ms - rules.STUCK_GRACE_MS:
        return None
    return (await explain_process(tx, process_id, live)).causes[0].name


async def _ready_sessions(tx: Transaction, live: Sequence[WorkerInfo]) -> list[tuple[Explanation, int]]:
    """Explain the sessions whose work has waited longest, each with the time since which it waits."""
    from holdfast.operations.explanations import explain_session  # only a diagnosis needs it

    until_ms = tx.now_ms - rules.STUCK_GRACE_MS
    explained: list[tuple[Explanation, int]] = []
    for id, since_ms in await tx.oldest_ready(tx.now_ms, NAMED):
        if since_ms < until_ms:
            with contextlib.suppress(NotFound, SessionDeleted):  # verify names work without its session
                explained.append((await explain_session(tx, id, live), since_ms))
    return explained


async def _expired_leases(tx: Transaction, live: Sequence[WorkerInfo]) -> tuple[tuple[str, str], ...]:
    """Return the owners of the oldest expired leases, sessions and processes, each with its most serious cause."""
    from holdfast.operations.explanations import explain_process, explain_session  # only a diagnosis needs them

    found = await tx.expired_leases(tx.now_ms, NAMED)
    keys = [int(resource) for kind, resource in found if kind == "session" and resource.isdecimal()]
    ids = await tx.session_ids(keys) if keys else {}
    explained: list[tuple[str, str]] = []
    for kind, resource in found:
        id = ids.get(int(resource), "") if kind == "session" and resource.isdecimal() else resource
        with contextlib.suppress(NotFound):  # verify names a lease without its owner
            why = await (explain_session if kind == "session" else explain_process)(tx, id, live)
            explained.append((id, why.causes[0].name))
    return tuple(explained)


async def _held_by_dead(tx: Transaction) -> tuple[list[str], list[int], list[str]]:
    """Return the dead workers that hold something, and sessions and runs that the first of them hold."""
    dead = [worker_id async for worker_id in workers.dead_holders(tx)]
    sessions: list[int] = []
    runs: list[str] = []
    for worker_id in dead[:NAMED]:
        sessions += [session_key for session_key, _ in await tx.claims_of_owner(worker_id, tx.now_ms, NAMED)]
        leased = await tx.leases_of_owner("session", worker_id, tx.now_ms, NAMED)
        sessions += [int(key) for key in leased if key.isdecimal()]
        runs += await tx.leases_of_owner("process", worker_id, tx.now_ms, NAMED)
    return dead, sessions, runs


async def _sessions(tx: Transaction, keys: Iterable[int]) -> tuple[str, ...]:
    distinct = list(dict.fromkeys(keys))[:NAMED]
    found = await tx.session_ids(distinct) if distinct else {}
    return tuple(found[key] for key in distinct if key in found)


async def structures(tx: Transaction) -> list[str]:
    """Return the problems that the database finds in its own pages and indexes."""
    return await tx.check_structures()
