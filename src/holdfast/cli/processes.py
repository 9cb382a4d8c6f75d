"""Commands that show processes, signal them, ask them to stop and retry them. Only its runner ends a process."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import AFTER, LIMIT, PAGE, PAGE_JSON, PROCESS, YES, Command, argument, document
from holdfast.cli.running import Call
from holdfast.cli.sessions import require_session, show_page
from holdfast.cli.terminal import gist, moment

STATUSES = ("running", "completed", "failed", "cancelled", "abandoned", "any")


def list_processes(call: Call) -> int:
    """List one page of processes."""
    given = call.options
    with call.store() as store:
        page = store.processes.list(
            status=given.status,
            waiting=True if given.waiting else None,
            started_by=given.started_by,
            after=given.after,
            limit=given.limit,
        )
        if not page.items and given.after is None and given.started_by is not None:
            _require_starter(store, given.started_by)
        holders = {} if given.json else {one.id: _holder(store, one) for one in page}
    return show_page(
        call,
        page,
        ("process", "kind", "status", "waits for", "due", "attempt", "held by", "last error", "events", "updated"),
        [
            (
                one.id,
                _kind(one),
                one.status,
                None if one.wait is None else f"{one.wait.event_type} #{one.wait.ordinal}",
                moment(one.due_at_ms),
                one.attempt or None,
                holders.get(one.id),
                None if one.last_error is None else gist(one.last_error),
                one.event_count,
                moment(one.updated_at_ms),
            )
            for one in page
        ],
    )


def _kind(process: holdfast.processes.Process) -> str:
    """Return the kind of a process; of a run, with its version."""
    run = process.input
    return f"{run.kind} {run.version}" if isinstance(run, holdfast.processes.Run) else process.identity.kind


def _holder(store: holdfast.BlockingStore, process: holdfast.processes.Process) -> str | None:
    """Return the owner of the lease on a run that a worker may be running."""
    if process.attempt == 0 or process.is_terminal:
        return None
    lease = store.leases.holder(holdfast.leases.OnProcess(process.id))
    return None if lease is None else lease.owner_id


def _require_starter(store: holdfast.BlockingStore, session_id: str) -> None:
    # A session that only started processes may have no rows of its own in this store.
    if not store.processes.list(status="any", started_by=session_id, limit=1).items:
        require_session(store, session_id)


def require(store: holdfast.BlockingStore, process_id: str) -> holdfast.processes.Process:
    """Return the process, or raise `UnknownProcess`."""
    process = store.processes.get(process_id)
    if process is None:
        raise holdfast.UnknownProcess(process_id)
    return process


def show(call: Call) -> int:
    """Show one process, its lease and its grants."""
    process_id: str = call.options.process
    with call.store() as store:
        process = require(store, process_id)
        lease = store.leases.holder(holdfast.leases.OnProcess(process_id))
        grants = store.grants.of_process(process_id, limit=1000).items
    if call.options.json:
        call.terminal.json({"process": process, "lease": lease, "grants": grants})
        return 0
    wait, target = process.wait, process.wake_target
    call.terminal.fields(
        [
            ("process", process.id),
            ("kind", _kind(process)),
            ("label", process.identity.label),
            ("status", process.status),
            ("outcome", None if process.outcome is None else gist(process.outcome)),
            ("waits for", None if wait is None else f"{wait.event_type} #{wait.ordinal} since {moment(wait.since_ms)}"),
            ("due", moment(process.due_at_ms)),
            ("asleep", "until it is due or gets a signal" if process.suspended else None),
            ("attempt", process.attempt or None),
            ("last error", process.last_error),
            ("recovery", process.recovery),
            ("lost", process.lost_owner_id),
            ("events", process.event_count),
            ("event types", ", ".join(kind.name for kind in process.event_types) or None),
            ("wakes", None if target is None else target.session_id),
            (
                "runs at",
                None if process.external_ref is None else f"{process.external_ref.backend} {process.external_ref.id}",
            ),
            ("lease", None if lease is None else f"{lease.owner_id} until {moment(lease.expires_at_ms)}"),
            ("held by", ", ".join(grant.scope.session_id for grant in grants) or None),
            ("created", moment(process.created_at_ms)),
            ("updated", moment(process.updated_at_ms)),
        ]
    )
    return 0


def events(call: Call) -> int:
    """List a process's log."""
    given = call.options
    start: int | str = 0 if given.after is None else given.after
    if isinstance(start, str) and start.isascii() and start.isdigit():
        start = int(start)
    with call.store() as store:
        require(store, given.process)
        page = store.events.after(given.process, start, type=given.type, limit=given.limit)
    return show_page(
        call,
        page,
        ("#", "type", "payload", "wakes", "at"),
        [
            (
                one.sequence,
                one.type,
                gist(one.payload),
                None if one.wake is None else ("acknowledged" if one.acknowledged else "yes"),
                moment(one.occurred_at_ms),
            )
            for one in page
        ],
    )


def signal(call: Call) -> int:
    """Send a signal to a process."""
    given = call.options
    with call.store() as store:
        run = store.processes.handle(given.process)  # which also finds the run that continues it
        receipt = run.signal(given.name, given.payload, replay_key=given.replay_key)
    return _show_receipt(call, receipt)


def cancel(call: Call) -> int:
    """Ask a process to stop."""
    given = call.options
    with call.store() as store:
        process = require(store, given.process)
        if process.is_terminal and process.continued_as is None:
            raise holdfast.AlreadyTerminal(process.id, process.status)
        call.confirm(f"Ask process {given.process!r} to stop?")
        receipt = store.processes.handle(given.process).cancel(reason=given.reason)
    return _show_receipt(call, receipt)


def retry(call: Call) -> int:
    """Run again what ended without a result, as a new run."""
    with call.store() as store:
        process = require(store, call.options.process)
        if process.is_retryable:
            lost = ", whose effects are unknown" if process.status == "abandoned" else ""
            call.confirm(f"Retry run {process.id!r} ({process.status}{lost}) as a new run with its recorded steps?")
        started = store.processes.retry(process.id)
    if call.options.json:
        call.terminal.json({"process": started.process, "created": started.created})
    else:
        again = "" if started.created else " (it was retried before)"
        call.terminal.line(f"retried {process.id} as {started.id}{again}")
    return 0


def _show_receipt(call: Call, receipt: holdfast.events.AppendReceipt) -> int:
    if call.options.json:
        call.terminal.json(receipt)
    else:
        again = " (it was there already)" if receipt.replayed else ""
        call.terminal.line(f"{receipt.event.type} #{receipt.event.sequence} of {receipt.event.process_id}{again}")
    return 0


COMMANDS = (
    Command(
        "processes list",
        "list processes",
        list_processes,
        (
            argument("--status", choices=STATUSES, default="running", help="only those (default running)"),
            argument("--waiting", action="store_true", help="only processes that wait for a signal"),
            argument("--started-by", metavar="SESSION", help="only processes that this session started"),
            *PAGE,
        ),
        ("holdfast processes list", "holdfast processes list --status any --json"),
        f"{PAGE_JSON} An item is a `Process`.",
    ),
    Command(
        "processes show",
        "show one process",
        show,
        (PROCESS,),
        ("holdfast processes show build-7",),
        "An object: `process` (a `Process`), `lease` (a `LeaseHolder` or null), `grants` (at most 1000).",
    ),
    Command(
        "processes events",
        "list a process's log",
        events,
        (PROCESS, argument("--type", metavar="TYPE", help="only events of this type"), LIMIT, AFTER),
        ("holdfast processes events build-7", "holdfast processes events build-7 --type progress --after 20"),
        f"{PAGE_JSON} An item is a `ProcessEvent`.",
        "--after also takes a sequence number. To follow a log, use tail.",
    ),
    Command(
        "processes signal",
        "send a signal to a process",
        signal,
        (
            PROCESS,
            argument("name", metavar="NAME", help="the signal's name, without `signal.`"),
            argument("--payload", metavar="JSON", type=document, help="the signal's payload: JSON, or @file"),
            argument("--replay-key", metavar="KEY", help="send it once, however often this is run"),
        ),
        ('holdfast processes signal build-7 approve --payload \'{"by": "ada"}\' --replay-key approve-1',),
        "An `AppendReceipt`.",
    ),
    Command(
        "processes cancel",
        "ask a process to stop",
        cancel,
        (PROCESS, argument("--reason", metavar="TEXT", help="why"), YES),
        ('holdfast processes cancel build-7 --reason "too late" --yes',),
        "An `AppendReceipt`.",
        "Asks first. The process ends when its runner handles the request.",
    ),
    Command(
        "processes retry",
        "retry a failed run as a new run with the recorded steps",
        retry,
        (PROCESS, YES),
        ("holdfast processes retry research-1 --yes",),
        "An object: `process` (the new `Process`) and `created` (false if it was retried before).",
        "Asks first. For runs that failed, were cancelled or abandoned. Runs below it are retried, too, unless they\n"
        "were abandoned. Steps that have a result do not run again.",
    ),
)
