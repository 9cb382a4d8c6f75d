"""The calls of a worker that run: their claims are renewed, they outlast a short outage, and a shutdown ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import holdfast
from holdfast.log import INFO, WARNING, log_event
from holdfast.worker.calls import THREAD_GRACE_S, Caller
from holdfast.worker.handlers import Handlers
from holdfast.worker.keeper import Held, Keeper
from holdfast.worker.tally import Tally

T = TypeVar("T")

ERROR_CHARACTERS = 2_000
AWAY_S = 1.0
"""Pause before another try while the database cannot be reached."""
STUBBORN_S = THREAD_GRACE_S + 2.0
"""Time for cancelled calls to end and to give back their work at a shutdown. Then the worker ends without them."""


class Runner:
    """The running calls of one worker, and the parts that they share."""

    def __init__(
        self,
        store: holdfast.Store,
        handlers: Handlers,
        keeper: Keeper,
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
        self._keeper = keeper

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
        log_event(
            "worker", INFO, "%(calls)s calls have %(seconds)s s to finish", calls=len(self.running), seconds=grace_s
        )
        await asyncio.wait(self.running, timeout=grace_s)
        self.caller.is_cancelling = True
        for task in self.running:
            task.cancel()
        if self.running:
            await asyncio.wait(self.running, timeout=STUBBORN_S)
        if self.running:
            await self._leave_behind()

    async def _leave_behind(self) -> None:
        """Give back the work of handlers that do not end although they were cancelled. Their writes are refused."""
        message = "%(calls)s handlers swallow CancelledError and do not end: their work is given back"
        log_event("worker", WARNING, message, calls=len(self.running))
        for claim in self._keeper.give_up_all():
            try:
                if isinstance(claim, holdfast.WorkClaim):
                    await self.store.queue.abandon(claim)
                else:
                    await self.store.leases.release(claim)
            except holdfast.HoldfastError as error:
                message = "work was not given back (%(error_class)s)"
                log_event("worker", WARNING, message, error_class=type(error).__name__)

    @property
    def is_finishing(self) -> bool:
        """True from the moment at which the worker is told to stop: from then on it claims nothing."""
        return self._stopping.is_set()

    def give_up_overdue(self) -> None:
        """Stop the handlers of claims that may have expired."""
        self._keeper.give_up_overdue()

    @contextmanager
    def holding(self, claim: holdfast.WorkClaim | holdfast.leases.Lease, ttl_ms: int, sent_s: float) -> Generator[Held]:
        """Renew a claim while the block runs, and cancel the calling task once the claim is lost."""
        task = asyncio.current_task()
        assert task is not None
        loop = self.caller.loop

        def stop() -> None:
            if not held.is_settled:
                held.has_cancelled = True
                task.cancel()

        held = Held(claim, ttl_ms, sent_s, lambda: loop.call_soon_threadsafe(stop))
        self._keeper.hold(held)
        try:
            yield held
        finally:
            self._keeper.drop(held)

    def let_go(self, held: Held) -> None:
        """Renew a claim no more, and let its end not stop the call."""
        self._keeper.drop(held)

    def forgive(self, held: Held, name: str) -> None:
        """Go on after the cancel of a call whose claim was lost."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        self.count_lost(held, name)

    def count_lost(self, held: Held, name: str) -> None:
        """Count a call whose claim was lost. Its work is another worker's."""
        held.is_lost = True
        self.tally.lost += 1
        log_event("worker", WARNING, "a claim was lost while %(handler)s ran", handler=name)

    async def uncut(self, work: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, None]]) -> T:
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
        """Make an idempotent call, again and again while the database is away. The loss of the claim ends it."""
        while True:
            try:
                return await call()
            except holdfast.Unavailable as error:
                if not error.retryable:
                    raise
                log_event("worker", WARNING, message + " (%(error_class)s)", error_class=type(error).__name__)
                await asyncio.sleep(AWAY_S)


def described(error: BaseException) -> str:
    """Return an error as the text that its batch shows."""
    try:
        said = f": {error}"
    except Exception:  # an error of the handler's own, with a faulty __str__
        said = ""
    text = f"{type(error).__name__}{said}".encode("utf-8", "replace").decode().replace("\0", " ")
    return text[:ERROR_CHARACTERS]
