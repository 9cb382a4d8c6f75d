"""A handle on one run: its result, its events as they come, signals to it, and its cancellation.

If the run continued as a new one, each call acts on that one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar, overload

import msgspec

from holdfast.errors import AlreadyTerminal, InvalidRequest, UnknownProcess, WaitTimeout
from holdfast.records.common import Document
from holdfast.records.events import AppendReceipt, ProcessEvent
from holdfast.records.processes import Completed, Process, ProcessOutcome, StartReceipt
from holdfast.rules import checks
from holdfast.run_chains import is_in_chain, may_be_in_chain
from holdfast.store.artifacts import Artifacts
from holdfast.store.context import Context
from holdfast.store.events import FOLLOW_WAIT_MS, Events

T = TypeVar("T")


class RunFailed(Exception):
    """A run ended without a result. `outcome` says how."""

    def __init__(self, process_id: str, outcome: ProcessOutcome) -> None:
        message = getattr(outcome, "message", "")
        super().__init__(f"run {process_id!r} ended as {type(outcome).__name__.lower()}: {message}")
        self.process_id = process_id
        self.outcome = outcome


class _Processes(Protocol):
    """The calls of `store.processes` that a handle makes."""

    async def get(self, process_id: str) -> Process | None: ...
    async def wait(self, process_id: str, *, timeout_ms: int) -> ProcessOutcome: ...


class RunHandle:
    """A run that was started, or that a handle was asked for."""

    def __init__(self, context: Context, processes: _Processes, id: str) -> None:
        self.id = id
        self.receipt: StartReceipt | None = None
        """The receipt of the start, None if the handle did not start the run."""
        self._processes = processes
        self._events: Events = context.facet(Events)(context)
        self._artifacts: Artifacts = context.facet(Artifacts)(context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _started(self) -> StartReceipt:
        if self.receipt is None:
            raise InvalidRequest("run", "was not started by this handle: read it with processes.get(run.id)")
        return self.receipt

    @property
    def created(self) -> bool:
        """True if this call started the run, False if it was there already."""
        return self._started().created

    @property
    def process(self) -> Process:
        """The run as it stood when it was started."""
        return self._started().process

    @property
    def position(self) -> str:
        """The position of the start, for `not_older_than` on a replica."""
        return self._started().position

    @overload
    async def result(self, *, timeout_ms: int | None = None) -> Any: ...
    @overload
    async def result(self, declared: type[T], *, timeout_ms: int | None = None) -> T: ...
    async def result(self, declared: Any = None, *, timeout_ms: int | None = None) -> Any:
        """Return the result once the run has ended, as a value of a type if one is given.

        `RunFailed` if it ended without one; `WaitTimeout` if it has not ended in time.

        >>> run = store.processes.start("research", id="run-1")
        >>> _ = store.processes.complete("run-1", holdfast.processes.Completed([1, 2]))
        >>> run.result(), run.result(tuple[int, int])
        ([1, 2], (1, 2))
        """
        outcome = await self.outcome(timeout_ms=timeout_ms)
        if not isinstance(outcome, Completed):
            raise RunFailed(self.id, outcome)
        from holdfast.large_results import value_of  # rarely needed, like the types below

        value = await value_of(self._artifacts, outcome)
        if declared is None:
            return value
        from holdfast import typed_values

        try:
            return typed_values.decoded(value, declared)
        except (TypeError, msgspec.ValidationError) as error:
            raise InvalidRequest(
                "declared", f"the result of run {self.id!r} is not a valid {typed_values.name_of(declared)}: {error}"
            ) from error

    async def outcome(self, *, timeout_ms: int | None = None) -> ProcessOutcome:
        """Return the outcome once the run has ended; `WaitTimeout` if it has not ended in time.

        >>> run = store.processes.start("research", id="run-1")
        >>> _ = store.processes.complete("run-1", holdfast.processes.Failed("no such topic"))
        >>> run.outcome().message
        'no such topic'
        """
        allowed_ms = None if timeout_ms is None else checks.timeout("timeout_ms", timeout_ms)
        deadline_s = None if allowed_ms is None else time.monotonic() + allowed_ms / 1000
        while True:
            left_ms = FOLLOW_WAIT_MS if deadline_s is None else int(1000 * (deadline_s - time.monotonic()))
            id = await self.newest_id()
            try:
                outcome = await self._processes.wait(id, timeout_ms=max(0, left_ms))
            except WaitTimeout:
                if deadline_s is not None:
                    raise
            else:
                if await self.newest_id() == id:
                    return outcome

    async def newest_id(self) -> str:
        """Return the id of the run that continues this one, its own if none does.

        >>> store.processes.start("research", id="run-1").newest_id()
        'run-1'
        """
        id = self.id
        while True:
            process = await self._processes.get(id)
            if process is None:
                raise UnknownProcess(id)
            if process.continued_as is None:
                return id
            id = process.continued_as

    async def follow(
        self, after: int | str | None = None, *, timeout_ms: int | None = None
    ) -> AsyncIterator[ProcessEvent]:
        """Yield every event after a cursor (None: all) as it comes, each once, and end after the last event of the run.

        A cursor is `event.cursor` of the last event that was seen: a reader that reconnects continues there. Raises
        `InvalidRequest` for a cursor of another run, unless one of the two continues or retries the other.

        >>> run = store.processes.start("research", id="run-1")
        >>> _ = store.events.append("run-1", "progress", {"found": 1})
        >>> _ = store.processes.complete("run-1", holdfast.processes.Completed())
        >>> [event.type for event in run.follow()], [event.type for event in run.follow("1@run-1")]
        (['progress', 'process.completed'], ['process.completed'])
        """
        begin = 0 if after is None else after
        id, sequence = (self.id, begin) if isinstance(begin, int) else _parsed(begin)
        if id != self.id:
            await self._require_own(id)
        while True:
            async for event in self._events.follow(id, after=sequence, timeout_ms=timeout_ms):
                yield event
            process = await self._processes.get(id)
            if process is None or process.continued_as is None:
                return
            id, sequence = process.continued_as, 0

    async def _require_own(self, id: str) -> None:
        """Raise `InvalidRequest` for the cursor of a run outside of this chain: a browser may send any cursor."""
        # Before a read: the answer must not say whether the other run exists.
        found = await self._processes.get(id) if may_be_in_chain(id, self.id) else None
        own = None if found is None else await self._processes.get(self.id)
        cause = None if own is None else own.provenance.caused_by
        if found is None or not is_in_chain(id, found.provenance.caused_by, self.id, cause, known=own is not None):
            raise InvalidRequest("after", f"is not a cursor of run {self.id!r}, nor of a stored run of its chain")

    async def signal(self, name: str, payload: Document = None, *, replay_key: str | None = None) -> AppendReceipt:
        """Send the run a signal; `AlreadyTerminal` if it has ended, `UndeclaredSignal` if its handler declares others.

        A repeat with the same replay key is sent once, also if the run continued as new ones meanwhile.

        >>> store.processes.start("research", id="run-1").signal("approve", {"by": "ada"}).event.type
        'signal.approve'
        """

        async def send(run_id: str) -> AppendReceipt:
            return await self._events.signal(run_id, name, payload, replay_key=replay_key)

        return await self._on_newest(send, each=replay_key is not None)

    async def cancel(self, *, reason: str | None = None) -> AppendReceipt:
        """Ask the run to stop; `AlreadyTerminal` if it has ended.

        >>> store.processes.start("research", id="run-1").cancel(reason="too late").event.type
        'process.cancel_requested'
        """
        return await self._on_newest(lambda run_id: self._events.request_cancel(run_id, reason=reason))

    async def _on_newest(self, send: Callable[[str], Awaitable[AppendReceipt]], *, each: bool = False) -> AppendReceipt:
        """Send to the newest run of the chain; with `each`, to one after another until one takes it, or did before."""
        id = self.id
        while True:
            try:
                return await send(id)
            except AlreadyTerminal:
                process = await self._processes.get(id)
                following = None if process is None else process.continued_as
                if following is None:
                    raise
                id = following if each else await self.newest_id()


def _parsed(cursor: object) -> tuple[str, int]:
    sequence, at, id = cursor.partition("@") if isinstance(cursor, str) else ("", "", "")
    if not at or not id or not (sequence.isascii() and sequence.isdigit()):
        raise InvalidRequest("after", "must be the cursor of an event, or a sequence number of this run")
    return id, int(sequence)
