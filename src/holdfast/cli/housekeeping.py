"""Housekeeping commands: ask before they remove anything, work in bounded steps, and report the counts."""

from __future__ import annotations

import holdfast
from holdfast.cli.commands import YES, Command, argument, duration_ms, whole
from holdfast.cli.running import Call, Misused
from holdfast.cli.sessions import require_session, show_report
from holdfast.cli.terminal import counted
from holdfast.cli.why import command_line

STEP_ROWS = 10_000


def collect(call: Call) -> int:
    """Delete unreachable blobs and nodes."""
    with call.store() as store:
        call.confirm("Delete unreachable blobs and nodes?")
        with call.terminal.progress("collecting garbage of families") as progress:
            report = store.maintenance.collect_garbage(progress=progress.tell)
    show_report(call, report)
    return 0


def vacuum(call: Call) -> int:
    """Remove the content of tombstoned nodes."""
    session_id: str | None = call.options.session
    with call.store() as store:
        if session_id is not None:
            require_session(store, session_id)
        call.confirm("Erase the content of tombstoned nodes? It cannot be restored")
        with call.terminal.progress("vacuuming nodes") as progress:
            report = store.maintenance.vacuum(session_id, progress=progress.tell)
    show_report(call, report)
    return 0


def prune(call: Call) -> int:
    """Forget what a retention policy allows."""
    given = call.options
    policy = holdfast.RetentionPolicy(
        keep_revisions=given.keep_revisions,
        settled_batches_older_than_ms=given.settled_batches,
        terminal_processes_older_than_ms=given.ended_processes,
        occurrences_older_than_ms=given.occurrences,
    )
    if policy == holdfast.RetentionPolicy():
        raise Misused("name what to forget: add --keep-revisions, --settled-batches, …")
    with call.store() as store:
        foreseen = store.maintenance.prune(policy, dry_run=True)
        if given.dry_run:
            show_report(call, foreseen)
            return 0
        call.confirm(
            f"Forget {foreseen.revisions} revisions, {foreseen.batches} settled batches, "
            f"{foreseen.processes} ended processes and {foreseen.occurrences} occurrences?"
        )
        show_report(call, _prune(call, store, policy, foreseen))
    return 0


def _prune(
    call: Call,
    store: holdfast.BlockingStore,
    policy: holdfast.RetentionPolicy,
    foreseen: holdfast.maintenance.PruneReport,
) -> holdfast.maintenance.PruneReport:
    total = holdfast.maintenance.PruneReport(dry_run=False, complete=False)
    with call.terminal.progress("pruning", _rows(foreseen)) as progress:
        while not total.complete:
            step = store.maintenance.prune(policy, max_rows=STEP_ROWS)
            progress.step(_rows(step))
            total = holdfast.maintenance.PruneReport(
                dry_run=False,
                revisions=total.revisions + step.revisions,
                batches=total.batches + step.batches,
                processes=total.processes + step.processes,
                events=total.events + step.events,
                occurrences=total.occurrences + step.occurrences,
                deliveries=total.deliveries + step.deliveries,
                complete=step.complete,
            )
    return total


def _rows(report: holdfast.maintenance.PruneReport) -> int:
    return report.revisions + report.batches + report.processes + report.occurrences


def verify(call: Call) -> int:
    """Read everything and list the damage."""
    terminal = call.terminal
    with call.store() as store, terminal.progress("verifying rows") as progress:
        report = store.maintenance.verify(progress=progress.tell)
    if call.options.json:
        import msgspec

        terminal.json({"ok": report.ok, **msgspec.structs.asdict(report)})
        return 0 if report.ok else 1
    checked = [name for name in report.__struct_fields__ if name.startswith("checked_")]
    terminal.fields((name.removeprefix("checked_"), getattr(report, name)) for name in checked)
    _report_unread(call, report)
    for finding in report.findings:
        terminal.line((f"{finding.table} {finding.key}: {finding.problem}", "red"))
    if report.ok:
        terminal.line(("ok", "green"))
    else:
        terminal.line(f"{counted(len(report.findings), 'finding')}: restore what is damaged from a backup")
    return 0 if report.ok else 1


def _report_unread(call: Call, report: holdfast.maintenance.VerifyReport) -> None:
    if report.unread_attachments:
        count = counted(report.unread_attachments, "attachment")
        call.terminal.line(
            (f"not read: {count} outside of the database, name their folder with --attachments", "yellow")
        )
    if report.foreign_attachments:
        count = counted(report.foreign_attachments, "attachment")
        call.terminal.line((f"not read: {count} at URIs outside the store, which it cannot read", "yellow"))


def doctor(call: Call) -> int:
    """List dangers to the store and their remedies."""
    try:
        with call.store() as store, call.terminal.waiting("examining"):
            diagnosis = store.maintenance.diagnose(integrity=not call.options.quick)
    except holdfast.errors.SchemaMissing as behind:
        if behind.found == 0:
            raise
        problem = f"the store has schema version {behind.found}, this program {behind.known}"
        diagnosis = holdfast.maintenance.Diagnosis(
            (holdfast.maintenance.Concern("warning", "schema-behind", problem, "run holdfast migrate"),)
        )
    if call.options.json:
        found = {"concerns": diagnosis.concerns, "facts": diagnosis.facts, "stuck": diagnosis.stuck}
        call.terminal.json({"ok": diagnosis.ok, **found})
        return 0 if diagnosis.ok else 1
    for concern in diagnosis.concerns:
        style = "red" if concern.level == "danger" else "yellow"
        call.terminal.line((concern.level, style), f"  {concern.name}: {concern.problem}")
        call.terminal.line(f"         {concern.advice}")
        for id in concern.ids:
            call.terminal.line(f"         {command_line(call, ('why', id))}")
    if diagnosis.ok:
        call.terminal.line(("ok", "green"))
    return 0 if diagnosis.ok else 1


COMMANDS = (
    Command(
        "gc",
        "delete unreachable blobs and nodes",
        collect,
        (YES,),
        ("holdfast gc", "holdfast gc --yes --json"),
        "A `GarbageReport`.",
        "Asks first. Safe beside other programs.",
    ),
    Command(
        "vacuum",
        "delete the content of tombstoned nodes",
        vacuum,
        (argument("--session", metavar="SESSION", help="only of this session"), YES),
        ("holdfast vacuum --session chat-42 --yes",),
        "A `VacuumReport`.",
        "Asks first. The ids stay used. The content cannot be restored.",
    ),
    Command(
        "prune",
        "delete old revisions, settled work and ended processes",
        prune,
        (
            argument("--keep-revisions", metavar="N", type=whole, help="revisions of each session to keep"),
            argument("--settled-batches", metavar="TIME", type=duration_ms, help="delete settled work older than this"),
            argument(
                "--ended-processes", metavar="TIME", type=duration_ms, help="delete processes that ended longer ago"
            ),
            argument("--occurrences", metavar="TIME", type=duration_ms, help="delete occurrences older than this"),
            argument("--dry-run", action="store_true", help="only show what would be deleted"),
            YES,
        ),
        (
            "holdfast prune --keep-revisions 50 --dry-run",
            "holdfast prune --settled-batches 30d --ended-processes 30d --yes",
        ),
        "A `PruneReport`.",
        "Asks first, unless --dry-run. A turn id, source key or idempotency key can be used again once its row is\n"
        "deleted.",
    ),
    Command(
        "verify",
        "read everything and report damage",
        verify,
        (),
        ("holdfast verify --url agent.db", "holdfast verify --json | jq .ok"),
        "An object: `ok`, and every field of `VerifyReport`.",
        "The exit code is 1 if anything is wrong. Writes nothing, and blocks no other program.\n"
        "Attachment bytes outside the database are read only if --attachments names their folder: without it, they\n"
        "are counted as `unread_attachments`, and ok does not cover them. `foreign_attachments` are stored elsewhere.",
    ),
    Command(
        "doctor",
        "report dangerous settings and states, with remedies",
        doctor,
        (argument("--quick", action="store_true", help="do not read a whole SQLite file to check its pages"),),
        ("holdfast doctor --url agent.db", "holdfast doctor --json | jq -r '.concerns[].name'"),
        "An object: `ok`, `concerns` (each with `level`, `name`, `problem`, `advice`, `ids`), `facts` (`StoreFacts`)\n"
        "and `stuck` (a `StuckItems`), both null if they cannot be read.",
        "The exit code is 1 if there is a danger or a warning. Only\n"
        "`store.maintenance.diagnose()` in your program sees the settings of its connections (SQLite's synchronous).",
    ),
)
