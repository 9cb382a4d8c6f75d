"""Running calls of a worker: renews their claims, retries through short outages, and ends them at a shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.calls import THREAD_GRACE_S, Caller
from holdfast.worker.claim_renewal import Ask, ClaimRenewer, Held
from holdfast.worker.handlers import Handlers
from holdfast.worker.outages import LATE_S
from holdfast.worker.retries import NOT_SURVIVED
from holdfast.worker.tally import Tally

C = TypeVar("C")
T = TypeVar("T")

ERROR_CHARACTERS = 2_000
CONTROL = {number: " " for number in range(32) if chr(number) not in "\n\r\t"}
AWAY_S = 1.0
"""Pause before another try while the database cannot be reached."""
GIVE_BACK_TRIES = 5
"""Tries to give work back while the database cannot be reached. Then it waits for the end of its claim."""
LOOKS_A_LIFE = 10
"""Looks for overdue and lost claims in the lifetime of one."""
EXPIRED_TRIES = 3
"""Tries of a transaction that takes longer than it may."""
CANCEL_TIMEOUT_S = THREAD_GRACE_S + 2.0
"""Time for cancelled calls to end and to give back their work at a shutdown. Then the worker ends without them."""


class Runner:
    """The running calls of one worker, and the parts that they share."""

    def __init__(
        self,
        store: holdfast.Store,
        handlers: Handlers,
        renewer: ClaimRenewer,
        owner_id: str,
        lease_ms: int,
        *,
        stopping: asyncio.Event,
        tally: Tally,
    ) -> None:
        self.store = store
        self.handlers = handlers
        self.owner_id = owner_id
        self.lease_ms = lease_ms
        self.tally = tally
        self.caller = Caller()
        self.running: set[asyncio.Task[None]] = set()
        self._stopping = stopping
        self._started = asyncio.Event()
        self._renewer = renewer
        self.outages = renewer.outages
        self._lost: dict[str, tuple[holdfast.WorkClaim, float]] = {}
        """Claims that ended in an outage and are to be given back, so that they use up no attempt, each with a time.

        Until then, another worker may have such work, and may take it for work that kills its workers.
        """

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a slot's work as a task."""
        task = asyncio.create_task(work)
        self.running.add(task)
        self._started.set()
        task.add_done_callback(self.running.discard)

    async def finish(self, grace_s: float, hurrying: asyncio.Event) -> None:
        """Let running calls finish for a while or until the event is set, then cancel them and give their work back."""
        self._stopping.set()
        if not self.running:
            return
        log_event(
            "worker", INFO, "%(calls)s calls have %(seconds)s s to finish", calls=len(self.running), seconds=grace_s
        )
        waits = [asyncio.create_task(asyncio.wait(self.running)), asyncio.create_task(hurrying.wait())]
        with suppress(asyncio.CancelledError):  # the event loop ends: the calls are cancelled, too
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        self.caller.begin_cancelling()
        for task in self.running:
            task.cancel()
        if self.running:
            await asyncio.wait(self.running, timeout=CANCEL_TIMEOUT_S)
        if self.running:
            await self._leave_behind()

    async def _leave_behind(self) -> None:
        """Give back the work of handlers that do not end although they were cancelled. Their writes are refused."""
        message = "%(calls)s handlers swallow CancelledError and do not end: their work is given back"
        log_event("worker", WARNING, message, calls=len(self.running))
        for claim in self._renewer.give_up_all():
            try:
                if isinstance(claim, holdfast.WorkClaim):
                    await self.store.queue.give_back(claim)
                else:
                    await self.store.leases.release(claim)
            except holdfast.HoldfastError as error:
                _log_kept(error)

    @property
    def is_finishing(self) -> bool:
        """True once the worker is asked to stop: from then on it claims nothing."""
        return self._stopping.is_set()

    async def look_after_claims(self) -> None:
        """Stop handlers whose claims may have expired, and give those back that ended in an outage, for ever.

        The renewer's thread may hang in a renewal. A worker with no claim is not woken.
        """
        while True:
            while not self.running and not self._lost:
                self._started.clear()
                await self._started.wait()
            await asyncio.sleep(self.lease_ms / 1000 / LOOKS_A_LIFE)
            self._renewer.give_up_overdue()
            with suppress(holdfast.Unavailable):
                await self.give_back_lost()

    def may_be_lost(self, held: Held) -> bool:
        """Return whether a claim may have expired, also before the watchdog has seen it."""
        return self._renewer.is_overdue(held)

    def has_given_up(self, held: Held) -> bool:
        """Return whether the worker has cancelled the call: its claim is lost, its time is up, or the worker stops."""
        return held.has_cancelled or held.is_out_of_time() or self.caller.is_cancelling

    async def claimed(
        self,
        taking: Coroutine[Any, Any, T],
        claim_of: Callable[[T], C | None],
        ttl_ms: int,
        give_back: Callable[[C | None], Coroutine[Any, Any, None]],
    ) -> tuple[T, tuple[C, Ask] | None]:
        """Make a call that may take a claim. Return its answer and the claim, which is renewed until it is held.

        A claim that arrives after this was cancelled is given back at once.
        """
        asked = self._renewer.ask(ttl_ms)
        claim: C | None = None
        try:
            answer = await self._uncut(taking, lambda answer: give_back(claim_of(answer)))
            claim = claim_of(answer)
        finally:
            if claim is None:
                self._renewer.answered(asked)
        return answer, None if claim is None else (claim, asked)

    def drop_answer(self, asked: Ask) -> None:
        """Renew what a call took only if it is held. Idempotent."""
        self._renewer.answered(asked)

    @contextmanager
    def holding(self, claim: holdfast.WorkClaim | holdfast.leases.Lease, ttl_ms: int, asked: Ask) -> Generator[Held]:
        """Renew a claim while the block runs, and cancel the calling task once the claim is lost."""
        task = asyncio.current_task()
        assert task is not None
        loop = self.caller.loop

        def stop() -> None:
            if not held.is_settled:
                held.has_cancelled = True
                task.cancel()

        held = Held(claim, ttl_ms, asked.sent_s, lambda: loop.call_soon_threadsafe(stop))
        self._renewer.hold(held)
        self._renewer.answered(asked)
        try:
            yield held
        finally:
            self._renewer.drop(held)

    def stop_renewing(self, held: Held) -> None:
        """Renew a claim no more, and let its end not stop the call."""
        self._renewer.drop(held)

    def continue_after_loss(self, held: Held, name: str) -> None:
        """Continue after the cancel of a call whose claim was lost."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        self.count_lost(held, name)

    def count_lost(self, held: Held, name: str) -> None:
        """Count a call whose claim was lost. Its work is another worker's."""
        held.is_lost = True
        self.tally.lost += 1
        log_event("worker", WARNING, "a claim was lost while %(handler)s ran", handler=name)

    def remember_lost(self, held: Held) -> None:
        """Give a lost claim on work back before the next claim, if an outage explains its loss."""
        if isinstance(held.claim, holdfast.WorkClaim) and self.outages.explain_loss(held.ttl_ms):
            self._lost[held.claim.claim_id] = held.claim, time.monotonic() + held.ttl_ms / 1000 + LATE_S

    async def give_back_lost(self) -> None:
        """Give back the claims that ended in an outage. Of one that another worker has by now, nothing is changed.

        Work that another worker gave up meanwhile, because it seemed to have killed this worker, is put back.
        """
        for claim, until_s in list(self._lost.values()):
            try:
                is_over = await self._give_back_lost(claim) or time.monotonic() > until_s
            except holdfast.Unavailable:
                raise
            except holdfast.HoldfastError as error:
                _log_kept(error)
                is_over = True
            if is_over:
                self._lost.pop(claim.claim_id, None)

    async def _give_back_lost(self, claim: holdfast.WorkClaim) -> bool:
        """Return whether nothing is left to do for a lost claim."""
        queue = self.store.queue
        if await queue.give_back(claim):
            return True
        stored = [await queue.get(claim.session_id, batch.batch_id) for batch in claim.batches]
        for batch in stored:
            if batch is not None and batch.state == "dead" and NOT_SURVIVED in (batch.last_error or ""):
                log_event("worker", INFO, "retrying dead work that an outage had interrupted")
                await queue.retry(batch.session_id, batch.batch_id)
        return all(batch is None or batch.settled_at_ms is not None for batch in stored)

    async def give_back(self, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Give back what a call of this worker held. Wait for the end of an outage, but not for long."""
        for left in reversed(range(GIVE_BACK_TRIES)):
            try:
                await call()
            except holdfast.HoldfastError as error:
                self.outages.note(error)
                if left and isinstance(error, holdfast.Unavailable) and error.retryable:
                    await asyncio.sleep(AWAY_S)
                    continue
                _log_kept(error)
            return

    async def _uncut(self, work: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """Let a call that takes a claim end even if this task is cancelled, and give back what it took then."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            [ended] = (await asyncio.wait([task]))[0]
            if ended.exception() is None:
                await give_back(ended.result())
            raise

    async def persist(self, message: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make an idempotent call, again and again while the database is down. The loss of the claim ends it.

        A transaction that takes longer than it may is tried a few times only: it would block other writers for ever.
        """
        expired = 0
        while True:
            try:
                return await call()
            except holdfast.Unavailable as error:
                self.outages.note(error)
                expired += isinstance(error, holdfast.errors.TransactionExpired)
                if not error.retryable or expired >= EXPIRED_TRIES:
                    raise
                log_event("worker", WARNING, message + " (%(error_class)s)", error_class=type(error).__name__)
                await asyncio.sleep(AWAY_S)


def _log_kept(error: holdfast.HoldfastError) -> None:
    log_event("worker", WARNING, "could not give work back (%(error_class)s)", error_class=type(error).__name__)


def described(error: BaseException, limits: holdfast.Limits | None = None) -> str:
    """Return an error as text that can be stored and shown, cut to the limits, without lone surrogates.

    Control characters are blanks: a document takes six bytes for each.
    """
    try:
        message = f": {error}"
    except Exception:  # an error of the handler's own, with a faulty __str__
        message = ""
    if _is_group(error):
        first: BaseException = cast("Any", error).exceptions[0]
        message += f": {described(first)}"  # of a TaskGroup, whose own text says nothing
    text = f"{type(error).__name__}{message}".encode("utf-8", "replace").decode().translate(CONTROL)
    most_bytes = None if limits is None else min(limits.text_bytes, limits.document_bytes // 8)
    return text[:ERROR_CHARACTERS].encode()[:most_bytes].decode(errors="ignore")


def _is_group(error: object) -> bool:
    return isinstance(error, BaseExceptionGroup)
