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
LOOKED_AT = 1_000
"""Sessions with ready work among which it chooses those that it names."""


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

    live = await live_workers(tx)
    ready = await _ready_sessions(tx, live)
    due = await _due_runs(tx, live)
    tick = await tx.first_due_schedule()
    return StuckItems(
        expired_leases=await _expired_leases(tx, live),
        ready_sessions=tuple((why.id, why.causes[0].name) for why, _ in ready),
        stuck_since_ms=_stuck_since_ms(ready),
        undelivered=tuple(row.process_id for row in undelivered),
        failed_deliveries=tuple(row.process_id for row in failed),
        failed_schedules=tuple(await tx.failed_schedules(NAMED)),
        dead_letters=await _sessions(tx, (row.session_key for row in letters)),
        claimed_by_dead=await _sessions(tx, sessions),
        run_by_dead=tuple(runs[:NAMED]),
        dead_workers=tuple(dead_workers),
        due_runs=tuple((why.id, why.causes[0].name) for why, _ in due),
        due_since_ms=next((since_ms for _, since_ms in due), None),
        stuck_run_since_ms=_stuck_since_ms(due),
        over_time_limit=await _over_time_limit(tx, live),
        due_schedule=None if tick is None else tick[0],
        due_schedule_at_ms=None if tick is None else tick[1],
    )


def _stuck_since_ms(explained: Iterable[tuple[Explanation, int]]) -> int | None:
    return next((since_ms for why, since_ms in explained if not why.ok), None)


async def _due_runs(tx: Transaction, live: Sequence[WorkerInfo]) -> list[tuple[Explanation, int]]:
    """Explain the oldest due run of each kind and version, each with the time since which it is due."""
    from holdfast.operations.explanations import explain_process  # only a diagnosis needs it

    until_ms = tx.now_ms - rules.STUCK_GRACE_MS
    due = [one for one in await tx.oldest_due_runs(tx.now_ms, NAMED) if one[1] < until_ms]
    return [(await explain_process(tx, id, live), since_ms) for id, since_ms in due]


async def _over_time_limit(tx: Transaction, live: Iterable[WorkerInfo]) -> tuple[str, ...]:
    """Return the sessions and runs of which a live worker reports that their handler is over its time limit."""
    sessions: list[int] = []
    runs: list[str] = []
    for worker in [one for one in live if one.overdue][:NAMED]:
        held = await tx.claims_of_owner(worker.id, tx.now_ms, workers.HELD)
        sessions += [session_key for session_key, batch_id in held if batch_id in worker.overdue]
        leased = await tx.leases_of_owner("process", worker.id, tx.now_ms, workers.HELD)
        runs += [process_id for process_id in leased if process_id in worker.overdue]
    return (*await _sessions(tx, sessions), *runs[:NAMED])


async def _ready_sessions(tx: Transaction, live: Sequence[WorkerInfo]) -> list[tuple[Explanation, int]]:
    """Explain the sessions whose work has waited longest, of every kind, each with the time since which it waits."""
    from holdfast.operations.explanations import explain_session  # only a diagnosis needs it

    until_ms = tx.now_ms - rules.STUCK_GRACE_MS
    explained: list[tuple[Explanation, int]] = []
    old = [one for one in await tx.oldest_ready(tx.now_ms, LOOKED_AT) if one.since_ms < until_ms]
    for one in rules.of_every_kind(old, NAMED):
        with contextlib.suppress(NotFound, SessionDeleted):  # verify names work without its session
            explained.append((await explain_session(tx, one.session_id, live), one.since_ms))
    return explained


async def _expired_leases(tx: Transaction, live: Sequence[WorkerInfo]) -> tuple[tuple[str, str], ...]:
    """Return the processes of the oldest expired leases, each with its most serious cause.

    An expired lease on a session holds nothing up: work that waits there is found by its age.
    """
    from holdfast.operations.explanations import explain_process  # only a diagnosis needs it

    explained: list[tuple[str, str]] = []
    for id in await tx.expired_leases(tx.now_ms, NAMED):
        with contextlib.suppress(NotFound):  # verify names a lease without its process
            explained.append((id, (await explain_process(tx, id, live)).causes[0].name))
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
