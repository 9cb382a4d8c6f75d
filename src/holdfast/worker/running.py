"""Runs one claim: calls its handler, renews its claim meanwhile, and settles it by what happened."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar, cast

import holdfast
from holdfast.log import INFO, WARNING, note
from holdfast.worker.driving import OnLoop
from holdfast.worker.handlers import Handlers, Registered
from holdfast.worker.jobs import Job
from holdfast.worker.keeper import Held, Keeper
from holdfast.worker.retries import GiveUp

T = TypeVar("T")

Following = tuple[holdfast.WorkClaim, float]
"""A claim that was taken together with a settlement, and the time at which it was asked for."""
ERROR_CHARACTERS = 2_000
THREAD_GRACE_S = 5.0
"""Time for a function in a thread to return at a shutdown, after it was told to. Then its work is given back."""


class Runner:
    """Runs claims for one worker."""

    def __init__(self, store: holdfast.Store, handlers: Handlers, keeper: Keeper, owner_id: str, lease_ms: int) -> None:
        self.store = store
        self.owner_id = owner_id
        self.lease_ms = lease_ms
        self.running: set[asyncio.Task[None]] = set()
        self.is_finishing = False
        self._handlers = handlers
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a slot's work as a task."""
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def finish(self, grace_s: float) -> None:
        """Let running calls finish for a while, then cancel them. Their work is given back."""
        self.is_finishing = True
        if not self.running:
            return
        note("worker", INFO, "%(calls)s calls have %(seconds)s s to finish", calls=len(self.running), seconds=grace_s)
        await asyncio.wait(self.running, timeout=grace_s)
        for task in self.running:
            task.cancel()
        if self.running:
            await asyncio.wait(self.running)

    async def claim_next(self, kinds: list[str], *, exclusive: bool) -> holdfast.WorkClaim | None:
        """Claim work of any session. A claim that comes after this was cancelled is given back at once."""
        asking = self.store.queue.claim_next(
            owner_id=self.owner_id, kinds=kinds, ttl_ms=self.lease_ms, max_batches=1, exclusive=exclusive
        )
        return await self._uncut(asking, lambda claim: claim)

    async def _uncut(self, work: Coroutine[Any, Any, T], claim_of: Callable[[T], holdfast.WorkClaim | None]) -> T:
        """Let a call that takes a claim end even if this task is cancelled, and give back what it took then."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            [ended] = (await asyncio.wait([task]))[0]
            taken = claim_of(ended.result()) if ended.exception() is None else None
            if taken is not None:
                await self._give_back(taken)
            raise

    async def run(
        self, claim: holdfast.WorkClaim, sent_s: float, next_kinds: Callable[[], list[str] | None]
    ) -> Following | None:
        """Run one claim to its settlement. Return a claim that was taken together with it, if any."""
        task = asyncio.current_task()
        assert task is not None
        held = Held(claim, self.lease_ms, sent_s, lambda: self._loop.call_soon_threadsafe(stop))

        def stop() -> None:
            if not held.is_settled:
                task.cancel()

        self._keeper.hold(held)
        handler = self._handlers.of(claim.batches[0].kind)
        try:
            if handler.shape == "turn":
                await self._turn(handler, claim)
                return None
            await self._job(handler, claim)
            return await self._complete(claim, next_kinds())
        except asyncio.CancelledError:
            if held.is_lost:
                task.uncancel()
                note("worker", WARNING, "a claim was lost while %(handler)s ran", handler=handler.name)
                return None
            await self._give_back(claim)
            raise
        except holdfast.ClaimLost:
            note("worker", WARNING, "the claim of %(handler)s was lost before it ended", handler=handler.name)
        except (Exception, SystemExit) as error:
            await self._fail(handler, claim, error)
        finally:
            self._keeper.drop(held)
        return None

    async def _turn(self, handler: Registered, claim: holdfast.WorkClaim) -> None:
        async with self.store.sessions.handle(claim.session_id).turn(claim=claim) as turn:
            if not turn.replayed:
                given = turn if handler.is_async else holdfast.BlockingTurn(turn, cast("Any", OnLoop(self._loop)))
                await self._call(handler, given, turn)
        if turn.replayed:
            # It was committed before, and so the work is done. Settle what that commit did not.
            await self.store.queue.complete(turn.claim or claim)

    async def _job(self, handler: Registered, claim: holdfast.WorkClaim) -> None:
        job = Job(claim)
        await self._call(handler, job, job)

    async def _call(self, handler: Registered, given: Any, subject: Any) -> None:
        """Call a handler within its time. A function in a thread cannot be cancelled: wait until it returns."""
        limit = asyncio.timeout(handler.timeout_s)
        try:
            async with limit:
                if handler.is_async:
                    answer = await handler.function(given)
                else:
                    answer = await self._in_thread(handler.function, given, subject)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"{handler.name} took longer than {handler.timeout_s:g} s") from None
        if answer is not None:
            note("worker", WARNING, "%(handler)s returned a value, which is dropped", handler=handler.name)

    async def _in_thread(self, function: Callable[[Any], Any], given: Any, subject: Any) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        run = partial(_call_in_thread, copy_context(), function, given, self._loop, answer)
        # A daemon: a handler that never returns must not keep the process from ending.
        threading.Thread(target=run, name="holdfast-handler", daemon=True).start()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            subject.cancelled = True
            await asyncio.wait([answer], timeout=THREAD_GRACE_S if self.is_finishing else None)
            raise

    async def _complete(self, claim: holdfast.WorkClaim, kinds: list[str] | None) -> Following | None:
        if kinds is None:
            await self.store.queue.complete(claim)
            return None
        sent_s = time.monotonic()
        settling = self.store.queue.complete_and_claim_next(
            claim, owner_id=self.owner_id, kinds=kinds, ttl_ms=self.lease_ms, max_batches=1
        )
        _, following = await self._uncut(settling, lambda answer: answer[1])
        return None if following is None else (following, sent_s)

    async def _give_back(self, claim: holdfast.WorkClaim) -> None:
        try:
            await self.store.queue.abandon(claim)
        except holdfast.HoldfastError as error:
            note("worker", WARNING, "work was not given back (%(error_class)s)", error_class=type(error).__name__)

    async def _fail(self, handler: Registered, claim: holdfast.WorkClaim, error: BaseException) -> None:
        """Record a failed attempt. The work waits for its next one, or is a dead letter."""
        attempt = claim.batches[0].attempts
        delay_ms = None if isinstance(error, GiveUp) else handler.retry.delay_ms(attempt, chance=random.random())  # noqa: S311 - spreads retries
        note(
            "worker",
            WARNING,
            "%(handler)s failed (%(error_class)s)",
            handler=handler.name,
            error_class=type(error).__name__,
        )
        try:
            await self.store.queue.fail(
                claim, described(error), retry_in_ms=delay_ms, max_attempts=handler.retry.attempts
            )
        except holdfast.HoldfastError as failure:
            note("worker", WARNING, "a failure was not recorded (%(error_class)s)", error_class=type(failure).__name__)


def described(error: BaseException) -> str:
    """Return an error as the text that its batch shows."""
    text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode().replace("\0", " ")
    return text[:ERROR_CHARACTERS]


def _call_in_thread(
    context: Context,
    function: Callable[[Any], Any],
    given: Any,
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[Any],
) -> None:
    """Call a handler in its thread, and hand its answer or its error to the event loop."""
    try:
        result = context.run(function, given)
    except BaseException as error:
        settle = partial(answer.set_exception, _raisable(error))
    else:
        settle = partial(answer.set_result, result)
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(lambda: None if answer.cancelled() else settle())


def _raisable(error: BaseException) -> BaseException:
    """Return an error that a future can carry: StopIteration would end the coroutine that waits for it."""
    return RuntimeError("the handler raised StopIteration") if isinstance(error, StopIteration) else error
