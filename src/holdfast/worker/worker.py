"""The worker as its user sees it: handlers are registered here, and `service` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import holdfast
from holdfast.worker import handlers
from holdfast.worker.handlers import Handlers, Registered, Shape
from holdfast.worker.retries import Retry
from holdfast.worker.schedules import Every
from holdfast.worker.tally import Listener, Tally

F = TypeVar("F", bound=Callable[..., Any])
Limits = tuple[int | None, int | None]


class Worker:
    """Runs your handlers on the work in a store, until it is stopped.

    `concurrency` calls run at once. A claim lives `lease_s` seconds after the worker died, and its work is then taken
    over. On SIGTERM or Ctrl-C the worker stops claiming, lets running calls finish for `grace_s` seconds, and gives the
    rest back; a second signal ends that time. Every `housekeeping_s` seconds one of all workers collects garbage, and
    prunes if `prune` is given. `observe` receives every operation, as in `holdfast.open`.

    >>> worker = holdfast.Worker("agent.db")
    >>> @worker.turn
    ... def answer(turn):
    ...     turn.add({"role": "user", "content": turn.input}, {"role": "assistant", "content": turn.input.upper()})
    >>> with holdfast.open_blocking("agent.db") as store:
    ...     chat = store.sessions.handle("chat-42")
    ...     _ = chat.enqueue("hello")
    ...     worker.run(until_idle=True)
    ...     chat.messages()[-1]["content"]
    'HELLO'
    """

    def __init__(  # noqa: PLR0913 - settings, each with a default
        self,
        store: str | os.PathLike[str] | holdfast.Store,
        *,
        concurrency: int = 10,
        lease_s: float = 30.0,
        grace_s: float = 30.0,
        name: str = "worker",
        housekeeping_s: float | None = 3600.0,
        prune: holdfast.RetentionPolicy | None = None,
        options: holdfast.SqliteOptions | holdfast.PostgresOptions | None = None,
        observe: holdfast.observers.Observer | Sequence[holdfast.observers.Observer] | None = None,
    ) -> None:
        handlers.check_store(store)
        for field, value in (("options", options), ("observe", observe)):
            if isinstance(store, holdfast.Store) and value is not None:
                raise holdfast.InvalidRequest(field, "go with a URL: the store is open already")
        handlers.check_options(options)
        # Loads asyncio, which a program that only names the class does not need.
        from holdfast.worker.service import Service

        self._handlers = Handlers()
        self.tally = Tally()
        """Counts of all calls so far: done, failed, dead, lost."""
        self._service = Service(
            store,
            options,
            self._handlers,
            self.tally,
            concurrency=handlers.check_whole("concurrency", concurrency, least=1, most=10_000),
            lease_ms=int(1000 * handlers.check_number("lease_s", lease_s, least=0.5, most=86_400)),
            grace_s=handlers.check_number("grace_s", grace_s, least=0, most=86_400),
            name=handlers.check_name(name),
        )
        self._service.observe = observe
        self._service.upkeep.housekeeping_ms = _interval_ms(housekeeping_s)
        self._service.upkeep.prune = _checked_policy(prune)

    def __repr__(self) -> str:
        kinds = handlers.listed(self._handlers.all_kinds())
        return f"Worker({kinds or 'no handlers'})"

    @property
    def handlers(self) -> Handlers:
        """The handlers that were registered, for tools that run them in another way."""
        return self._handlers

    # Handlers.

    @overload
    def turn(
        self,
        function: F,
        *,
        kind: str = "turn",
        retry: Retry = ...,
        timeout_s: float | None = None,
        at_once: int | None = None,
        per_key: int | None = None,
    ) -> F: ...
    @overload
    def turn(
        self,
        function: None = None,
        *,
        kind: str = "turn",
        retry: Retry = ...,
        timeout_s: float | None = None,
        at_once: int | None = None,
        per_key: int | None = None,
    ) -> Callable[[F], F]: ...
    def turn(
        self,
        function: Callable[..., Any] | None = None,
        *,
        kind: str = "turn",
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        timeout_s: float | None = None,
        at_once: int | None = None,
        per_key: int | None = None,
    ) -> Any:
        """Register the handler of turns: it is called with a `Turn`, and what it added is committed when it returns.

        A session has one turn at a time. The commit settles the work that the turn answers. If the handler raises,
        nothing is committed, and the work is tried again as `retry` says. `at_once` and `per_key` limit how many turns
        run over all workers, as with `job`.
        """
        kind_of = handlers.check_kind(kind, "turn", at_once, per_key)

        def register(given: Callable[..., Any]) -> Callable[..., Any]:
            self._register("turn", kind_of, given, retry, timeout_s, (at_once, per_key))
            return given

        return register if function is None else register(function)

    def job(
        self,
        kind: str,
        *,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        timeout_s: float | None = None,
        at_once: int | None = None,
        per_key: int | None = None,
    ) -> Callable[[F], F]:
        """Register the handler of a kind of jobs: it is called with a `Job`, which is settled when it returns.

        Jobs make no revision, and many jobs of one session run at once: over all workers at most `at_once` of the kind,
        and `per_key` of each `WorkDraft.key`. The worker stores these limits when it starts, and the newest win; see
        `queue.set_limit`.

        >>> worker = holdfast.Worker("agent.db")
        >>> @worker.job("send-mail", at_once=10, per_key=2)
        ... def send(job):
        ...     print(job.batch.key, job.payload)
        >>> with holdfast.open_blocking("agent.db") as store:
        ...     mail = holdfast.WorkDraft(session_id="mail", payloads=["hello"], kind="send-mail", key="ada")
        ...     _ = store.queue.enqueue(mail)
        ...     worker.run(until_idle=True)
        ada hello
        """
        if kind == "turn":
            raise holdfast.InvalidRequest("kind", "'turn' is the kind of messages: use @worker.turn, or another kind")
        kind_of = handlers.check_kind(kind, "job", at_once, per_key)

        def register(given: F) -> F:
            self._register("job", kind_of, given, retry, timeout_s, (at_once, per_key))
            return given

        return register

    def process(
        self,
        kind: str,
        *,
        version: str = "1",
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        lease_s: float | None = None,
        timeout_s: float | None = None,
        recovery: holdfast.processes.Recovery = "rerunnable",
        signals: Mapping[str, Any] | Iterable[str] | None = None,
        at_once: int | None = None,
    ) -> Callable[[F], F]:
        """Register the handler of a kind of runs: it is called with a `Run`, and its result completes the run.

        The arguments that the run was started with follow as named arguments, if the handler takes any. The handler
        takes runs of its `version` only: `processes.start(kind, args, version="2")` starts one for another handler.

        `recovery` says what happens when a worker was lost in the middle of a call: `rerunnable` calls the handler
        again; `owner_bound` ends the run as abandoned, with evidence; so does `external`, unless the run has an
        external reference: then its work continues outside, and the outside ends it.

        `signals` declares the signals that the handler takes, by name, or by name and type of the payload. From its
        first claim on, another signal to the run is refused with `UndeclaredSignal`. Without it, a run takes any.

        `at_once` limits how many runs of the kind, of all its versions, are called over all workers, as with `job`. A
        run that sleeps or waits for a signal does not count.

        >>> worker = holdfast.Worker("agent.db")
        >>> @worker.process("research")
        ... def research(run, question):
        ...     plan = run.step("plan", str.upper, question)
        ...     return {"plan": plan}
        >>> with holdfast.open_blocking("agent.db") as store:
        ...     run = store.processes.start("research", {"question": "why?"}).process
        ...     worker.run(until_idle=True)
        ...     store.processes.wait(run.id, timeout_ms=1000).value
        {'plan': 'WHY?'}
        """
        lease_ms = None
        if lease_s is not None:
            lease_ms = int(1000 * handlers.check_number("lease_s", lease_s, least=0.5, most=86_400))
        kind_of = handlers.check_kind(kind, "process", at_once)
        wanted = handlers.check_version(version)
        way = handlers.check_recovery(recovery)
        declared = handlers.check_signals(signals)

        def register(given: F) -> F:
            limit_s = _limit_s(timeout_s)
            terms = handlers.check_retry(retry)
            self._service.require_idle()
            made = Registered(
                kind_of, "process", given, terms, limit_s, wanted, lease_ms, way, at_once, signals=declared
            )
            self._handlers.add(made)
            return given

        return register

    def _register(
        self, shape: Shape, kind: str, function: Any, retry: object, timeout_s: object, limits: Limits
    ) -> None:
        self._service.require_idle()
        terms = handlers.check_retry(retry)
        at_once, per_key = limits
        made = Registered(kind, shape, function, terms, _limit_s(timeout_s), at_once=at_once, per_key=per_key)
        self._handlers.add(made)

    def every(
        self,
        cron: str,
        kind: str,
        *,
        tz: str = "UTC",
        payload: holdfast.Document = None,
        name: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """Declare a schedule: at each tick of a cron expression, the handler of this kind gets work with this payload.

        Over all workers, each tick is one job (or one turn or run, as the handler is). Of the ticks
        that were missed while no worker ran, the latest fires late. The schedule has the name of the kind, unless
        `name` is given; it stays in the store until it is removed: see `store.schedules`. Needs
        `pip install 'holdfast[schedules]'`.

        >>> worker = holdfast.Worker("agent.db")
        >>> @worker.job("nightly-report")
        ... def report(job):
        ...     print("reporting", job.payload["days"], "days")
        >>> worker.every("0 3 * * *", "nightly-report", tz="Europe/Vienna", payload={"days": 7})
        >>> worker.run(until_idle=True)
        >>> with holdfast.open_blocking("agent.db") as store:
        ...     _ = store.schedules.run_now("nightly-report")
        >>> worker.run(until_idle=True)
        reporting 7 days
        """
        self._service.require_idle()
        kind_of = handlers.check_kind(kind, "job")
        self._service.upkeep.schedules.add(
            Every(cron, kind_of, tz, payload, kind_of if name is None else name, session_id)
        )

    def on_failure(self, listener: Listener) -> Listener:
        """Call a plain function with each stored `Failure` of a handler. It runs on the event loop and must not block.

        >>> worker = holdfast.Worker("agent.db")
        >>> @worker.on_failure
        ... def report(failure):
        ...     print(failure, failure.trace(), sep="\\n")
        """
        _require_plain(listener)
        self.tally.listeners.append(listener)
        return listener

    def on_start(self, listener: F) -> F:
        """Call a function each time the worker has opened its store and begins to claim, to report that it is ready.

        >>> worker = holdfast.Worker("agent.db")
        >>> @worker.on_start
        ... def ready():
        ...     print("ready")
        """
        _require_plain(listener)
        self._service.starters.append(listener)
        return listener

    # Life.

    @property
    def calls_running(self) -> int:
        """The number of calls that run now."""
        return self._service.calls_running

    @property
    def concurrency(self) -> int:
        """The number of calls that may run at once."""
        return self._service.concurrency

    @property
    def own_place(self) -> tuple[str, holdfast.SqliteOptions | holdfast.PostgresOptions | None] | None:
        """The URL and the options of the worker's store, None if the worker was given an open store."""
        return self._service.own_place

    def open_own_store(self) -> holdfast.BlockingStore | None:
        """Open the store of the worker for another thread, None if the worker was given an open store."""
        return self._service.open_own_store()

    def run(self, *, until_idle: bool = False) -> None:
        """Run until SIGTERM or Ctrl-C; with `until_idle`, until nothing is left that could be claimed now."""
        self._service.run(until_idle=until_idle)

    def stop(self) -> None:
        """Begin the shutdown. May be called from any thread. Before `run`, it makes the next run end at once."""
        self._service.stop()

    async def serve(self, *, until_idle: bool = False) -> None:
        """Run inside an event loop of yours, until `stop` is called. Signals are yours; see `run`.

        A cancel begins the shutdown, as `stop` does; a second one ends the time that running calls have to finish.
        """
        await self._service.serve(until_idle=until_idle)


def _require_plain(listener: Any) -> None:
    if not callable(listener):
        raise holdfast.InvalidRequest("listener", f"must be a function, not {type(listener).__name__}")
    if handlers.is_async(listener):
        raise holdfast.InvalidRequest("listener", "is async: use a plain function, which may create a task")


def _interval_ms(housekeeping_s: object) -> int | None:
    if housekeeping_s is None:
        return None
    return int(1000 * handlers.check_number("housekeeping_s", housekeeping_s, least=1, most=604_800))


def _checked_policy(policy: holdfast.RetentionPolicy | None) -> holdfast.RetentionPolicy | None:
    if policy is not None:
        try:
            with holdfast.open_blocking("memory:") as store:
                store.maintenance.prune(policy, dry_run=True)
        except holdfast.InvalidRequest as error:
            raise holdfast.InvalidRequest(f"prune{error.field.removeprefix('policy')}", error.problem) from None
    return policy


def _limit_s(timeout_s: object) -> float | None:
    return None if timeout_s is None else handlers.check_number("timeout_s", timeout_s, least=0.001, most=1e6)
