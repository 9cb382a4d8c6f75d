"""Runs claimed runs: a result completes one, an error is tried again, a sleep suspends it, a request to cancel ends it.

The lease of the run fences everything that its handler records. A run that must not be repeated ends as abandoned.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import holdfast
from holdfast import typed_values
from holdfast.large_results import spill
from holdfast.log import WARNING, log_event
from holdfast.processes import must_abandon
from holdfast.records.processes import CHILD_ENDED
from holdfast.run_chains import parent_run
from holdfast.step_names import HANDED_OVER, HELD
from holdfast.worker import running
from holdfast.worker.blocking_calls import OnLoop
from holdfast.worker.blocking_run import BlockingRun
from holdfast.worker.claim_renewal import Held
from holdfast.worker.claiming import LOOK_AGAIN_MS, Claimed
from holdfast.worker.continuing import cancel_newest, continued, newest_id
from holdfast.worker.handlers import Registered, arguments_of
from holdfast.worker.journal import CANCEL_REQUESTED, Journal
from holdfast.worker.retries import SPARE_CALLS, hold_delay_ms, require_attempt
from holdfast.worker.run import IN_MEMORY_MS, InThread, Run
from holdfast.worker.run_errors import Continued, StepConflict, Suspended
from holdfast.worker.running import Runner, described
from holdfast.worker.step_calls import checked_result
from holdfast.worker.step_facts import hash_of
from holdfast.worker.successors import successor_of
from holdfast.worker.tally import Failure

MOST_WAITS = 100
"""Waits of a sleeping run that are stored for people."""
WATCH_AFTER_S = 0.2
"""A call that is shorter than this is not watched for requests to cancel."""
OUTSIDE = "external"
"""The signal that a run waits for whose work continues outside. The outside ends the run instead."""


class Runs:
    """Runs of some kinds whose leases are equally long."""

    def __init__(
        self,
        runner: Runner,
        kinds: list[str | tuple[str, str]],
        lease_ms: int,
        *,
        in_memory_ms: int = IN_MEMORY_MS,
        in_thread: Callable[[list[asyncio.Future[Any]]], InThread],
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
        await self._store.processes.wait_next(timeout_ms=LOOK_AGAIN_MS, kinds=self._kinds, eager=True)

    async def claim(self) -> Claimed[holdfast.processes.RunClaim] | None:
        """Claim the run that has been due longest."""
        asking = self._store.processes.claim_next(
            owner_id=self._runner.owner_id, kinds=self._kinds, ttl_ms=self._lease_ms
        )
        _, claimed = await self._runner.claimed(asking, lambda claim: claim, self._lease_ms, self._give_back)
        return claimed

    async def _give_back(self, claim: holdfast.processes.RunClaim | None) -> None:
        if claim is None or self._must_expire(claim):
            return
        await self._runner.give_back(lambda: self._store.leases.release(claim.lease))

    def _must_expire(self, claim: holdfast.processes.RunClaim) -> bool:
        """Return whether a claim must not be released: that would hide that a run which runs once lost its holder."""
        asked = cast("holdfast.processes.Run", claim.process.input)
        handler = self._runner.handlers.of_run(asked.kind, asked.version)
        return must_abandon(claim.process.lost_owner_id, handler.recovery)

    # Running.

    async def run(
        self, claimed: Claimed[holdfast.processes.RunClaim], *, may_claim_next: Callable[[], bool]
    ) -> Claimed[holdfast.processes.RunClaim] | None:
        """Run one claim until the run ends, sleeps, or is given back. Return the one that was claimed with its end."""
        claim, asked = claimed
        runner = self._runner
        journal = Journal(self._store, claim)
        run = Run(claim, self._store, journal, runner.persist)
        run.in_memory_ms, run.in_thread = self._in_memory_ms, self._in_thread(run.left_calls)
        run.check_start = runner.handlers.check_start
        handler = runner.handlers.of_run(run.kind, run.version)
        with runner.holding(claim.lease, self._lease_ms, asked) as held:
            held.may_run_again = not self._must_expire(claim)
            run.steps.may_be_lost = partial(runner.may_be_lost, held)
            run.steps.was_given_up = partial(runner.has_given_up, held)
            try:
                await runner.persist("cannot load a run", journal.load)
                outcome = await self._outcome(handler, run, journal, held)
                held.is_settling = True
                if may_claim_next() and isinstance(outcome, holdfast.processes.Completed):
                    return await self._settle_and_claim(run, outcome)
                await self._settle(run, outcome)
            except Suspended as asleep:
                await self._guarded(handler, held, self._suspend(claim, journal, asleep))
            except Continued as over:
                await self._guarded(handler, held, self._continue(handler, run, journal, over))
            except asyncio.CancelledError as error:
                if held.is_lost:
                    runner.continue_after_loss(held, handler.name)
                elif runner.caller.is_cancelling:
                    await self._interrupted(run, journal, held)
                    raise
                elif journal.cancel is not None:
                    _uncancel()
                    await self._guarded(handler, held, self._settle(run, cancelled(journal, None)))
                else:
                    await self._guarded(handler, held, self._fail(handler, run, error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                await self._guarded(handler, held, self._after(handler, run, journal, error))
        return None

    async def _interrupted(self, run: Run, journal: Journal, held: Held) -> None:
        """Give a run back at a shutdown. One whose handler was called and must not be called again is abandoned."""
        if held.may_run_again or journal.cancel is not None or self._must_expire(run.claim):
            await self._give_back(run.claim)
            return
        try:
            process = await self._store.processes.get(run.id)
            if process is not None and process.external_ref is not None:
                await self._give_back(run.claim)  # its work continues outside
            else:
                await self._settle(run, abandoned(run, journal, self._runner.owner_id))
        except holdfast.HoldfastError as error:
            # It is not given back: the worker that takes it over once the lease ends abandons it.
            log_event("worker", WARNING, "could not settle a run (%(error_class)s)", error_class=type(error).__name__)

    async def _after(self, handler: Registered, run: Run, journal: Journal, error: BaseException) -> None:
        """Settle a run whose handler raised an error."""
        if _is_of(error, run.id):
            raise error
        if journal.cancel is not None:
            await self._settle(run, cancelled(journal, error))
        elif run.steps.conflict is not None:  # also if the handler caught it
            await self._hold(run, journal, run.steps.conflict)
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
            self._runner.continue_after_loss(held, handler.name)
        except (holdfast.LeaseLost, holdfast.AlreadyTerminal, holdfast.errors.ReplayConflict):
            self._runner.count_lost(held, handler.name)
        except holdfast.HoldfastError as error:
            log_event("worker", WARNING, "could not settle a run (%(error_class)s)", error_class=type(error).__name__)

    async def _outcome(
        self, handler: Registered, run: Run, journal: Journal, held: Held
    ) -> holdfast.processes.ProcessOutcome:
        """Return the way in which a run ends now. Raises `Suspended` if it continues later."""
        process = run.claim.process
        if journal.cancel is not None:
            return cancelled(journal, None)
        if handler.recovery == "external" and (process.external_ref is not None or HANDED_OVER in journal.steps):
            raise Suspended(None, holdfast.processes.SignalWait(OUTSIDE, ordinal=1))
        if must_abandon(process.lost_owner_id, process.recovery, handler.recovery):
            return abandoned(run, journal, self._runner.owner_id)
        after_outage = self._runner.outages.explain_loss(self._lease_ms)
        require_attempt(handler.retry, run.attempt, after_outage=after_outage, spare=SPARE_CALLS)
        declared = typed_values.result_type(handler.function)  # refuses a type that is not loaded, before any effect
        held.may_run_again = not must_abandon(self._runner.owner_id, process.recovery, handler.recovery)
        try:
            value = await self._call(handler, run, journal, held)
        except Continued:
            await self._finish_steps(run)
            raise
        if run.steps.journal.cancel is not None:  # since the call began, and the handler swallowed it
            return cancelled(journal, None)
        await self._finish_steps(run)
        run.steps.require_not_continued()
        if handler.recovery == "external" and value is None:
            await run.steps.record(HANDED_OVER, {"value": None})
            raise Suspended(None, holdfast.processes.SignalWait(OUTSIDE, ordinal=1))
        return holdfast.processes.Completed(
            typed_values.as_documents(checked_result(handler.name, value, declared), handler.name)
        )

    async def _finish_steps(self, run: Run) -> None:
        """Record the last failures that the handler caught, if it awaited its calls and asked for all records."""
        run.steps.require_all_asked()
        run.steps.unawaited.require_none()
        await run.steps.record_failures()

    async def _call(self, handler: Registered, run: Run, journal: Journal, held: Held) -> Any:
        task = asyncio.current_task()
        assert task is not None
        loop = self._runner.caller.loop
        run.signals.declared = handler.signals
        names = None if handler.signals is None else sorted(handler.signals)
        if names != journal.declared:
            await self._runner.persist("cannot declare signals", lambda: journal.declare(names))
        if handler.is_async:
            run.watch_tasks()
        given = run if handler.is_async else BlockingRun(run, OnLoop(loop))
        args, named = arguments_of(handler, given, run.args)
        watching: list[asyncio.Task[None]] = []
        watch = loop.call_later(
            WATCH_AFTER_S, lambda: watching.append(loop.create_task(self._watch(run, journal, task)))
        )

        def left() -> list[asyncio.Future[Any]]:
            # A run that ends as cancelled is not called again, and need not wait for its steps.
            return [] if journal.cancel is not None else run.left_calls

        try:
            value = await self._runner.caller.call(handler, args, run, named, held=held, left=left)
        except Suspended:
            await run.steps.require_all_asked_before_a_wait()
            raise
        finally:
            run.steps.has_ended = True
            watch.cancel()
            for one in watching:
                one.cancel()
        await asyncio.sleep(0)  # a cancel that came just before the end is raised here, and not in the settlement
        return value

    async def _watch(self, run: Run, journal: Journal, task: asyncio.Task[Any]) -> None:
        """Cancel the call once the run is asked to cancel."""
        while journal.cancel is None:
            try:
                event = await self._store.events.wait_for(run.id, CANCEL_REQUESTED, timeout_ms=LOOK_AGAIN_MS)
            except holdfast.WaitTimeout:
                continue
            except holdfast.Unavailable:
                await asyncio.sleep(running.AWAY_S)
            else:
                journal.note_cancel(event.payload)
        task.cancel()

    # Settling.

    async def _settle(self, run: Run, outcome: holdfast.processes.ProcessOutcome) -> None:
        """End a run, and tell its parent in the same transaction. Without a result, its children are cancelled first.

        A worker that is killed in between leaves a run that has not ended: its next claim asks the children again.
        """
        if not isinstance(outcome, holdfast.processes.Completed):
            for child_id in run.all_children():
                await self._cancel_child(run.id, child_id, outcome)
        await self._runner.persist("cannot end a run", lambda: self._end(run, outcome))
        if isinstance(outcome, holdfast.processes.Completed | holdfast.processes.Cancelled):
            self._runner.tally.done += 1

    async def _settle_and_claim(
        self, run: Run, outcome: holdfast.processes.Completed
    ) -> Claimed[holdfast.processes.RunClaim] | None:
        """End a run with its result, and claim the next one in the same trip, unless it has a parent to notify."""
        runner = self._runner
        if parent_run(run.claim.process.provenance.caused_by) is None:
            settling = self._store.processes.complete_and_claim_next(
                run.claim.lease, outcome, owner_id=runner.owner_id, kinds=self._kinds, ttl_ms=self._lease_ms
            )
            try:
                _, following = await runner.claimed(settling, lambda answer: answer[1], self._lease_ms, self._give_back)
            except holdfast.InvalidRequest:
                pass  # too large for an event, or refused: settled below, or named there
            except holdfast.Unavailable as error:
                runner.outages.note(error)
                if not error.retryable:
                    raise
            else:
                runner.tally.done += 1
                return following
        await self._settle(run, outcome)
        return None

    async def _end(self, run: Run, outcome: holdfast.processes.ProcessOutcome) -> None:
        try:
            await self._complete(run, outcome)
        except holdfast.InvalidRequest as error:
            # Never lost after its effects: a result that is too large for an event is stored separately.
            if (
                not isinstance(outcome, holdfast.processes.Completed)
                or error.limit != self._store.limits.document_bytes
            ):
                raise self._named(run, error) from error
            refs = await spill(self._store.artifacts, self._store.limits, run.claim.process, outcome.value)
            await self._complete(run, holdfast.processes.Completed(control={"spilled": refs}))

    def _named(self, run: Run, error: holdfast.InvalidRequest) -> holdfast.InvalidRequest:
        """Return the refusal of an outcome. That of a result names the handler that returned it."""
        if error.field != "outcome.value":
            return error
        handler = self._runner.handlers.of_run(run.kind, run.version)
        return holdfast.InvalidRequest(handler.name, f"returned a value that cannot be stored: {error.problem}")

    async def _complete(self, run: Run, outcome: holdfast.processes.ProcessOutcome) -> None:
        parent = parent_run(run.claim.process.provenance.caused_by)
        if parent is None:
            await self._store.processes.complete(run.id, outcome, lease=run.claim.lease)
            return
        parent = await newest_id(self._store, parent)
        async with self._store.transaction() as tx:
            await tx.processes.complete(run.id, outcome, lease=run.claim.lease)
            await _signal_parent(tx, parent, run.id)

    async def _cancel_child(self, parent_id: str, child_id: str, outcome: holdfast.processes.ProcessOutcome) -> None:
        reason = f"its parent {parent_id!r} ended without a result"
        if isinstance(outcome, holdfast.processes.Cancelled):
            reason = outcome.message
        try:
            await self._runner.persist("cannot cancel a child", lambda: cancel_newest(self._store, child_id, reason))
        except (holdfast.AlreadyTerminal, holdfast.UnknownProcess):
            pass
        except holdfast.HoldfastError as error:
            message = "could not cancel a child (%(error_class)s)"
            log_event("worker", WARNING, message, error_class=type(error).__name__)

    async def _continue(self, handler: Registered, run: Run, journal: Journal, over: Continued) -> None:
        """End a run and start the one that continues it, unless the run was asked to cancel meanwhile.

        A refusal, such as of arguments that cannot be stored, fails the attempt.
        """
        continuation = partial(continued, self._store, run, journal, over)
        try:
            has_ended = await self._runner.persist("cannot continue a run", continuation)
        except holdfast.HoldfastError as error:
            if _is_of(error, run.id) or isinstance(error, holdfast.errors.ReplayConflict):
                raise
            if isinstance(error, holdfast.InvalidRequest) and error.field.startswith("input."):
                problem = f"{error.field.removeprefix('input.')}: {error.problem}"
                error = holdfast.InvalidRequest("run.continue_as_new", problem, limit=error.limit)
            await self._fail(handler, run, error)
            return
        if has_ended:
            self._runner.tally.done += 1
            return
        await self._runner.persist("cannot load a run", journal.refresh)
        await self._settle(run, cancelled(journal, None))

    async def _suspend(self, claim: holdfast.processes.RunClaim, journal: Journal, asleep: Suspended) -> None:
        waits = _listed(asleep)[: self._store.limits.batch_items]
        await self._runner.persist(
            "cannot suspend a run",
            lambda: self._store.processes.suspend(
                claim.lease, seen=journal.seen, due_at_ms=asleep.due_at_ms, wait=asleep.wait, waits=waits
            ),
        )

    async def _hold(self, run: Run, journal: Journal, conflict: StepConflict) -> None:
        """Hold a run whose code has changed: it loses no attempt, and is tried again, because the right code may come.

        The first such call is recorded, so that all workers agree on the delay, and the log of the run contains it.
        """
        persist, store = self._runner.persist, self._store
        name = f"{HELD}{hash_of(conflict.name)}"  # a name of any length
        if name not in journal.held:
            facts = {"value": {"step": conflict.name, "problem": conflict.problem}}
            await persist("cannot record a held run", lambda: journal.record(name, facts))
        now_ms = await persist("cannot read the time", store.now_ms)
        delay_ms = hold_delay_ms(now_ms - journal.held[name], chance=random.random())  # noqa: S311 - spreads retries
        message = "run %(process_id)s of kind %(kind)r is held: its code has changed: see holdfast why"
        log_event("worker", WARNING, message, process_id=run.id, kind=run.kind)
        self._runner.tally.count(Failure("process", run.kind, run.id, None, run.attempt, conflict, delay_ms, held=True))
        await persist(
            "cannot hold a run",
            lambda: store.processes.suspend(
                run.claim.lease, seen=journal.seen, due_at_ms=now_ms + delay_ms, error=described(conflict, store.limits)
            ),
        )

    async def _fail(self, handler: Registered, run: Run, error: BaseException) -> None:
        """Record a failed attempt. The run waits for its next one, or has failed."""
        delay_ms = handler.retry.delay_after(run.attempt, error, chance=random.random())  # noqa: S311 - spreads retries
        text = described(error, self._store.limits)
        try:
            await run.steps.record_last_failures()
            if delay_ms is None:
                await self._settle(run, holdfast.processes.Failed(text, code="handler_failed"))
            else:
                await self._runner.persist(
                    "cannot record a failure",
                    lambda: self._store.processes.retry_later(run.claim.lease, text, retry_in_ms=delay_ms),
                )
        finally:  # once it is stored: a listener may end the process
            self._runner.tally.count(Failure("process", run.kind, run.id, None, run.attempt, error, delay_ms))


def cancelled(journal: Journal, error: BaseException | None) -> holdfast.processes.Cancelled:
    """Return the outcome of a run that was cancelled on request."""
    raw = None if error is None else {"error": described(error, journal.limits)}
    return holdfast.processes.Cancelled(_text_in(journal.cancel, "reason") or "cancelled on request", raw=raw)


def abandoned(run: Run, journal: Journal, owner_id: str) -> holdfast.processes.Abandoned:
    """Return the outcome of a run that lost its holder, or loses this one, and must not be run again, with evidence."""
    lost = run.claim.process.lost_owner_id or owner_id
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


async def _signal_parent(tx: holdfast.Store, parent: str | None, child_id: str) -> None:
    """Tell a parent that its child has ended, or the run that continued the parent meanwhile."""
    while parent is not None:
        try:
            await tx.events.signal(parent, CHILD_ENDED, child_id, replay_key=f"child:{child_id}")
        except holdfast.UnknownProcess:
            return
        except holdfast.AlreadyTerminal:
            process = await tx.processes.get(parent)
            following = None if process is None else await successor_of(tx, process)
            parent = None if following is None else following.id  # None: it no longer waits
        else:
            return


def _listed(asleep: Suspended) -> tuple[holdfast.processes.RunWait, ...]:
    """Return the waits that are stored: none if they follow from the time and the signal of the sleep."""
    is_obvious = len(asleep.waits) == 1 and asleep.waits[0].kind in ("signal", "sleep")
    return () if is_obvious else asleep.waits[:MOST_WAITS]


def _text_in(document: object, field: str) -> str | None:
    """Return a text in a document, None if it has none there."""
    value = cast("dict[str, object]", document).get(field) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


def _is_of(error: BaseException, process_id: str) -> bool:
    """Return whether an error says that this very run is lost or has ended."""
    if isinstance(error, holdfast.AlreadyTerminal):
        return error.process_id == process_id
    return isinstance(error, holdfast.LeaseLost) and error.resource == f"process {process_id!r}"


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
