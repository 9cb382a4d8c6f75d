"""Runs one claim: calls its handler, renews its claim meanwhile, and settles it by what happened."""

from __future__ import annotations

import asyncio
import inspect
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
AWAY_S = 1.0
"""Pause before another try while the database cannot be reached."""
THREAD_GRACE_S = 5.0
"""Time for a function in a thread to return at a shutdown, after it was told to. Then its work is given back."""


class Runner:
    """Runs claims for one worker."""

    def __init__(
        self,
        store: holdfast.Store,
        handlers: Handlers,
        keeper: Keeper,
        owner_id: str,
        lease_ms: int,
        stopping: asyncio.Event,
    ) -> None:
        self.store = store
        self.owner_id = owner_id
        self.lease_ms = lease_ms
        self.running: set[asyncio.Task[None]] = set()
        self._stopping = stopping
        self._is_cancelling = False
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
        self._stopping.set()
        if not self.running:
            return
        note("worker", INFO, "%(calls)s calls have %(seconds)s s to finish", calls=len(self.running), seconds=grace_s)
        await asyncio.wait(self.running, timeout=grace_s)
        self._is_cancelling = True
        for task in self.running:
            task.cancel()
        if self.running:
            await asyncio.wait(self.running)

    @property
    def is_finishing(self) -> bool:
        """True from the moment at which the worker is told to stop: from then on it claims nothing."""
        return self._stopping.is_set()

    def give_up_overdue(self) -> None:
        """Stop the handlers of claims that may have expired."""
        self._keeper.give_up_overdue()

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
            if claim.batches[0].attempts > handler.retry.attempts:
                raise GiveUp(f"no worker survived its {handler.retry.attempts} attempts")
            if handler.shape == "turn":
                await self._turn(handler, held)
                return None
            await self._job(handler, claim)
            return await self._complete(held, next_kinds())
        except asyncio.CancelledError as error:
            if held.is_lost:
                task.uncancel()
                note("worker", WARNING, "a claim was lost while %(handler)s ran", handler=handler.name)
            elif self._is_cancelling:
                await self._give_back(held.claim)
                raise
            else:
                # The handler's own: it cancelled itself, or awaited something that was cancelled.
                await self._fail(handler, held.claim, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, holdfast.ClaimLost) and error.claim_id == claim.claim_id:
                note("worker", WARNING, "the claim of %(handler)s was lost before it ended", handler=handler.name)
            else:
                await self._fail(handler, held.claim, error)
        finally:
            self._keeper.drop(held)
        return None

    async def _turn(self, handler: Registered, held: Held) -> None:
        async with self.store.sessions.handle(held.claim.session_id).turn(claim=held.claim) as turn:
            if not turn.replayed:
                given = turn if handler.is_async else holdfast.BlockingTurn(turn, cast("Any", OnLoop(self._loop)))
                try:
                    await self._call(handler, given, turn)
                finally:
                    # With the work that joined it: only that claim can be settled or failed.
                    held.claim = turn.claim or held.claim
        if turn.replayed:
            # It was committed before, and so the work is done. Settle what that commit did not.
            await self.store.queue.complete(held.claim)

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
                    if inspect.isawaitable(answer):  # a plain function that calls an async one
                        answer = await answer
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
            await self._returned(answer)
            raise

    async def _returned(self, answer: asyncio.Future[Any]) -> None:
        """Wait for a thread that cannot be cancelled, at a shutdown only for a while."""
        deadline_s = None
        while not answer.done():
            if self._is_cancelling and deadline_s is None:
                deadline_s = time.monotonic() + THREAD_GRACE_S
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            with suppress(asyncio.CancelledError):  # a second one, of the shutdown
                await asyncio.wait([answer], timeout=left_s)

    async def _complete(self, held: Held, kinds: list[str] | None) -> Following | None:
        """Settle a job whose handler has returned, again and again while the database is away and the claim lives."""
        while True:
            sent_s = time.monotonic()
            try:
                if kinds is None:
                    await self.store.queue.complete(held.claim)
                    return None
                settling = self.store.queue.complete_and_claim_next(
                    held.claim, owner_id=self.owner_id, kinds=kinds, ttl_ms=self.lease_ms, max_batches=1
                )
                _, following = await self._uncut(settling, lambda answer: answer[1])
            except holdfast.StoreClosed:
                raise
            except holdfast.Unavailable as error:
                note("worker", WARNING, "a job is not settled (%(error_class)s)", error_class=type(error).__name__)
                kinds = None
                await asyncio.sleep(AWAY_S)
            else:
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
    try:
        said = f": {error}"
    except Exception:  # an error of the handler's own, with a faulty __str__
        said = ""
    text = f"{type(error).__name__}{said}".encode("utf-8", "replace").decode().replace("\0", " ")
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
