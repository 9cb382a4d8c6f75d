"""Read the facts for a diagnosis. Changes nothing; damage is returned and never raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from holdfast.errors import NotFound
from holdfast.ports import Transaction
from holdfast.records.diagnosis import StoreFacts, StuckItems
from holdfast.records.limits import LARGEST_INTEGER

NAMED = 5
"""Items of each kind that a diagnosis names."""
WORKERS = 1_000


async def facts(tx: Transaction) -> StoreFacts:
    """Return the database's facts about itself, and counts of expired leases, undelivered deliveries and ready work."""
    return await tx.facts(tx.now_ms)


async def stuck(tx: Transaction) -> StuckItems:
    """Return the ids of the first items that wait."""
    dead_workers, sessions, runs = await _held_by_dead(tx)
    letters = await tx.list_dead(None, None, after=0, limit=NAMED)
    undelivered = await tx.list_undelivered(reserved_until_ms=LARGEST_INTEGER, runs_only=False, after=None, limit=NAMED)
    failed = await tx.list_failed_deliveries(None, after=None, limit=NAMED)
    due = await tx.oldest_due_run(tx.now_ms)
    return StuckItems(
        expired_leases=await _expired_leases(tx),
        ready_sessions=tuple(id for _, id in await tx.sessions_with_ready(tx.now_ms, after=0, limit=NAMED)),
        undelivered=tuple(row.process_id for row in undelivered),
        failed_deliveries=tuple(row.process_id for row in failed),
        dead_letters=await _sessions(tx, (row.session_key for row in letters)),
        claimed_by_dead=await _sessions(tx, sessions),
        run_by_dead=tuple(runs[:NAMED]),
        dead_workers=tuple(dead_workers),
        due_run=None if due is None else due[0],
        due_run_at_ms=None if due is None else due[1],
    )


async def _expired_leases(tx: Transaction) -> tuple[tuple[str, str], ...]:
    """Return the owners of the oldest expired leases, sessions and processes, each with its most serious cause."""
    from holdfast.operations.explanations import explain_process, explain_session  # only a diagnosis needs them

    found = await tx.expired_leases(tx.now_ms, NAMED)
    keys = [int(resource) for kind, resource in found if kind == "session" and resource.isdecimal()]
    ids = await tx.session_ids(keys) if keys else {}
    explained: list[tuple[str, str]] = []
    for kind, resource in found:
        id = ids.get(int(resource), "") if kind == "session" and resource.isdecimal() else resource
        with contextlib.suppress(NotFound):  # verify names a lease without its owner
            why = await (explain_session if kind == "session" else explain_process)(tx, id)
            explained.append((id, why.causes[0].name))
    return tuple(explained)


async def _held_by_dead(tx: Transaction) -> tuple[list[str], list[int], list[str]]:
    """Return workers that have stopped reporting and still hold something, and the sessions and runs that they hold."""
    dead: list[str] = []
    sessions: list[int] = []
    runs: list[str] = []
    for worker in await tx.list_workers(0, after="", limit=WORKERS):
        if worker.expires_at_ms > tx.now_ms:
            continue
        claims = await tx.claims_of_owner(worker.worker_id, tx.now_ms, NAMED)
        held = await tx.leases_of_owner("session", worker.worker_id, tx.now_ms, NAMED)
        leases = await tx.leases_of_owner("process", worker.worker_id, tx.now_ms, NAMED)
        if claims or held or leases:
            dead.append(worker.worker_id)
            sessions += [*(session_key for session_key, _ in claims), *(int(key) for key in held if key.isdecimal())]
            runs += leases
    return dead, sessions, runs


async def _sessions(tx: Transaction, keys: Iterable[int]) -> tuple[str, ...]:
    distinct = list(dict.fromkeys(keys))[:NAMED]
    found = await tx.session_ids(distinct) if distinct else {}
    return tuple(found[key] for key in distinct if key in found)


async def structures(tx: Transaction) -> list[str]:
    """Return the problems that the database finds in its own pages and indexes."""
    return await tx.check_structures()
