"""`store.triggers`: sources fire, and each occurrence reaches each subscription once."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidRequest
from holdfast.operations import processes as process_operations
from holdfast.operations import restoring
from holdfast.operations import triggers as operations
from holdfast.ports import Transaction
from holdfast.records.common import Document, Page
from holdfast.records.limits import LARGEST_INTEGER
from holdfast.records.processes import Host, Originator, Process
from holdfast.records.restoring import RestoreReceipt
from holdfast.records.triggers import Emission, Occurrence, Subscription, SubscriptionDraft, TriggerDelivery
from holdfast.rows import SubscriptionFilter
from holdfast.rules import checks, processes
from holdfast.rules import restoring as restoring_rules
from holdfast.rules import triggers as rules
from holdfast.store.context import Context, FacetBase
from holdfast.store.processes import warn_of_wakes_once


class Triggers(FacetBase):
    """Subscriptions, occurrences and deliveries."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def subscribe(self, draft: SubscriptionDraft) -> Subscription:
        """Register a subscription. Under a key, the same definition again returns the same one, and another conflicts.

        A wake among its event types whose `dedupe` has only one value, or a few, is a `WakesOnceWarning`.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source={"at": "07:00"}, target=holdfast.processes.External()
        ... )
        >>> store.triggers.subscribe(draft).handle
        'trigger:1'
        """
        intent, heavy = await self._context.prepared(rules.check_subscription, draft, self._context.limits)
        warn_of_wakes_once(draft.event_types)
        return await self._context.backend.write(lambda tx: operations.subscribe(tx, intent), heavy=heavy)

    async def list(
        self,
        *,
        session_id: str | None = None,
        host_only: bool = False,
        handle: str | None = None,
        name: str | None = None,
        source_type: str | None = None,
        source_key: str | None = None,
        target: Document | None = None,
        enabled: bool | None = None,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[Subscription]:
        """Return one page of the subscriptions that match every given filter, in the order of registration.

        `session_id` matches the registrants of all its frames; `target` is the definition in the target's identity.

        >>> len(store.triggers.list(session_id="chat-42"))
        0
        """
        limits = self._context.limits
        sequence = None if handle is None else rules.sequence_of("handle", handle, "trigger:", limits)
        checks.optional_document("target", target, limits)
        place = checks.cursor("subscriptions", after, [int])
        filter = SubscriptionFilter(
            limit=checks.page_size(limit, limits),
            session_id=checks.optional_identifier("session_id", session_id, limits),
            host_only=checks.flag("host_only", host_only),
            sequence=sequence,
            name=checks.optional_text("name", name, limits),
            source_type=checks.optional_identifier("source_type", source_type, limits),
            source_key=checks.optional_identifier("source_key", source_key, limits),
            target_hash=processes.definition_hash(target),
            enabled=None if enabled is None else int(checks.flag("enabled", enabled)),
            after=None if place is None else place[0],
        )
        if handle is not None and sequence is None:
            return Page(())
        return await self._context.backend.read(lambda tx: operations.list_page(tx, filter))

    async def cancel(self, handle: str, *, registrant: Originator = Host()) -> bool:  # noqa: B008 - a frozen value
        """Disable a subscription of the registrant. Return False if it has no such enabled one. It stays listed.

        >>> draft = holdfast.triggers.SubscriptionDraft(source_type="cron", target=holdfast.processes.External())
        >>> store.triggers.cancel(store.triggers.subscribe(draft).handle)
        True
        """
        limits = self._context.limits
        sequence = rules.sequence_of("handle", handle, "trigger:", limits)
        owner = processes.check_originator("registrant", registrant, limits)
        if sequence is None:
            return False
        return await self._context.backend.write(lambda tx: operations.cancel(tx, owner, sequence))

    async def forget_session(self, session_id: str) -> int:
        """Delete the subscriptions of a session and all its frames, with their deliveries. Return how many.

        >>> store.triggers.forget_session("chat-42")
        0
        """
        checked = self._context.identifier("session_id", session_id)
        return await self._context.backend.write(lambda tx: operations.forget_session(tx, checked))

    def source_key(self, source_type: str, source: Document = None) -> str:
        """Return the key of a source that has no name of its own, derived from its type and document.

        >>> store.triggers.source_key("cron", {"at": "07:00"}) == store.triggers.source_key("cron", {"at": "07:00"})
        True
        """
        checked = self._context.identifier("source_type", source_type)
        checks.document("source", source, self._context.limits)
        return rules.default_source_key(checked, source)

    async def record(
        self,
        source_type: str,
        source_key: str,
        *,
        idempotency_key: str,
        payload: Document = None,
        source: Document | None = None,
    ) -> Occurrence:
        """Record that a source fired, once per idempotency key. Reserves no delivery yet.

        >>> store.triggers.record("cron", "daily", idempotency_key="2026-11-15").source_key
        'daily'
        """
        intent, heavy = await self._context.prepared(
            rules.check_occurrence, source_type, source_key, idempotency_key, payload, source, self._context.limits
        )
        return await self._context.backend.write(
            lambda tx: operations.record_only(tx, intent), idempotent=True, heavy=heavy
        )

    async def reserve(self, occurrence_id: str) -> Page[TriggerDelivery]:
        """Reserve the deliveries of an occurrence to each enabled subscription of its source. Return the new ones.

        Of very many, returns the first page. `deliveries(occurrence_id, after=page.next)` lists the others.

        >>> occurrence = store.triggers.record("cron", "daily", idempotency_key="2026-11-15")
        >>> len(store.triggers.reserve(occurrence.occurrence_id))
        0
        """
        checked = self._context.identifier("occurrence_id", occurrence_id)
        reserved = await self._context.backend.write(lambda tx: operations.reserve(tx, checked))
        emission = await self._context.computed(rules.emission_of, reserved)
        return Page(emission.deliveries, emission.next)

    async def emit(
        self,
        source_type: str,
        source_key: str,
        *,
        idempotency_key: str,
        payload: Document = None,
        source: Document | None = None,
    ) -> Emission:
        """Record an occurrence and reserve its deliveries in one transaction.

        Register each delivery's process with `holdfast.triggers.registration_for(delivery)`; a crash before that leaves
        it in `undelivered`, and its process id makes a second start harmless. Of very many deliveries, the emission has
        the first page; `deliveries(occurrence_id, after=emission.next)` lists the others.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.External()
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> emission = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15")
        >>> [store.processes.register(holdfast.triggers.registration_for(one)).status for one in emission.deliveries]
        ['running']
        """
        intent, heavy = await self._context.prepared(
            rules.check_occurrence, source_type, source_key, idempotency_key, payload, source, self._context.limits
        )
        reserved = await self._context.backend.write(lambda tx: operations.emit(tx, intent), heavy=heavy)
        return await self._context.computed(rules.emission_of, reserved)

    async def undelivered(
        self,
        *,
        reserved_until_ms: int = LARGEST_INTEGER,
        runs_only: bool = False,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = checks.DEFAULT_PAGE,
    ) -> Page[TriggerDelivery]:
        """Return one page of deliveries reserved until a time whose process was never registered, oldest first.

        With `runs_only`, those whose target is a `Run`, which a worker starts; with `session_id`, those to this
        session's subscriptions. Name one of them.

        >>> len(store.triggers.undelivered())
        0
        """
        until = checks.whole("reserved_until_ms", reserved_until_ms)
        only_runs = checks.flag("runs_only", runs_only)
        of_session = None if session_id is None else self._context.identifier("session_id", session_id)
        if only_runs and of_session is not None:
            raise InvalidRequest("session_id", "cannot be combined with runs_only: name one of them")
        place = checks.cursor("undelivered", after, [int, str, int])
        start = None if place is None else (int(place[0]), str(place[1]), int(place[2]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(
            lambda tx: operations.undelivered(
                tx, reserved_until_ms=until, runs_only=only_runs, session_id=of_session, after=start, limit=size
            )
        )

    async def failed(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[TriggerDelivery]:
        """Return one page of deliveries whose process could not be started, oldest first. Each has its `failure`.

        With `session_id`, those to this session's subscriptions.

        >>> len(store.triggers.failed())
        0
        """
        of_session = None if session_id is None else self._context.identifier("session_id", session_id)
        place = checks.cursor(operations.FAILED, after, [int, str, int])
        start = None if place is None else (int(place[0]), str(place[1]), int(place[2]))
        size = checks.page_size(limit, self._context.limits)
        return await self._context.backend.read(
            lambda tx: operations.failed_page(tx, of_session, after=start, limit=size)
        )

    async def redeliver(self, process_id: str) -> Process:
        """Start the process of a delivery that no worker or host has started. Idempotent.

        For operators. A payload that does not fit the subscription is `InvalidRequest`.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.Run("nightly-report")
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15").deliveries
        >>> store.triggers.redeliver(delivery.process_id).status
        'running'
        """
        context = self._context
        checked = context.identifier("process_id", process_id)
        process = await context.backend.write(
            lambda tx: process_operations.redeliver(tx, checked, context.limits), idempotent=True, heavy=True
        )
        context.log_remedy("process %(process_id)s was redelivered", process_id=checked)
        return process

    async def wait_undelivered(self, *, timeout_ms: int) -> None:
        """Return once a delivery whose target is a `Run` waits to be started; `WaitTimeout` if none comes in time.

        Does not poll.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.Run("nightly-report")
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> _ = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15")
        >>> store.triggers.wait_undelivered(timeout_ms=1000)
        """

        async def offered(tx: Transaction) -> tuple[bool, int | None]:
            return await operations.has_undelivered_run(tx), None

        async def check() -> tuple[bool | None, int | None]:
            found, _ = await self._context.backend.read(offered)
            return (True if found else None), None

        await self._context.wait_until(operations.NEW_RUNS, check, timeout_ms, "an undelivered run", offered=offered)

    async def occurrences(self, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE) -> Page[Occurrence]:
        """Return one page of occurrences by id, which is not an order in time.

        >>> _ = store.triggers.record("cron", "daily", idempotency_key="2026-11-15")
        >>> [one.idempotency_key for one in store.triggers.occurrences()]
        ['2026-11-15']
        """
        place = checks.cursor("occurrences", after, [str])
        size = checks.page_size(limit, self._context.limits)
        start = "" if place is None else str(place[0])
        return await self._context.backend.read(lambda tx: operations.occurrences_page(tx, after=start, limit=size))

    async def deliveries(
        self, occurrence_id: str, *, after: str | None = None, limit: int = checks.DEFAULT_PAGE
    ) -> Page[TriggerDelivery]:
        """Return one page of an occurrence's deliveries in any state, in the order of their subscriptions.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.External()
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> emission = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15")
        >>> [one.state for one in store.triggers.deliveries(emission.occurrence.occurrence_id)]
        ['reserved']
        """
        checked = self._context.identifier("occurrence_id", occurrence_id)
        place = checks.cursor("deliveries", after, [int])
        size = checks.page_size(limit, self._context.limits)
        start = 0 if place is None else int(place[0])
        return await self._context.backend.read(
            lambda tx: operations.deliveries_page(tx, checked, after=start, limit=size)
        )

    async def restore(self, subscription: Subscription) -> RestoreReceipt:
        """Register a subscription of another store under its own number, enabled or not, with its times.

        The same subscription again is a replay; a number that another subscription has here is a `Conflict`.

        >>> with holdfast.open_blocking("memory:") as other:
        ...     draft = holdfast.triggers.SubscriptionDraft(source_type="cron", target=holdfast.processes.External())
        ...     _ = other.triggers.subscribe(draft)
        ...     second = other.triggers.subscribe(draft)
        >>> store.triggers.restore(second).replayed, [one.handle for one in store.triggers.list()]
        (False, ['trigger:2'])
        """
        row, heavy = await self._context.prepared(
            restoring_rules.check_subscription, subscription, self._context.limits
        )
        return await self._context.backend.write(
            lambda tx: restoring.subscription(tx, row), idempotent=True, heavy=heavy
        )

    async def restore_occurrence(
        self, occurrence: Occurrence, deliveries: Sequence[TriggerDelivery] = ()
    ) -> RestoreReceipt:
        """Record an occurrence of another store at its own time, with its deliveries as they stand there.

        Restore their subscriptions first. Reserves no further deliveries.

        >>> with holdfast.open_blocking("memory:") as other:
        ...     occurrence = other.triggers.record("cron", "daily", idempotency_key="2026-11-15")
        >>> store.triggers.restore_occurrence(occurrence).replayed
        False
        >>> store.triggers.record("cron", "daily", idempotency_key="2026-11-15") == occurrence
        True
        """
        (row, states), heavy = await self._context.prepared(
            restoring_rules.check_occurrence, occurrence, deliveries, self._context.limits
        )
        return await self._context.backend.write(
            lambda tx: restoring.occurrence(tx, row, states), idempotent=True, heavy=heavy
        )

    async def mark_started(self, delivery: TriggerDelivery) -> TriggerDelivery:
        """Record that a delivery's process runs. Registering the process records it, too.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.External()
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15").deliveries
        >>> store.triggers.mark_started(delivery).state
        'started'
        """
        return await self._move(delivery, "started", None)

    async def mark_failed(self, delivery: TriggerDelivery, reason: str) -> TriggerDelivery:
        """Record that a delivery cannot be started, and why. One that started stays started.

        >>> draft = holdfast.triggers.SubscriptionDraft(
        ...     source_type="cron", source_key="daily", target=holdfast.processes.External()
        ... )
        >>> _ = store.triggers.subscribe(draft)
        >>> (delivery,) = store.triggers.emit("cron", "daily", idempotency_key="2026-11-15").deliveries
        >>> store.triggers.mark_failed(delivery, "the payload does not fit").state
        'failed'
        """
        return await self._move(delivery, "failed", checks.text("reason", reason, self._context.limits))

    async def _move(self, delivery: object, state: str, failure: str | None) -> TriggerDelivery:
        given = checks.instance("delivery", delivery, TriggerDelivery)
        limits = self._context.limits
        occurrence = checks.instance("delivery.occurrence", given.occurrence, Occurrence)
        subscription = checks.instance("delivery.subscription", given.subscription, Subscription)
        occurrence_id = checks.identifier("delivery.occurrence.occurrence_id", occurrence.occurrence_id, limits)
        name = subscription.subscription_id
        sequence = rules.sequence_of("delivery.subscription.subscription_id", name, "subscription:", limits)
        return await self._context.backend.write(
            lambda tx: operations.move(tx, occurrence_id, sequence, name, state, failure)
        )
