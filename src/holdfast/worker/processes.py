"""Runs claimed runs: a result completes one, an error is tried again, a sleep suspends it, a request to cancel ends it.

The lease of the run fences everything that its handler records. A run that must not be repeated ends as abandoned.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import holdfast
from holdfast import typed_values
from holdfast.log import WARNING, log_event
from holdfast.spilling import spill
from holdfast.worker import running
from holdfast.worker.blocking_run import BlockingRun
from holdfast.worker.claiming import LOOK_AGAIN_MS, Claimed
from holdfast.worker.continuing import cancel_newest, continued
from holdfast.worker.driving import OnLoop
from holdfast.worker.handlers import Registered, arguments_of
from holdfast.worker.journal import CANCEL_REQUESTED, Journal
from holdfast.worker.keeper import Held
from holdfast.worker.retries import GiveUp
from holdfast.worker.run import CHILD_ENDED, IN_MEMORY_MS, STARTED, InThread, Run
from holdfast.worker.run_errors import Continued, Suspended
from holdfast.worker.running import Runner, described
from holdfast.worker.tally import Failure

WATCH_AFTER_S = 0.2
"""A call that is shorter than this is not watched for requests to cancel."""
OUTSIDE = "external"
"""The signal that a run waits for whose work goes on outside. The outside ends the run instead."""


class Runs:
    """Runs of some kinds whose leases are equally long."""

    def __init__(
        self,
        runner: Runner,
        kinds: list[str | tuple[str, str]],
        lease_ms: int,
        *,
        in_memory_ms: int = IN_MEMORY_MS,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self._in_memory_ms = in_memory_ms
        self._in_thread = in_thread
        self._runner = runner
        self._kinds = kinds
        self._lease_ms = lease_ms
        self._store = runner.store

    # Claiming.

    async def wait(self) -> None:
        """Wait for a run that can be claimed."""
        await self._store.processes.wait_next(timeout_ms=LOOK_AGAIN_MS, kinds=self._kinds)

    async def claim(self) -> Claimed[holdfast.processes.RunClaim] | None:
        """Claim the run that has been due longest."""
        sent_s = time.monotonic()
        asking = self._store.processes.claim_next(
            owner_id=self._runner.owner_id, kinds=self._kinds, ttl_ms=self._lease_ms
        )
        claim = await self._runner.uncut(asking, self._give_back)
        return None if claim is None else (claim, sent_s)

    async def _give_back(self, claim: holdfast.processes.RunClaim | None) -> None:
        if claim is None:
            return
        try:
            await self._store.leases.release(claim.lease)
        except holdfast.HoldfastError as error:
            log_event("worker", WARNING, "a run was not given back (%(error_class)s)", error_class=type(error).__name__)

    # Running.

    async def run(
        self,
        claimed: Claimed[holdfast.processes.RunClaim],
        *,
        goes_on: Callable[[], bool],  # noqa: ARG002 - the next run is claimed on its own
    ) -> None:
        """Run one claim until the run ends, sleeps, or is given back."""
        claim, sent_s = claimed
        runner = self._runner
        journal = Journal(self._store, claim)
        run = Run(claim, self._store, journal, runner.persist)
        run.in_memory_ms, run.in_thread = self._in_memory_ms, self._in_thread
        handler = runner.handlers.of_run(run.kind, run.version)
        with runner.holding(claim.lease, self._lease_ms, sent_s) as held:
            try:
                await runner.persist("a run is not loaded", journal.load)
                outcome = await self._outcome(handler, run, journal)
                held.is_settling = True
                await self._settle(run, journal, outcome)
            except Suspended as asleep:
                await self._guarded(handler, held, self._suspend(claim, journal, asleep))
            except Continued as over:
                await self._guarded(handler, held, self._continue(handler, run, journal, over))
            except asyncio.CancelledError as error:
                if held.is_lost:
                    runner.forgive(held, handler.name)
                elif runner.caller.is_cancelling:
                    await self._give_back(claim)
                    raise
                elif journal.cancel is not None:
                    _uncancel()
                    await self._guarded(handler, held, self._settle(run, journal, cancelled(journal, None)))
                else:
                    await self._guarded(handler, held, self._fail(handler, run, error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                await self._guarded(handler, held, self._after(handler, run, journal, error))

    async def _after(self, handler: Registered, run: Run, journal: Journal, error: BaseException) -> None:
        """Settle a run whose handler raised an error."""
        if _is_of(error, run.id):
            raise error
        if journal.cancel is not None:
            await self._settle(run, journal, cancelled(journal, error))
        else:
            await self._fail(handler, run, error)

    async def _guarded(self, handler: Registered, held: Held, settling: Any) -> None:
        """Settle a run. The loss of its lease meanwhile, or an end by others, is counted and not raised."""
        held.is_settling = True
        try:
            await settling
        except asyncio.CancelledError:
            if not held.is_lost:
                raise
            self._runner.forgive(held, handler.name)
        except (holdfast.LeaseLost, holdfast.AlreadyTerminal, holdfast.errors.ReplayConflict):
            self._runner.count_lost(held, handler.name)
        except holdfast.HoldfastError as error:
            log_event("worker", WARNING, "a run was not settled (%(error_class)s)", error_class=type(error).__name__)

    async def _outcome(self, handler: Registered, run: Run, journal: Journal) -> holdfast.processes.ProcessOutcome:
        """Return the way in which a run ends now. Raises `Suspended` if it goes on later."""
        process = run.claim.process
        if journal.cancel is not None:
            return cancelled(journal, None)
        is_outside = handler.recovery == "external" and process.external_ref is not None
        if is_outside:
            raise Suspended(None, holdfast.processes.SignalWait(OUTSIDE, ordinal=1))
        if run.claim.must_abandon or (run.claim.takeover and handler.recovery != "rerunnable"):
            return abandoned(run, journal, self._runner.owner_id)
        if run.attempt > handler.retry.attempts:
            raise GiveUp(f"no worker survived its {handler.retry.attempts} attempts")
        try:
            value = await self._call(handler, run, journal)
        except Continued:
            run.steps.require_all_asked()
            raise
        run.steps.require_all_asked()
        if handler.recovery == "external" and value is None:
            raise Suspended(None, holdfast.processes.SignalWait(OUTSIDE, ordinal=1))
        return holdfast.processes.Completed(typed_values.plain(value))

    async def _call(self, handler: Registered, run: Run, journal: Journal) -> Any:
        task = asyncio.current_task()
        assert task is not None
        loop = self._runner.caller.loop
        given = run if handler.is_async else BlockingRun(run, OnLoop(loop))
        args, named = arguments_of(handler, given, run.args)
        watching = asyncio.create_task(self._watch(run, journal, task))
        try:
            value = await self._runner.caller.call(handler, args, run, named)
        finally:
            watching.cancel()
        await asyncio.sleep(0)  # a cancel that came just before the end is raised here, and not in the settlement
        return value

    async def _watch(self, run: Run, journal: Journal, task: asyncio.Task[Any]) -> None:
        """Cancel the call once the run is asked to cancel."""
        await asyncio.sleep(WATCH_AFTER_S)
        while journal.cancel is None:
            try:
                event = await self._store.events.wait_for(run.id, CANCEL_REQUESTED, timeout_ms=LOOK_AGAIN_MS)
            except holdfast.WaitTimeout:
                continue
            except holdfast.Unavailable:
                await asyncio.sleep(running.AWAY_S)
            else:
                journal.cancel = event.payload
        task.cancel()

    # Settling.

    async def _settle(self, run: Run, journal: Journal, outcome: holdfast.processes.ProcessOutcome) -> None:
        """End a run, and tell its parent in the same transaction."""
        await self._runner.persist("a run is not ended", lambda: self._end(run, outcome))
        if isinstance(outcome, holdfast.processes.Cancelled):
            for child_id in run.children or _children_in(journal):
                await self._cancel_child(child_id, outcome.message)
        if isinstance(outcome, holdfast.processes.Completed | holdfast.processes.Cancelled):
            self._runner.tally.done += 1

    async def _end(self, run: Run, outcome: holdfast.processes.ProcessOutcome) -> None:
        try:
            await self._complete(run, outcome)
        except holdfast.InvalidRequest as error:
            # Never lost after its effects: a result that is too large for an event is stored beside it.
            if (
                not isinstance(outcome, holdfast.processes.Completed)
                or error.limit != self._store.limits.document_bytes
            ):
                raise
            refs = await spill(self._store.artifacts, self._store.limits, run.claim.process, outcome.value)
            await self._complete(run, holdfast.processes.Completed(control={"spilled": refs}))

    async def _complete(self, run: Run, outcome: holdfast.processes.ProcessOutcome) -> None:
        parent = _parent_of(run.claim.process)
        if parent is None:
            await self._store.processes.complete(run.id, outcome, lease=run.claim.lease)
            return
        async with self._store.transaction() as tx:
            await tx.processes.complete(run.id, outcome, lease=run.claim.lease)
            with suppress(holdfast.AlreadyTerminal, holdfast.UnknownProcess):  # the parent does not wait any more
                await tx.events.signal(parent, CHILD_ENDED, run.id, replay_key=f"child:{run.id}")

    async def _cancel_child(self, child_id: str, reason: str) -> None:
        try:
            await cancel_newest(self._store, child_id, reason or "its parent was cancelled")
        except holdfast.HoldfastError as error:
            if not isinstance(error, holdfast.AlreadyTerminal | holdfast.UnknownProcess):
                log_event(
                    "worker", WARNING, "a child was not cancelled (%(error_class)s)", error_class=type(error).__name__
                )

    async def _continue(self, handler: Registered, run: Run, journal: Journal, over: Continued) -> None:
        """End a run and start the one that goes on for it, unless the run was asked to cancel meanwhile.

        A refusal, such as of arguments that cannot be stored, fails the attempt.
        """
        going_on = partial(continued, self._store, run, journal, over)
        try:
            has_ended = await self._runner.persist("a run is not continued", going_on)
        except holdfast.HoldfastError as error:
            if _is_of(error, run.id) or isinstance(error, holdfast.errors.ReplayConflict):
                raise
            await self._fail(handler, run, error)
            return
        if has_ended:
            self._runner.tally.done += 1
            return
        await self._runner.persist("a run is not loaded", journal.refresh)
        await self._settle(run, journal, cancelled(journal, None))

    async def _suspend(self, claim: holdfast.processes.RunClaim, journal: Journal, asleep: Suspended) -> None:
        await self._runner.persist(
            "a run is not suspended",
            lambda: self._store.processes.suspend(
                claim.lease, seen=journal.seen, due_at_ms=asleep.due_at_ms, wait=asleep.wait
            ),
        )

    async def _fail(self, handler: Registered, run: Run, error: BaseException) -> None:
        """Record a failed attempt. The run waits for its next one, or has failed."""
        delay_ms = handler.retry.delay_after(run.attempt, error, chance=random.random())  # noqa: S311 - spreads retries
        self._runner.tally.count(Failure("process", run.kind, run.id, None, run.attempt, error, delay_ms))
        said = described(error)
        if delay_ms is None:
            failed = holdfast.processes.Failed(said, code="handler_failed")
            await self._runner.persist("a failure is not recorded", lambda: self._end(run, failed))
        else:
            await self._runner.persist(
                "a failure is not recorded",
                lambda: self._store.processes.retry_later(run.claim.lease, said, retry_in_ms=delay_ms),
            )


def cancelled(journal: Journal, error: BaseException | None) -> holdfast.processes.Cancelled:
    """Return the outcome of a run that was cancelled on request."""
    raw = None if error is None else {"error": described(error)}
    return holdfast.processes.Cancelled(_text_in(journal.cancel, "reason") or "cancelled on request", raw=raw)


def abandoned(run: Run, journal: Journal, owner_id: str) -> holdfast.processes.Abandoned:
    """Return the outcome of a run whose holder was lost and that must not be run again, with the evidence."""
    lost = run.claim.process.lost_owner_id
    evidence = {
        "lost_owner_id": lost,
        "found_by": owner_id,
        "attempt": run.attempt,
        "last_sequence": journal.seen,
        "steps": sorted(journal.steps),
    }
    return holdfast.processes.Abandoned(
        f"its holder {lost!r} was lost, and the run must not be run again", evidence=evidence
    )


def _parent_of(process: holdfast.processes.Process) -> str | None:
    cause = process.provenance.caused_by
    return _text_in(cause, "process_id") if _text_in(cause, "type") == "run" else None


def _text_in(document: object, field: str) -> str | None:
    """Return a text in a document, None if it has none there."""
    value = cast("dict[str, object]", document).get(field) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


def _children_in(journal: Journal) -> list[str]:
    """Return the children that an earlier call of the handler started, if this one did not get that far."""
    return [str(step["value"]) for name, step in journal.steps.items() if name.startswith(STARTED)]


def _is_of(error: BaseException, process_id: str) -> bool:
    """Return whether an error says that this very run is lost or has ended."""
    if isinstance(error, holdfast.AlreadyTerminal):
        return error.process_id == process_id
    return isinstance(error, holdfast.LeaseLost) and error.resource == f"process {process_id!r}"


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
