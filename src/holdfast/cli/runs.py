"""The commands that show a run, and run a recorded one again without effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.commands import Command, argument
from holdfast.cli.running import Call
from holdfast.cli.terminal import gist, moment, shown

if TYPE_CHECKING:
    from holdfast import BlockingStore, Worker
    from holdfast.records.processes import RunWait
    from holdfast.worker.facts import ChildFacts


def show(call: Call) -> int:
    """Show the facts of one run."""
    from holdfast.worker.facts import run_facts

    with call.store() as store:
        facts = run_facts(store, call.options.run)
    if call.options.json:
        call.terminal.json(facts)
        return 0
    process = facts.process
    call.terminal.fields(
        [
            ("run", process.id),
            ("kind", process.identity.kind),
            ("status", process.status),
            ("outcome", None if process.outcome is None else gist(process.outcome)),
            ("waits for", "; ".join(_waits(one) for one in facts.waits) or None),
            ("attempt", process.attempt or None),
            ("last error", process.last_error),
            ("continued as", process.continued_as),
            ("retries", facts.retries),
            ("retried as", facts.retried_as),
            ("children", ", ".join(_child(one) for one in facts.children) or None),
            ("rejected", "; ".join(f"signal {one.ordinal} of {one.error}" for one in facts.rejected) or None),
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


def _waits(wait: RunWait) -> str:
    until = None if wait.until_ms is None else f"until {moment(wait.until_ms)}"
    return " ".join(filter(None, [wait.kind, wait.name, until]))


def _child(child: ChildFacts) -> str:
    continued = "" if child.newest_id is None else f", continues as {child.newest_id}"
    return f"{child.id} ({child.status or 'gone'}{', detached' if child.detached else ''}{continued})"


def replay(call: Call) -> int:
    """Run a recorded run again without effects, and say where the code differs."""
    import msgspec

    from holdfast.cli.worker import shown_warnings, worker_at
    from holdfast.worker.replaying import replay as replayed

    worker = worker_at(call.options.app)
    with _store_of(call, worker) as store, shown_warnings(call.terminal):
        found = replayed(store, worker, call.options.run)
    if call.options.json:
        call.terminal.json({"ok": found.ok, **msgspec.structs.asdict(found)})
        return 0 if found.ok else 1
    call.terminal.fields(
        [
            ("run", found.run_id),
            ("handler", found.handler),
            ("recorded steps found", found.steps),
            ("stopped at", found.stopped_at),
        ]
    )
    for one in found.differences:
        place = "" if one.step is None else f" {shown(one.step)}"
        call.terminal.line((one.kind, "red"), f"{place}: {shown(one.problem)}")
    if found.ok:
        call.terminal.line(("ok", "green"))
    return 0 if found.ok else 1


def _store_of(call: Call, worker: Worker) -> BlockingStore:
    """Open the store that the command names, or the one that the worker names."""
    import msgspec

    place = worker.own_place
    if call.is_store_named or place is None:
        return call.store()
    url, options = place
    usual = call.settings(url, migrate=False)  # refuses a store in memory
    settings = usual if options is None else msgspec.structs.replace(options, migrate=False)
    return call.open(url, settings, call.options.attachments)


COMMANDS = (
    Command(
        "runs show",
        "show a run's waits and steps",
        show,
        (argument("run", metavar="ID", help="the id of the run"),),
        ("holdfast runs show research-1", "holdfast runs show research-1 --json"),
        "An object: `process` (a `Process`), `waits` (a list of `kind`, `name`, `until_ms`), `steps` (`name`,\n"
        "`state`, `attempt`, `took_ms`, `error`, `at_ms`, `next_at_ms`), `worker` (a `LeaseHolder` or null),\n"
        "`children` (`id`, `status`, `newest_id`, `detached`), `journal` (`events`, `size_bytes`, `most_events`,\n"
        "`most_bytes`), `retries` and `retried_as` (the id of a run, or null), `rejected` (signals that are not of\n"
        "the declared type: `name`, `ordinal`, `error`, `at_ms`).",
    ),
    Command(
        "runs replay",
        "replay a recorded run without side effects",
        replay,
        (
            argument("run", metavar="ID", help="the id of the run"),
            argument("--app", metavar="MODULE:NAME", required=True, help="a `holdfast.Worker`, such as app:worker"),
        ),
        ("holdfast runs replay research-1 --app app:worker", "holdfast runs replay research-1 --app app:worker --json"),
        "An object: `ok`, `run_id`, `handler`, `steps`, `stopped_at` (text or null), `differences` (`kind`:\n"
        "`conflict`, `not recorded`, `not asked for` or `other end`; `step`; `problem`).",
        "The store is that of --url or HOLDFAST_URL, or else the one that the program names.\n"
        "Steps return their recorded results and are not called. Code between steps runs. Nothing is written.\n"
        "The exit code is 1 if the code differs from the record. Replay runs with changed code before you deploy it.",
    ),
)
