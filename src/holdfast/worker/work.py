"""Runs claimed work of the queue: a turn is committed, a job is settled, and what failed is tried again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.worker.blocking_calls import OnLoop, SharedStore
from holdfast.worker.claim_renewal import Held
from holdfast.worker.claiming import LOOK_AGAIN_MS, Claimed
from holdfast.worker.handlers import Registered, Shape
from holdfast.worker.interrupting import InterruptWatch
from holdfast.worker.jobs import Job
from holdfast.worker.retries import require_attempt
from holdfast.worker.running import Runner, described
from holdfast.worker.tally import Failure
from holdfast.worker.tracing import trace_failure, traced

MOST_OVERTAKEN = 3
"""Times that a turn whose commit came after another write is run again before that uses up an attempt."""
MOST_REMEMBERED = 1_000
"""Such turns that a worker counts at a time."""
OVERTAKEN_ADVICE = (
    "another write came while the turn ran; send messages with session.enqueue, and add to the conversation with "
    "turn.add in the handler"
)


class Work:
    """Turns, or jobs, of some kinds."""

    def __init__(self, runner: Runner, kinds: list[str], *, exclusive: bool) -> None:
        self._runner = runner
        self._kinds = kinds
        self._exclusive = exclusive
        self._queue = runner.store.queue
        self._overtaken: Counter[str] = Counter()
        """Turns whose commit came too late, by the first batch, and how often."""

    # Claiming.

    async def wait(self) -> None:
        """Wait for work that can be claimed."""
        await self._queue.wait_next(timeout_ms=LOOK_AGAIN_MS, kinds=self._kinds, exclusive=self._exclusive, eager=True)

    async def claim(self) -> Claimed[holdfast.WorkClaim] | None:
        """Claim work of any session. A claim that comes after this was cancelled is given back at once."""
        asking = self._queue.claim_next(
            owner_id=self._runner.owner_id,
            kinds=self._kinds,
            ttl_ms=self._runner.lease_ms,
            max_batches=1,
            exclusive=self._exclusive,
        )
        _, claimed = await self._runner.claimed(asking, lambda claim: claim, self._runner.lease_ms, self._give_back)
        return claimed

    async def _give_back(self, claim: holdfast.WorkClaim | None) -> None:
        if claim is None:
            return
        await self._runner.give_back(lambda: self._queue.give_back(claim))

    # Running.

    async def run(
        self, claimed: Claimed[holdfast.WorkClaim], *, may_claim_next: Callable[[], bool]
    ) -> Claimed[holdfast.WorkClaim] | None:
        """Run one claim to its settlement. Return a claim that was taken together with it, if any."""
        if not self._runner.store.observers:
            return await self._run(claimed, may_claim_next=may_claim_next)
        with traced(self._runner.store, "turn" if self._exclusive else "job", claimed[0]):
            return await self._run(claimed, may_claim_next=may_claim_next)

    async def _run(
        self, claimed: Claimed[holdfast.WorkClaim], *, may_claim_next: Callable[[], bool]
    ) -> Claimed[holdfast.WorkClaim] | None:
        claim, asked = claimed
        runner = self._runner
        handler = runner.handlers.of(claim.batches[0].kind)
        with runner.holding(claim, runner.lease_ms, asked) as held:
            try:
                after_outage = runner.outages.explain_loss(runner.lease_ms)
                require_attempt(handler.retry, claim.batches[0].attempts, after_outage=after_outage)
                if self._exclusive:
                    is_done, following = await self._turn(handler, held), None
                else:
                    await self._job(handler, held)
                    held.is_settling = True
                    is_done, following = True, await self._complete(held, may_claim_next=may_claim_next)
            except asyncio.CancelledError as error:
                if held.is_lost:
                    runner.continue_after_loss(held, handler.name)
                    runner.remember_lost(held)
                elif runner.caller.is_cancelling:
                    await self._give_back(_work(held))
                    raise
                else:
                    # The handler's own: it cancelled itself, or awaited something that was cancelled.
                    await self._fail(handler, held, error)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if held.is_lost_by(error):
                    runner.count_lost(held, handler.name)
                    runner.remember_lost(held)
                elif held.is_settling and isinstance(error, holdfast.HeadConflict):
                    await self._overtaken_turn(handler, held, error)
                else:
                    await self._fail(handler, held, error)
            else:
                runner.tally.done += is_done
                return following
        return None

    async def _turn(self, handler: Registered, held: Held) -> bool:
        """Run a turn and commit it. Return False if a person interrupted it."""
        runner = self._runner
        session = runner.store.sessions.handle(_work(held).session_id)
        turn = await runner.persist("cannot load a turn", lambda: session.turn(claim=_work(held)).__aenter__())
        if not turn.replayed:
            given = turn if handler.is_async else holdfast.blocking.Turn(turn, cast("Any", OnLoop(runner.caller.loop)))
            turn.emitter.loop = runner.caller.loop
            turn.store = self._store_for(handler)
            turn.check_start = runner.handlers.check_start
            watch = InterruptWatch(runner, turn, held)
            try:
                try:
                    async with watch:
                        await self._call(handler, given, turn, held)
                finally:
                    # With the work that joined it: only that claim can be settled or failed.
                    held.claim = turn.claim or held.claim
                held.is_settling = True
                # Its id makes the commit idempotent.
                await runner.persist("cannot commit a turn", lambda: turn.__aexit__(None, None, None))
            except BaseException as error:
                if await watch.was_interrupted(error):
                    await watch.settle()
                    return False
                await turn.__aexit__(type(error), error, error.__traceback__)
                raise
        if turn.replayed:
            # It was committed before, and so the work is done. Settle what that commit did not.
            await runner.persist("cannot settle a turn", lambda: self._queue.complete(_work(held)))
        return True

    async def _job(self, handler: Registered, held: Held) -> None:
        job = Job(_work(held), self._store_for(handler))
        await self._call(handler, job, job, held)

    def _store_for(self, handler: Registered) -> holdfast.Store | holdfast.BlockingStore:
        store = self._runner.store
        return store if handler.is_async else SharedStore(store, OnLoop(self._runner.caller.loop))

    async def _call(self, handler: Registered, given: Any, subject: Any, held: Held) -> None:
        answer = await self._runner.caller.call(handler, (given,), subject, held=held)
        if answer is not None:
            log_event("worker", WARNING, "%(handler)s returned a value, which is dropped", handler=handler.name)

    async def _complete(self, held: Held, *, may_claim_next: Callable[[], bool]) -> Claimed[holdfast.WorkClaim] | None:
        """Settle a job whose handler has returned, and take the next one in the same trip if the slot continues."""
        runner = self._runner
        if may_claim_next():
            settling = self._queue.complete_and_claim_next(
                _work(held), owner_id=runner.owner_id, kinds=self._kinds, ttl_ms=runner.lease_ms, max_batches=1
            )
            try:
                _, following = await runner.claimed(
                    settling, lambda answer: answer[1], runner.lease_ms, self._give_back
                )
            except holdfast.Unavailable as error:
                runner.outages.note(error)
                if not error.retryable:
                    raise
            else:
                return following
        await runner.persist("cannot settle a job", lambda: self._queue.complete(_work(held)))
        return None

    async def _overtaken_turn(self, handler: Registered, held: Held, error: holdfast.HeadConflict) -> None:
        """Run a turn again whose commit came after another write to its session. The first few times use no attempt."""
        batch_id = _work(held).batches[0].batch_id
        if len(self._overtaken) >= MOST_REMEMBERED:
            self._overtaken.clear()
        self._overtaken[batch_id] += 1
        if self._overtaken[batch_id] > MOST_OVERTAKEN:
            del self._overtaken[batch_id]
            conflict = holdfast.HeadConflict(error.session_id, error.expected, error.actual, OVERTAKEN_ADVICE)
            await self._fail(handler, held, conflict)
            return
        message = "another write came before the commit of a turn by %(handler)s, which is run again"
        log_event("worker", WARNING, message, handler=handler.name)
        await self._give_back(_work(held))

    async def _fail(self, handler: Registered, held: Held, error: BaseException) -> None:
        """Record a failed attempt. The work waits for its next one, or is a dead letter.

        Work that joined a turn has attempts of its own: it continues though the first message has none left.
        """
        claim = _work(held)
        batch = claim.batches[0]
        chance = random.random()  # noqa: S311 - spreads retries
        delays = [handler.retry.delay_after(one.attempts, error, chance=chance) for one in claim.batches]
        delay_ms, longest_ms = delays[0], max((one for one in delays if one is not None), default=None)
        shape: Shape = "turn" if self._exclusive else "job"
        failure = Failure(shape, batch.kind, batch.batch_id, claim.session_id, batch.attempts, error, delay_ms)
        trace_failure(self._runner.store, error)
        text = described(error, self._runner.store.limits)
        try:
            await self._runner.persist(
                "cannot record a failure",
                lambda: self._queue.fail(claim, text, retry_in_ms=longest_ms, max_attempts=handler.retry.attempts),
            )
        except asyncio.CancelledError:
            if not held.is_lost:
                raise
            self._runner.continue_after_loss(held, handler.name)
        except holdfast.HoldfastError as problem:
            log_event(
                "worker", WARNING, "could not record a failure (%(error_class)s)", error_class=type(problem).__name__
            )
        finally:
            self._runner.tally.count(failure)  # once it is stored: a listener may end the process


def _work(held: Held) -> holdfast.WorkClaim:
    assert isinstance(held.claim, holdfast.WorkClaim)
    return held.claim
