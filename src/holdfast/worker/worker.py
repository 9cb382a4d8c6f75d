"""The worker: its handlers, its life from start to shutdown, and the loops that claim work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import holdfast
from holdfast.worker import handlers
from holdfast.worker.claiming import Claimer, Slots, drain, serve
from holdfast.worker.driving import LentStore, OwnLoop
from holdfast.worker.handlers import SHAPES, Handlers, Registered, Shape
from holdfast.worker.keeper import Keeper
from holdfast.worker.retries import Retry
from holdfast.worker.running import Runner

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Runs your handlers on the work in a store, until it is told to stop.

    `concurrency` calls run at once. A claim lives `lease_s` seconds after the worker died, and its work is then taken
    over. On SIGTERM or Ctrl-C the worker claims no more, lets running calls finish for `grace_s` seconds, and gives the
    rest back.

    >>> worker = holdfast.Worker("agent.db")
    >>> @worker.turn
    ... def answer(turn):
    ...     turn.add({"role": "user", "content": turn.input}, {"role": "assistant", "content": turn.input.upper()})
    >>> with holdfast.open_blocking("agent.db") as store:
    ...     _ = store.queue.enqueue(holdfast.WorkDraft(session_id="chat-42", payloads=["hello"]))
    ...     worker.run(until_idle=True)
    ...     store.sessions.handle("chat-42").messages()[-1]["content"]
    'HELLO'
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | holdfast.Store,
        *,
        concurrency: int = 10,
        lease_s: float = 30.0,
        grace_s: float = 30.0,
        name: str = "worker",
        options: holdfast.SqliteOptions | holdfast.PostgresOptions | None = None,
    ) -> None:
        if isinstance(store, holdfast.Store) and options is not None:
            raise holdfast.InvalidRequest("options", "go with a URL: the store is open already")
        self._place = store
        self._options = options
        self._concurrency = int(handlers.check_number("concurrency", concurrency, least=1, most=10_000))
        self._lease_ms = int(1000 * handlers.check_number("lease_s", lease_s, least=0.5, most=86_400))
        self._grace_s = handlers.check_number("grace_s", grace_s, least=0, most=86_400)
        self._name = name
        self._handlers = Handlers()
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        kinds = handlers.listed([*self._handlers.kinds("turn"), *self._handlers.kinds("job")])
        return f"Worker({kinds or 'no handlers'})"

    # Handlers.

    def turn(
        self,
        function: Callable[..., Any] | None = None,
        *,
        kind: str = "turn",
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        timeout_s: float | None = None,
    ) -> Any:
        """Register the handler of turns: it is called with a `Turn`, and what it added is committed when it returns.

        A session has one turn at a time. The commit settles the work that the turn answers. If the handler raises,
        nothing is committed, and the work is tried again as `retry` says.
        """

        def register(given: Callable[..., Any]) -> Callable[..., Any]:
            self._register("turn", kind, given, retry, timeout_s)
            return given

        return register if function is None else register(function)

    def job(
        self,
        kind: str,
        *,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        timeout_s: float | None = None,
    ) -> Callable[[F], F]:
        """Register the handler of a kind of jobs: it is called with a `Job`, which is settled when it returns.

        Jobs make no revision, and many jobs of one session run at once.
        """

        def register(given: F) -> F:
            self._register("job", kind, given, retry, timeout_s)
            return given

        return register

    def _register(self, shape: Shape, kind: object, function: Any, retry: object, timeout_s: object) -> None:
        limit_s = None if timeout_s is None else handlers.check_number("timeout_s", timeout_s, least=0.001, most=1e6)
        kind_of = handlers.check_kind(kind)
        self._handlers.add(Registered(kind_of, shape, function, handlers.check_retry(retry), limit_s))

    # Life.

    def run(self, *, until_idle: bool = False) -> None:
        """Run until SIGTERM or Ctrl-C; with `until_idle`, until nothing is left that could be claimed now."""
        asyncio.run(self._run(until_idle=until_idle))

    async def _run(self, *, until_idle: bool) -> None:
        with ending_signals(self.stop):
            await self.serve(until_idle=until_idle)

    def stop(self) -> None:
        """Begin the shutdown. May be called from any thread."""
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, *, until_idle: bool = False) -> None:
        """Run inside an event loop of yours, until `stop` is called. Signals are yours; see `run`."""
        if not self._handlers:
            raise holdfast.InvalidRequest(
                "worker", "has no handlers: decorate functions with @worker.turn or @worker.job"
            )
        if self._stopping is not None:
            raise holdfast.InvalidRequest("worker", "runs already: make another one")
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._runner(self._stopping) as runner:
                await self._serve(runner, until_idle=until_idle)
        finally:
            self._loop = self._stopping = None

    @asynccontextmanager
    async def _runner(self, stopping: asyncio.Event) -> AsyncGenerator[Runner]:
        async with self._opened() as store:
            keeper = Keeper(await asyncio.to_thread(self._open_for_keeper, store))
            owner_id = holdfast.new_owner_id(self._name)
            runner = Runner(store, self._handlers, keeper, owner_id, self._lease_ms, stopping)
            try:
                yield runner
            finally:
                await asyncio.to_thread(keeper.close)

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[holdfast.Store]:
        if isinstance(self._place, holdfast.Store):
            yield self._place
        else:
            async with holdfast.open(self._place, options=self._options) as store:
                yield store

    def _open_for_keeper(self, store: holdfast.Store) -> holdfast.BlockingStore:
        """Return a store of the keeper's own: a handler that blocks the event loop must not stop the renewals."""
        if isinstance(self._place, holdfast.Store):
            return LentStore(store, OwnLoop())
        return holdfast.open_blocking(self._place, options=self._options)

    async def _serve(self, runner: Runner, *, until_idle: bool) -> None:
        assert self._stopping is not None
        slots = Slots(self._concurrency)
        claimers = [
            Claimer(runner, slots, kinds, exclusive=shape == "turn")
            for shape in SHAPES
            if (kinds := self._handlers.kinds(shape))
        ]
        claiming = asyncio.create_task(drain(runner, claimers) if until_idle else serve(claimers))
        stopping = asyncio.create_task(self._stopping.wait())
        watching = asyncio.create_task(self._watch(runner))
        try:
            await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                claiming.result()
        finally:
            for task in (claiming, stopping):
                task.cancel()
            await asyncio.gather(claiming, stopping, return_exceptions=True)
            await runner.finish(self._grace_s)
            watching.cancel()

    async def _watch(self, runner: Runner) -> None:
        """Stop handlers whose claims may have expired. The keeper's thread may hang in a renewal."""
        while True:
            await asyncio.sleep(self._lease_ms / 1000 / 10)
            runner.give_up_overdue()


@contextmanager
def ending_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` on SIGTERM and SIGINT instead of ending the process, if this is the thread that gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    with suppress(NotImplementedError):  # Windows: Ctrl-C ends the process
        for number in numbers:
            loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in numbers:
                loop.remove_signal_handler(number)
