"""`store.events`: the logs of processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

from holdfast import codec
from holdfast.errors import AlreadyTerminal, UndeclaredSignal, WaitTimeout
from holdfast.operations import events as event_operations
from holdfast.operations.topics import event_topic
from holdfast.ports import Operation
from holdfast.records.common import Document, Page, Scope
from holdfast.records.events import AppendReceipt, EventDraft, ProcessEvent
from holdfast.records.leases import Lease
from holdfast.records.processes import RESERVED_SIGNALS
from holdfast.rows import EventFilter
from holdfast.rules import checks, joint_events, leases, runs
from holdfast.rules import events as event_rules
from holdfast.rules import processes as rules
from holdfast.store.context import Context, FacetBase

T = TypeVar("T")


class Events(FacetBase):
    """The logs of processes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def append(
        self,
        process_id: str,
        type: str,
        payload: Document = None,
        *,
        replay_key: str | None = None,
        wake_target: Scope | None = None,
        lease: Lease | None = None,
    ) -> AppendReceipt:
        """Append an event of a declared type. A repeat with the same replay key and content returns the same event.

        With a lease on the process, the event is refused if the lease was lost. A run also has the types `step`,
        `progress` and `signal.<name>`, without declaring them. A type that ends the process needs a `replay_key`, so
        that a retry ends it once; so does a request to cancel.

        An event that wakes a session enqueues that wake in the same transaction. `processes.complete` appends under the
        key `process:<id>:terminal:<type>`, and `request_cancel` under `process:<id>:cancel_requested:<hash>`: the same
        event under such a key is a replay, and another event cannot have it.

        >>> kinds = [holdfast.events.EventType("progress")]
        >>> _ = store.processes.register(
        ...     holdfast.ProcessRegistration("build-7", holdfast.processes.External(), event_types=kinds)
        ... )
        >>> store.events.append("build-7", "progress", {"percent": 50}).event.sequence
        1
        """
        return await self._append(
            process_id, type, payload, replay_key=replay_key, wake_target=wake_target, lease=lease
        )

    async def _append(
        self,
        process_id: object,
        type: object,
        payload: Document,
        *,
        replay_key: str | None,
        wake_target: object = None,
        lease: Lease | None = None,
    ) -> AppendReceipt:
        checked = self._context.identifier("process_id", process_id)
        intent, heavy = await self._context.prepared(
            event_rules.check_event,
            checked,
            type,
            payload,
            replay_key=replay_key,
            wake_target=wake_target,
            limits=self._context.limits,
        )
        held = None if lease is None else leases.check_process_lease("lease", lease, checked, self._context.limits)
        batch_id = self._context.batch_id()
        return await judged(
            self._context,
            intent,
            lambda judgement: lambda tx: event_operations.append(tx, intent, judgement, held, batch_id),
            idempotent=intent.replay_key is not None,
            heavy=heavy,
        )

    async def append_many(
        self, process_id: str, events: Sequence[EventDraft], *, lease: Lease | None = None
    ) -> tuple[AppendReceipt, ...]:
        """Append several events in order, in one transaction: all of them or none. Costs little more than one.

        An event that ends the process or wakes a session is refused: append it alone. As with `append`, an event whose
        replay key is in the log already is not appended again. At most `limits.batch_items` events.

        >>> kinds = [holdfast.events.EventType("progress")]
        >>> _ = store.processes.register(
        ...     holdfast.ProcessRegistration("build-7", holdfast.processes.External(), event_types=kinds)
        ... )
        >>> drafts = [holdfast.events.EventDraft("progress", {"percent": percent}) for percent in (50, 100)]
        >>> [receipt.event.sequence for receipt in store.events.append_many("build-7", drafts)]
        [1, 2]
        """
        limits = self._context.limits
        checked = self._context.identifier("process_id", process_id)
        intents, _ = await self._context.prepared(joint_events.check_events, checked, events, limits)
        held = None if lease is None else leases.check_process_lease("lease", lease, checked, limits)
        idempotent = all(intent.replay_key is not None for intent in intents)
        return await self._context.backend.write(
            lambda tx: event_operations.append_many(tx, checked, intents, held), idempotent=idempotent, heavy=True
        )

    async def signal(
        self, process_id: str, name: str, payload: Document = None, *, replay_key: str | None = None
    ) -> AppendReceipt:
        """Send a process a signal: an event of type `signal.<name>`.

        A run gets any signal, and is due at once if it was suspended. `UndeclaredSignal` if its handler declares others
        only, which the store knows from the first claim of the run on. `AlreadyTerminal` if the process has ended: if
        it continued as a new run, `handle.signal` of `processes.handle(id)` finds that, and this call does not.
        Processes that are not runs must have declared the type.

        >>> kinds = [holdfast.events.EventType("signal.approve")]
        >>> _ = store.processes.register(
        ...     holdfast.ProcessRegistration("build-7", holdfast.processes.External(), event_types=kinds)
        ... )
        >>> store.events.signal("build-7", "approve", {"by": "ada"}).event.type
        'signal.approve'
        """
        event_type = rules.signal_type("name", name, self._context.limits)
        if not name.startswith(RESERVED_SIGNALS):
            await self._require_declared(process_id, name, replay_key)
        try:
            return await self._append(process_id, event_type, payload, replay_key=replay_key)
        except AlreadyTerminal as ended:
            continued_as = await self._continued_as(ended.process_id)
            raise AlreadyTerminal(ended.process_id, ended.status, f"signal {name!r}", continued_as) from None

    async def _continued_as(self, process_id: str) -> str | None:
        """Return the run that an ended one continued as, or None."""
        row = await self._context.backend.read(lambda tx: tx.find_process(process_id))
        return None if row is None else rules.process_of(row).continued_as

    async def _require_declared(self, process_id: str, name: str, replay_key: str | None) -> None:
        """Refuse a signal that the handler of a run does not declare, unless it was sent before."""
        page = await self._page(self._filter(process_id, 0, self._context.limits.page, type=runs.DECLARED))
        try:
            runs.require_declared(process_id, name, page.items[-1].payload if page.items else None)
        except UndeclaredSignal:
            if replay_key is None:
                raise
            key = self._context.identifier("replay_key", replay_key)
            if not await self._context.backend.read(lambda tx: event_operations.is_known(tx, process_id, key)):
                raise

    async def request_cancel(self, process_id: str, *, reason: str | None = None) -> AppendReceipt:
        """Ask a process to stop. Idempotent for the same reason.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.events.request_cancel("build-7", reason="too late").event.type
        'process.cancel_requested'
        """
        payload = {"reason": checks.optional_text("reason", reason, self._context.limits)}
        checked = self._context.identifier("process_id", process_id)
        key = event_rules.cancel_key(checked, payload)
        try:
            return await self._append(checked, event_rules.CANCEL_REQUESTED, payload, replay_key=key)
        except AlreadyTerminal as ended:
            continued_as = await self._continued_as(checked)
            raise AlreadyTerminal(ended.process_id, ended.status, continued_as=continued_as) from None

    async def after(
        self, process_id: str, after: int | str = 0, *, type: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[ProcessEvent]:
        """Return one page of the events after a sequence number, or after the cursor of an earlier page, in order.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> len(store.events.after("build-7", 0))
        0
        """
        filter = self._filter(process_id, after, limit, type=type)
        return await self._page(filter)

    def _filter(
        self,
        process_id: object,
        sequence: object,
        limit: object,
        *,
        type: object = None,
        wakes: bool = False,
    ) -> EventFilter:
        limits = self._context.limits
        return EventFilter(
            process_id=checks.identifier("process_id", process_id, limits),
            limit=checks.page_size(limit, limits),
            after=_sequence("after", sequence),
            type=checks.optional_identifier("type", type, limits),
            pending_wakes=wakes,
        )

    async def recent(self, process_id: str, *, limit: int = checks.DEFAULT_PAGE) -> tuple[ProcessEvent, ...]:
        """Return the last events, oldest first: fewer than `limit` if their documents reach 16 MiB, but at least one.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.events.recent("build-7", limit=3)
        ()
        """
        checked = self._context.identifier("process_id", process_id)
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(lambda tx: event_operations.recent(tx, checked, size))

    async def count(self, process_id: str, type: str, *, through: int) -> int:
        """Count the events of a type up to and including a sequence number.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.events.count("build-7", "process.completed", through=100)
        0
        """
        checked = self._context.identifier("process_id", process_id)
        name = self._context.identifier("type", type)
        bound = checks.whole("through", through)
        return await self._context.backend.read(lambda tx: event_operations.count(tx, checked, name, bound))

    async def wait_for(self, process_id: str, type: str, *, after: int = 0, timeout_ms: int) -> ProcessEvent:
        """Wait for the first event of a type after a sequence number; `WaitTimeout` if none comes in time.

        >>> kinds = [holdfast.events.EventType("progress")]
        >>> _ = store.processes.register(
        ...     holdfast.ProcessRegistration("build-7", holdfast.processes.External(), event_types=kinds)
        ... )
        >>> _ = store.events.append("build-7", "progress", 1)
        >>> store.events.wait_for("build-7", "progress", timeout_ms=1000).payload
        1
        """
        name = self._context.identifier("type", type)
        return await self._next(self._filter(process_id, after, 1, type=name), timeout_ms, f"an event {name!r}")

    async def _page(self, filter: EventFilter) -> Page[ProcessEvent]:
        return await self._context.backend.read(
            lambda tx: event_operations.list_page(tx, filter), view=event_operations.one_more(filter)
        )

    async def _next(self, filter: EventFilter, timeout_ms: object, what: str) -> ProcessEvent:
        async def check() -> tuple[ProcessEvent | None, int | None]:
            page = await self._page(filter)
            return (page.items[0] if page.items else None), None

        topic = event_topic(filter.process_id, filter.type)
        return await self._context.wait_until(topic, check, timeout_ms, f"{what} of process {filter.process_id!r}")

    async def follow(
        self, process_id: str, *, after: int = 0, timeout_ms: int | None = None
    ) -> AsyncIterator[ProcessEvent]:
        """Yield every event after a sequence number as it comes, each once. Ends after the terminal event.

        With `timeout_ms`, also ends when no event comes for that long.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> _ = store.processes.complete("build-7", holdfast.processes.Completed())
        >>> [event.type for event in store.events.follow("build-7")]
        ['process.completed']
        """
        filter = self._filter(process_id, after, self._context.limits.page)
        wait_ms = None if timeout_ms is None else checks.timeout("timeout_ms", timeout_ms)
        while True:
            page, ended = await self._context.backend.read(
                partial(event_operations.follow_page, filter=filter), view=event_operations.one_more(filter)
            )
            for event in page.items:
                yield event
                if event.terminal_state is not None:
                    return
                filter = self._filter(process_id, event.sequence, self._context.limits.page)
            if not page.items and ended:
                return
            if not page.items:
                try:
                    await self._next(filter, FOLLOW_WAIT_MS if wait_ms is None else wait_ms, "an event")
                except WaitTimeout:
                    if wait_ms is not None:
                        return

    async def wakes(
        self, process_id: str, *, after: int | str = 0, limit: int = checks.DEFAULT_PAGE
    ) -> Page[ProcessEvent]:
        """Return one page of unacknowledged events that wake a session, after a sequence number or cursor.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> len(store.events.wakes("build-7"))
        0
        """
        filter = self._filter(process_id, after, limit, wakes=True)
        return await self._page(filter)

    async def ack_wake(self, process_id: str, sequence: int) -> None:
        """Acknowledge a wake. Idempotent. A wake that never existed is `UnknownWake`.

        >>> kinds = [holdfast.events.EventType("news", wake=holdfast.events.WakeRule(input=holdfast.events.Payload()))]
        >>> _ = store.processes.register(
        ...     holdfast.ProcessRegistration("build-7", holdfast.processes.External(), event_types=kinds)
        ... )
        >>> store.events.ack_wake("build-7", store.events.append("build-7", "news", "done").event.sequence)
        """
        checked = self._context.identifier("process_id", process_id)
        number = checks.whole("sequence", sequence)
        await self._context.backend.write(lambda tx: event_operations.ack_wake(tx, checked, number), idempotent=True)


async def judged(
    context: Context,
    intent: event_rules.EventIntent,
    operation: Callable[[event_rules.Judgement | None], Operation[T | event_operations.Unjudged]],
    *,
    idempotent: bool,
    heavy: bool,
) -> T:
    """Run an operation that appends an event. An event that takes long to judge is judged between two transactions."""
    judgement: event_rules.Judgement | None = None
    while True:
        answer = await context.backend.write(
            operation(judgement), single_write=True, idempotent=idempotent, heavy=heavy
        )
        if not isinstance(answer, event_operations.Unjudged):
            return answer
        # A process registered again meanwhile has other declarations: then the event is judged once more.
        judgement = await context.backend.offload(partial(event_rules.judge, intent, answer.process))


FOLLOW_WAIT_MS = 60_000
"""Longest single wait of a follower without a timeout, so that even a lost notification only delays it."""


def _sequence(field: str, value: object) -> int:
    """Return the sequence to read after, from a sequence number or the cursor of an earlier page."""
    if isinstance(value, str):
        return int(codec.decode_cursor("events", value, [int], field=field)[0])
    return checks.whole(field, value)
