"""The command that shows a run: its wait, its steps, its worker and its children."""

from __future__ import annotations

from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call
from holdfast.cli.terminal import gist, moment


def show(call: Call) -> int:
    """Show the facts of one run."""
    from holdfast.worker.facts import run_facts

    with call.store() as store:
        facts = run_facts(store, call.options.run)
    if call.options.json:
        call.terminal.json(facts)
        return 0
    process, wait = facts.process, facts.wait
    until = None if wait is None else moment(wait.until_ms)
    call.terminal.fields(
        [
            ("run", process.id),
            ("kind", process.identity.kind),
            ("status", process.status),
            ("outcome", None if process.outcome is None else gist(process.outcome)),
            (
                "waits for",
                None if wait is None else " ".join(filter(None, [wait.kind, wait.name, until and f"until {until}"])),
            ),
            ("attempt", process.attempt or None),
            ("last error", process.last_error),
            ("continued as", process.continued_as),
            ("children", ", ".join(f"{one.id} ({one.status or 'gone'})" for one in facts.children) or None),
            ("journal", f"{facts.journal.events} of {facts.journal.most_events} events"),
        ]
    )
    call.terminal.table(
        ("step", "state", "attempt", "took ms", "error", "at"),
        [
            (one.name, one.state, one.attempt, one.took_ms, one.error and gist(one.error), moment(one.at_ms))
            for one in facts.steps
        ],
    )
    return 0


COMMANDS = (
    Command(
        "runs show",
        "show what a run waits for, and its steps",
        show,
        (argument("run", metavar="ID", help="the id of the run"),),
        ("holdfast runs show research-1", "holdfast runs show research-1 --json"),
        "An object: `process` (a `Process`), `wait` (`kind`, `name`, `until_ms`, or null), `steps` (`name`, `state`,\n"
        "`attempt`, `took_ms`, `error`, `at_ms`, `next_at_ms`), `worker` (a `LeaseHolder` or null), `children` (`id`,\n"
        "`status`), `journal` (`events`, `size_bytes`, `most_events`, `most_bytes`).",
    ),
)
