"""Explain why a session or a schedule is stuck. Facts in, causes out, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.limit_rows import LimitState
from holdfast.records.explanations import Cause, Explanation, Holder, Standing, Subject
from holdfast.records.schedules import Schedule
from holdfast.records.workers import WorkerInfo
from holdfast.rows import BatchRow, DeliveryRow, LeaseRow
from holdfast.rules import limits

ORDER: Final[tuple[Standing, ...]] = ("stuck", "works", "waits", "idle")
"""Standings by weight: the first that a cause has is that of the subject."""

SOON_MS: Final = 60_000
"""A claim of a dead worker that ends within this time needs no remedy: others take the work over.

A tick that has been due for longer is one that no worker fires.
"""


class Workers(msgspec.Struct, frozen=True):
    """The live workers, and the last report of each owner that holds something, dead or alive."""

    live: tuple[WorkerInfo, ...]
    holders: Mapping[str, WorkerInfo]

    def handle(self, kind: str) -> list[WorkerInfo]:
        """Return the live workers with a handler of this kind."""
        return [one for one in self.live if kind in one.kinds]


class Taken(msgspec.Struct, frozen=True):
    """The claim that holds a slot, by its first batch."""

    session_id: str
    batch: BatchRow


class SessionFacts(msgspec.Struct, frozen=True):
    """The facts about a session: its first unsettled `batches`, and the limits (`states`) of their kinds and keys.

    `taken` has for each limit that is reached the claim that ends first.
    """

    session_id: str
    now_ms: int
    paused: bool
    lease: LeaseRow | None
    batches: tuple[BatchRow, ...]
    has_more: bool
    dead: tuple[BatchRow, ...]
    states: Mapping[tuple[str, str | None], LimitState]
    taken: Mapping[tuple[str, str | None], Taken]
    undelivered: tuple[DeliveryRow, ...]
    processes: tuple[Explanation, ...]
    workers: Workers


# Sessions.


def explain_session(facts: SessionFacts) -> Explanation:
    """Return every cause that concerns a session."""
    causes = [*_queue(facts), *_dead(facts), *undelivered_processes(facts.undelivered), *_processes(facts)]
    if not causes:
        causes = [Cause("no-work", "idle", "nothing waits in its queue")]
    return explained("session", facts.session_id, causes, facts.now_ms)


def _queue(facts: SessionFacts) -> Iterator[Cause]:
    """Explain the queue: the claims that live there, and the first batch that no claim holds."""
    now_ms = facts.now_ms
    claimed = [row for row in facts.batches if row.is_claimed(now_ms)]
    first_of_claims = {row.claim_id: row for row in reversed(claimed)}
    for row in sorted(first_of_claims.values(), key=lambda one: one.enqueue_seq):
        yield _claimed(facts, row)
    free = [row for row in facts.batches if not row.is_claimed(now_ms)]
    lease = facts.lease if facts.lease is not None and facts.lease.is_live(now_ms) else None
    if lease is not None and (free or not any(one.claim_owner == lease.owner_id for one in claimed)):
        yield _session_lease(facts, lease, len(free))
    if facts.paused:
        yield Cause(
            "session-paused",
            "stuck" if free else "waits",
            "the session is paused: nothing in its queue is claimed",
            since_ms=free[0].enqueued_at_ms if free else None,
            remedy=("sessions", "resume", facts.session_id),
        )
    if free:
        causes = _unclaimed(facts, free, exclusively=[row for row in claimed if row.claim_exclusive])
        # No free worker may claim paused or leased work, and another cause reports that.
        is_shut = facts.paused or lease is not None
        yield from (cause for cause in causes if cause.name != "unclaimed" or not is_shut)


def _claimed(facts: SessionFacts, row: BatchRow) -> Cause:
    holder = holder_of(
        facts.workers, row.claim_owner or "", row.claimed_at_ms or 0, row.claim_expires_at_ms or 0, facts.now_ms
    )
    release = ("queue", "release", facts.session_id, row.batch_id)
    is_dead = holder.is_alive is False
    working = f"batch {row.batch_id!r} of kind {row.kind!r} is being worked on"
    over_s = None if is_dead else overdue_s(facts.workers, holder, row.batch_id, facts.now_ms)
    if over_s is not None:
        return overdue(holder, row.batch_id, over_s, row.attempts, row.last_error)
    return Cause(
        "claim-of-a-dead-worker" if is_dead else "claimed",
        until(holder.held_until_ms, facts.now_ms) if is_dead else "works",
        f"batch {row.batch_id!r} is claimed by a worker that has stopped reporting" if is_dead else working,
        subject_id=row.batch_id,
        since_ms=row.claimed_at_ms,
        attempt=row.attempts,
        error=row.last_error,
        holder=holder,
        next=f"{'' if is_dead else 'unless its owner renews it, '}another worker takes it over when the claim ends",
        next_at_ms=row.claim_expires_at_ms,
        remedy=() if holder.is_alive else release,
    )


def _session_lease(facts: SessionFacts, lease: LeaseRow, waiting: int) -> Cause:
    holder = holder_of(facts.workers, lease.owner_id or "", lease.claimed_at_ms, lease.expires_at_ms, facts.now_ms)
    dead = holder.is_alive is False
    return Cause(
        "session-lease-held",
        until(lease.expires_at_ms, facts.now_ms) if dead else "works",
        "the lease on the session keeps every other owner out"
        + (", and its holder has stopped reporting" if dead else "")
        + (f": {_batches(waiting, facts)}" if waiting else ""),
        since_ms=lease.claimed_at_ms,
        holder=holder,
        next="unless its holder renews it, others may claim when the lease ends",
        next_at_ms=lease.expires_at_ms,
        remedy=() if holder.is_alive else ("leases", "release", "--session", facts.session_id),
    )


def _unclaimed(facts: SessionFacts, free: Sequence[BatchRow], *, exclusively: Sequence[BatchRow]) -> Iterator[Cause]:
    """Explain the first free batch, and count those behind it."""
    now_ms = facts.now_ms
    first = free[0]
    behind = len(free) - 1
    if exclusively:
        yield Cause(
            "behind-an-exclusive-claim",
            "waits",
            f"{_batches(len(free), facts)} behind the exclusive claim on {exclusively[0].batch_id!r}",
            subject_id=first.batch_id,
            since_ms=first.enqueued_at_ms,
            next="it can be claimed when that claim is settled or ends",
            next_at_ms=exclusively[0].claim_expires_at_ms,
        )
        return
    yield _first(facts, first)
    if behind or facts.has_more:
        waits = _batches(behind, facts)
        yield Cause("behind-an-earlier-batch", "waits", f"{waits} behind batch {first.batch_id!r}", first.batch_id)
    # A shared claim passes a batch that waits for its time, an exclusive one does not.
    held_up = [row for row in free[1:] if row.ready_at_ms(now_ms) <= now_ms < first.ready_at_ms(now_ms)]
    if held_up:
        yield _waiting_for_worker(facts, held_up[0])


def _first(facts: SessionFacts, row: BatchRow) -> Cause:
    now_ms = facts.now_ms
    if row.retry_at_ms > now_ms:
        return Cause(
            "retrying",
            "waits",
            f"batch {row.batch_id!r} failed and waits for its next attempt",
            subject_id=row.batch_id,
            since_ms=row.enqueued_at_ms,
            attempt=row.attempts,
            error=row.last_error,
            next="it can be claimed again",
            next_at_ms=row.retry_at_ms,
        )
    if row.available_at_ms > now_ms:
        return Cause(
            "not-available-yet",
            "waits",
            f"batch {row.batch_id!r} is not available yet",
            subject_id=row.batch_id,
            since_ms=row.enqueued_at_ms,
            next="it can be claimed",
            next_at_ms=row.available_at_ms,
        )
    return _waiting_for_worker(facts, row)


def _waiting_for_worker(facts: SessionFacts, row: BatchRow) -> Cause:
    """Explain a batch that could be claimed now, as far as it alone decides."""
    state = facts.states.get((row.kind, row.limit_key))
    answer = limits.admission(state, row.limit_key)
    since_ms = max(row.enqueued_at_ms, row.available_at_ms, row.retry_at_ms)
    if state is not None and state.limit.paused:
        return Cause(
            "kind-paused",
            "stuck",
            f"kind {row.kind!r} is paused: nothing of it is claimed",
            row.batch_id,
            since_ms,
            remedy=("queue", "resume", row.kind),
        )
    if state is not None and answer in ("closed", "full"):
        return _limit_reached(facts, row, state, answer, since_ms)
    is_handled = bool(facts.workers.handle(row.kind))
    waiting = f"batch {row.batch_id!r} of kind {row.kind!r} waits for a free worker"
    return Cause(
        "unclaimed" if is_handled else "no-worker",
        "waits" if is_handled else "stuck",
        waiting if is_handled else no_worker(facts.workers, row.kind, f"batch {row.batch_id!r}"),
        row.batch_id,
        since_ms,
        attempt=row.attempts or None,
        error=row.last_error,
        next="the next free worker claims it" if is_handled else None,
    )


def _limit_reached(
    facts: SessionFacts, row: BatchRow, state: LimitState, answer: limits.Admission, since_ms: int
) -> Cause:
    """Explain a full limit, and name the claim that ends first: if its worker is dead, a release makes room."""
    most, of = (state.limit.at_once, "the kind") if answer == "closed" else (state.limit.per_key, "its key")
    problem = f"kind {row.kind!r} has a limit of {most} claims at once for {of}, and all live"
    taken = facts.taken.get((row.kind, row.limit_key))
    holder, is_dead = None, False
    remedy: tuple[str, ...] = ("queue", "limit", row.kind)
    if taken is not None:  # pragma: no branch - a damaged store may have a slot without its claim
        claim = taken.batch
        problem += f": the first ends on batch {claim.batch_id!r} of session {taken.session_id!r}"
        since_held_ms, until_ms = claim.claimed_at_ms or 0, claim.claim_expires_at_ms or 0
        holder = holder_of(facts.workers, claim.claim_owner or "", since_held_ms, until_ms, facts.now_ms)
        is_dead = holder.is_alive is False
        remedy = ("queue", "release", taken.session_id, claim.batch_id) if is_dead else remedy
    ends_ms = limits.admits_at_ms(state, answer)
    return Cause(
        "limit-reached",
        until(ends_ms or 0, facts.now_ms) if is_dead else "waits",
        problem,
        row.batch_id,
        since_ms,
        holder=holder,
        next="the next claim that is settled or ends makes room",
        next_at_ms=ends_ms,
        remedy=remedy,
    )


def no_worker(workers: Workers, kind: str, waiting: str = "it") -> str:
    """Report that no live worker handles a kind."""
    known = sorted({each for one in workers.live for each in one.kinds})
    others = f"the live ones handle {', '.join(known)}" if known else "no worker is alive"
    start = "Start one with `holdfast worker MODULE:NAME`"
    return f"{waiting} waits, and no live worker handles kind {kind!r}: {others}. {start}"


def _dead(facts: SessionFacts) -> Iterator[Cause]:
    for row in facts.dead:
        yield Cause(
            "dead-letter",
            "stuck",
            f"batch {row.batch_id!r} failed at its last attempt and is not tried again",
            subject_id=row.batch_id,
            since_ms=row.settled_at_ms,
            attempt=row.attempts,
            error=row.last_error,
            remedy=("queue", "retry", facts.session_id, row.batch_id),
        )


def undelivered_processes(rows: Iterable[DeliveryRow]) -> Iterator[Cause]:
    """Name the deliveries that have not started their processes."""
    for row in rows:
        has_failed = row.state == "failed"
        yield Cause(
            "delivery-failed" if has_failed else "undelivered",
            "stuck",
            f"a trigger fired, and process {row.process_id!r} {'could not be' if has_failed else 'was never'} started",
            subject_id=row.process_id,
            since_ms=row.reserved_at_ms,
            error=row.failure,
            next="a running worker starts it" if row.run_kind is not None and not has_failed else None,
            remedy=("triggers", "redeliver", row.process_id),
        )


def _processes(facts: SessionFacts) -> Iterator[Cause]:
    """Name the processes that the session started and that have not ended."""
    for one in facts.processes:
        cause = one.causes[0]
        yield msgspec.structs.replace(
            cause,
            name=f"process-{cause.name}",
            problem=f"process {one.id!r}, which it started: {cause.problem}",
            subject_id=one.id,
        )


def _batches(count: int, facts: SessionFacts) -> str:
    more = "at least " if facts.has_more else ""
    return f"{more}{count} {'batch waits' if count == 1 else 'batches wait'}"


# Schedules.


def explain_schedule(schedule: Schedule, workers: Workers, *, now_ms: int) -> Explanation:
    """Return every cause that concerns a schedule."""
    causes: list[Cause] = []
    next_at_ms = schedule.next_tick_ms
    if schedule.paused:
        problem, remedy = "it is paused: no tick fires", ("schedules", "resume", schedule.name)
        causes.append(Cause("schedule-paused", "stuck", problem, since_ms=schedule.updated_at_ms, remedy=remedy))
    elif next_at_ms is not None and next_at_ms <= now_ms and not workers.live:
        problem = "a tick is due, and no worker is alive to fire it. Start one with `holdfast worker MODULE:NAME`"
        causes.append(Cause("no-worker", "stuck", problem, since_ms=next_at_ms))
    elif next_at_ms is not None and next_at_ms < now_ms - SOON_MS:
        problem = "a tick is due, and no live worker has fired it: they hang, or run without `holdfast[schedules]`"
        causes.append(Cause("tick-overdue", "stuck", problem, since_ms=next_at_ms))
    else:
        causes.append(Cause("next-tick", "waits", "it waits for its next tick", next="it fires", next_at_ms=next_at_ms))
    if schedule.failure is not None:
        since_ms, remedy = schedule.last_tick_ms, ("schedules", "run", schedule.name)
        problem = "its last tick started nothing"
        causes.append(Cause("tick-failed", "stuck", problem, None, since_ms, error=schedule.failure, remedy=remedy))
    return explained("schedule", schedule.name, causes, now_ms)


# Both.


def explained(subject: Subject, id: str, causes: Sequence[Cause], now_ms: int) -> Explanation:
    """Return an explanation with the causes by weight."""
    ordered = tuple(sorted(causes, key=lambda cause: ORDER.index(cause.standing)))
    return Explanation(subject, id, ordered[0].standing, ordered, now_ms)


def until(ends_at_ms: int, now_ms: int) -> Standing:
    """Return the standing of work whose holder is dead, and whose claim ends then."""
    return "waits" if ends_at_ms - now_ms <= SOON_MS else "stuck"


def overdue_s(workers: Workers, holder: Holder, work_id: str, now_ms: int) -> int | None:
    """Return the seconds since which a handler is over its time limit, None if it is not."""
    reported = workers.holders.get(holder.owner_id)
    over_ms = None if reported is None else reported.overdue.get(work_id)
    return None if reported is None or over_ms is None else (over_ms + now_ms - reported.heartbeat_at_ms) // 1000


def overdue(holder: Holder, work_id: str, over_s: int, attempt: int | None, error: str | None) -> Cause:
    """Explain work whose handler is over its time limit."""
    return Cause(
        "over-its-time-limit",
        "stuck",
        f"its handler is over its time limit for {over_s} s, and cannot be stopped: "
        f"end process {holder.pid} on {holder.host}, and another worker takes it over",
        subject_id=work_id,
        since_ms=holder.held_since_ms,
        attempt=attempt,
        error=error,
        holder=holder,
        next="the attempt has failed once the handler returns",
    )


def holder_of(workers: Workers, owner_id: str, since_ms: int, until_ms: int, now_ms: int) -> Holder:
    """Return the holder of a claim or a lease, with its last report."""
    reported = workers.holders.get(owner_id)
    if reported is None:
        return Holder(owner_id, since_ms, until_ms)
    return Holder(
        owner_id,
        since_ms,
        until_ms,
        host=reported.host,
        pid=reported.pid,
        heartbeat_at_ms=reported.heartbeat_at_ms,
        is_alive=reported.expires_at_ms > now_ms,
    )
