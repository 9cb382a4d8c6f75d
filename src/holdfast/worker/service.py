"""Runs a worker from start to shutdown, with the loops that claim work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import holdfast
from holdfast.log import WARNING, log_event
from holdfast.worker.background_tasks import Ticker
from holdfast.worker.blocking_calls import CallerStore, OwnLoop
from holdfast.worker.calls import StepThreads
from holdfast.worker.claim_renewal import ClaimRenewer
from holdfast.worker.claiming import Claimer, Serving, Slots, drain, serve
from holdfast.worker.handlers import QUEUED, Handlers
from holdfast.worker.housekeeping import Housekeeping
from holdfast.worker.processes import Runs
from holdfast.worker.router import Router
from holdfast.worker.running import Runner
from holdfast.worker.schedules import Schedules, Upkeep
from holdfast.worker.tally import Tally
from holdfast.worker.unhandled import UnhandledKinds
from holdfast.worker.work import Work

AGAIN_S = 1.0
"""Time after a signal to stop from which another one counts as a second one. A wrapper may pass on the same one."""
LEAST_THREADS = 32
"""Threads for plain steps of a worker that makes few calls at once: one call may gather many steps."""


class Service:
    """Opens the store, and claims and runs work until it is stopped."""

    def __init__(
        self,
        store: str | os.PathLike[str] | holdfast.Store,
        options: holdfast.SqliteOptions | holdfast.PostgresOptions | None,
        handlers: Handlers,
        tally: Tally,
        *,
        concurrency: int,
        lease_ms: int,
        grace_s: float,
        name: str,
    ) -> None:
        self._place = store
        self._options = options
        self._handlers = handlers
        self._tally = tally
        self.upkeep = Upkeep(Schedules())
        """Settings of the background tasks."""
        self.concurrency = concurrency
        self.observe: holdfast.observers.Observer | Sequence[holdfast.observers.Observer] | None = None
        """The observers of the store that is opened here."""
        self.starters: list[Callable[[], object]] = []
        """Called once the store is open and work is about to be claimed."""
        self._running: set[asyncio.Task[None]] = set()
        self._lease_ms = lease_ms
        self._grace_s = grace_s
        self._name = name
        self._stopping: asyncio.Event | None = None
        self._hurrying = asyncio.Event()
        """Set once running calls are not to finish any more."""
        self._is_open = False
        """True once the store is open: from then on, only `_stopping` and `_hurrying` end the worker."""
        self._stop_requested = False
        self._signalled_s: float | None = None
        self._has_uncancellable = False
        self._changing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, *, until_idle: bool = False) -> None:
        """Run on an event loop of its own, until SIGTERM or Ctrl-C."""
        with suppress(RuntimeError):  # no loop runs, as required
            asyncio.get_running_loop()
            raise holdfast.InvalidRequest(
                "worker", "run() needs a thread without an event loop: await worker.serve() here"
            )
        self._has_uncancellable = False
        runner = asyncio.Runner()
        try:
            runner.run(self._run(until_idle=until_idle))
        finally:
            if not self._has_uncancellable:  # closing would wait for handlers that cannot be cancelled, for ever
                runner.close()

    async def _run(self, *, until_idle: bool) -> None:
        self._signalled_s = None
        with ending_signals(self._signalled):
            await self.serve(until_idle=until_idle)

    def _signalled(self) -> None:
        """Begin the shutdown. A second signal ends the grace period."""
        if self._signalled_s is None:
            self._signalled_s = time.monotonic()
            self.stop()
        elif time.monotonic() - self._signalled_s >= AGAIN_S:
            self._hurrying.set()

    def stop(self) -> None:
        """Begin the shutdown, or make the next run end at once."""
        with self._changing:
            if self._loop is None or self._stopping is None:
                self._stop_requested = True
                return
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    def require_idle(self) -> None:
        """Raises InvalidRequest while the worker runs: it would not serve what is registered then."""
        if self._stopping is not None:
            raise holdfast.InvalidRequest("worker", "runs already: register handlers and schedules before it runs")

    async def serve(self, *, until_idle: bool = False) -> None:
        """Run on the current event loop, until `stop` is called."""
        if not self._handlers:
            raise holdfast.InvalidRequest(
                "worker", "has no handlers: decorate functions with @worker.turn, @worker.job or @worker.process"
            )
        self.upkeep.schedules.require_handlers(self._handlers)
        if self._stopping is not None:
            raise holdfast.InvalidRequest("worker", "runs already: make another one")
        with self._changing:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            self._hurrying, self._is_open = asyncio.Event(), False
            if self._stop_requested:
                self._stopping.set()
        try:
            if not self._stopping.is_set():
                await self._uncut(self._work(self._stopping, until_idle=until_idle), self._stopping)
        finally:
            with self._changing:
                self._loop = self._stopping = None
                self._stop_requested = False

    async def _uncut(self, work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> None:
        """Await work to its end, which no cancel cuts off: calls would continue, and their claims would expire.

        A cancel begins the shutdown, the next one ends the grace period. Before the store is open, it ends the work.
        """
        working = asyncio.create_task(work)
        is_cancelled = False
        while not working.done():
            try:
                await asyncio.wait([working])
            except asyncio.CancelledError:
                if not self._is_open:
                    working.cancel()
                elif is_cancelled:
                    self._hurrying.set()
                stopping.set()
                is_cancelled = True
        working.result()
        if is_cancelled:
            raise asyncio.CancelledError

    async def _work(self, stopping: asyncio.Event, *, until_idle: bool) -> None:
        async with self._runner(stopping) as runner:
            if not stopping.is_set():
                await self._serve(runner, until_idle=until_idle)

    @asynccontextmanager
    async def _runner(self, stopping: asyncio.Event) -> AsyncGenerator[Runner]:
        async with self._opened() as store:
            self._is_open = True
            owner_id = holdfast.new_owner_id(self._name)
            opened = await asyncio.to_thread(self._open_for_keeper, store)
            renewer = ClaimRenewer(opened, owner_id, self._handlers.all_kinds(), self._lease_ms)
            renewer.versions = self._handlers.all_versions()
            await asyncio.to_thread(renewer.start)
            runner = Runner(
                store, self._handlers, renewer, owner_id, self._lease_ms, stopping=stopping, tally=self._tally
            )
            self._running = runner.running
            try:
                yield runner
            finally:
                await asyncio.to_thread(renewer.close)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[holdfast.Store]:
        if isinstance(self._place, holdfast.Store):
            yield self._place
        else:
            if str(self._place) in ("memory:", "sqlite::memory:"):
                message = "the store %(place)r is this worker's alone: no other program can put work into it"
                log_event("worker", WARNING, message, place=str(self._place))
            async with holdfast.open(self._place, options=self._options, observe=self.observe) as store:
                yield store

    def _open_for_keeper(self, store: holdfast.Store) -> holdfast.BlockingStore:
        """Return a store of the renewer's own: a handler that blocks the event loop must not stop the renewals."""
        if isinstance(self._place, holdfast.Store):
            return CallerStore(store, OwnLoop())
        return holdfast.open_blocking(self._place, options=self._options)

    def open_own_store(self) -> holdfast.BlockingStore | None:
        """Open the store for another thread, None if an open one was given."""
        if isinstance(self._place, holdfast.Store):
            return None
        return holdfast.open_blocking(self._place, options=self._options)

    @property
    def own_place(self) -> tuple[str, holdfast.SqliteOptions | holdfast.PostgresOptions | None] | None:
        """The URL and the options of the store, None if an open one was given."""
        return None if isinstance(self._place, holdfast.Store) else (os.fspath(self._place), self._options)

    @property
    def calls_running(self) -> int:
        """The number of calls that run now."""
        return len(self._running)

    async def _serve(self, runner: Runner, *, until_idle: bool) -> None:
        assert self._stopping is not None
        await self._handlers.declare_limits(runner.store)
        slots = Slots(self.concurrency)
        ticker = Ticker(runner.store, self.upkeep.schedules, self._handlers)
        await ticker.declare()
        for starter in self.starters:
            starter()
        claimers: list[Serving] = [ticker, Router(runner.store)]
        if self.upkeep.housekeeping_ms is not None:
            claimers.append(Housekeeping(runner, self.upkeep.housekeeping_ms, self.upkeep.prune))
        claimers += [
            Claimer(runner, slots, Work(runner, kinds, exclusive=shape == "turn"))
            for shape in QUEUED
            if (kinds := self._handlers.kinds(shape))
        ]
        threads = StepThreads(max(LEAST_THREADS, self.concurrency))
        for lease_ms, kinds_of_runs in self._handlers.runs(self._lease_ms).items():
            claimers.append(Claimer(runner, slots, Runs(runner, kinds_of_runs, lease_ms, in_thread=threads.noting)))
        claiming = asyncio.create_task(drain(runner, claimers) if until_idle else serve(claimers))
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(runner.look_after_claims())
        unhandled = UnhandledKinds(runner)
        looking = asyncio.create_task(unhandled.watch())
        try:
            await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                claiming.result()
                await unhandled.note()
        finally:
            looking.cancel()
            for task in (claiming, stopping):
                task.cancel()
            await asyncio.gather(claiming, stopping, return_exceptions=True)
            await runner.finish(self._grace_s, self._hurrying)
            self._has_uncancellable = bool(runner.running)
            watching.cancel()
            threads.close()


@contextmanager
def ending_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` on SIGTERM and SIGINT instead of ending the process, if this is the thread that gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    with suppress(NotImplementedError):  # Windows: Ctrl-C ends the process
        for number in numbers:
            loop.add_signal_handler(number, stop)
        _replaced.update(before)
    try:
        yield
    finally:
        _replaced.clear()
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
        for number in numbers:
            if before[number] is not None:  # one that was not installed by Python
                signal.signal(number, before[number])


_replaced: dict[int, Any] = {}
"""The signal handlers in whose place a worker of this process has its own."""


def _restore_in_child() -> None:
    """Give a forked child its handlers back: its signals would reach the worker, by the descriptor that both have."""
    if not _replaced:
        return
    signal.set_wakeup_fd(-1)
    for number, handler in _replaced.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _replaced.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_child)
