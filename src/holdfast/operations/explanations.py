"""Read the facts that explain a session, a process or a schedule, in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.errors import UnknownProcess, UnknownSchedule
from holdfast.limit_rows import LimitState
from holdfast.operations import retrying, schedules, sessions
from holdfast.ports import Transaction
from holdfast.records.explanations import Explanation
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.workers import WorkerInfo
from holdfast.rows import BatchRow, DeliveryRow, ProcessFilter, ProcessRow
from holdfast.rules import explanations as rules
from holdfast.rules import limits as limit_rules
from holdfast.rules import process_explanations as process_causes
from holdfast.rules import processes as process_rules
from holdfast.rules import workers as worker_rules

FRONT = 50
"""Batches at the front of a queue that are read."""
NAMED = 10
"""Dead letters, undelivered processes and running processes that are named, of each."""
GENERATIONS = 2
"""Generations of children that the explanation of a run reads."""
WORKERS = 1_000
"""Live workers that are read at a time."""


async def explain_session(tx: Transaction, session_id: str, live: Sequence[WorkerInfo] | None = None) -> Explanation:
    """Explain a session, with the live workers if they are known. Raises UnknownSession or SessionDeleted."""
    session = await sessions.require(tx, (session_id, None))
    key = session.session_key
    batches = await tx.list_batches(key, pending_at_ms=None, after=0, limit=FRONT + 1)
    front = tuple(batches[:FRONT])
    obstacles = await tx.obstacles(key, "", tx.now_ms)
    lease = await tx.find_lease("session", str(key))
    dead = await tx.list_dead(key, None, after=0, limit=NAMED)
    running = await tx.list_processes(ProcessFilter(NAMED, status="running", originator_session_id=session_id))
    states = await _states(tx, front) if obstacles.any_limits else {}
    taken = await _taken(tx, states)
    owners = [row.claim_owner for row in (*front, *(one.batch for one in taken.values()))]
    owners.append(None if lease is None else lease.owner_id)
    live = await live_workers(tx) if live is None else live
    workers = await _workers(tx, live, owners)
    return rules.explain_session(
        rules.SessionFacts(
            session_id=session_id,
            now_ms=tx.now_ms,
            paused=obstacles.paused,
            lease=lease,
            batches=front,
            has_more=len(batches) > FRONT,
            dead=tuple(dead),
            states=states,
            taken=taken,
            undelivered=await _undelivered(tx, session_id),
            processes=tuple([await _explain_process(tx, row, live) for row in running]),
            workers=workers,
        )
    )


async def _states(tx: Transaction, front: Iterable[BatchRow]) -> dict[tuple[str, str | None], LimitState]:
    states: dict[tuple[str, str | None], LimitState] = {}
    for kind, limit_key in dict.fromkeys((row.kind, row.limit_key) for row in front):
        state = await tx.limit_state(kind, limit_key or "", tx.now_ms)
        if state is not None:
            states[kind, limit_key] = state
    return states


async def _taken(
    tx: Transaction, states: Mapping[tuple[str, str | None], LimitState]
) -> dict[tuple[str, str | None], rules.Taken]:
    """Return for each limit that is reached the claim that ends first."""
    found: dict[tuple[str, str | None], rules.Taken] = {}
    for (kind, limit_key), state in states.items():
        answer = limit_rules.admission(state, limit_key)
        if state.limit.paused or answer not in {"closed", "full"}:
            continue
        slot = await tx.first_slot(kind, limit_key if answer == "full" else None, tx.now_ms)
        rows = [] if slot is None else await tx.find_claimed(slot.session_key, slot.claim_id)
        ids = await tx.session_ids([rows[0].session_key]) if rows else {}
        if rows and rows[0].session_key in ids:  # pragma: no branch - verify names a slot without its claim
            found[kind, limit_key] = rules.Taken(ids[rows[0].session_key], rows[0])
    return found


async def _undelivered(tx: Transaction, session_id: str) -> tuple[DeliveryRow, ...]:
    """Return the first deliveries to the session's subscriptions that started nothing, failed ones first."""
    failed = await tx.list_failed_deliveries(session_id, after=None, limit=NAMED)
    reserved = await tx.list_undelivered(
        reserved_until_ms=LARGEST_INTEGER, runs_only=False, after=None, limit=NAMED, session_id=session_id
    )
    return (*failed, *reserved)


async def explain_process(tx: Transaction, process_id: str, live: Sequence[WorkerInfo] | None = None) -> Explanation:
    """Explain a process, or the delivery that has not started it. Raises UnknownProcess."""
    row = await tx.find_process(process_id)
    if row is not None:
        return await _explain_process(tx, row, await live_workers(tx) if live is None else live)
    delivery = await tx.find_process_delivery(process_id)
    if delivery is None or delivery.state == "started":  # a started process is gone because it was pruned
        raise UnknownProcess(process_id)
    facts = process_causes.ProcessFacts(process_id, tx.now_ms, None, None, delivery, rules.Workers((), {}))
    return process_causes.explain_process(facts)


async def _explain_process(
    tx: Transaction, row: ProcessRow, live: Sequence[WorkerInfo], generations: int = GENERATIONS
) -> Explanation:
    lease = await tx.find_lease("process", row.process_id)
    workers = await _workers(tx, live, [None if lease is None else lease.owner_id])
    process = process_rules.process_of(row)
    retry = await retrying.following(tx, process)
    retried_as = None if retry is None else retry.id
    limit = None if row.run_kind is None else await tx.find_limit(row.run_kind)
    is_paused = limit is not None and limit.paused > 0
    states = [] if limit is None or limit.at_once is None else await tx.run_limits([limit.kind], tx.now_ms)
    full = next((state for state in states if limit_rules.full_kinds([state])[0]), None)
    children: dict[str, Explanation] = {}
    for id in process_causes.children_of(process) if generations else ():
        child = await tx.find_process(id)
        if child is not None and child.status == "running":  # the end of a child wakes its parent
            children[id] = await _explain_process(tx, child, live, generations - 1)
    facts = process_causes.ProcessFacts(
        row.process_id, tx.now_ms, process, lease, None, workers, retried_as, is_paused, full, children
    )
    return process_causes.explain_process(facts)


async def explain_schedule(tx: Transaction, name: str) -> Explanation:
    """Explain a schedule. Raises UnknownSchedule."""
    schedule = await schedules.get(tx, name)
    if schedule is None:
        raise UnknownSchedule(name)
    return rules.explain_schedule(schedule, await _workers(tx, await live_workers(tx), ()), now_ms=tx.now_ms)


async def live_workers(tx: Transaction) -> list[WorkerInfo]:
    """Return every worker that is alive."""
    live: list[WorkerInfo] = []
    while rows := await tx.list_workers(tx.now_ms, after=live[-1].id if live else "", limit=WORKERS):
        live += map(worker_rules.worker_of, rows)
        if len(rows) < WORKERS:
            break
    return live


async def _workers(tx: Transaction, live: Sequence[WorkerInfo], owners: Iterable[str | None]) -> rules.Workers:
    """Return the live workers with the last report of each owner, which may be dead, or beyond those listed."""
    holders: dict[str, WorkerInfo] = {one.id: one for one in live}
    for owner in dict.fromkeys(owners):
        if owner is not None and owner not in holders:
            found = await tx.find_worker(owner)
            if found is not None:
                holders[owner] = worker_rules.worker_of(found)
    return rules.Workers(tuple(live), holders)
