"""`store.processes`: background work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.log import warn
from holdfast.operations import processes as operations
from holdfast.operations import restoring
from holdfast.operations.topics import process_topic
from holdfast.records.common import Document, Page
from holdfast.records.events import EventType, ProcessEvent, WakesOnceWarning
from holdfast.records.leases import Lease
from holdfast.records.processes import (
    ExternalRef,
    Process,
    ProcessOutcome,
    ProcessRegistration,
    ProcessSessionReport,
    SignalWait,
)
from holdfast.records.restoring import RestoreReceipt
from holdfast.rows import ProcessFilter
from holdfast.rules import checks, leases
from holdfast.rules import events as event_rules
from holdfast.rules import processes as rules
from holdfast.rules import restoring as restoring_rules
from holdfast.store.context import Context
from holdfast.store.events import judged
from holdfast.store.runs import RunProcesses

StatusFilter = Literal["running", "completed", "failed", "cancelled", "abandoned", "any"]


def warn_of_wakes_once(event_types: Sequence[EventType]) -> None:
    """Warn of declared wakes that have a limited number of dedupe keys."""
    for name, keys in event_rules.wakes_once(event_types).items():
        has = "a constant dedupe key" if keys == 1 else f"only {keys} possible dedupe keys"
        often = "once" if keys == 1 else f"at most {keys} times"
        warn(
            f"event type {name!r}: its wake has {has}, so it wakes a session {often} and never again; "
            "take the key from the payload, or leave dedupe out",
            WakesOnceWarning,
        )


class Processes(RunProcesses):
    """The process registry."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def register(self, registration: ProcessRegistration) -> Process:
        """Register a process. The same registration again returns the process as it stands; another one conflicts.

        A wake whose `dedupe` has only one value, or a few, is a `WakesOnceWarning`.

        >>> process = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> process.status
        'running'
        """
        registered, heavy = await self._context.prepared(rules.check_registration, registration, self._context.limits)
        warn_of_wakes_once(registered.event_types)
        return await self._context.backend.write(
            lambda tx: operations.register(tx, registered), idempotent=True, heavy=heavy
        )

    async def restore(self, process: Process, events: Sequence[ProcessEvent] = ()) -> RestoreReceipt:
        """Register a process of another store as it stands there, with its whole log and its times but without a lease.

        The same process again is a replay. One that is here already in another state is a `Conflict`, and one whose
        events do not lead to its state is `InvalidRequest`. No wake of its events is delivered again.

        >>> with holdfast.open_blocking("memory:") as other:
        ...     _ = other.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        ...     ended = other.processes.complete("build-7", holdfast.processes.Completed(42))
        ...     log = list(other.events.after("build-7"))
        >>> store.processes.restore(ended, log).replayed, store.processes.restore(ended, log).replayed
        (False, True)
        >>> store.processes.get("build-7") == ended
        True
        """
        restored, heavy = await self._context.prepared(
            restoring_rules.check_process, process, events, self._context.limits
        )
        return await self._context.backend.write(
            lambda tx: restoring.process(tx, restored), idempotent=True, heavy=heavy
        )

    async def get(self, process_id: str) -> Process | None:
        """Return the process, None if none of this id is registered.

        >>> store.processes.get("nobody") is None
        True
        """
        checked = self._context.identifier("process_id", process_id)
        return await self._context.backend.read(lambda tx: operations.get(tx, checked))

    async def list(
        self,
        *,
        status: StatusFilter = "running",
        waiting: bool | None = None,
        definition: Document | None = None,
        started_by: str | None = None,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[Process]:
        """Return one page of processes by id.

        A waiting process is running, too. `started_by` is a session, and matches any frame of it.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> [process.id for process in store.processes.list()]
        ['build-7']
        """
        limits = self._context.limits
        word = checks.one_of("status", status, (*rules.STATUSES, "any"))
        checks.optional_document("definition", definition, limits)
        place = checks.cursor("processes", after, [str])
        filter = ProcessFilter(
            limit=checks.page_size(limit, limits),
            status=None if word == "any" else word,
            waiting=None if waiting is None else int(checks.flag("waiting", waiting)),
            definition_hash=rules.definition_hash(definition),
            originator_session_id=checks.optional_identifier("started_by", started_by, limits),
            after=None if place is None else place[0],
        )
        return await self._context.backend.read(lambda tx: operations.list_page(tx, filter))

    async def ended(
        self, *, since_ms: int = 0, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[Process]:
        """Return one page of ended processes that changed at or after that time, in the order of their last change.

        The last change is usually the end. A later one, such as an event that is allowed after the end, counts as well.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> began_ms = store.now_ms()
        >>> _ = store.processes.complete("build-7", holdfast.processes.Completed(42))
        >>> [process.id for process in store.processes.ended(since_ms=began_ms)]
        ['build-7']
        """
        size = checks.page_size(limit, self._context.limits)
        place = checks.cursor("ended processes", after, [int, str])
        # No id is empty, so this place is before every process that changed at that time.
        start = (checks.whole("since_ms", since_ms), "") if place is None else (place[0], place[1])
        return await self._context.backend.read(lambda tx: operations.ended_page(tx, start, size))

    async def set_external_ref(self, process_id: str, ref: ExternalRef) -> Process:
        """Record where the work really runs.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.processes.set_external_ref("build-7", holdfast.processes.ExternalRef("ci", "run-1")).external_ref.id
        'run-1'
        """
        checked = self._context.identifier("process_id", process_id)
        ref = rules.check_external_ref(ref, self._context.limits)
        return await self._context.backend.write(
            lambda tx: operations.set_external_ref(tx, checked, ref), idempotent=True
        )

    async def set_wait(self, process_id: str, wait: SignalWait) -> Process:
        """Record the signal that a running process waits for.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.processes.set_wait("build-7", holdfast.processes.SignalWait("approve", ordinal=1)).wait.event_type
        'signal.approve'
        """
        checked = self._context.identifier("process_id", process_id)
        wait = rules.check_wait(wait, self._context.limits)
        return await self._context.backend.write(lambda tx: operations.set_wait(tx, checked, wait))

    async def clear_wait(self, process_id: str) -> Process:
        """Record that the process no longer waits. Idempotent.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.processes.clear_wait("build-7").wait is None
        True
        """
        checked = self._context.identifier("process_id", process_id)
        return await self._context.backend.write(lambda tx: operations.clear_wait(tx, checked))

    async def complete(self, process_id: str, outcome: ProcessOutcome, *, lease: Lease | None = None) -> Process:
        """End a process, once. With a lease, the call is refused if the lease was lost; the end releases the lease.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> store.processes.complete("build-7", holdfast.processes.Completed({"ok": True})).status
        'completed'
        """
        limits = self._context.limits
        checked = self._context.identifier("process_id", process_id)
        intent, heavy = await self._context.prepared(event_rules.completion_event, checked, outcome, limits)
        held = None if lease is None else leases.check_process_lease("lease", lease, checked, limits)
        batch_id = self._context.batch_id()
        ended = await judged(
            self._context,
            intent,
            lambda judgement: lambda tx: operations.complete(tx, intent, judgement, held, batch_id),
            idempotent=True,
            heavy=heavy,
        )
        return await self._context.computed(rules.process_of, ended)

    async def wait(self, process_id: str, *, timeout_ms: int) -> ProcessOutcome:
        """Return the outcome once there is one. Raises `WaitTimeout` when the time is up.

        >>> _ = store.processes.register(holdfast.ProcessRegistration("build-7", holdfast.processes.External()))
        >>> _ = store.processes.complete("build-7", holdfast.processes.Completed(42))
        >>> store.processes.wait("build-7", timeout_ms=1000).value
        42
        """
        checked = self._context.identifier("process_id", process_id)

        async def check() -> tuple[ProcessOutcome | None, int | None]:
            row = await self._context.backend.read(lambda tx: operations.require(tx, checked))
            return (await self._context.computed(rules.process_of, row)).outcome, None

        topic = process_topic(checked)
        return await self._context.wait_until(topic, check, timeout_ms, f"the end of process {checked!r}")

    async def forget_session(self, session_id: str) -> ProcessSessionReport:
        """Remove a session's handles and wake targets, for all its frames. The processes continue.

        >>> store.processes.forget_session("chat-42").revoked_grants
        0
        """
        checked = self._context.identifier("session_id", session_id)
        return await self._context.backend.write(lambda tx: operations.forget_session(tx, checked))
