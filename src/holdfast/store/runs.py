"""Runs: start, claim, suspend and give back processes that workers run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec

from holdfast.errors import Corrupt, InvalidRequest
from holdfast.operations import processes as operations
from holdfast.operations import retrying, runs
from holdfast.operations.runs import NextRequest
from holdfast.operations.topics import ANY_RUN, ENDED_CLAIM
from holdfast.ports import Transaction
from holdfast.records.common import Document, Scope
from holdfast.records.leases import Lease
from holdfast.records.processes import (
    Process,
    ProcessOutcome,
    Provenance,
    Recovery,
    Run,
    RunClaim,
    RunWait,
    SignalWait,
)
from holdfast.rules import checks, leases
from holdfast.rules import events as event_rules
from holdfast.rules import processes as rules
from holdfast.rules import runs as run_rules
from holdfast.store.context import FacetBase
from holdfast.store.events import judged
from holdfast.store.run_handle import RunHandle

CLAIM_TTL_MS = 30_000


class RunProcesses(FacetBase):
    """The part of `store.processes` that is about runs."""

    async def start(
        self,
        kind: str,
        args: Document = None,
        *,
        id: str | None = None,
        version: str = "1",
        due_at_ms: int | None = None,
        wake_target: Scope | None = None,
        provenance: Provenance | None = None,
        recovery: Recovery | None = None,
    ) -> RunHandle:
        """Start a run: a process that a worker claims and runs, from `due_at_ms` on or at once.

        The same id again returns the run as it stands, with `created` False; another kind, version or args under that
        id is a `RegistrationConflict`. On PostgreSQL `created` is also False if the answer to the first try of this
        call was lost, and the run found by its second. The end of the run wakes `wake_target`.

        >>> started = store.processes.start("research", {"question": "why?"}, id="run-1")
        >>> started.created, store.processes.start("research", {"question": "why?"}, id="run-1").created
        (True, False)
        """
        check = partial(
            rules.check_start,
            process_id=f"run:{self._context.mint()}" if id is None else id,
            wake_target=wake_target,
            provenance=Provenance() if provenance is None else provenance,
            recovery=recovery,
            limits=self._context.limits,
        )
        try:
            registered, heavy = await self._context.prepared(check, Run(kind, version, args))
        except InvalidRequest:
            from holdfast import typed_values

            documents = typed_values.documents_of(args)
            if documents is None:
                raise
            registered, heavy = await self._context.prepared(check, Run(kind, version, documents))
        due = checks.optional_whole("due_at_ms", due_at_ms)
        receipt = await self._context.backend.write(
            lambda tx: operations.start(tx, registered, due), idempotent=True, heavy=heavy
        )
        # No other call has a new id: if the run was found, an earlier try of this call made it, whose answer was lost.
        run = self.handle(registered.id)
        run.receipt = msgspec.structs.replace(receipt, created=True) if id is None else receipt
        return run

    async def retry(self, process_id: str) -> RunHandle:
        """Retry a run that ended without a result: start a new run that begins with its recorded steps.

        The ended run stays as it is, and `process.retries` of the new one names it. Results of steps and signals are
        copied; failed attempts are not, so that failed steps run again, with the same `run.key`. Runs below it that
        failed or were cancelled are retried with it. Idempotent: a repeat returns the same run, with `created` False.
        `NotRetryable` if the run has not ended or has a result.

        >>> _ = store.processes.start("research", id="run-1")
        >>> _ = store.processes.complete("run-1", holdfast.processes.Failed("no answer"))
        >>> retried = store.processes.retry("run-1")
        >>> retried.id, retried.process.retries, store.processes.retry("run-1").created
        ('run-1~2', 'run-1', False)
        """
        checked, limits = self._context.identifier("process_id", process_id), self._context.limits
        receipt = await self._context.backend.write(
            lambda tx: retrying.retry(tx, checked, limits), idempotent=True, heavy=True
        )
        run = self.handle(receipt.process.id)
        run.receipt = receipt
        if receipt.created:
            reason = "run %(process_id)s was retried as %(retry)s"
            self._context.log_remedy(reason, process_id=checked, retry=run.id)
        return run

    def handle(self, process_id: str) -> RunHandle:
        """Return a handle on a run, existing or not. Reads nothing.

        >>> _ = store.processes.start("research", id="run-1")
        >>> _ = store.processes.complete("run-1", holdfast.processes.Completed(42))
        >>> store.processes.handle("run-1").result()
        42
        """
        checked = self._context.identifier("process_id", process_id)
        return RunHandle(self._context, cast("Any", self), checked)

    def _next_request(self, owner_id: object, kinds: object, ttl_ms: object) -> NextRequest:
        limits = self._context.limits
        return NextRequest(
            owner_id=checks.identifier("owner_id", owner_id, limits),
            kinds=run_rules.check_kinds(kinds, limits),
            ttl_ms=self._context.ttl_ms(ttl_ms),
            token=self._context.token(),
        )

    async def claim_next(
        self,
        *,
        owner_id: str,
        kinds: Sequence[str | tuple[str, str]] | None = None,
        ttl_ms: int = CLAIM_TTL_MS,
    ) -> RunClaim | None:
        """Claim the run that has been due longest: take its lease and count the attempt. None if none can be claimed.

        A kind is a name, for all its versions, or a name and one version. A run under a live lease is not claimed, nor
        is one of a paused kind (`queue.pause`), and an `external` one never. None is certain: nothing could be claimed
        when the last lock was taken. `Corrupt` names a damaged run, which does not come again for `ttl_ms`: call
        again for the others.

        If an earlier holder's lease expired, `claim.takeover` is True. An `owner_bound` run of such a holder must not
        be run: `claim.must_abandon` says so. End it with `complete` and `Abandoned`.

        >>> _ = store.processes.start("research", id="run-1", version="2")
        >>> claim = store.processes.claim_next(owner_id="worker-1", kinds=["write", ("research", "2")])
        >>> claim.process.id, claim.process.attempt, claim.takeover
        ('run-1', 1, False)
        >>> store.processes.claim_next(owner_id="worker-1") is None
        True
        """
        return await self._claim_next(self._next_request(owner_id, kinds, ttl_ms))

    async def _claim_next(self, request: NextRequest) -> RunClaim | None:
        while True:
            # Each run waits for a lock that another transaction holds, so this loop does not spin.
            claim, is_busy = await self._context.backend.write(
                lambda tx: runs.claim_next(tx, request), single_write=True, idempotent=True
            )
            if isinstance(claim, Corrupt):
                raise claim
            if not is_busy:
                return claim

    async def complete_and_claim_next(
        self,
        lease: Lease,
        outcome: ProcessOutcome,
        *,
        owner_id: str,
        kinds: Sequence[str | tuple[str, str]] | None = None,
        ttl_ms: int = CLAIM_TTL_MS,
    ) -> tuple[Process, RunClaim | None]:
        """End the run of a lease as `complete` does, and claim the next one as `claim_next` does, in one transaction.

        >>> for name in ("run-1", "run-2"):
        ...     _ = store.processes.start("research", id=name)
        >>> claim = store.processes.claim_next(owner_id="worker-1")
        >>> ended, claim = store.processes.complete_and_claim_next(
        ...     claim.lease, holdfast.processes.Completed(42), owner_id="worker-1"
        ... )
        >>> ended.id, ended.status, claim.process.id
        ('run-1', 'completed', 'run-2')
        """
        limits = self._context.limits
        held = run_rules.check_lease("lease", lease, limits)
        process_id = leases.proof_of(held).process_id or ""
        intent, heavy = await self._context.prepared(event_rules.completion_event, process_id, outcome, limits)
        request = self._next_request(owner_id, kinds, ttl_ms)
        batch_id = self._context.batch_id()
        ended = await judged(
            self._context,
            intent,
            lambda judgement: partial(
                runs.complete_and_claim_next,
                intent=intent,
                judgement=judgement,
                lease=held,
                batch_id=batch_id,
                request=request,
            ),
            idempotent=True,
            heavy=heavy,
        )
        process = await self._context.computed(rules.process_of, ended.process)
        return process, await self._claim_next(request) if ended.is_busy else ended.claim

    async def wait_next(
        self, *, timeout_ms: int, kinds: Sequence[str | tuple[str, str]] | None = None, eager: bool = False
    ) -> None:
        """Return once `claim_next` with the same kinds would find a run; `WaitTimeout` if none comes in time.

        Does not poll. Notices runs that start, are woken or given back, and due times and leases when they come.

        With `eager`, it returns at the next change that may bring a run, without proving that it did: for a caller that
        claims at once, one trip less.

        >>> _ = store.processes.start("research")
        >>> store.processes.wait_next(kinds=["research"], timeout_ms=1000)
        """
        request = self._next_request("-", kinds, CLAIM_TTL_MS)
        at_change = True if checks.flag("eager", eager) else None

        async def offered(tx: Transaction) -> tuple[bool, int | None]:
            return await runs.is_offered(tx, request)

        topic = [ANY_RUN]

        async def check() -> tuple[bool | None, int | None]:
            seen = await self._context.backend.read(lambda tx: runs.outlook(tx, request))
            found, due_in_ms = seen.is_claimable, seen.due_in_ms
            if found:
                found, due_in_ms = await self._context.backend.write(lambda tx: runs.is_claimable(tx, request))
            if not found and seen.is_full and topic[0] != ENDED_CLAIM:
                # The end of a claim makes room. Look again, now that such ends are watched, too.
                topic[0] = ENDED_CLAIM
                return None, 1
            return (True if found else None), due_in_ms

        await self._context.wait_until(
            lambda: topic[0], check, timeout_ms, "a claimable run", offered=offered, at_change=at_change
        )

    async def suspend(
        self,
        lease: Lease,
        *,
        seen: int,
        due_at_ms: int | None = None,
        wait: SignalWait | None = None,
        waits: Sequence[RunWait] = (),
        error: str | None = None,
    ) -> Process:
        """Give a run's lease back and let it sleep until `due_at_ms` or until it gets a signal, whichever is first.

        `seen` is the sequence of the last event that the caller has read. If the log continues after it, the run is due
        at once, so that no signal is missed. A request to cancel wakes the run, too. The attempts count from 0 again.
        `LeaseLost` if the lease is no longer held. `waits` tells people what it waits for, if that is more than
        `due_at_ms` and `wait` say, and wakes nothing.

        With an `error` the run is held until `due_at_ms`: this worker cannot run it, and another may. Neither this
        attempt counts, nor do the attempts count from 0 again; `process.is_held` is True, and `last_error` says why.

        >>> _ = store.processes.start("research", id="run-1")
        >>> claim = store.processes.claim_next(owner_id="worker-1")
        >>> store.processes.suspend(
        ...     claim.lease, seen=0, wait=holdfast.processes.SignalWait("approve", ordinal=1)
        ... ).suspended
        True
        >>> store.processes.claim_next(owner_id="worker-1") is None
        True
        >>> _ = store.events.signal("run-1", "approve")
        >>> store.processes.claim_next(owner_id="worker-1").process.id
        'run-1'
        """
        limits = self._context.limits
        held = run_rules.check_lease("lease", lease, limits)
        asked = run_rules.Sleep(
            seen=checks.whole("seen", seen),
            due_at_ms=checks.optional_whole("due_at_ms", due_at_ms),
            wait=None if wait is None else rules.check_wait(wait, limits),
            waits=rules.check_waits("waits", waits, limits),
            error=checks.optional_text("error", error, limits),
        )
        run_rules.check_sleep(asked)
        return await self._context.backend.write(lambda tx: runs.suspend(tx, held, asked))

    async def retry_later(self, lease: Lease, error: str, *, retry_in_ms: int) -> Process:
        """Give a run's lease back after a failed attempt: it is due again in `retry_in_ms`, and keeps the error.

        `LeaseLost` if the lease is no longer held. To give a run back without a failure, use `leases.release`: that
        attempt does not count.

        >>> _ = store.processes.start("research", id="run-1")
        >>> claim = store.processes.claim_next(owner_id="worker-1")
        >>> run = store.processes.retry_later(claim.lease, "no answer", retry_in_ms=0)
        >>> run.attempt, run.last_error
        (1, 'no answer')
        """
        limits = self._context.limits
        held = run_rules.check_lease("lease", lease, limits)
        reason = checks.text("error", error, limits)
        delay_ms = checks.whole("retry_in_ms", retry_in_ms, most=limits.ttl_ms)
        return await self._context.backend.write(lambda tx: runs.retry_later(tx, held, reason, delay_ms))
