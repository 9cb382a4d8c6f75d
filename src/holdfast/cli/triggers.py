"""Commands that list, fire and disable triggers. Starting the reserved processes is left to the runtime."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import PAGE, PAGE_JSON, PROCESS, YES, Command, argument, document
from holdfast.cli.ids import similar, with_suggestions
from holdfast.cli.running import Call, Misused, Refused
from holdfast.cli.sessions import require_session, show_page
from holdfast.cli.terminal import moment


def list_triggers(call: Call) -> int:
    """List one page of subscriptions, or of deliveries whose process was never registered."""
    given = call.options
    filters = {"--source-type": given.source_type, "--source-key": given.source_key}
    named = [name for name, value in filters.items() if value is not None]
    if given.undelivered and given.failed:
        raise Misused("--undelivered and --failed are two lists: name one of them")
    if (given.undelivered or given.failed) and named:
        word = "--failed" if given.failed else "--undelivered"
        raise Misused(f"{word} lists deliveries of every source: leave out {' and '.join(named)}")
    with call.store() as store:
        if given.undelivered or given.failed:
            listed = store.triggers.failed if given.failed else store.triggers.undelivered
            waiting = listed(session_id=given.session, after=given.after, limit=given.limit)
            if not waiting.items and given.after is None and given.session is not None:
                require_session(store, given.session)
            return show_page(
                call,
                waiting,
                ("process", "subscription", "source", "key", "reserved", *(["error"] if given.failed else [])),
                [
                    (
                        one.process_id,
                        one.subscription.handle,
                        f"{one.occurrence.source_type}/{one.occurrence.source_key}",
                        one.occurrence.idempotency_key,
                        moment(one.reserved_at_ms),
                        *([one.failure] if given.failed else []),
                    )
                    for one in waiting
                ],
            )
        page = store.triggers.list(
            session_id=given.session,
            source_type=given.source_type,
            source_key=given.source_key,
            after=given.after,
            limit=given.limit,
        )
        if not page.items and given.after is None and given.session is not None:
            require_session(store, given.session)
    return show_page(
        call,
        page,
        ("handle", "name", "source", "starts", "registrant", "enabled", "created"),
        [
            (
                one.handle,
                one.draft.name,
                f"{one.draft.source_type}/{one.source_key}",
                start_of(one.draft.target),
                _registrant(one.draft.registrant),
                one.enabled,
                moment(one.created_at_ms),
            )
            for one in page
        ],
    )


def start_of(target: holdfast.processes.ProcessInput) -> str:
    """Return what a delivery starts: a run by its kind, another process by its type."""
    if isinstance(target, holdfast.processes.Run):
        return f"run {target.kind}"
    return str(target.__struct_config__.tag).replace("_", " ")


def _registrant(originator: holdfast.processes.Originator) -> str:
    return "host" if isinstance(originator, holdfast.processes.Host) else originator.scope.session_id


def emit(call: Call) -> int:
    """Record an occurrence and reserve its deliveries."""
    given = call.options
    with call.store() as store:
        emission = store.triggers.emit(
            given.source_type, given.source_key, idempotency_key=given.key, payload=given.payload
        )
    if given.json:
        call.terminal.json(emission)
        return 0
    again = " (it was recorded already)" if emission.replayed else ""
    call.terminal.line(f"{emission.occurrence.occurrence_id}{again}: {len(emission.deliveries)} deliveries reserved")
    for delivery in emission.deliveries:
        call.terminal.line(f"  {delivery.process_id}  {delivery.subscription.handle}")
    if emission.next is not None:
        call.terminal.line("  and more: see holdfast triggers list --undelivered")
    return 0


def cancel(call: Call) -> int:
    """Disable one subscription."""
    handle: str = call.options.handle
    with call.store() as store:
        found = store.triggers.list(handle=handle).items
        if not found or not found[0].enabled:
            unknown = f"there is no enabled subscription {handle!r}: see holdfast triggers list"
            raise Refused(with_suggestions(unknown, similar(call, "subscriptions", handle)))
        call.confirm(f"Cancel subscription {handle!r}?")
        cancelled = store.triggers.cancel(handle, registrant=found[0].draft.registrant)
    if not cancelled:
        raise Refused(f"subscription {handle!r} was cancelled meanwhile")
    if call.options.json:
        call.terminal.json({"handle": handle, "cancelled": True})
    else:
        call.terminal.line(f"cancelled {handle}")
    return 0


def redeliver(call: Call) -> int:
    """Start the process of a delivery."""
    with call.store() as store:
        call.confirm(f"Start process {call.options.process!r}?")
        try:
            process = store.triggers.redeliver(call.options.process)
        except holdfast.UnknownProcess:
            if store.processes.get(call.options.process) is None:
                raise
            raise Refused(
                f"no trigger started process {call.options.process!r}: see holdfast triggers list --undelivered"
            ) from None
    if call.options.json:
        call.terminal.json(process)
    else:
        call.terminal.line(f"started {process.id} ({process.status})")
    return 0


COMMANDS = (
    Command(
        "triggers list",
        "list subscriptions, or deliveries that were never started",
        list_triggers,
        (
            argument("--undelivered", action="store_true", help="list deliveries whose process was never registered"),
            argument("--failed", action="store_true", help="list deliveries whose process could not be started"),
            argument("--session", metavar="SESSION", help="only subscriptions of this session, or deliveries to them"),
            argument("--source-type", metavar="TYPE", help="only subscriptions to this type of source"),
            argument("--source-key", metavar="KEY", help="only subscriptions to this source"),
            *PAGE,
        ),
        ("holdfast triggers list --source-type cron", "holdfast triggers list --undelivered --session chat-42"),
        f"{PAGE_JSON} An item is a `Subscription`, with `--undelivered` or `--failed` a `TriggerDelivery`.",
    ),
    Command(
        "triggers emit",
        "record that a source fired, and reserve its deliveries",
        emit,
        (
            argument("source_type", metavar="TYPE", help="the source's type"),
            argument("source_key", metavar="SOURCE", help="the source's key"),
            argument("--key", metavar="KEY", required=True, help="the idempotency key: one occurrence for each"),
            argument("--payload", metavar="JSON", type=document, help="the occurrence's payload: JSON, or @file"),
        ),
        ("holdfast triggers emit cron daily --key 2026-11-15",),
        "An `Emission`.",
        "Starts nothing: a runtime registers the processes of the deliveries.",
    ),
    Command(
        "triggers redeliver",
        "start the process of a delivery that was never started",
        redeliver,
        (PROCESS, YES),
        ("holdfast triggers redeliver trigger-process:8d2e… --yes",),
        "A `Process`.",
        "Asks first. The process id follows from the delivery, so the process starts once.",
    ),
    Command(
        "triggers cancel",
        "cancel a subscription",
        cancel,
        (argument("handle", metavar="HANDLE", help="the subscription's handle, as in triggers list"), YES),
        ("holdfast triggers cancel trigger:7 --yes",),
        "An object: `handle`, `cancelled`.",
        "Asks first. The subscription stays listed.",
    ),
)
